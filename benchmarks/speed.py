"""Training and evaluation speed at the paper's sizes, beside straightforward implementations.

    python benchmarks/speed.py [--matchers vse saf sgr] [--precision float32 bfloat16] [--growth] [--out FILE]

All run in turns in one process, ours in each number type, so that a ratio is fair whatever else the machine does; peak
memory is taken in one fresh process each. A share is the floating-point operations that cannot be avoided, divided by
the seconds, divided by the rate of a 2048-square matrix product in float32 measured in the same run.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import speed_local
import torch
from common import (
    PER_IMAGE,
    WORD,
    D,
    F,
    K,
    R,
    V,
    gemm_rate,
    in_its_own_process,
    make_batches,
    peak_memory,
    synthetic,
    timed,
)
from plain_vse import PlainVSE, plain_batch, plain_recall

from crcl.data.batches import Batch, Batches
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.losses import active_complementary
from crcl.matchers import VSE
from crcl.matchers.kernels.products import Precision
from crcl.methods.base import Learner
from crcl.metrics import retrieval
from crcl.retrieval.scoring import Scorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matchers", nargs="+", default=["vse", "saf", "sgr"], choices=["vse", "saf", "sgr"])
    parser.add_argument("--images", type=int, default=1000, help="evaluated by vse")
    parser.add_argument("--local-images", type=int, default=250, help="evaluated by saf and sgr")
    parser.add_argument("--steps", type=int, default=6, help="of training vse; saf and sgr take a third")
    parser.add_argument("--rounds", type=int, default=2, help="of evaluation")
    parser.add_argument("--precision", nargs="+", default=list(speed_local.TYPES), choices=list(speed_local.TYPES))
    parser.add_argument("--threads", type=int, help="cores to use; with 1 the processor's own time is told")
    parser.add_argument("--batch", type=int, default=K, help="pairs of a training step of saf and sgr")
    parser.add_argument("--captions", type=int, default=speed_local.EVALUATED, help="evaluated by saf and sgr")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out")
    parser.add_argument("--growth", action="store_true", help="also how evaluation of saf and sgr grows, at D 256")
    parser.add_argument("--profile", action="store_true", help="only where the time of saf and sgr's evaluation goes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.peak:
        print(peak(*options.peak))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    options.clock = time.process_time if options.threads == 1 else time.perf_counter
    lines = [f"{torch.get_num_threads()} threads", ""]
    for matcher in options.matchers:
        if options.profile:
            lines += speed_local.profile(matcher) if matcher != "vse" else []
        elif matcher == "vse":
            lines += vse(options)
        else:
            lines += speed_local.report(matcher, options)
    if options.growth:
        lines += [line for name in options.matchers if name != "vse" for line in speed_local.growth(name)]
    report = "\n".join(lines).rstrip()
    print(report)
    if options.out is not None:
        options.out.write_text(report + "\n", encoding="utf-8")


def vse(options: argparse.Namespace) -> list[str]:
    """The tables of VSE∞."""
    with tempfile.TemporaryDirectory() as folder:
        pairs, vocabulary = synthetic(Path(folder), options.images)
        lines = ["## VSE∞", "", *training(pairs, vocabulary, options), ""]
        lines += evaluation(pairs, vocabulary, options)
    if options.no_memory:
        return [*lines, ""]
    ours, plain = (in_its_own_process("--peak", "vse", kind) for kind in ("ours", "plain"))
    return [*lines, "", f"Peak memory of training: ours {ours:.2f} GiB, straightforward {plain:.2f} GiB.", ""]


class Ours:
    """This package's training step, loader included."""

    def __init__(self, batches: Batches, precision: Precision = "float32") -> None:
        self.batches = batches
        make = partial(VSE, features=F, vocabulary=V, embedding=D, word=WORD)
        self.learner = Learner(make, precision=precision)
        self.learner.reset()

    def step(self, numbers: np.ndarray, rng: np.random.Generator) -> Batch:
        batch = self.batches.make(numbers, rng)
        losses = active_complementary(self.learner.similarities(batch), torch.ones(len(batch)))
        self.learner.optimizer.step(losses, batch, 5e-4)
        return batch


