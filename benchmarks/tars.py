"""A million pairs in tars: how fast they are indexed and read beside plain passes over the same tars, and their memory.

    python benchmarks/tars.py FOLDER [--pairs 1000000] [--shards 100]

FOLDER gets tars as img2dataset writes them (KEY.jpg, KEY.txt, KEY.json) with tiny images, and an index in a cache
folder of its own. Every step runs in a process of its own, one after the other over the same files, so that ratios can
be compared; seconds depend on the machine and on what is in the system's cache. Seconds of the processor are told too,
since those of the clock count what else the machine does.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import peak_memory
from PIL import Image

import crcl
from crcl.data.images import decode

SIDE, IMAGES = 16, 256
STEPS = {
    "raw": "all bytes of the files read in order",
    "headers": "`tarfile`: all headers, and the texts",
    "index": "crcl: index and rows, first time",
    "again": "crcl: index and rows, from the cache",
    "contents": "`tarfile`: all headers, texts and images",
    "images": "crcl: all images by name, in order",
    "shuffled": "crcl: all images by name, shuffled",
    "decoded": "crcl: all images by name, in order, and decoded",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--step", choices=["import", *STEPS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = options.folder / "tars"
    if options.step is not None:
        print(json.dumps(measure(options.step, data)))
        return
    if not (data / "complete").is_file():
        make(data, options.pairs, options.shards)
    shards = sorted(data.glob("*.tar"))
    gigabytes = sum(shard.stat().st_size for shard in shards) / 1e9
    for file in (options.folder / "cache").rglob("*.*"):
        file.unlink()
    alone = measured("import", options.folder)
    print(f"{options.pairs:,} pairs in {len(shards)} tars, {gigabytes:.2f} GB\n")
    print("| step | seconds | of the processor | pairs/s | MB/s of the tars | peak memory, GiB |")
    print("|---|---|---|---|---|---|")
    print(f"| `import crcl`, nothing else | – | – | – | – | {alone['peak']:.2f} |")
    found = {}
    for step, title in STEPS.items():
        found[step] = measured(step, options.folder)
        seconds, busy, peak = (found[step][key] for key in ("seconds", "processor", "peak"))
        rates = f"{options.pairs / seconds:,.0f} | {1000 * gigabytes / seconds:,.0f}"
        print(f"| {title} | {seconds:.1f} | {busy:.1f} | {rates} | {peak:.2f} |", flush=True)
    print(f"\nThe rows take {found['again']['rows']:.2f} GiB.")
    for one, other in (("index", "headers"), ("images", "contents"), ("index", "raw"), ("images", "raw")):
        ratio = found[one]["processor"] / found[other]["processor"]
        print(f"{STEPS[one]}: {ratio:.2f} of the processor's time of {STEPS[other]}")


def measured(step: str, folder: Path) -> dict[str, float]:
    """What `measure` finds in a process of its own."""
    environment = os.environ | {"XDG_CACHE_HOME": str((folder / "cache").absolute()), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, str(folder), "--step", step]
    found: dict[str, float] = json.loads(subprocess.check_output(words, text=True, env=environment))
    return found


def measure(step: str, data: Path) -> dict[str, float]:
    """Seconds of the clock and the processor and peak memory of a step, and the memory of the rows if it has these."""
    shards, rows = sorted(data.glob("*.tar")), 0
    crcl.read({"image": ["a", "b"], "caption": ["a", "b"]})  # imports all modules
    pairs = crcl.read(data) if step in ("images", "shuffled", "decoded") else None
    started, busy = time.perf_counter(), time.process_time()
    if step == "raw":
        for shard in shards:
            with shard.open("rb", buffering=0) as file:
                while file.read(2**20):
                    pass
    elif step in ("headers", "contents"):
        for shard in shards:
            plain_pass(shard, images=step == "contents")
    elif step in ("index", "again"):
        table = crcl.read(data).source.rows()
        assert table is not None
        rows = table.nbytes
    elif pairs is not None:
        pictures = pairs.pictures
        assert pictures is not None
        for name in names(pairs, shuffled=step == "shuffled"):
            content = pictures.read(name)
            if step == "decoded":
                decode(content)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    return {"seconds": seconds, "processor": busy, "peak": peak_memory(), "rows": rows / 2**30}


def names(pairs: crcl.Pairs, *, shuffled: bool) -> Iterator[str]:
    """The images' names, some at a time."""
    table = pairs.source.rows()
    assert table is not None
    column = table["image"]
    if shuffled:
        column = column.take(np.random.default_rng(0).permutation(len(column)))
    for chunk in range(0, len(column), 10_000):
        yield from column.slice(chunk, 10_000).to_pylist()


def plain_pass(shard: Path, *, images: bool) -> None:
    """What a script with `tarfile` would do."""
    with tarfile.open(shard, "r:") as tar:
        for info in tar:
            if info.name.endswith(".txt") or (images and info.name.endswith(".jpg")):
                file = tar.extractfile(info)
                assert file is not None
                file.read()
            tar.members = []  # it would keep all of them


def make(data: Path, pairs: int, shards: int) -> None:
    """Tars of tiny images."""
    data.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(IMAGES):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, "JPEG")
        pictures.append(file.getvalue())
    for number, rows in enumerate(np.array_split(np.arange(pairs), shards)):
        with (data / f"{number:05}.tar").open("wb", buffering=2**20) as tar:
            for row in rows.tolist():
                key = f"{number:05}{row - int(rows[0]):05}"
                caption = f"caption {row} of a small image in many colours, as good as any other"
                record = {"caption": caption, "url": f"https://example.org/{row}.jpg", "key": key, "status": "success"}
                tar.write(member(f"{key}.jpg", pictures[row % IMAGES]))
                tar.write(member(f"{key}.txt", caption.encode()))
                tar.write(member(f"{key}.json", json.dumps(record).encode()))
            tar.write(bytes(10_240))
    (data / "complete").touch()


def member(name: str, content: bytes) -> bytes:
    """A header as `tarfile` writes it, some times quicker, and the content."""
    fields = (b"0000644", b"0000000", b"0000000", b"%011o" % len(content), b"00000000000", b"")
    head = name.encode().ljust(100, b"\0") + b"\0".join(fields)
    rest = b"0".ljust(101, b"\0") + b"ustar\x0000".ljust(255, b"\0")
    check = sum(head) + sum(rest) + 8 * ord(" ")
    return head + b"%06o\0 " % check + rest + content + bytes(-len(content) % 512)


if __name__ == "__main__":
    main()
