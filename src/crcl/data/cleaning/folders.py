"""Writing folders of images with captions again: imagefolders and images with text files.

imagefolder    metadata files in their own format, in folders of the same names
text files     the lines of the captions that are kept, as they are; an image without captions has no text file

Images stay where they are, unless they are to be linked (hard links: the same file under another name) or copied.
"""

import json
import os
import posixpath
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from crcl.data.cleaning.cells import Listed, clean_listed
from crcl.data.cleaning.judged import COLUMN, Judged, written_folder
from crcl.data.cleaning.tables import clean_table, with_key
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import Files, read_file
from crcl.data.pictures.zips import Zips
from crcl.data.rows.folders import Entry, entries
from crcl.data.rows.metadata import Metadata, MetadataRows, find_metadata, read_cells
from crcl.data.rows.tables import Columns
from crcl.errors import InputError

_UNZIPPED = ".zips"  # where the metadata of zip files is, until they are written


def place_image(source: Files, name: str, judged: Judged, target: Path) -> None:
    """Link or copy an image file, if that is wanted; one that is not there or lies outside is left out."""
    if judged.images is None:
        return
    try:
        file = source.locate(name)
    except UnusableError:
        return
    if not file.is_file() or target.exists():  # a stranger's row may name a metadata file
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if judged.images == "copy":
        shutil.copy2(file, target)
        return
    try:
        os.link(file, target)
    except OSError as error:
        raise InputError(
            f"{name} cannot be linked from there ({error.strerror})",
            where=target.parent,
            hint="pass {images} with 'copy', or name a folder on the same disk",
        ) from error


def clean_captioned(folder: Path, judged: Judged, output: Path) -> int:
    """Write the text files of a folder of images again; returns the number of its rows."""
    return written_folder(output, lambda fresh: _write_captioned(folder, judged, fresh))


def _write_captioned(folder: Path, judged: Judged, output: Path) -> int:
    arriving: dict[str, list[tuple[str, np.float32 | None]]] = {}
    for row, image in sorted(judged.moved.items()):
        caption = judged.expected[row][1]
        arriving.setdefault(image, []).append((caption, judged.correspondence.get(row)))
    row, source = 0, Files(folder)
    for entry in entries(folder, Counter()):
        first = row
        row += len(entry.captions)
        for place, caption in enumerate(entry.captions, start=first):
            judged.check(place, entry.image, caption)
        text, values = _kept_lines(entry, judged, first)
        for caption, value in arriving.pop(entry.image, ()):
            text += (b"" if text.endswith(b"\n") or not text else b"\n") + caption.encode() + b"\n"
            values.append(value)
        if values:
            target = output / entry.text
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
            _write_record(folder, entry, judged, values, target.with_suffix(".json"))
            place_image(source, entry.image, judged, output / entry.image)
    judged.check_count(row)
    if arriving:
        raise judged.changed(f"the image {next(iter(arriving))} is gone")
    return row


def _kept_lines(entry: Entry, judged: Judged, row: int) -> tuple[bytes, list[np.float32 | None]]:
    """The lines of a text file that stay, and the correspondences of the captions in them."""
    lines, values = [], []
    for line, caption in entry.lines:
        if not caption:
            lines.append(line)
            continue
        if judged.keeps(row) and row not in judged.moved:
            if row in judged.corrected:
                line = judged.one_line(row).encode() + line[len(line.rstrip(b"\r\n")) :]
            lines.append(line)
            values.append(judged.correspondence.get(row))
        row += 1
    return (b"".join(lines) if values else b""), values


