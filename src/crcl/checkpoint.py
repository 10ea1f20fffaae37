"""The run folder: all that a training leaves, written so that a kill at any moment leaves the old or the new.

    config.json           what was asked for, and the sizes that the data gave
    vocab.json            the words, in the field's layout
    noise.npy             the injected mismatches, in the field's layout (where noise was injected)
    standardize.npz       the features' mean and deviation (where asked for)
    matcher.safetensors   the best matcher of the newest piece, by dev rSum
    ledger.npz            the belief in each pair at the last epoch's end
    training.pt           the last state: everything needed to go on (tensors and plain values, nothing pickled)
    metrics.jsonl         one line per epoch, the same for the same seed
    timing.jsonl          seconds per epoch, which are never the same

`training.pt` is the one file that counts on resuming: what was written after it is written again.
"""

import fcntl
import io
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from crcl.data.batches import Standardize
from crcl.data.vocab import Vocabulary
from crcl.errors import InputError, TrainingError

FORMAT = 1


class Run:
    """An open run folder."""

    def __init__(self, path: Path, config: dict[str, Any], sizes: dict[str, int]) -> None:
        self.path = path
        self.config = config
        self.sizes = sizes

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        config: dict[str, Any],
        sizes: dict[str, int],
        vocabulary: Vocabulary,
        noise: np.ndarray | None = None,
        standardize: Standardize | None = None,
        overwrite: bool = False,
    ) -> "Run":
        """Start a run folder; an existing one is replaced only if asked."""
        path = Path(path)
        refuse_existing(path, overwrite=overwrite)
        fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
        try:
            fresh.mkdir(parents=True)
            write_json(fresh / "config.json", {"format": FORMAT, "config": config, "sizes": sizes})
            write_json(fresh / "vocab.json", vocabulary.to_json())
            if noise is not None:
                write_array(fresh / "noise.npy", noise)
            if standardize is not None:
                write_arrays(
                    fresh / "standardize.npz", mean=standardize.mean, deviation=np.array(standardize.deviation)
                )
            if path.exists():
                shutil.rmtree(path)
            fresh.rename(path)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
        return cls(path, config, sizes)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open a run folder, of this version and whole."""
        path = Path(path)
        if not path.is_dir():
            raise InputError(f"{path}: no such run folder")
        if not (path / "config.json").is_file():
            raise InputError(f"{path}: not a run folder (it has no config.json); `crcl train DATA -o {path}` makes one")
        content = _read_json(path / "config.json")
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise InputError(
                f"{path}: a run folder of format {found}, this version reads format {FORMAT}; "
                "use the version of crcl that wrote it, or train again"
            )
        if not isinstance(content.get("config"), dict) or not isinstance(content.get("sizes"), dict):
            raise InputError(f"{path / 'config.json'}: incomplete; train again with --overwrite")
        return cls(path, content["config"], content["sizes"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second training out of this folder."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{self.path}: another process is training this run") from error
            for left in self.path.glob(".*.tmp"):
                left.unlink()
            yield

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self._there("vocab.json"))

    def noise(self) -> np.ndarray | None:
        path = self.path / "noise.npy"
        return _read_npy(path) if path.is_file() else None

    def standardize(self) -> Standardize | None:
        path = self.path / "standardize.npz"
        if not path.is_file():
            return None
        arrays = _read_npz(path)
        return Standardize(arrays["mean"], float(arrays["deviation"]))

    def save_matcher(self, state: dict[str, Tensor]) -> None:
        plain = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        write_bytes(self.path / "matcher.safetensors", safetensors.torch.save(plain))

    def load_matcher(self) -> dict[str, Tensor]:
        path = self._there("matcher.safetensors")
        try:
            return safetensors.torch.load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: damaged ({error}); train again, or go on with --resume") from error

    def save_ledger(self, correspondence: np.ndarray) -> None:
        write_arrays(self.path / "ledger.npz", correspondence=correspondence)

    def load_ledger(self) -> np.ndarray:
        return _read_npz(self._there("ledger.npz"))["correspondence"]

    def save_state(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.path / "training.pt", buffer.getbuffer())

    def load_state(self) -> dict[str, Any] | None:
        """The last state, or None where the training was stopped before its first one."""
        path = self.path / "training.pt"
        if not path.is_file():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            raise InputError(f"{path}: damaged ({str(error).splitlines()[0]}); train again with --overwrite") from error
        return dict(state)

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise _could_not_save(self.path / name, error) from error

    def length(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.is_file() else 0

    def truncate(self, name: str, length: int) -> None:
        """Take back the lines that were written after the state one goes on from."""
        path = self.path / name
        if path.is_file():
            os.truncate(path, length)

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []

    def _there(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise InputError(
                f"{self.path}: half a run folder, {name} is missing; finish the training with "
                f"`crcl train DATA -o {self.path} --resume`"
            )
        return path


def refuse_existing(path: str | Path, *, overwrite: bool) -> None:
    """Stop before an existing folder is lost."""
    path = Path(path)
    if not path.exists():
        return
    if not overwrite:
        raise InputError(f"{path}: exists already; go on with it by --resume, or replace it by --overwrite")
    if not (path / "config.json").is_file() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: not a run folder, so it is not overwritten; give another name")


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write under a temporary name, flush to disk, rename: the old content or the new, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _could_not_save(path, error) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def write_array(path: Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getbuffer())


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getbuffer())


def _could_not_save(path: Path, error: OSError) -> TrainingError:
    return TrainingError(
        f"could not save {path}: {error.strerror or error}; what was saved before is still there: "
        "make room and go on with --resume"
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: damaged ({error}); train again with --overwrite") from error


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:
        raise InputError(f"{path}: damaged ({error}); train again, or go on with --resume") from error


def _read_npy(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: damaged ({error}); train again with --overwrite") from error
