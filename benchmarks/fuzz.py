"""Feed damaged files to all that reads files, and report what ends otherwise than with a message.

    python benchmarks/fuzz.py --seconds 60                     # each target in turn
    python benchmarks/fuzz.py --targets checkpoint --seconds 3600
    python benchmarks/fuzz.py --targets config --atheris       # guided by coverage, if atheris is installed

A target takes bytes and returns, or raises one of the errors that users are shown. Bytes come from valid files of each
kind, changed at random. The work is done in forked processes with a limit of memory and time, so that a crash is a
finding as well; its input is kept in the folder `--findings`.
"""

import argparse
import io
import json
import multiprocessing
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image

from crcl import config
from crcl.data import files
from crcl.data.images import decode
from crcl.data.maps import archives
from crcl.data.pairs import Pairs
from crcl.data.pictures.base import UnusableError
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.runs.checkpoints import published, unpickling
from crcl.runs.files import read_npz, read_state
from crcl.runs.folder import Run

SHOWN = (InputError, UnusableError)
"""Errors that users are shown; anything else is a finding."""
SECONDS, MEMORY = 20, 4 * 2**30
"""What one input may take: seconds of the processor, and bytes."""
WAITING = 10
"""How many times as long it may wait where the machine is busy."""
TOKENS = (
    *(
        b"null",
        b"[[[[",
        b"{{",
        b'"',
        b"\\ud800",
        b"\xff\xfe",
        b"\x00" * 8,
        b"\xff" * 8,
        b"-1",
        b"1e999",
        b"True",
        b"9" * 30,
    ),
    *(
        b"PK\x01\x02",
        b"PK\x05\x06",
        b"\x80\x02",
        b"cos\nsystem\n",
        b"R",
        b"(",
        b"t",
        b"\x93NUMPY",
        b"../",
        b"\n",
        b",,",
    ),
)


def changed(content: bytes, rng: random.Random) -> bytes:
    """A copy with a few bytes changed, cut out, repeated or put in."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        far = min(len(data), at + rng.choice((1, 2, 4, 16, 200)))
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = rng.randrange(256)
        elif kind == 1:
            del data[at:far]
        elif kind == 2:
            data[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            data[at:at] = data[at:far] * rng.randint(1, 20)
        elif kind == 4:
            data[at:far] = rng.randbytes(far - at)
        else:
            del data[at + rng.randrange(4000) :]
    return bytes(data)


def read_pairs(path: Path) -> None:
    """Read data of any layout, with its rows."""
    pairs = Pairs.of(path)
    if pairs.splits:
        repr(pairs)


def as_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """A target that reads a file of this name."""

    def target(content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            read(path)

    return target


def read_settings(content: bytes) -> None:
    """A `key=value` setting and a TOML file."""
    text = content.decode("utf-8", "replace")
    for read in (lambda: config.load(settings=text.splitlines()[:3]), lambda: as_file("a.toml", read_toml)(content)):
        try:
            read()
        except InputError:
            continue


def read_toml(path: Path) -> None:
    config.load(file=path)


def read_run(path: Path) -> None:
    """The config of a run folder, and what it says about the run."""
    run = Run.open(path.parent)
    config.from_dict(run.config)


def read_array(path: Path) -> None:
    array = files.open_array(path, purpose="features")
    np.asarray(array[:1]).sum()


def read_archive(path: Path) -> None:
    for name in archives.array_names(path):
        archives.open_member(path, name, rows=3)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "csv": as_file("pairs.csv", read_pairs),
    "jsonl": as_file("pairs.jsonl", read_pairs),
    "json": as_file("pairs.json", read_pairs),
    "parquet": as_file("pairs.parquet", read_pairs),
    "tar": as_file("pairs.tar", read_pairs),
    "npy": as_file("a.npy", read_array),
    "npz": as_file("a.npz", read_archive),
    "ledger": as_file("ledger.npz", lambda path: read_npz(path, "correspondence")),
    "image": decode,
    "checkpoint": as_file("a.pth.tar", published.read),
    "pickle": as_file("a.pt", unpickling.load),
    "state": as_file("training.pt", read_state),
    "run": as_file("config.json", read_run),
    "vocabulary": as_file("vocab.json", Vocabulary.load),
    "config": read_settings,
}  # fmt: skip


def seeds(target: str) -> list[bytes]:
    """Valid files for a target."""
    rows = [{"image": f"{n}.jpg", "caption": f"a red dog, {n}", "split": "train"} for n in range(4)]
    coco = {
        "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(3)],
        "annotations": [{"image_id": n % 3, "id": n, "caption": "a dog"} for n in range(6)],
    }
    karpathy = {
        "images": [
            {"filename": f"{n}.jpg", "split": "train", "imgid": n, "sentences": [{"raw": "a dog", "tokens": ["a"]}]}
            for n in range(3)
        ]
    }
    weights = [{"fc.weight": torch.ones(8, 6), "fc.bias": torch.ones(8)}, {"embed.weight": torch.ones(9, 5)}]
    values = {"model": weights, "epoch": 3, "best_rsum": 1.5, "move_gt": np.ones(5), "opt": argparse.Namespace(a=1)}
    sizes = dict.fromkeys(("pairs", "images", "regions", "features", "vocabulary", "networks"), 3)
    about = {"format": 1, "config": {"method": "crcl"}, "files": [], "fingerprint": "x", "sizes": sizes}
    words = {"word2idx": {"<pad>": 0, "a": 1}, "idx2word": {"0": "<pad>", "1": "a"}, "idx": 2}
    made: dict[str, Callable[[], list[bytes]]] = {
        "csv": lambda: [b"image,caption,split\n" + b"".join(f"{n}.jpg,\"a, dog\",train\n".encode() for n in range(4))],
        "jsonl": lambda: ["".join(json.dumps(row) + "\n" for row in rows).encode()],
        "json": lambda: [json.dumps(document).encode() for document in (coco, karpathy, rows)],
        "parquet": lambda: [written(lambda file: pa.parquet.write_table(pa.Table.from_pylist(rows), file))],
        "tar": lambda: [tarred()],
        "npy": lambda: [written(lambda file: np.save(file, np.ones((3, 2, 4), np.float32)))],
        "npz": lambda: [packed(np.savez), packed(np.savez_compressed)],
        "ledger": lambda: [written(lambda file: np.savez(file, correspondence=np.ones(3, np.float32)))],
        "image": pictures,
        "run": lambda: [json.dumps(about).encode()],
        "vocabulary": lambda: [json.dumps(words).encode()],
        "config": lambda: [b"train.lr = 0.1\n[matcher]\nname = 'vse'\n", b"train.pieces=[1,2]\nloss.tau=.05\n"],
    }  # fmt: skip
    if target in made:
        return made[target]()
    return [
        written(lambda file, zipped=zipped: torch.save(values, file, _use_new_zipfile_serialization=zipped))
        for zipped in (True, False)
    ]


def written(write: Callable[[Any], object]) -> bytes:
    """What a function writes to a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def packed(save: Callable[..., object]) -> bytes:
    """Vectors as DataComp has them."""
    return written(lambda file: save(file, l14_img=np.ones((3, 4), np.float16)))