def _write_record(folder: Path, entry: Entry, judged: Judged, values: list[np.float32 | None], target: Path) -> None:
    """The .json file beside an image, if there is one or correspondences are written: a number, or one for each."""
    name = posixpath.splitext(entry.image)[0] + ".json"
    try:
        content = read_file(Files(folder).locate(name))
    except UnusableError:
        content = b""
    if not judged.mark:
        if content:
            target.write_bytes(content)
        return
    try:
        text = content.decode("utf-8") if content else "{}\n"
        known = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"not a JSON object, so that no '{COLUMN}' can be added", where=folder / name, hint="leave {mark} out"
        ) from error
    if COLUMN in known:
        raise judged.has_column()
    numbers = ["null" if value is None else str(value) for value in values]
    target.write_text(with_key(text, COLUMN, numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"), "utf-8")


def clean_imagefolder(root: Path, columns: Columns, judged: Judged, output: Path) -> int:
    """Write the metadata files of an imagefolder again; returns the number of its rows."""
    found = find_metadata(root)
    zips = tuple(dict.fromkeys(each.archive for each in found if each.archive))
    if zips and judged.images == "link":
        raise InputError(
            "images in a zip file cannot be linked", where=root / zips[0], hint="pass {images} with 'copy'"
        )

    places = {metadata.name: _place(metadata, judged) for metadata in found}
    twice = next((place for place, count in Counter(places.values()).items() if count > 1), None)
    if twice is not None:
        raise InputError(
            f"{posixpath.dirname(twice)} is a folder and a zip file, whose metadata would be written to one place",
            where=root,
            hint="pass {images} with 'copy', which writes the zip file again",
        )

    def write(fresh: Path) -> int:
        row, kept = 0, set[str]()
        for metadata in found:
            with metadata.opened() as path:
                cells = read_cells(path, columns)
                own = _own_rows(metadata, cells, judged, row)
                target = fresh / places[metadata.name]
                target.parent.mkdir(parents=True, exist_ok=True)
                if cells.lengths is None:
                    clean_table(path, cells.columns, own, target)
                else:
                    clean_listed(Listed(path, cells.columns, cells.lengths), own, target)
            kept |= {metadata.image(own.moved.get(place, name)) for place, name in _kept(cells, own)}
            row += len(cells.rows)
        judged.check_count(row)
        _place_images(root, found, judged, kept, fresh)
        return row

    return written_folder(output, write)


def _place(metadata: Metadata, judged: Judged) -> str:
    """Where a cleaned metadata file is written; one of `train.zip` in the folder `train`, if no zip file is written."""
    if metadata.archive is None:
        return metadata.name
    if judged.images == "copy":
        return posixpath.join(_UNZIPPED, metadata.name)
    return posixpath.join(posixpath.splitext(metadata.archive)[0], metadata.member)


def _kept(cells: MetadataRows, judged: Judged) -> Iterator[tuple[int, str]]:
    """The rows that are written, and what their cells of images hold."""
    for place, cell in enumerate(cells.rows["image"].to_pylist()):
        if judged.keeps(place):
            yield place, cell


def _own_rows(metadata: Metadata, cells: MetadataRows, judged: Judged, first: int) -> Judged:
    """What was judged of one metadata file: rows counted from 0 in it, and images named as its cells name them."""
    rows = range(first, first + len(cells.rows))
    images, captions = (cells.rows[name].to_pylist() for name in ("image", "caption"))
    cell_of = {metadata.image(cell): cell for cell in reversed(images)}
    for place, image, caption in zip(rows, images, captions, strict=True):
        judged.check(place, metadata.image(image), caption)

    def cell(image: str) -> str:
        if image in cell_of:
            return cell_of[image]
        here = posixpath.dirname(metadata.name)
        if metadata.archive or ".zip/" in image.lower() or posixpath.isabs(image):
            raise InputError(
                f"a caption of {metadata.name} would move to {image}, which it cannot name",
                where=judged.data,
                hint="leave {relink} out",
            )
        return posixpath.relpath(image, here or ".")

    return Judged(
        judged.data,
        {
            place - first: (images[place - first], judged.expected[place][1])
            for place in rows
            if place in judged.expected
        },
        {place - first: judged.correspondence[place] for place in rows if place in judged.correspondence},
        {place - first for place in rows if place in judged.suspects},
        {place - first: cell(judged.moved[place]) for place in rows if place in judged.moved},
        mark=judged.mark,
        corrected={place - first: judged.corrected[place] for place in rows if place in judged.corrected},
    )


def _place_images(root: Path, found: list[Metadata], judged: Judged, kept: set[str], output: Path) -> None:
    """Link or copy the images of the rows that are kept; those of a zip file go into a new one with its metadata."""
    if judged.images is None:
        return
    zips = list(dict.fromkeys(each.archive for each in found if each.archive))
    pictures = Zips(root, tuple(zips))
    for archive in zips:
        metadata = {each.member: output / _place(each, judged) for each in found if each.archive == archive}
        _write_zip(pictures, archive, metadata, kept, output)
    if zips:
        shutil.rmtree(output / _UNZIPPED)
    for name in sorted(kept):
        inside = name and not posixpath.isabs(name) and not name.startswith("../")
        if inside and pictures.archive_of(name) is None:
            place_image(Files(root), name, judged, output / name)


def _write_zip(pictures: Zips, archive: str, metadata: dict[str, Path], kept: set[str], output: Path) -> None:
    """Write a zip file again with other metadata and without the images that no row names any more."""
    (output / archive).parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(Files(pictures.folder).locate(archive)) as source,
        zipfile.ZipFile(output / archive, "x") as target,
    ):
        for member in dict.fromkeys(source.namelist()):
            about, name = source.getinfo(member), f"{archive}/{member}"
            if about.filename in metadata:
                content = metadata[about.filename].read_bytes()
            elif name in kept:
                try:
                    content = pictures.read(name)
                except UnusableError:
                    continue
            else:
                continue
            copy = zipfile.ZipInfo(about.filename, about.date_time)
            copy.compress_type, copy.external_attr = about.compress_type, about.external_attr
            target.writestr(copy, content)
