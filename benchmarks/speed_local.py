"""Speed of SAF and SGR at the paper's sizes, beside one caption at a time; called by `speed.py`."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import PER_IMAGE, WORD, D, F, K, R, gemm_rate, in_its_own_process, peak_memory, synthetic, timed
from plain_sgraf import plain_images, plain_similarities

from crcl.data.split import Split
from crcl.data.text.vocabulary import Tokens, Vocabulary
from crcl.losses import active_complementary
from crcl.matchers import SAF, SGR
from crcl.retrieval.scoring import Scorer

H = 256
KINDS: dict[str, type[SAF] | type[SGR]] = {"saf": SAF, "sgr": SGR}
GROWTH = (250, 500, 1000)
PROFILED = (48, 96)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
EVALUATED = 384
"""Captions of the evaluation; more would take longer and say the same."""


def make(kind: str, vocabulary: Vocabulary, *, features: int = F, embedding: int = D, similarity: int = H) -> SAF | SGR:
    return KINDS[kind](
        features=features,
        vocabulary=len(vocabulary),
        regions=R,
        embedding=embedding,
        word=WORD,
        similarity=similarity,
    )


def report(kind: str, images: int, steps: int, rounds: int) -> list[str]:
    """Training and evaluation of one matcher, with shares of the GEMM rate and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        pairs, vocabulary = synthetic(Path(folder), images)
        lines = [f"## {kind.upper()}", "", *training(kind, pairs, vocabulary, steps), ""]
        lines += [*evaluation(kind, pairs, vocabulary, rounds), ""]
    for what in ("training", "evaluation"):
        ours, plain = (in_its_own_process("--peak", kind, f"{what}-{who}", str(images)) for who in ("ours", "plain"))
        lines += [f"Peak memory of {what}: ours {ours:.2f} GiB, one caption at a time {plain:.2f} GiB.", ""]
    return lines


def operations(kind: str, images: int, lengths: np.ndarray, *, embedding: int = D, similarity: int = H) -> float:
    """Multiplications and additions of comparing images with captions that remain after the algebra.

    Similarities, contexts and W_loc of each (image, word); for SGR two full steps (bilinear form, logits, weighted
    sum, output) and the last step's node 0.
    """
    rows = float(images * lengths.sum())
    total = rows * 2 * (R * embedding * 2 + embedding * similarity)
    if kind == "sgr":
        nodes = lengths.astype(float) + 1
        full = 2 * (nodes * 2 * similarity**2 + 2 * nodes**2 * similarity)
        last = 2 * (2 * similarity**2 + 2 * nodes * similarity)
        total += images * float((2 * full + last).sum())
    return total


