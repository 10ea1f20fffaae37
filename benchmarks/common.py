"""What the speed benchmarks share: the paper's sizes, synthetic pairs, rates and peaks."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crcl.data.batches import Batches
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary

K, R, F, D, WORD, V = 128, 36, 2048, 1024, 300, 8482
PER_IMAGE = 5


def synthetic(folder: Path, images: int, size: int = F) -> tuple[Split, Vocabulary]:
    """Random features in a memory map, captions of 8 to 20 words whose frequencies fall off as in real text."""
    rng = np.random.default_rng(0)
    features = np.lib.format.open_memmap(folder / "ims.npy", mode="w+", dtype=np.float32, shape=(images, R, size))
    for start in range(0, images, 100):
        features[start : start + 100] = rng.standard_normal((min(100, images - start), R, size), dtype=np.float32)
    words = [f"w{n}" for n in range(V - 5)]
    frequency = 1 / np.arange(1, len(words) + 1)
    frequency /= frequency.sum()
    captions = [
        " ".join(words[n] for n in rng.choice(len(words), rng.integers(8, 21), p=frequency))
        for _ in range(images * PER_IMAGE)
    ]
    stored = np.load(folder / "ims.npy", mmap_mode="r")
    pairs = Split(captions, np.arange(images).repeat(PER_IMAGE), stored, [str(n) for n in range(images)])
    return pairs, Vocabulary(["<pad>", "<start>", "<end>", "<unk>", *words])


def make_batches(pairs: Split, vocabulary: Vocabulary) -> Batches:
    tokens = vocabulary.encode(pairs.captions)
    return Batches(pairs, tokens, vocabulary=len(vocabulary), mask_token=vocabulary.mask, batch_size=K)


def gemm_rate(size: int = 2048, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Floating-point operations per second of a square product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return float(2 * size**3 / timed(torch.mm, a, b, clock=clock)[1])


def timed(
    work: Callable[..., Any], *arguments: Any, clock: Callable[[], float] = time.perf_counter
) -> tuple[Any, float]:
    """What the work returns, and how long it took by the clock; `time.process_time` counts the processor's time."""
    started = clock()
    result = work(*arguments)
    return result, clock() - started


def peak_memory() -> float:
    """Most memory that this process has had, in GiB. (`ru_maxrss` would count what its parent had, too.)"""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def in_its_own_process(*words: str) -> float:
    """The number that a call of the same script with these words prints."""
    return float(subprocess.check_output([sys.executable, sys.argv[0], *words], text=True).split()[-1])
