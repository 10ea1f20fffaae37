"""COCO captions: a JSON document with `images` and `annotations`, or a folder of such documents, one for each split."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crcl.data.cleaning.documents import (
    Edit,
    refuse_marked,
    removals,
    with_correspondence,
    with_value,
    write_document,
)
from crcl.data.cleaning.judged import Judged, written, written_folder
from crcl.data.files import SHOWN, refuse
from crcl.data.pictures.folders import folder_of, has, pictures_in
from crcl.data.rows.documents import Cursor, Entry, as_rows, keys_at_start, missing_key, not_text
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.errors import InputError

IMAGE = '{"id": ..., "file_name": ...}'
ANNOTATION = '{"image_id": ..., "caption": ...}'
EXPECTED = f'{{"images": [{IMAGE}, ...], "annotations": [{ANNOTATION}, ...]}}'
_NAMES = "captions_*.json"


class _Document(NamedTuple):
    """What a document has."""

    path: Path
    text: str
    names: dict[Any, str]
    """The file name of each image by its id."""
    annotations: list[Entry]
    """Those without an image of the document are no rows."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Image and caption of each annotation that has an image."""
        for entry in self.annotations:
            if entry.value["image_id"] in self.names:
                yield self.names[entry.value["image_id"]], entry.value["caption"] or ""


def recognises(path: Path) -> bool:
    """Whether a path is such a document, by its first keys, or a folder that has some by their names."""
    if path.is_dir():
        documents = [] if (path / "config.json").is_file() else _documents(path)
        return bool(documents) and _is_coco(documents[0])
    return path.suffix.lower() == ".json" and _is_coco(path)


def _is_coco(path: Path) -> bool:
    keys = keys_at_start(path)
    named = {("images", "[]", "file_name"), ("images", "[]", "id")} <= keys
    return named or {("annotations", "[]", "image_id"), ("annotations", "[]", "caption")} <= keys


def _documents(path: Path) -> list[Path]:
    """The documents at a path: a file, those in a folder, or those in its folder `annotations`."""
    if not path.is_dir():
        return [path]
    return sorted(path.glob(_NAMES)) or sorted((path / "annotations").glob(_NAMES))


def _split_of(path: Path) -> str:
    """The split of a document by its name: `captions_train2017.json` is of `train`."""
    found = re.match(r"captions_(?:([A-Za-z]+)|(.+))", path.stem)
    return path.stem if found is None else found[1] or found[2]


def read(location: Location) -> Content:
    """The annotations in order, document by document; several documents are one split each."""
    path = Path(location.path)
    paths = _documents(path)
    if not paths:
        raise InputError(f"no {_NAMES} in it", where=path, hint="name a document, or a folder of documents")
    splits = [_split_of(one) for one in paths]
    _refuse_two_of_one_split(path, paths, splits)
    documents = [_parse(one) for one in paths]
    folders = _image_folders(path, documents)
    images: list[str] = []
    captions: list[str] = []
    of_rows: list[str] = []
    for document, split in zip(documents, splits, strict=True):
        rows = list(document.rows())
        images += [image for image, _ in rows]
        captions += [caption for _, caption in rows]
        of_rows += [split] * len(rows)
    notes = tuple(note for document in documents for note in _notes(document))
    rows_table = as_rows(path, images, captions, of_rows if len(paths) > 1 else None)
    return Content(rows_table, pictures_in(folders), notes)


def _parse(path: Path) -> _Document:
    cursor = Cursor.open(path, purpose="a JSON document of COCO captions")
    cursor.require_kind("{", name="the document", expected=EXPECTED)
    lists: dict[str, list[Entry]] = {}
    for key in cursor.members():
        if key in ("images", "annotations"):
            if key in lists:
                raise InputError(f"the key '{key}' occurs twice", where=path)
            cursor.require_kind("[", name=f"'{key}'", expected=EXPECTED)
            lists[key] = list(cursor.entries())
    cursor.finish()
    lacks = [InputError(f"no key '{key}', expected {EXPECTED}", where=path) for key in ("images", "annotations")]
    refuse([problem for key, problem in zip(("images", "annotations"), lacks, strict=True) if key not in lists])
    names = _names(path, lists["images"])
    problems = []
    for number, entry in enumerate(lists["annotations"]):
        name, value = f"annotations[{number}]", entry.value
        problem = missing_key(path, name, value, ("image_id", "caption"), ANNOTATION)
        problem = problem or not_text(path, name, "caption", value["caption"]) or _no_id(path, name, value["image_id"])
        problems += [] if problem is None else [problem]
    refuse(problems)
    return _Document(path, cursor.text, names, lists["annotations"])


def _names(path: Path, images: Sequence[Entry]) -> dict[Any, str]:
    """File names by image id."""
    problems: list[InputError] = []
    names: dict[Any, str] = {}
    for number, entry in enumerate(images):
        name, value = f"images[{number}]", entry.value
        problem = missing_key(path, name, value, ("id", "file_name"), IMAGE)
        problem = problem or _no_id(path, name, value["id"])
        if problem is None and not (isinstance(value["file_name"], str) and value["file_name"].strip()):
            problem = InputError("'file_name' is not the name of a file", where=f"{path}: {name}")
        if problem is None and names.setdefault(value["id"], value["file_name"].strip()) != value["file_name"].strip():
            what = f"the id {value['id']!r} is that of another image, {names[value['id']]}"
            problem = InputError(what, where=f"{path}: {name}", hint="give each image an id of its own")
        problems += [] if problem is None else [problem]
    refuse(problems)
    return names


