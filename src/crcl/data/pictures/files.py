"""Image files in a folder and its subfolders, or at any path that the user names."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crcl.data.pictures.base import MOST_BYTES, UnusableError, Wanted
from crcl.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
"""Endings of image files that are picked up from a folder; a file named by the user may have any ending."""


@dataclass(frozen=True)
class Files:
    """Image files, named by their path relative to a folder."""

    folder: Path | None
    """The folder that names must not leave; None if the user named each file."""

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image file."""
        return read_file(self.locate(name), most=most)

    def locate(self, name: str) -> Path:
        """The resolved path of an image; refuses a name that leaves the folder or does not fit on one line."""
        check_name(name)
        if self.folder is None:
            return Path(name)
        try:
            root, path = self.folder.resolve(), (self.folder / name).resolve()
        except (OSError, RuntimeError) as error:  # a loop of links
            raise UnusableError("not found") from error
        if not path.is_relative_to(root):
            raise UnusableError("outside the folder of images")
        return path


def check_name(name: str) -> None:
    """Refuse the name of an image that does not fit on one line of a file of names."""
    if not name:
        raise UnusableError("empty name")
    if name != name.strip() or "\n" in name or "\0" in name or name.startswith("\ufeff"):
        raise UnusableError("its name has a line break, or spaces at its ends")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableError("its name is not UTF-8") from error


def read_file(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file."""
    try:
        with open(path, "rb", opener=_open) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise UnusableError("not a file")
            if about.st_size > most:
                raise UnusableError(f"{about.st_size:,} bytes, more than {most:,}")
            content = file.read(about.st_size)  # a file that grows meanwhile is cut, and so found to be broken
    except FileNotFoundError as error:
        raise UnusableError("not found") from error
    except OSError as error:
        raise UnusableError(f"cannot be read ({error.strerror})") from error
    if not content:
        raise UnusableError("empty file")
    return content


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a named pipe would block forever


def require_folder(folder: Path) -> Path:
    """The folder of images; raises an error if it does not exist."""
    if not folder.is_dir():
        raise InputError("no such folder", where=folder, hint="name the folder of the images")
    return folder


def wanted_files(paths: Sequence[Path], *, folder: Path | None = None) -> list[Wanted]:
    """The images of one folder and its subfolders, or a list of image files; each name once.

    Args:
        paths: One folder, or image files.
        folder: The folder that the names of files are relative to.
    """
    if folder is not None:
        require_folder(folder)
    if len(paths) == 1 and paths[0].is_dir():
        if folder is not None:
            raise InputError("is a folder of images already", where=paths[0], hint="pass {images} with a table only")
        names = image_files(paths[0])
        if not names:
            raise InputError(f"contains no images; looked for {', '.join(SUFFIXES)}", where=paths[0])
        return [Wanted(name, Files(paths[0])) for name in names]
    for path in paths:
        if path.is_dir():
            raise InputError(
                "cannot be combined with other inputs", where=path, hint="give one folder, one table, or image files"
            )
    return [Wanted(name, Files(folder)) for name in dict.fromkeys(_from(folder, path) for path in paths)]


def _from(folder: Path | None, path: Path) -> str:
    """A file's path relative to the folder, as a table names it; unchanged without a folder or outside of it."""
    if folder is None or not path.absolute().is_relative_to(folder.absolute()):
        return str(path)
    return path.absolute().relative_to(folder.absolute()).as_posix()


def image_files(folder: Path) -> list[str]:
    """Sorted paths, relative to the folder, of the images in it and its subfolders; linked folders are not entered."""
    found = []
    for place, _, files in os.walk(folder):
        here = Path(place).relative_to(folder)
        found += [(here / file).as_posix() for file in files if Path(file).suffix.lower() in SUFFIXES]
    return sorted(found)