class Plain:
    """The same step, straightforwardly."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.model = PlainVSE(features=F, vocabulary=V, embedding=D, word=WORD)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, weight_decay=0.01)

    def step(self, numbers: np.ndarray, rng: np.random.Generator) -> Batch:
        batch = plain_batch(self.batches, numbers, rng)
        loss = active_complementary(self.model(batch), torch.ones(len(batch))).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.optimizer.step()
        return batch


def training(pairs: Split, vocabulary: Vocabulary, options: argparse.Namespace) -> list[str]:
    batches = make_batches(pairs, vocabulary)
    rng = np.random.default_rng(1)
    contestants: dict[str, Ours | Plain] = {f"ours, {name}": Ours(batches, name) for name in options.precision}
    contestants["straightforward"] = plain = Plain(batches)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    rates, work = [], []
    for step in range(options.steps + 1):
        numbers = rng.permutation(len(pairs))[:K]
        rates.append(gemm_rate(clock=options.clock))
        for name, contestant in contestants.items():
            batch, took = timed(contestant.step, numbers, rng, clock=options.clock)
            if step:  # the first one warms up
                seconds[name].append(took)
            work.append(training_operations(batch))
    rate = float(np.median(rates))
    lines = [f"Training, {K} pairs a step, {R} x {F} regions, D {D}, GEMM {rate / 1e9:.0f} GFLOP/s:", ""]
    lines += ["| | pairs/s | share of GEMM rate | ratio, median | least to most |", "|---|---|---|---|---|"]
    for name, times in seconds.items():
        share = np.mean(work) / np.median(times) / rate
        ratios = np.array(seconds["straightforward"]) / np.array(times)
        told = f"{np.median(ratios):.2f} | {ratios.min():.2f} to {ratios.max():.2f}"
        ratio = " | " if contestants[name] is plain else told
        lines.append(f"| {name} | {K / np.median(times):.1f} | {share:.0%} | {ratio} |")
    return lines


def training_operations(batch: Batch) -> float:
    """Multiplications and additions of a step's matrix products; first layers need no gradient of their input."""
    rows = int(batch.region_mask.sum())
    image = 2 * rows * (2 * (F * D + F * D // 2) + 3 * (D // 2 * D))
    tokens, words = int(batch.lengths.sum()) - len(batch), len(batch.tokens.unique())
    text = 3 * 2 * 2 * (tokens * D * 3 * D + words * WORD * 3 * D)
    return float(image + text)


def evaluation(pairs: Split, vocabulary: Vocabulary, options: argparse.Namespace) -> list[str]:
    ours = VSE(features=F, vocabulary=V, embedding=D, word=WORD).eval()
    plain = PlainVSE(features=F, vocabulary=V, embedding=D, word=WORD).eval()
    plain.load_state_dict(ours.state_dict())
    works = {
        f"ours, {name}": partial(Scorer(ours, vocabulary, dtype=speed_local.TYPES[name]).similarities, pairs)
        for name in options.precision
    }
    works["straightforward"] = partial(plain_similarities, plain, pairs, vocabulary)
    encoding: dict[str, list[float]] = {name: [] for name in works}
    ranking: dict[str, list[float]] = {name: [] for name in works}
    found = {}
    for _ in range(options.rounds):
        for name, work in works.items():
            found[name], took = timed(work, clock=options.clock)
            encoding[name].append(took)
            rank = plain_recall if name == "straightforward" else retrieval
            given = PER_IMAGE if name == "straightforward" else pairs.image_index
            ranking[name].append(timed(rank, found[name], given, clock=options.clock)[1])
    expected = found.pop("straightforward")
    for name, sims in found.items():
        if np.abs(sims - expected).max() > (1e-4 if "float32" in name else 0.02):
            raise SystemExit(f"the implementations disagree: {name}")
    total = {name: min(encoding[name]) + min(ranking[name]) for name in works}
    return [
        f"Evaluation of {len(pairs):,} captions against {pairs.images:,} images:",
        "",
        "| | encoding and similarities, s | ranking, s | ratio |",
        "|---|---|---|---|",
        *(
            f"| {name} | {min(encoding[name]):.2f} | {min(ranking[name]):.2f} | {total['straightforward'] / took:.2f} |"
            for name, took in total.items()
        ),
    ]


@torch.inference_mode()
def plain_similarities(model: PlainVSE, pairs: Split, vocabulary: Vocabulary) -> np.ndarray:
    tokens = vocabulary.encode(pairs.captions)
    images, texts = [], []
    for start in range(0, pairs.images, K):
        regions = torch.from_numpy(pairs.gather(np.arange(start, min(start + K, pairs.images))))
        images.append(model.images(regions, torch.ones(regions.shape[:2], dtype=torch.bool)))
    for start in range(0, len(pairs), K):
        rows = [torch.from_numpy(tokens[n].astype(np.int64)) for n in range(start, min(start + K, len(pairs)))]
        lengths = torch.tensor([len(row) for row in rows])
        texts.append(model.texts(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths))
    return (torch.cat(images) @ torch.cat(texts).T).numpy()


def peak(matcher: str, kind: str, images: str = "300") -> float:
    """Peak memory in GiB of a few training steps, or of an evaluation, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        if matcher != "vse":
            return speed_local.peak(matcher, kind, int(images), Path(folder))
        batches = make_batches(*synthetic(Path(folder), int(images)))
        contestant = Ours(batches) if kind == "ours" else Plain(batches)
        for seed in range(3):
            contestant.step(np.arange(K), np.random.default_rng(seed))
        return peak_memory()


if __name__ == "__main__":
    main()