def _no_id(path: Path, entry: str, value: Any) -> InputError | None:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return None
    return InputError("the id of the image is neither a number nor text", where=f"{path}: {entry}")


def _notes(document: _Document) -> Iterator[str]:
    """What is left out of a document."""
    lost = [entry for entry in document.annotations if entry.value["image_id"] not in document.names]
    if lost and len(lost) == len(document.annotations):
        what = f"no annotation names an image of the document; the first has image_id {lost[0].value['image_id']!r}"
        raise InputError(what, where=document.path, hint="'image_id' must be the 'id' of one of 'images'")
    if lost:
        ids = ", ".join(dict.fromkeys(repr(entry.value["image_id"]) for entry in lost[:SHOWN]))
        yield (
            f"{document.path.name}: {len(lost):,} annotations name no image of the document and are left out; "
            f"their image_id is {ids}{', ...' if len(lost) > SHOWN else ''}"
        )
    without = document.names.keys() - {entry.value["image_id"] for entry in document.annotations}
    if without:
        yield f"{document.path.name}: {len(without):,} images have no caption and are left out"


def _refuse_two_of_one_split(folder: Path, paths: Sequence[Path], splits: Sequence[str]) -> None:
    for split in dict.fromkeys(splits):
        names = [path.name for path, other in zip(paths, splits, strict=True) if other == split]
        if len(names) > 1:
            raise InputError(
                f"several documents of split '{split}': {', '.join(names)}",
                where=folder,
                hint="name one document, or put those that belong together into a folder of their own",
            )


def _image_folders(path: Path, documents: Sequence[_Document]) -> list[Path]:
    """The folders that the images of the documents lie in; refuses names that are those of two images."""
    found: list[Path] = []
    for document in documents:
        names = list(dict.fromkeys(document.names.values()))
        folder = folder_of(names, _usual_folders(document.path))
        if folder is None:
            continue
        for other in found:
            twice = next((name for name in names if folder != other and has(other, name)), None)
            if twice is not None:
                raise InputError(
                    f"{document.path.name} names {twice}, of which there is one in {other} and one in {folder}",
                    where=path,
                    hint="read the documents one by one",
                )
        found.append(folder)
    return found


def _usual_folders(path: Path) -> Iterator[Path]:
    """Where the images of a document may lie: beside it, in `images`, or in a folder named as the document ends."""
    ending = path.stem.removeprefix("captions_")
    names = [ending, _split_of(path), "images", f"images/{ending}", f"images/{_split_of(path)}"]
    for folder in (path.parent, path.absolute().parent.parent):
        yield from (folder, *(folder / name for name in names))
    yield from (path.absolute().parent.parent / name for name in ("train2017", "val2017", "train2014", "val2014"))


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the documents again; a folder becomes a folder with documents of the same names."""
    path = Path(location.path)
    write = written_folder if path.is_dir() else written
    return write(output, lambda temporary: _write_all(path, judged, temporary))


def _write_all(path: Path, judged: Judged, output: Path) -> int:
    rows = 0
    for document in _documents(path):
        target = output / document.relative_to(path) if path.is_dir() else output
        target.parent.mkdir(parents=True, exist_ok=True)
        rows += _write(_parse(document), judged, rows, target)
    judged.check_count(rows)
    return rows


def _write(document: _Document, judged: Judged, first: int, output: Path) -> int:
    """Write a document whose first row has this number; returns the number of its rows."""
    text, row = document.text, first
    ids = {name: number for number, name in reversed(document.names.items())}
    kept: list[bool] = []
    edits: list[Edit] = []
    for value, start, end in document.annotations:
        image = document.names.get(value["image_id"])
        is_row = image is not None
        belief = judged.correspondence.get(row) if is_row else None
        if is_row:
            judged.check(row, image, value["caption"] or "")
        refuse_marked(judged, value)
        kept.append(not is_row or judged.keeps(row))
        if is_row and row in judged.moved:
            if judged.moved[row] not in ids:
                raise judged.changed(f"{judged.moved[row]} is no image of {document.path.name}")
            edits += with_value(document.path, text, start, "image_id", ids[judged.moved[row]])
        if is_row and row in judged.corrected:
            edits += with_value(document.path, text, start, "caption", judged.corrected[row])
        if judged.mark:
            edits.append(with_correspondence(text, start, end, belief))
        row += is_row
    spans = [(start, end) for _, start, end in document.annotations]
    write_document(text, [*edits, *removals(spans, kept)], output)
    return row - first


LAYOUT = Layout(
    "COCO captions (.json with images and annotations, or a folder of captions_*.json)",
    recognises,
    RowsSource.opening(read),
    clean,
)
