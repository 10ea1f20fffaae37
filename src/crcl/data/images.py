"""Image files: listing, locating, reading and decoding them, or the reason why one cannot be used.

The files are not trusted: names must stay within their folder, and sizes are limited.
"""

import csv
import io
import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from crcl.data.sources import table as tables
from crcl.data.sources.base import Location
from crcl.data.sources.rows import USUAL, Columns
from crcl.data.sources.stored import SKIPPED
from crcl.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
"""Endings of image files that are picked up from a folder; a file named by the user may have any ending."""
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
"""Formats to decode. Pillow knows more, but starts other programs for some of them."""
MOST_PIXELS = 100_000_000
MOST_BYTES = 512 * 2**20


class UnusableError(ValueError):
    """An image cannot be used and is left out; the message gives the reason."""


class Wanted(NamedTuple):
    """An image file: its name, and the folder that the name is relative to."""

    name: str
    """The image id, which is also its path relative to the folder."""
    folder: Path | None
    """The folder that the path must not leave; None if the user named the file itself."""


def wanted_images(sources: Sequence[Path], *, folder: Path | None = None, columns: Columns = USUAL) -> list[Wanted]:
    """The images of one table, of one folder and its subfolders, or a list of image files; each name once.

    Args:
        sources: One table, one folder, or image files.
        folder: The folder of a table's images.
        columns: Names of a table's columns.
    """
    if folder is not None and not folder.is_dir():
        raise InputError("no such folder", where=folder, hint="name the folder of the images")
    if len(sources) == 1 and sources[0].is_dir():
        if folder is not None:
            raise InputError("is a folder of images already", where=sources[0], hint="pass {images} with a table only")
        names, root = _below(sources[0]), sources[0]
    elif len(sources) == 1 and tables.recognises(sources[0]):
        where = Location(str(sources[0]), image_column=columns.image, caption_column=columns.caption)
        source = tables.TableSource.open(where, folder)
        names, root = source.rows()["image"].to_pylist(), source.image_folder
    else:
        for path in sources:
            if path.is_dir() or tables.recognises(path):
                raise InputError(
                    "cannot be combined with other inputs",
                    where=path,
                    hint="give one folder, one table, or image files",
                )
        return [Wanted(name, folder) for name in dict.fromkeys(_from(folder, path) for path in sources)]
    if not names:
        raise InputError(f"contains no images; looked for {', '.join(SUFFIXES)}", where=sources[0])
    return [Wanted(name, root) for name in dict.fromkeys(names)]


def _from(folder: Path | None, path: Path) -> str:
    """A file's path relative to the folder, as a table names it; unchanged without a folder or outside of it."""
    if folder is None or not path.absolute().is_relative_to(folder.absolute()):
        return str(path)
    return path.absolute().relative_to(folder.absolute()).as_posix()


def _below(folder: Path) -> list[str]:
    """Sorted paths, relative to the folder, of the images in it and its subfolders; linked folders are not entered."""
    found = []
    for place, _, files in os.walk(folder):
        here = Path(place).relative_to(folder)
        found += [(here / file).as_posix() for file in files if Path(file).suffix.lower() in SUFFIXES]
    return sorted(found)


def read_file(image: Wanted, *, most: int = MOST_BYTES) -> bytes:
    """The bytes of an image file."""
    path = locate(image)
    try:
        with open(path, "rb", opener=_open) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise UnusableError("not a file")
            if about.st_size > most:
                raise UnusableError(f"{about.st_size:,} bytes, more than {most:,}")
            content = file.read(most + 1)
    except FileNotFoundError as error:
        raise UnusableError("not found") from error
    except OSError as error:
        raise UnusableError(f"cannot be read ({error.strerror})") from error
    if not content:
        raise UnusableError("empty file")
    return content


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a named pipe would block forever


def locate(image: Wanted) -> Path:
    """The resolved path of an image; refuses a name that leaves the folder or does not fit on one line."""
    name = image.name
    if not name:
        raise UnusableError("empty name")
    if name != name.strip() or "\n" in name or "\0" in name or name.startswith("\ufeff"):
        raise UnusableError("its name has a line break, or spaces at its ends")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableError("its name is not UTF-8") from error
    if image.folder is None:
        return Path(name)
    try:
        root, path = image.folder.resolve(), (image.folder / name).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise UnusableError("not found") from error
    if not path.is_relative_to(root):
        raise UnusableError("outside the folder of images")
    return path


def decode(content: bytes, *, most_pixels: int = MOST_PIXELS, side: int | None = None) -> Image.Image:
    """The first frame as RGB, rotated as EXIF says, transparent parts on white.

    Args:
        content: Bytes of an image file.
        most_pixels: Larger images are refused.
        side: Allows formats that can to decode at a lower resolution, not below this many pixels per side; quicker.
    """
    if not content:
        raise UnusableError("empty file")
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns at a lower limit of its own
            image = Image.open(io.BytesIO(content), formats=formats)
            width, height = image.size
            if width * height > most_pixels:
                raise UnusableError(f"{width} x {height} pixels, more than {most_pixels:,}")
            if side is not None:
                image.draft(None, (side, side))
            image.load()
            return as_rgb(image)
    except UnusableError:
        raise
    except Image.DecompressionBombError as error:
        raise UnusableError(f"too many pixels ({error})") from error
    except Image.UnidentifiedImageError as error:
        raise UnusableError("not an image of a known format") from error
    except Exception as error:  # hostile bytes make Pillow raise anything
        raise UnusableError(f"broken image ({_one_line(error)})") from error


def as_rgb(image: Image.Image) -> Image.Image:
    """An image as RGB, rotated as EXIF says, transparent parts on white."""
    return _rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    """The image rotated as its EXIF data says; unchanged if that data is invalid."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # bad metadata does not make the pixels bad
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnusableError("floating-point pixels of unknown range")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    return image.convert("RGB")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def skipped_text(skipped: Sequence[tuple[str, str]]) -> str:
    """The content of `skipped.csv`; all values are quoted because any may contain a line break."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(SKIPPED)
    writer.writerows(skipped)
    return text.getvalue()
