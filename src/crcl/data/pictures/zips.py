"""Images in a folder and in zip files of that folder, read without unpacking them."""

import os
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crcl.data.pictures.base import MOST_BYTES, UnusableError
from crcl.data.pictures.files import Files, check_name

BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)
"""Errors that zipfile raises for a broken, a foreign or an encrypted file."""


@dataclass(frozen=True)
class Zips:
    """Images named by their path in a folder; that of a zip file's member is `train.zip/cat.png`."""

    folder: Path
    """Nothing outside of it is read."""
    zips: tuple[str, ...] = ()
    """Paths of the zip files, relative to the folder."""

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image file."""
        check_name(name)
        files = Files(self.folder)
        archive = self.archive_of(name)
        if archive is None:
            return files.read(name, most=most)
        return read_member(files.locate(archive), name[len(archive) + 1 :], most=most)

    def archive_of(self, name: str) -> str | None:
        """The zip file that an image lies in, if it does."""
        return next((archive for archive in self.zips if name.startswith(f"{archive}/")), None)


def read_member(path: Path, member: str, *, most: int = MOST_BYTES) -> bytes:
    """The bytes of a member of a zip file; not more than `most`, whatever the file says."""
    try:
        archive = _opened(str(path), path.stat().st_mtime_ns, os.getpid())
        about = archive.getinfo(member)
        if about.flag_bits & 1:
            raise UnusableError("encrypted")
        if about.file_size > most:
            raise UnusableError(f"{about.file_size:,} bytes, more than {most:,}")
        with archive.open(about) as stream:
            content = stream.read(about.file_size)
    except UnusableError:
        raise
    except KeyError as error:
        raise UnusableError("not found") from error
    except FileNotFoundError as error:
        raise UnusableError(f"the zip file {path.name} is gone") from error
    except BROKEN as error:
        raise UnusableError(f"cannot be read from the zip file ({' '.join(str(error).split())[:100]})") from error
    if not content:
        raise UnusableError("empty file")
    return content


@lru_cache(maxsize=16)
def _opened(path: str, _changed: int, _process: int) -> zipfile.ZipFile:
    """A zip file, opened once in each process: two processes must not share a position in it."""
    return zipfile.ZipFile(path)
