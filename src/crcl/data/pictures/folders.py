"""Image files in one of several folders, as where each split has its own; and which folder images lie in."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crcl.data.pictures.base import MOST_BYTES, Pictures, UnusableError
from crcl.data.pictures.files import Files, read_file

_TRIED = 10  # images that are looked for to find their folder


@dataclass(frozen=True)
class Folders:
    """Image files, named by their path relative to one of these folders; the first that has a file counts."""

    folders: tuple[Path, ...]

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image file."""
        reason = UnusableError("not found")
        for folder in self.folders:
            try:
                path = Files(folder).locate(name)
            except UnusableError as error:
                reason = error
                continue
            if _exists(path):
                return read_file(path, most=most)
        raise reason


def pictures_in(folders: Iterable[Path]) -> Pictures | None:
    """The images in these folders; None if there are no folders."""
    places = tuple(dict.fromkeys(folders))
    if not places:
        return None
    return Files(places[0]) if len(places) == 1 else Folders(places)


def folder_of(names: Sequence[str], folders: Iterable[Path]) -> Path | None:
    """The first folder that has one of the first ten images; None if none has."""
    for folder in folders:
        if any(has(folder, name) for name in names[:_TRIED]):
            return folder
    return None


def has(folder: Path, name: str) -> bool:
    """Whether a folder has an image of this name."""
    with suppress(UnusableError):
        return _exists(Files(folder).locate(name))
    return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, or a folder that may not be entered
        return False
