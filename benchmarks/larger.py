"""Memory of a training on features that are larger than it: a sparse file, and a limit that the system enforces.

    python benchmarks/larger.py FOLDER --gib 3 12 50 --limit 4    # as root, where control groups can be made

FOLDER gets features of 36 regions x 2,048 float16 numbers in the field's layout, of which one image in 50 is really
written: the others are holes, which take no room on the disk, but are read as all others are, through the cache of the
system. Each size is trained on by `crcl train` as a process of its own, in a control group with the limit. Told are its
peak memory of its own, and the most that the group was charged with, pages of files included: these the system takes
back at the limit. The pages are not in the system's cache before, where they would be charged to nobody.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

REGIONS, SIZE, DEV, WRITTEN = 36, 2048, 100, 50
ONE = 2 * REGIONS * SIZE
GROUPS = Path("/sys/fs/cgroup")
PEAKS = ("memory.peak", "memory.max_usage_in_bytes")
"""Files of a control group that say the most memory that it had."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", nargs="+", type=float, default=[3, 12, 50])
    parser.add_argument("--limit", type=float, default=4.0, help="GiB that a training may use, with pages of files")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in crcl train")
    parser.add_argument("--blocks", nargs="*", default=["0x1", "64x32"], help="train.shuffle_block x shuffle_mixed")
    given = parser.parse_args()
    print("| features | images | shuffled in blocks of | peak memory of its own | with pages | seconds of processor |")
    print("|---" * 6 + "|")
    for size in given.gib:
        images = round(size * 2**30 / ONE)
        data = write(given.folder / f"{size:g}", images)
        for blocks in given.blocks:
            block, mixed = blocks.split("x")
            settings = [f"train.shuffle_block={block}", f"train.shuffle_mixed={mixed}", *given.settings]
            words = train_command(data, given.folder / "run", settings)
            own, pages, seconds = limited(words, given.limit)
            told = f"{block}, {mixed} at a time" if int(block) else "–"
            print(
                f"| {size:g} GiB | {images:,} | {told} | {own:.2f} GiB | {pages:.2f} GiB | {seconds:.0f} |", flush=True
            )


def train_command(data: Path, run: Path, settings: Sequence[str]) -> list[str]:
    """A training of one epoch by a small matcher, since it is reading that is measured."""
    small = ["matcher.embedding=16", "matcher.word=8", "train.pieces=[1]", "train.batch_size=256", "train.device=cpu"]
    words = [word for setting in [*small, *settings] for word in ("--set", setting)]
    return [
        *(sys.executable, "-m", "crcl", "train", str(data), "-o", str(run), "--matcher", "bow"),
        *("--method", "infonce", "--overwrite", *words),
    ]


def write(folder: Path, images: int) -> Path:
    """A precomp folder whose training features are nearly all holes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", images), ("dev", DEV)):
        path = folder / f"{split}_ims.npy"
        shape = (count, REGIONS, SIZE)
        if not path.is_file() or np.load(path, mmap_mode="r").shape != shape:
            stored = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
            for image in range(0, count, WRITTEN):
                stored[image] = rng.standard_normal((REGIONS, SIZE), dtype=np.float32)
        forget(path)
        words = rng.integers(0, 500, (count, 6)).tolist()
        (folder / f"{split}_caps.txt").write_text("".join(" ".join(f"w{n}" for n in row) + "\n" for row in words))
    return folder


def forget(path: Path) -> None:
    """Remove the pages of a file from the cache of the system."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def limited(words: Sequence[str], gib: float) -> tuple[float, float, float]:
    """Run a process within a limit of memory; the most that it had of its own, that its group had, and seconds."""
    group = make_group(int(gib * 2**30))
    before = os.times()
    process = subprocess.Popen(words, preexec_fn=lambda: enter(group), stdout=subprocess.DEVNULL)
    own = 0
    while process.poll() is None:
        lines = [line.split() for line in Path(f"/proc/{process.pid}/status").read_text("ascii").splitlines()]
        kib = {line[0]: int(line[1]) for line in lines if line[-1] == "kB"}
        own = max(own, kib.get("RssAnon:", 0) + kib.get("RssShmem:", 0))
        time.sleep(0.1)
    after = os.times()
    most = next(int((group / name).read_text()) for name in PEAKS if (group / name).is_file())
    group.rmdir()
    if process.returncode:
        raise SystemExit(process.returncode)
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return own / 2**20, most / 2**30, seconds


def make_group(limit: int) -> Path:
    """A control group whose processes may use so many bytes, pages of files included."""
    second = (GROUPS / "cgroup.controllers").is_file()
    group = (GROUPS if second else GROUPS / "memory") / f"crcl-{os.getpid()}"
    group.mkdir()
    (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
    return group


def enter(group: Path) -> None:
    """Put this process into a control group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
