"""Speed of comparing regions with words at the paper's sizes, beside one caption at a time.

    python benchmarks/speed_words.py [--matchers scan chan naaf imram gsmn] [--rounds 2] [--out FILE]

Encoded images and captions are random unit vectors: encoding is not part of it. Both implementations run in turns in
one process on one core, and the processor's time counts, so that other work on the machine matters little. A share is
the floating-point operations that remain after the algebra, divided by the time, divided by the rate of a 2048-square
product that was measured in the same way.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import D, K, R
from plain_local import Local, plain_similarities
from torch.nn.functional import normalize

from crcl.matchers import CHAN, GSMN, IMRAM, NAAF, SCAN, Encoded

KINDS = {"scan": SCAN, "chan": CHAN, "naaf": NAAF, "imram": IMRAM, "gsmn": GSMN}
PRODUCTS = {"scan": 1, "chan": 1, "naaf": 1, "imram": 7, "gsmn": 3}
"""Products of R and D that each (image, word) takes; IMRAM in two steps and both directions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matchers", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--pairs", type=int, default=K)
    parser.add_argument("--size", type=int, default=D, help="of the vectors")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rate = float(np.median([gemm_rate() for _ in range(5)]))
    lines = [
        f"{options.pairs} images with {options.pairs} captions, {R} regions, D {options.size}, GEMM "
        f"{rate / 1e9:.0f} GFLOP/s on one core:",
        "",
        "| matcher | | ours, s | one caption at a time, s | ratio | share of GEMM rate |",
        "|---|---|---|---|---|---|",
    ]
    shown = 0
    for name in options.matchers:
        lines += measured(name, options.pairs, options.size, options.rounds, rate)
        print("\n".join(lines[shown:]), flush=True)
        shown = len(lines)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measured(name: str, pairs: int, size: int, rounds: int, rate: float) -> list[str]:
    """A row for evaluation and one for a training step, forward and backward."""
    torch.manual_seed(0)
    matcher = KINDS[name](features=8, vocabulary=8, embedding=size)
    images, texts = encoded(pairs, size)
    work = 2.0 * PRODUCTS[name] * R * size * pairs * int(texts.mask.sum())
    rows = []
    for what, run, factor in (("evaluation", evaluate, 1), ("training step", train, 3)):
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(rounds):
            results = []
            for who, compare in (("ours", ours), ("plain", plain_similarities)):
                started = time.process_time()
                results.append(run(matcher, compare, images, texts))
                seconds[who].append(time.process_time() - started)
            if float((results[0] - results[1]).abs().max()) > 1e-4:
                raise SystemExit(f"the two implementations of {name} disagree")
        mine, loop = min(seconds["ours"]), min(seconds["plain"])
        rows.append(
            f"| `{name}` | {what} | {mine:.2f} | {loop:.2f} | {loop / mine:.2f} | {factor * work / rate / mine:.0%} |"
        )
    return rows


def encoded(pairs: int, size: int) -> tuple[Encoded, Encoded]:
    """Unit vectors of regions, and of the words of captions of 10 to 22 tokens, longest first."""
    lengths = torch.randint(10, 23, (pairs,)).sort(descending=True).values
    real = torch.arange(int(lengths.max())) < lengths[:, None]
    regions = normalize(torch.randn(pairs, R, size), dim=2)
    words = normalize(torch.randn(*real.shape, size), dim=2) * real[..., None]
    return Encoded(regions, torch.ones(pairs, R, dtype=torch.bool)), Encoded(words, real)


Compare = Callable[[Local, Encoded, Encoded], torch.Tensor]


def ours(matcher: Local, images: Encoded, texts: Encoded) -> torch.Tensor:
    return matcher.similarity(images, texts)


def evaluate(matcher: Local, compare: Compare, images: Encoded, texts: Encoded) -> torch.Tensor:
    with torch.inference_mode():
        return compare(matcher.eval(), images, texts).clone()


def train(matcher: Local, compare: Compare, images: Encoded, texts: Encoded) -> torch.Tensor:
    v, t = (side.features.clone().requires_grad_() for side in (images, texts))
    sims = compare(matcher.train(), Encoded(v, images.mask), Encoded(t, texts.mask))
    sims.square().sum().backward()
    return sims.detach()


def gemm_rate(size: int = 2048) -> float:
    """Floating-point operations per second of the processor's time, of a square product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    started = time.process_time()
    torch.mm(a, b)
    return 2 * size**3 / (time.process_time() - started)


if __name__ == "__main__":
    main()
