"""Image files of strangers: which are meant, where they are, and their pixels; or the reason why not."""

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
"""What is taken from a folder; a file that is named is read whatever its name."""
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
"""Formats that are decoded. Pillow knows more, and starts other programs for some."""
MOST_PIXELS = 100_000_000
MOST_BYTES = 512 * 2**20


class UnusableError(ValueError):
    """An image that is left out; the message is the reason."""


class Wanted(NamedTuple):
    """An image that was asked for."""

    name: str
    """Its id, and its path from the folder on."""
    folder: Path | None
    """The folder that it must not leave; None where the user named the file."""


def wanted_images(sources: Sequence[Path], *, folder: Path | None = None, columns: Columns = USUAL) -> list[Wanted]:
    """The images of a table, of a folder with those below it, or the files themselves; each name once."""
    if folder is not None and not folder.is_dir():
        raise InputError("no such folder; it must hold the images", where=folder)
    if len(sources) == 1 and sources[0].is_dir():
        if folder is not None:
            raise InputError(
                "a folder of images needs no other one", where=sources[0], hint="{images} goes with a table"
            )
        names, root = _below(sources[0]), sources[0]
    elif len(sources) == 1 and tables.recognises(sources[0]):
        where = Location(str(sources[0]), image_column=columns.image, caption_column=columns.caption)
        source = tables.TableSource.open(where, folder)
        names, root = source.rows()["image"].to_pylist(), source.image_folder
    else:
        for path in sources:
            if path.is_dir() or tables.recognises(path):
                raise InputError("give one folder, or one table, or image files only", where=path)
        return [Wanted(name, folder) for name in dict.fromkeys(_from(folder, path) for path in sources)]
    if not names:
        raise InputError(f"no image there; looked for {', '.join(SUFFIXES)}", where=sources[0])
    return [Wanted(name, root) for name in dict.fromkeys(names)]


def _from(folder: Path | None, path: Path) -> str:
    """A file's path from the folder on, as a table would name it; as it was given without a folder."""
    if folder is None or not path.absolute().is_relative_to(folder.absolute()):
        return str(path)
    return path.absolute().relative_to(folder.absolute()).as_posix()


def _below(folder: Path) -> list[str]:
    """Paths of the images from the folder on, by name. Linked folders are not entered."""
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
    return os.open(path, flags | os.O_NONBLOCK)  # a named pipe would wait for ever


def locate(image: Wanted) -> Path:
    """Where an image is, links followed; refuses a name that leaves the folder or does not fit on a line."""
    name = image.name
    if not name:
        raise UnusableError("empty name")
    if name != name.strip() or "\n" in name or "\0" in name or name.startswith("\ufeff"):
        raise UnusableError("a name with line breaks or with spaces around it")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableError("a name that is not UTF-8") from error
    if image.folder is None:
        return Path(name)
    try:
        root, path = image.folder.resolve(), (image.folder / name).resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise UnusableError("not found") from error
    if not path.is_relative_to(root):
        raise UnusableError("leads out of the folder of images")
    return path


def decode(content: bytes, *, most_pixels: int = MOST_PIXELS, side: int | None = None) -> Image.Image:
    """The first frame as RGB, upright, on white where it is transparent.

    With a `side` it may come smaller than it is, but no smaller than this: quicker, for formats that can.
    """
    if not content:
        raise UnusableError("empty file")
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own limit warns first
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
    """A picture as RGB, upright, on white where it is transparent."""
    return _rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF says; as it is where that is nonsense."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels are good, whatever is written beside them
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnusableError("floating-point pixels, whose range is not known")
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
    """The content of `skipped.csv`; all values are quoted, since a line break may be in any."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(SKIPPED)
    writer.writerows(skipped)
    return text.getvalue()
