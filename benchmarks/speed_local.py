"""Speed of SAF and SGR at the paper's sizes, beside one caption at a time; called by `speed.py`."""

import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import PER_IMAGE, WORD, D, F, K, R, gemm_rate, in_its_own_process, peak_memory, synthetic, timed
from plain_sgraf import plain_images, plain_similarities

from crcl.data.split import Split
from crcl.data.text.vocabulary import Tokens, Vocabulary
from crcl.losses import active_complementary
from crcl.matchers import SAF, SGR
from crcl.matchers.kernels.products import computing_in
from crcl.retrieval.scoring import Scorer

H = 256
KINDS: dict[str, type[SAF] | type[SGR]] = {"saf": SAF, "sgr": SGR}
GROWTH = (250, 500, 1000)
PROFILED = (48, 96)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
EVALUATED = 384
"""Captions of the evaluation; more would take longer and say the same."""
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOOP = "one caption at a time"


def make(kind: str, vocabulary: Vocabulary, *, features: int = F, embedding: int = D, similarity: int = H) -> SAF | SGR:
    return KINDS[kind](
        features=features,
        vocabulary=len(vocabulary),
        regions=R,
        embedding=embedding,
        word=WORD,
        similarity=similarity,
    )


def report(kind: str, options: Namespace) -> list[str]:
    """Training and evaluation of one matcher, with shares of the GEMM rate and peak memory."""
    images, steps = options.local_images, max(options.steps // 3, 1)
    with tempfile.TemporaryDirectory() as folder:
        pairs, vocabulary = synthetic(Path(folder), max(images, -(-options.batch // PER_IMAGE)))
        lines = [f"## {kind.upper()}", "", *training(kind, pairs, vocabulary, options, steps), ""]
        lines += [*evaluation(kind, first_images(pairs, images), vocabulary, options), ""]
    for what in () if options.no_memory else ("training", "evaluation"):
        ours, plain = (in_its_own_process("--peak", kind, f"{what}-{who}", str(images)) for who in ("ours", "plain"))
        lines += [f"Peak memory of {what}: ours {ours:.2f} GiB, {LOOP} {plain:.2f} GiB.", ""]
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


def step(
    matcher: SAF | SGR,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    plain: bool,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Forward and backward pass of one training step."""
    matcher.zero_grad(set_to_none=True)
    regions, tokens, lengths = given
    if plain:
        sims = plain_similarities(matcher, plain_images(matcher, regions), tokens, lengths)
    else:
        mask = torch.ones(regions.shape[:2], dtype=torch.bool)
        with computing_in(regions.device, dtype):
            sims = matcher.similarity(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, lengths))
    active_complementary(sims, torch.ones(len(sims))).mean().backward()


def training(kind: str, pairs: Split, vocabulary: Vocabulary, options: Namespace, steps: int) -> list[str]:
    matcher = make(kind, vocabulary).train()
    tokens, rng = vocabulary.encode(pairs.captions), np.random.default_rng(1)
    seconds: dict[str, list[float]] = {name: [] for name in (*options.precision, LOOP)}
    rates, work = [], []
    for number in range(steps + 1):
        given = batch(pairs, tokens, rng.permutation(len(pairs))[: options.batch])
        rates.append(gemm_rate(clock=options.clock))
        for name, times in seconds.items():
            dtype = TYPES.get(name, torch.float32)
            took = timed(partial(step, matcher, given, plain=name == LOOP, dtype=dtype), clock=options.clock)[1]
            if number:  # the first one warms up
                times.append(took)
        lengths = given[2].numpy()
        work.append(3 * operations(kind, options.batch, lengths) + encoding(options.batch, lengths, training=True))
    rate = float(np.median(rates))
    sizes = f"{R} x {F} regions, D {D}, similarity size {H}"
    return [
        f"Training step, {options.batch} pairs, {sizes}, GEMM {rate / 1e9:.0f} GFLOP/s:",
        "",
        *table({name: float(np.median(times)) for name, times in seconds.items()}, float(np.mean(work)) / rate),
        "",
        f"Medians of {steps} steps each, in turns.",
    ]


def table(seconds: dict[str, float], ideal: float) -> list[str]:
    """Seconds of ours in each number type, and of the loop, with shares of the float32 GEMM rate and ratios."""
    lines = ["| | seconds | share of GEMM rate | ratio |", "|---|---|---|---|"]
    for name, took in seconds.items():
        ratio = "" if name == LOOP else f"{seconds[LOOP] / took:.2f}"
        lines.append(f"| {name if name == LOOP else f'ours, {name}'} | {took:.2f} | {ideal / took:.0%} | {ratio} |")
    return lines


def encoding(images: int, lengths: np.ndarray, *, training: bool) -> float:
    """Operations of both encoders, with their gradients in training; the features get none."""
    image = 2 * images * R * ((2 if training else 1) * F * D + (3 if training else 1) * D * D)
    return float(image + (3 if training else 1) * 2 * lengths.sum() * (2 * 3 * D * (WORD + D) + D * D))


@torch.inference_mode()
def evaluation(kind: str, pairs: Split, vocabulary: Vocabulary, options: Namespace) -> list[str]:
    matcher = make(kind, vocabulary).eval()
    pairs = first_captions(pairs, min(options.captions, len(pairs)))
    tokens = vocabulary.encode(pairs.captions)
    seconds: dict[str, list[float]] = {name: [] for name in (*options.precision, LOOP)}
    sims, rates = {}, []
    for _ in range(options.rounds):
        rates.append(gemm_rate(clock=options.clock))
        for name, times in seconds.items():
            if name == LOOP:
                work = partial(evaluated_plainly, matcher, pairs, tokens)
            else:
                work = partial(Scorer(matcher, vocabulary, dtype=TYPES[name]).similarities, pairs)
            sims[name], took = timed(work, clock=options.clock)
            times.append(took)
    off = {name: float(np.abs(sims[name] - sims[LOOP]).max()) for name in options.precision}
    if off.get("float32", 0) > 1e-5 or max(off.values()) > 0.02:
        raise SystemExit(f"the implementations disagree: {off}")
    ideal = operations(kind, pairs.images, tokens.lengths) + encoding(pairs.images, tokens.lengths, training=False)
    return [
        f"Evaluation of {len(pairs):,} captions against {pairs.images:,} images:",
        "",
        *table({name: min(times) for name, times in seconds.items()}, ideal / float(np.median(rates))),
        "",
        f"Best of {options.rounds} each, in turns. Similarities differ from the loop's by at most "
        + ", ".join(f"{worst:.1g} ({name})" for name, worst in off.items())
        + ".",
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


def first_images(pairs: Split, count: int) -> Split:
    if count >= pairs.images:
        return pairs
    kept = pairs.image_index < count
    captions = [caption for caption, keep in zip(pairs.captions, kept, strict=True) if keep]
    return Split(captions, pairs.image_index[kept], pairs.features[:count], pairs.image_ids[:count])


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
