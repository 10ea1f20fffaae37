"""Training and evaluation speed of VSE∞ at the paper's sizes, beside a straightforward implementation.

    python benchmarks/speed.py [--out docs/results/speed.md]

Both run in turns in one process, so that a ratio is fair whatever else the machine does; peak memory is taken in one
fresh process each. A share is the floating-point operations that cannot be avoided, divided by the seconds, divided by
the rate of a 2048-square matrix product measured in the same run.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_vse import PlainVSE, plain_batch, plain_recall

from crcl.data.batches import Batch, Batches
from crcl.data.pairs import Pairs
from crcl.data.vocab import Vocabulary
from crcl.losses import active_complementary
from crcl.matchers import VSE
from crcl.methods.base import Learner
from crcl.metrics import retrieval
from crcl.score import Scorer

K, R, F, D, WORD, V = 128, 36, 2048, 1024, 300, 8482
PER_IMAGE = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2, help="of evaluation")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", choices=["ours", "plain"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        pairs, vocabulary = synthetic(Path(folder), options.images)
        if options.peak:
            print(peak(options.peak, pairs, vocabulary))
            return
        lines = [*training(pairs, vocabulary, options.steps), "", *evaluation(pairs, vocabulary, options.rounds)]
    command = [sys.executable, __file__, "--images", "300", "--peak"]
    peaks = {kind: float(subprocess.check_output([*command, kind])) for kind in ("ours", "plain")}
    lines += ["", f"Peak memory of training: ours {peaks['ours']:.2f} GiB, straightforward {peaks['plain']:.2f} GiB."]
    report = "\n".join(lines)
    print(report)
    if options.out is not None:
        options.out.write_text(report + "\n", encoding="utf-8")


def synthetic(folder: Path, images: int) -> tuple[Pairs, Vocabulary]:
    """Random features in a memory map, captions of 8 to 20 words whose frequencies fall off as in real text."""
    rng = np.random.default_rng(0)
    features = np.lib.format.open_memmap(folder / "ims.npy", mode="w+", dtype=np.float32, shape=(images, R, F))
    for start in range(0, images, 100):
        features[start : start + 100] = rng.standard_normal((min(100, images - start), R, F), dtype=np.float32)
    words = [f"w{n}" for n in range(V - 5)]
    frequency = 1 / np.arange(1, len(words) + 1)
    frequency /= frequency.sum()
    captions = [
        " ".join(words[n] for n in rng.choice(len(words), rng.integers(8, 21), p=frequency))
        for _ in range(images * PER_IMAGE)
    ]
    stored = np.load(folder / "ims.npy", mmap_mode="r")
    pairs = Pairs(captions, np.arange(images).repeat(PER_IMAGE), stored, [str(n) for n in range(images)])
    return pairs, Vocabulary(["<pad>", "<start>", "<end>", "<unk>", *words])


class Ours:
    """This package's training step, loader included."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.learner = Learner(lambda: VSE(features=F, vocabulary=V, embedding=D, word=WORD))
        self.learner.renew()

    def step(self, numbers: np.ndarray, rng: np.random.Generator) -> Batch:
        batch = self.batches.make(numbers, rng)
        losses = active_complementary(self.learner.similarities(batch), torch.ones(len(batch)))
        self.learner.descent.step(losses, batch, 5e-4)
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


def training(pairs: Pairs, vocabulary: Vocabulary, steps: int) -> list[str]:
    batches = make_batches(pairs, vocabulary)
    rng = np.random.default_rng(1)
    contestants = {"ours": Ours(batches), "straightforward": Plain(batches)}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    rates, work = [], []
    for step in range(steps + 1):
        numbers = rng.permutation(len(pairs))[:K]
        rates.append(gemm_rate())
        for name, contestant in contestants.items():
            started = time.perf_counter()
            batch = contestant.step(numbers, rng)
            if step:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
            work.append(training_operations(batch))
    rate = float(np.median(rates))
    lines = [f"Training, {K} pairs a step, {R} x {F} regions, D {D}, GEMM {rate / 1e9:.0f} GFLOP/s:", ""]
    lines += ["| | pairs/s | share of GEMM rate |", "|---|---|---|"]
    for name, times in seconds.items():
        share = np.mean(work) / np.median(times) / rate
        lines.append(f"| {name} | {K / np.median(times):.1f} | {share:.0%} |")
    ratios = np.array(seconds["straightforward"]) / np.array(seconds["ours"])
    lines += ["", f"Ratio {np.median(ratios):.2f} (of {len(ratios)} steps: {ratios.min():.2f} to {ratios.max():.2f})."]
    return lines


def training_operations(batch: Batch) -> float:
    """Multiplications and additions of a step's matrix products; first layers need no gradient of their input."""
    rows = int(batch.region_mask.sum())
    image = 2 * rows * (2 * (F * D + F * D // 2) + 3 * (D // 2 * D))
    tokens, words = int(batch.lengths.sum()) - len(batch), len(batch.tokens.unique())
    text = 3 * 2 * 2 * (tokens * D * 3 * D + words * WORD * 3 * D)
    return float(image + text)


def evaluation(pairs: Pairs, vocabulary: Vocabulary, rounds: int) -> list[str]:
    ours = VSE(features=F, vocabulary=V, embedding=D, word=WORD).eval()
    plain = PlainVSE(features=F, vocabulary=V, embedding=D, word=WORD).eval()
    plain.load_state_dict(ours.state_dict())
    scorer = Scorer(ours, vocabulary)
    encoding, ranking, encoding_plain, ranking_plain = [], [], [], []
    for _ in range(rounds):
        sims, took = timed(scorer.similarities, pairs)
        encoding.append(took)
        ranking.append(timed(retrieval, sims, pairs.image_index)[1])
        sims_plain, took = timed(plain_similarities, plain, pairs, vocabulary)
        encoding_plain.append(took)
        ranking_plain.append(timed(plain_recall, sims_plain, PER_IMAGE)[1])
    if np.abs(sims - sims_plain).max() > 1e-4:
        raise SystemExit("the two implementations disagree")
    first, second = min(encoding) + min(ranking), min(encoding_plain) + min(ranking_plain)
    return [
        f"Evaluation of {len(pairs):,} captions against {pairs.images:,} images:",
        "",
        "| | encoding and similarities, s | ranking, s |",
        "|---|---|---|",
        f"| ours | {min(encoding):.2f} | {min(ranking):.2f} |",
        f"| straightforward | {min(encoding_plain):.2f} | {min(ranking_plain):.2f} |",
        "",
        f"Ratio {second / first:.2f}; ranking takes {min(ranking) / first:.1%} of our time.",
    ]


@torch.inference_mode()
def plain_similarities(model: PlainVSE, pairs: Pairs, vocabulary: Vocabulary) -> np.ndarray:
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


def peak(kind: str, pairs: Pairs, vocabulary: Vocabulary) -> float:
    """Peak memory in GiB of three training steps in this process."""
    contestant = Ours(make_batches(pairs, vocabulary)) if kind == "ours" else Plain(make_batches(pairs, vocabulary))
    for seed in range(3):
        contestant.step(np.arange(K), np.random.default_rng(seed))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def make_batches(pairs: Pairs, vocabulary: Vocabulary) -> Batches:
    tokens = vocabulary.encode(pairs.captions)
    return Batches(pairs, tokens, vocabulary=len(vocabulary), mask_token=vocabulary.mask, batch_size=K)


def gemm_rate(size: int = 2048) -> float:
    """Floating-point operations per second of a square product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return float(2 * size**3 / timed(torch.mm, a, b)[1])


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - started


if __name__ == "__main__":
    main()