def pictures() -> list[bytes]:
    """One small image in each format."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    return [
        written(lambda file, kind=kind: image.save(file, kind))
        for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP")
    ]


def tarred() -> bytes:
    """Two samples as webdataset has them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in (
            ("0.jpg", b"\xff\xd8"),
            ("0.txt", b"a dog"),
            ("1.jpg", b"\xff\xd8"),
            ("1.json", b'{"caption": "x"}'),
        ):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return file.getvalue()


def inputs(target: str, rng: random.Random) -> Iterator[bytes]:
    """Endless inputs of a target: its valid files, and changed ones."""
    valid = seeds(target)
    yield from valid
    while True:
        yield changed(rng.choice(valid), rng)


def problem(target: str, content: bytes) -> str:
    """How an input ended, if not as it should."""
    try:
        TARGETS[target](content)
    except SHOWN:
        return ""
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({place.filename}:{place.lineno})"
    return ""


def work(target: str, seed: int, seconds: float, current: Path, told: Any) -> None:
    """Feed inputs to a target for some seconds; tells how many there were and what was found."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + int(memory_used()), resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = time.monotonic() + seconds
    for count, content in enumerate(inputs(target, random.Random(seed)), start=1):
        if time.monotonic() > end:
            break
        current.write_bytes(content)
        limit(SECONDS)
        found = problem(target, content)
        limit(0)
        told.value = count
        if found:
            name = f"{target}-{seed}-{count}"
            current.with_name(name).write_bytes(content)
            print(f"{name}: {found}", flush=True)
    current.unlink(missing_ok=True)


def limit(seconds: float) -> None:
    """End this process after so many seconds; without a handler, which C code that hangs would not let run."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(int(WAITING * seconds))


def memory_used() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def fuzz(target: str, seconds: float, findings: Path, *, seed: int) -> int:
    """Fuzz a target, in a new process after each crash; returns the number of inputs."""
    total, end = 0, time.monotonic() + seconds
    context = multiprocessing.get_context("fork")
    while (left := end - time.monotonic()) > 0:
        told, current = context.Value("q", 0), findings / f"{target}-{seed}-last"
        process = context.Process(target=work, args=(target, seed, left, current, told))
        process.start()
        process.join()
        total += told.value
        if process.exitcode and process.exitcode < 0:
            current.rename(current.with_name(f"{target}-{seed}-crash{-process.exitcode}"))
            print(f"{target}-{seed}: ended by signal {-process.exitcode} after {told.value} inputs", flush=True)
        seed += 1
    return total


def guided(target: str, seconds: float) -> None:
    """The same by atheris, which looks for inputs that reach other lines."""
    import atheris

    def once(content: bytes) -> None:
        found = problem(target, content)
        if found:
            raise RuntimeError(found)

    with tempfile.TemporaryDirectory() as corpus:
        for number, content in enumerate(seeds(target)):
            (Path(corpus) / str(number)).write_bytes(content)
        for name in [name for name in sys.modules if name.startswith("crcl.")]:
            for key, value in list(vars(sys.modules[name]).items()):
                if isinstance(value, types.FunctionType) and value.__module__ == name:
                    setattr(sys.modules[name], key, atheris.instrument_func(value))
        limits = [f"-max_total_time={int(seconds)}", "-rss_limit_mb=6000", f"-timeout={SECONDS}"]
        atheris.Setup([sys.argv[0], *limits, corpus], once)
        atheris.Fuzz()


def main() -> None:
    """Fuzz each target in turn and print how many inputs it had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="For each target.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--atheris", action="store_true")
    given = parser.parse_args()
    given.findings.mkdir(parents=True, exist_ok=True)
    for target in given.targets:
        if given.atheris:
            guided(target, given.seconds)
        else:
            print(f"{target}: {fuzz(target, given.seconds, given.findings, seed=given.seed):,} inputs", flush=True)


if __name__ == "__main__":
    main()