def batch(pairs: Split, tokens: Tokens, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Regions, token ids and lengths, longest caption first."""
    numbers = numbers[np.argsort(-tokens.lengths[numbers], kind="stable")]
    ids, real = tokens.side_by_side(numbers)
    regions = torch.from_numpy(pairs.gather(pairs.image_index[numbers]))
    return regions, torch.from_numpy(ids), torch.from_numpy(real.sum(1))


def step(matcher: SAF | SGR, given: tuple[torch.Tensor, torch.Tensor, torch.Tensor], *, plain: bool) -> None:
    """Forward and backward pass of one training step."""
    matcher.zero_grad(set_to_none=True)
    regions, tokens, lengths = given
    if plain:
        sims = plain_similarities(matcher, plain_images(matcher, regions), tokens, lengths)
    else:
        mask = torch.ones(regions.shape[:2], dtype=torch.bool)
        sims = matcher.similarity(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, lengths))
    active_complementary(sims, torch.ones(len(sims))).mean().backward()


def training(kind: str, pairs: Split, vocabulary: Vocabulary, steps: int) -> list[str]:
    matcher = make(kind, vocabulary).train()
    tokens, rng = vocabulary.encode(pairs.captions), np.random.default_rng(1)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    rates, work = [], []
    for number in range(steps + 1):
        given = batch(pairs, tokens, rng.permutation(len(pairs))[:K])
        rates.append(gemm_rate())
        for plain in (False, True):
            started = time.perf_counter()
            step(matcher, given, plain=plain)
            if number:  # the first one warms up
                seconds[plain].append(time.perf_counter() - started)
        work.append(3 * operations(kind, K, given[2].numpy()) + encoding(K, given[2].numpy(), training=True))
    ours, loop, rate = np.median(seconds[False]), np.median(seconds[True]), float(np.median(rates))
    share = float(np.mean(work)) / rate
    return [
        f"Training step, {K} pairs, {R} x {F} regions, D {D}, similarity size {H}, GEMM {rate / 1e9:.0f} GFLOP/s:",
        "",
        "| | seconds | share of GEMM rate |",
        "|---|---|---|",
        f"| ours | {ours:.1f} | {share / ours:.0%} |",
        f"| one caption at a time | {loop:.1f} | {share / loop:.0%} |",
        "",
        f"Ratio {loop / ours:.2f} (median of {steps} steps each, in turns).",
    ]


def encoding(images: int, lengths: np.ndarray, *, training: bool) -> float:
    """Operations of both encoders, with their gradients in training; the features get none."""
    image = 2 * images * R * ((2 if training else 1) * F * D + (3 if training else 1) * D * D)
    return float(image + (3 if training else 1) * 2 * lengths.sum() * (2 * 3 * D * (WORD + D) + D * D))


@torch.inference_mode()
def evaluation(kind: str, pairs: Split, vocabulary: Vocabulary, rounds: int) -> list[str]:
    matcher = make(kind, vocabulary).eval()
    pairs = first_captions(pairs, min(EVALUATED, len(pairs)))
    tokens = vocabulary.encode(pairs.captions)
    scorer = Scorer(matcher, vocabulary)
    ours, loop, rates = [], [], []
    for _ in range(rounds):
        rates.append(gemm_rate())
        sims, took = timed(scorer.similarities, pairs)
        ours.append(took)
        expected, took = timed(evaluated_plainly, matcher, pairs, tokens)
        loop.append(took)
    if np.abs(sims - expected).max() > 1e-5:
        raise SystemExit("the two implementations disagree")
    work = operations(kind, pairs.images, tokens.lengths) + encoding(pairs.images, tokens.lengths, training=False)
    share = work / float(np.median(rates))
    return [
        f"Evaluation of {len(pairs):,} captions against {pairs.images:,} images:",
        "",
        "| | seconds | share of GEMM rate |",
        "|---|---|---|",
        f"| ours | {min(ours):.1f} | {share / min(ours):.0%} |",
        f"| one caption at a time | {min(loop):.1f} | {share / min(loop):.0%} |",
        "",
        f"Ratio {min(loop) / min(ours):.2f} (best of {rounds} each, in turns).",
    ]


def evaluated_plainly(matcher: SAF | SGR, pairs: Split, tokens: Tokens) -> np.ndarray:
    """All images at once with blocks of captions, as is usual."""
    images = plain_images(matcher, torch.from_numpy(pairs.gather(np.arange(pairs.images))))
    sims = np.empty((pairs.images, len(pairs)), dtype=np.float32)
    for start in range(0, len(pairs), K):
        numbers = np.arange(start, min(start + K, len(pairs)))
        numbers = numbers[np.argsort(-tokens.lengths[numbers], kind="stable")]
        ids, real = tokens.side_by_side(numbers)
        sims[:, numbers] = plain_similarities(
            matcher, images, torch.from_numpy(ids), torch.from_numpy(real.sum(1))
        ).numpy()
    return sims


def peak(kind: str, what: str, images: int, folder: Path) -> float:
    """Peak memory in GiB of a training step, an evaluation, or an evaluation at the size of the growth table."""
    task, _, who = what.partition("-")
    if task == "growth":
        return grow(kind, images, folder)[1]
    pairs, vocabulary = synthetic(folder, images)
    matcher, tokens = make(kind, vocabulary), vocabulary.encode(pairs.captions)
    if task == "training":
        step(matcher.train(), batch(pairs, tokens, np.arange(K)), plain=who == "plain")
    else:
        with torch.inference_mode():
            matcher.eval()
            few = np.arange(min(PER_IMAGE * K, len(pairs)))
            part = pairs if len(few) == len(pairs) else first_captions(pairs, len(few))
            if who == "plain":
                evaluated_plainly(matcher, part, vocabulary.encode(part.captions))
            else:
                Scorer(matcher, vocabulary).similarities(part)
    return peak_memory()


def first_captions(pairs: Split, count: int) -> Split:
    return Split(pairs.captions[:count], pairs.image_index[:count], pairs.features, pairs.image_ids)


def profile(kind: str) -> list[str]:
    """Where the time of an evaluation on one core goes: the operations that take most of it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs, vocabulary = synthetic(Path(folder), PROFILED[0])
        scorer = Scorer(make(kind, vocabulary).eval(), vocabulary)
        scorer.similarities(first_captions(pairs, 8))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            scorer.similarities(first_captions(pairs, PROFILED[1]))
    torch.set_num_threads(threads)
    took = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in seen.key_averages()}
    total = sum(took.values())
    most = sorted(took, key=lambda name: -took[name])[:8]
    return [
        f"{kind.upper()}'s evaluation on one core, {PROFILED[0]} images and {PROFILED[1]} captions, by operation:",
        "",
        ", ".join(f"{name} {took[name] / total:.0%}" for name in most)
        + f"; products in all {sum(took.get(name, 0) for name in PRODUCTS) / total:.0%}.",
        "",
    ]


def growth(kind: str) -> list[str]:
    """How evaluation grows with the images: seconds per comparison, and peak memory of a process of its own each."""
    lines = [f"Growth of {kind.upper()}'s evaluation, D 256, similarity size 64, {PER_IMAGE} captions per image:", ""]
    lines += [
        "| images | captions | seconds | microseconds per comparison | peak memory, GiB |",
        "|---|---|---|---|---|",
    ]
    for images in GROWTH:
        with tempfile.TemporaryDirectory() as folder:
            took, _ = grow(kind, images, Path(folder))
        memory = in_its_own_process("--peak", kind, "growth", str(images))
        each = 1e6 * took / (images * images * PER_IMAGE)
        lines.append(f"| {images:,} | {images * PER_IMAGE:,} | {took:.1f} | {each:.1f} | {memory:.2f} |")
    return [*lines, ""]


def grow(kind: str, images: int, folder: Path) -> tuple[float, float]:
    """Seconds and peak memory of one evaluation at CPU size."""
    pairs, vocabulary = synthetic(folder, images, 352)
    matcher = make(kind, vocabulary, features=352, embedding=256, similarity=64).eval()
    _, took = timed(Scorer(matcher, vocabulary).similarities, pairs)
    return took, peak_memory()
