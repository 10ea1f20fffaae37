"""What 400 million pairs would take: memory, traffic and hours, by arithmetic from the sizes of what is kept and sent.

    python benchmarks/plan.py [--pairs 400000000] [--batch 32768]

Nothing of this was run. Sizes follow from the code, the form of a step's time is the one that `processes.py` fits, and
what is assumed stands beside it. The tables are those of docs/scale.md.
"""

import argparse
import math
from dataclasses import dataclass
from math import log2

PAIRS, SIZE, BATCH = 400_000_000, 512, 32_768
FORWARD = 14.78e9
"""Operations that CLIP ViT-B/32 needs for an image and a caption: 8.82e9 and 5.96e9."""
PARAMETERS = 151e6
BUCKET = 32e6
"""Bytes of gradients that are summed at a time."""
SMALL = 6
"""Exchanges of a step besides: images, texts and beliefs gathered, two gradients of these, the loss."""
LATENCY = 20e-6
"""Assumed seconds of an exchange for each doubling of the processes."""
USED = 0.35
"""Assumed share of a GPU's greatest speed."""


@dataclass(frozen=True)
class GPU:
    """A kind of GPU: operations a second in bfloat16, and bytes a second that its network card moves."""

    name: str
    speed: float
    network: float


GPUS = (GPU("A100", 312e12, 25e9), GPU("H100", 989e12, 50e9))
TOGETHER = (8, 64, 256)

HELD = {
    "belief, float32": 4,
    "p̂ of the epoch, float32": 4,
    "image of the pair, int64": 8,
    "order of the epoch, int64": 8,
}
"""Bytes for each pair that every process of a training holds, without the captions."""
MEASURED = 990
"""Bytes for each pair that an audit of a million pairs took, beyond what an audit of few takes (results/million.md)."""
DECODED = 100
"""Assumed JPEG images that a core decodes in a second."""
CAPTION = 120
"""Bytes of a caption as a text of Python: 49 and its letters, a pointer of 8, some 60 letters."""


def moved(processes: int, *, reduced: float = 0, gathered: float = 0) -> float:
    """Bytes that go through each process when so many sum `reduced` bytes and gather `gathered` bytes."""
    return (2 * reduced + gathered) * (processes - 1) / processes


@dataclass(frozen=True)
class Step:
    """A step of CLIP ViT-B/32 with a batch of pairs that so many GPUs share."""

    gpu: GPU
    processes: int
    batch: int = BATCH

    @property
    def gathered(self) -> float:
        """Bytes: two float32 vectors and a belief for each pair."""
        return self.batch * (2 * SIZE * 4 + 4)

    @property
    def reduced(self) -> float:
        """Bytes: gradients of the parameters and, since each process wants some of every vector, of all vectors."""
        return 4 * PARAMETERS + self.batch * 2 * SIZE * 4

    @property
    def through(self) -> float:
        """Bytes that go through each GPU's network card."""
        return moved(self.processes, reduced=self.reduced, gathered=self.gathered)

    @property
    def exchanges(self) -> int:
        return SMALL + math.ceil(4 * PARAMETERS / BUCKET)

    @property
    def computing(self) -> float:
        """Seconds: forward once and backward twice as much, and the rows and columns of the own similarities."""
        own = self.batch / self.processes
        similarities = 2 * 3 * 2 * own * self.batch * SIZE
        return (3 * FORWARD * own + similarities) / (USED * self.gpu.speed)

    @property
    def exchanging(self) -> float:
        """Seconds."""
        return self.exchanges * LATENCY * log2(self.processes) + self.through / self.gpu.network

    def hours(self, pairs: int) -> float:
        """Hours of an epoch."""
        return pairs / self.batch * (self.computing + self.exchanging) / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--batch", type=int, default=BATCH)
    given = parser.parse_args()
    print(report(given.pairs, given.batch))


def report(pairs: int = PAIRS, batch: int = BATCH) -> str:
    """The tables of memory and of hours, and what does not depend on the GPUs."""
    fit = 2e12 / 8 / MEASURED
    told = (
        f"A machine of 2 TB with 8 processes holds {fit / 1e6:,.0f} million pairs by the measured bytes. Decoding "
        f"{pairs / 1e6:,.0f} million JPEGs takes {pairs / DECODED / 3600:,.0f} hours of a core."
    )
    return "\n".join([*memory(pairs), "", *hours(pairs, batch), "", told])


def memory(pairs: int) -> list[str]:
    """What is kept where."""
    kept = {
        f"vectors on disk: 2 x {SIZE} float16": 2 * 2 * SIZE,
        **{f"each process: {name}": size for name, size in HELD.items()},
        "each process: captions as texts (some 60 letters)": CAPTION,
        "run folder: belief, float32": 4,
        "run folder: beliefs of each epoch, float16": 2,
        f"index to search: {SIZE} float16 on disk": 2 * SIZE,
        f"index to search: {SIZE} 8-bit codes and a number, in memory": SIZE + 8,
        "index of relink: 128 float16 and a number, and 128 float32 while it is built": 776,
        "measured: memory of an audit by CRCL, beyond that of a small one": MEASURED,
    }
    lines = ["| what | bytes a pair | GB in all |", "|---|---|---|"]
    return [*lines, *(f"| {name} | {size:,} | {size * pairs / 1e9:,.1f} |" for name, size in kept.items())]


def hours(pairs: int, batch: int) -> list[str]:
    """Seconds of a step and hours of an epoch on named GPUs."""
    lines = [
        "| GPUs | pairs each | computing, s | through each card, GB | exchanging, s | step, s | hours an epoch "
        "| hours for vectors alone |",
        "|---" * 8 + "|",
    ]
    for gpu in GPUS:
        for processes in TOGETHER:
            step = Step(gpu, processes, batch)
            alone = pairs * FORWARD / (USED * gpu.speed * processes) / 3600
            cells = [
                f"{processes} x {gpu.name}", f"{batch // processes:,}", f"{step.computing:.2f}",
                f"{step.through / 1e9:.2f}", f"{step.exchanging:.3f}", f"{step.computing + step.exchanging:.2f}",
                f"{step.hours(pairs):.2f}", f"{alone:.2f}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
