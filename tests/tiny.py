"""A tiny precomp folder that can be learnt in seconds, and the command line run in this process or in its own."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from crcl import cli
from crcl.config import Config, load
from crcl.progress import Clock, Progress, StepLog

torch.set_num_threads(1)  # the same sums in every process, and no quarrel about the machine's cores

COLOURS = ["red", "green", "blue", "white"]
THINGS = ["dog", "cat", "ball", "car"]
PLACES = ["grass", "sand", "snow", "water"]
REGIONS, SIZE = 4, 6

SMALL = [
    "matcher.name=bow",
    "matcher.embedding=8",
    "matcher.word=6",
    "train.pieces=[1,2]",
    "train.batch_size=16",
    "train.lr=0.01",
    "train.device=cpu",
    "ledger.freeze_epochs=1",
    "decl.warmup=1",
    "division.warmup=1",
    "mscn.warmup=1",
]
"""Settings of a training that takes a fraction of a second."""

LEARNING = [
    *SMALL,
    "method=crcl",
    "matcher.embedding=32",
    "train.pieces=[12,12]",
    "ledger.freeze_epochs=10",
    "train.augment=false",
    "data.standardize=true",
]
"""Settings of one that learns a hundred images well, so that decoys are told from pairs on any machine."""


def write_folder(folder: Path, *, train: int = 24, held_out: int = 8, captions: int = 2, seed: int = 0) -> Path:
    """Splits train, dev and test in the field's layout; captions name what the features show."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    shown = rng.normal(size=(len(COLOURS) + len(THINGS) + len(PLACES), SIZE))
    for split, images in (("train", train), ("dev", held_out), ("test", held_out)):
        parts = rng.integers(0, 4, (images, 3))
        regions = shown[parts + np.array([0, 4, 8])][:, [0, 1, 2, 1]]  # (images, REGIONS, SIZE)
        features = regions + 0.1 * rng.normal(size=(images, REGIONS, SIZE))
        np.save(folder / f"{split}_ims.npy", features.astype(np.float32))
        lines = []
        for colour, thing, place in parts:
            words = f"{COLOURS[colour]} {THINGS[thing]}", PLACES[place]
            lines += [f"a {words[0]} on the {words[1]}", f"on {words[1]} there is a {words[0]}"][:captions]
        (folder / f"{split}_caps.txt").write_text("\n".join(lines) + "\n", "utf-8")
        (folder / f"{split}_ids.txt").write_text("".join(f"{split}{row}.jpg\n" for row in range(images)), "utf-8")
    return folder


def small_config(data: Path, *settings: str, **base: Any) -> Config:
    """The small training on a folder, with 40 % of the pairs mismatched."""
    return load(base={"data.path": str(data), "noise.rate": 0.4, **base}, settings=[*SMALL, *settings])


def train_command(data: Path, run: Path, *words: str, settings: Sequence[str] = ()) -> list[str]:
    """Words of `crcl train` for the same training."""
    given = [word for setting in [*SMALL, *settings] for word in ("--set", setting)]
    return ["train", str(data), "-o", str(run), "--noise", "0.4", *given, *words]


class Answer(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """One thread, so that results are the same bit for bit and tests can share a machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def start(*words: str, **options: Any) -> "subprocess.Popen[str]":
    """The command line as a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    crcl = Path(sys.executable).with_name("crcl")
    return subprocess.Popen([str(crcl), *words], text=True, env=environment(), **{**pipes, **options})


def finish(process: "subprocess.Popen[str]", timeout: float = 120) -> Answer:
    """Wait for a process to end."""
    out, err = process.communicate(timeout=timeout)
    return Answer(process.returncode, out, err)


def command(*words: str, **options: Any) -> Answer:
    """Run the command line in a process of its own."""
    return finish(start(*words, **options))


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Answer:
    """Run the command line in this process."""
    monkeypatch.setattr(sys, "argv", ["crcl", *words])
    capsys.readouterr()
    code = 0
    try:
        cli.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    return Answer(code, *capsys.readouterr())


class Stop(Exception):  # noqa: N818 - raised on purpose
    """A training ends here as if it had been killed: what is not saved is lost."""


class Noting(Progress):
    """Keeps messages and status lines in a list."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def note(self, message: str) -> None:
        self.lines.append(message)

    status = note


class StopAfter(Progress):
    """Ends the training after so many steps, before they can be saved."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step_done(self, clock: Clock, log: StepLog) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop


def assert_same_runs(one: Path, other: Path) -> None:
    """Weights, ledger, metrics and the whole state agree bit for bit, and nothing half-written is left."""
    words = "vocab.json" if (one / "vocab.json").exists() else "tokenizer.json"
    for name in ("matcher.safetensors", "metrics.jsonl", "beliefs.f16", words, "noise.npy"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    for name in ("ledger.npz", "partners.npz"):
        if (one / name).exists():
            with np.load(one / name) as left, np.load(other / name) as right:
                assert {key: left[key].tobytes() for key in left} == {key: right[key].tobytes() for key in right}
    states = (torch.load(run / "training.pt", weights_only=True) for run in (one, other))
    left, right = (dict(leaves(state)) for state in states)
    assert left == right
    assert sorted(file.name for file in one.iterdir()) == sorted(file.name for file in other.iterdir())


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested state under its full name; tensors as their bytes, so that NaN equals NaN."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(state, list | tuple):
        for key, value in enumerate(state):
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(state, torch.Tensor):
        yield name, (state.dtype, tuple(state.shape), state.contiguous().numpy().tobytes())
    else:
        yield name, state


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file may grow beyond this size, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
