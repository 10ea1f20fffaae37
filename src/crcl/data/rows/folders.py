"""Images with captions in text files of the same name: what a folder holds of these, always in the same order.

    cat.png    cat.txt           one caption per line; empty lines do not count
    train/...  val/...  test/... splits

The ending `.caption` serves as well, where there is no `.txt`.
"""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import SUFFIXES, Files, check_name
from crcl.data.rows.splits import SPLIT_OF
from crcl.errors import InputError

ENDINGS = (".txt", ".caption")
"""Endings of caption files; the first that is there counts."""
_LOOKED_INTO = 20  # folders that a quick look opens


class Entry(NamedTuple):
    """An image with its captions."""

    image: str
    """Path relative to the folder."""
    text: str
    """Path of the file of captions."""
    lines: list[tuple[bytes, str]]
    """The lines of that file as they are, with their line ends, and as captions; empty ones are no captions."""

    @property
    def captions(self) -> list[str]:
        """Its captions."""
        return [caption for _, caption in self.lines if caption]


def split_of(name: str, *, depth: int = 1) -> str | None:
    """The split that one of the first folders of a path is named after, if any; `train.zip` is such a folder too."""
    for part in PurePosixPath(name).parts[:-1][:depth]:
        folder = part.lower()
        first = re.split(r"[-_.]", folder)[0] if folder.endswith(".zip") else folder
        if first in SPLIT_OF:
            return SPLIT_OF[first]
    return None


def splits_of_names(names: list[str], *, depth: int = 1) -> list[str] | None:
    """The split of each path; None if no path is in the folder of a split, else train for those that are not."""
    known = {name: split_of(name, depth=depth) for name in set(names)}
    return [known[name] or "train" for name in names] if any(known.values()) else None


def walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder, relative to the first, with its files, sorted; hidden and linked ones are not entered."""
    for place, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        here = Path(place).relative_to(folder).as_posix()
        yield ("" if here == "." else here), sorted(files)


def _refuse(error: OSError) -> None:
    raise InputError(f"cannot be read ({error.strerror})", where=str(error.filename)) from error


def has_captions(folder: Path) -> bool:
    """Whether a folder or one of the first below it has an image with captions beside it, by a quick look."""
    for number, (_, files) in enumerate(walk(folder)):
        images, texts = _by_stem(files)
        if images.keys() & texts.keys():
            return True
        if number >= _LOOKED_INTO:
            break
    return False


def entries(folder: Path, counts: Counter[str]) -> Iterator[Entry]:
    """The images of a folder that have captions, sorted by path; `counts` counts what is left out, and why."""
    found = []
    for place, files in walk(folder):
        images, texts = _by_stem(files)
        counts["text without image"] += len(texts.keys() - images.keys())
        counts["same name"] += sum(len(names) - 1 for stem, names in images.items() if stem in texts)
        counts["image without text"] += sum(len(names) for stem, names in images.items() if stem not in texts)
        prefix = f"{place}/" if place else ""
        found += [(prefix + images[stem][0], prefix + texts[stem]) for stem in images.keys() & texts.keys()]
    source = Files(folder)
    for image, text in sorted(found):
        try:
            check_name(image)
            lines = parse(source.read(text))
        except UnusableError as error:
            counts["image without text" if str(error) == "empty file" else "unreadable"] += 1
            continue
        if any(caption for _, caption in lines):
            yield Entry(image, text, lines)
        else:
            counts["image without text"] += 1


def parse(content: bytes) -> list[tuple[bytes, str]]:
    """The lines of a file of captions as they are, and as trimmed texts."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableError("not UTF-8") from error
    lines = content.split(b"\n")
    raw = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    return [(line, line.decode("utf-8").strip().strip("\ufeff").strip()) for line in raw]


def _by_stem(files: list[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The images and the file of captions of each stem among sorted file names."""
    images: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for file in files:
        stem, ending = posixpath.splitext(file)
        if ending.lower() in SUFFIXES:
            images.setdefault(stem, []).append(file)
        elif ending.lower() in ENDINGS and (stem not in texts or ending.lower() == ENDINGS[0]):
            texts[stem] = file
    return images, texts
