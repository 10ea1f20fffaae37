"""Files that are written whole or not at all, and folders that one process holds at a time."""

import fcntl
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

TRAINING = "another process is training this run"
RESUME = "what was saved before is still there: make room and go on with --resume"


@contextmanager
def locked(path: Path, *, busy: str = TRAINING, wait: bool = False) -> Iterator[None]:
    """Hold a folder; unlike flock this lock is not inherited by workers, who outlive a killed training."""
    try:
        file = _lock_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.filename}: {error.strerror})") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise InputError(f"{path}: {busy}") from error
        yield


def is_locked(path: Path) -> bool:
    """Whether another process holds a folder; one that may not be written is held by none."""
    try:
        file = _lock_file(path)
    except OSError:
        return False
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _lock_file(path: Path) -> BinaryIO:
    """Neither emptied nor, where a folder comes from others, followed to where it points."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path / ".lock", flags, 0o666), "r+b")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` when all is on the disk: the old file or the new one, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # what stands there may be a link to another's file
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
    """A folder to fill, which becomes `path` when all is there: the old one goes then, and stays if anything fails.

    An old one that another process holds is left alone, with `busy` as the error.
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
    """Refuse, before long work, a file or folder that could not be made there, nor the folders above it."""
    folder = next(above for above in path.absolute().parents if above.exists())
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({folder}: {error.strerror}); name another place") from error


def write_bytes(path: Path, data: bytes | memoryview, *, advice: str = RESUME) -> None:
    """Write under a temporary name, flush to disk, rename: the old content or the new, never half."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
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
