"""Atomic writing of files and folders, and locks of folders.

The locks are those of POSIX. On Windows nothing keeps two processes out of one folder.
"""

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np

from crcl.errors import InputError, TrainingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TRAINING = "another process is training this run"
RESUME = "the last checkpoint is intact: free some disk space and resume the training"


@contextmanager
def locked(path: Path, *, busy: str = TRAINING, hint: str = "", wait: bool = False) -> Iterator[None]:
    """Lock a folder, or raise an error with the text `busy` and `hint`; with `wait`, wait for the lock instead.

    Worker processes, which outlive a killed training, do not inherit this lock, unlike one of `flock`.
    """
    try:
        file = _lock_file(path)
    except OSError as error:
        raise InputError(f"cannot be written ({error.filename}: {error.strerror})", where=path) from error
    with file:
        try:
            _lock(file, wait=wait)
        except OSError as error:
            raise InputError(busy, where=path, hint=hint) from error
        yield


def is_locked(path: Path) -> bool:
    """Whether another process has locked a folder; a read-only folder counts as not locked."""
    try:
        file = _lock_file(path)
    except OSError:
        return False
    with file:
        try:
            _lock(file, wait=False)
        except OSError:
            return True
    return False


def _lock(file: BinaryIO, *, wait: bool) -> None:
    if fcntl is not None:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _lock_file(path: Path) -> BinaryIO:
    """Open the lock file of a folder; never follows a link, which an untrusted folder may contain."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(os.open(path / ".lock", flags, 0o666), "r+b")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which atomically replaces `path` once it is flushed to disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # an untrusted folder may contain a link of this name
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def replacing_folder(path: Path, *, busy: str) -> Iterator[Path]:
    """Yield a new folder to fill, which then replaces `path`; the old folder stays if anything fails.

    Raises an error with the text `busy` if another process has locked the old folder.
    """
    fresh, old = (path.with_name(f".{path.name}.{kind}-{os.getpid()}") for kind in ("new", "old"))
    try:
        fresh.mkdir(parents=True)
        yield fresh
        if path.exists():
            with locked(path, busy=busy):
                path.rename(old)
        fresh.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def require_writable(path: Path) -> None:
    """Raise an error, before long work, if a file or folder cannot be created at `path`."""
    folder = next(above for above in path.absolute().parents if above.exists())
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what = f"cannot be written ({folder}: {error.strerror})"
        raise InputError(what, where=path, hint="name another path") from error


def write_bytes(path: Path, data: bytes | memoryview, *, advice: str = RESUME) -> None:
    """Write a file atomically: a crash leaves the old content or the new; `advice` ends the error message."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
        if fcntl is not None:  # Windows cannot open folders
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise could_not_save(path, error, advice) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def write_array(path: Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getbuffer())


def write_arrays(path: Path, *, advice: str = RESUME, **arrays: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getbuffer(), advice=advice)


def could_not_save(path: Path, error: OSError, advice: str = RESUME) -> TrainingError:
    return TrainingError(f"could not save {path}: {error.strerror or error}; {advice}")


def refuse_input(output: Path, *inputs: str) -> None:
    """Raise an error if the output is one of the input files."""
    if any(output.exists() and Path(name).exists() and output.samefile(name) for name in inputs):
        raise InputError("is an input file", where=output, hint="name another file to write")


def make_folder(folder: Path) -> None:
    """Create a folder to write to, if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=folder) from error
