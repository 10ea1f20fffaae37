"""The user's cache folder, for what can be made again at any time.

That is `$XDG_CACHE_HOME/crcl`, or `~/.cache/crcl`. Where it cannot be written, a temporary folder takes its place, and
is removed when the process ends. Files are complete or absent: they are written under another name and renamed.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path


def cache_folders(name: str) -> list[Path]:
    """Folders of this name to try in turn: the user's, if it can be had, and a temporary one of this process."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "crcl" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or not ours
        return [_temporary(name)]
    return [folder, _temporary(name)]


def kept(folder: Path, name: str, write: Callable[[Path], None]) -> Path | None:
    """Write a file of a cache folder; several processes may do so at the same time. None if it cannot be written."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        os.close(handle)
        write(Path(temporary))
        Path(temporary).replace(folder / name)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return None
    return folder / name


def _temporary(name: str) -> Path:
    folder = _own_folder(os.getpid()) / name
    folder.mkdir(exist_ok=True)
    return folder


@cache
def _own_folder(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"crcl-{process}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
