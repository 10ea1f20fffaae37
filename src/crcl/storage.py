"""Files that are written whole or not at all, and folders that one process locks at a time.

Locks are those of POSIX. Windows has none of them: there nothing keeps two processes out of one folder.
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
RESUME = "what was saved before is intact: make room and resume the training"


@contextmanager
def locked(path: Path, *, busy: str = TRAINING, hint: str = "", wait: bool = False) -> Iterator[None]:
    """Lock a folder, or raise an error of `busy` and `hint`.

    Unlike flock's this lock is not inherited by workers, who outlive a killed training.
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
    """Whether another process has locked a folder; none has locked one that may not be written."""
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
    """The opened lock file of a folder; a link, which a stranger's folder may hold, is not followed."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(os.open(path / ".lock", flags, 0o666), "r+b")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to; it becomes `path` when all is on the disk: the old file or the new, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # it may be a link to another file
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
    """A new folder to fill, which replaces `path` when all is there; the old one stays if anything fails.

    An old one that another process has locked is left alone, with `busy` as the error.
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
        what = f"cannot be written ({folder}: {error.strerror})"
        raise InputError(what, where=path, hint="name another place") from error


def write_bytes(path: Path, data: bytes | memoryview, *, advice: str = RESUME) -> None:
    """Write under a temporary name, flush to disk, rename: the old content or the new, never half."""
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
    """Never write over what was read."""
    if any(output.exists() and Path(name).exists() and output.samefile(name) for name in inputs):
        raise InputError("that is the data itself", where=output, hint="name another file to write")


def make_folder(folder: Path) -> None:
    """A folder to write to, made where it does not exist yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=folder) from error
