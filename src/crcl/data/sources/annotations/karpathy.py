"""Karpathy's splits of Flickr8k, Flickr30k and COCO: a JSON document of images with their split and sentences."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crcl.data.cleaning.documents import (
    Edit,
    edited,
    entries_of,
    refuse_marked,
    with_correspondence,
    with_entries,
    with_value,
    write_document,
)
from crcl.data.cleaning.judged import Judged, written
from crcl.data.files import refuse
from crcl.data.pictures.folders import folder_of, pictures_in
from crcl.data.rows.documents import Cursor, Entry, as_rows, keys_at_start, kind_of, missing_key, not_text
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.errors import InputError

SENTENCE = '{"raw": ...}'
IMAGE = f'{{"filename": ..., "split": ..., "sentences": [{SENTENCE}, ...]}}'
EXPECTED = f'{{"images": [{IMAGE}, ...]}}'
_FOLDERS = ("images", "Flicker8k_Dataset", "Flickr8k_Dataset")


class _Arrival(NamedTuple):
    """A sentence that is moved to an image."""

    sentence: str
    """As text of the document."""
    sentid: str | None


def recognises(path: Path) -> bool:
    """Whether a path is such a document, by its first keys."""
    if path.suffix.lower() != ".json" or path.is_dir():
        return False
    keys = {key[2] for key in keys_at_start(path) if len(key) == 3 and key[:2] == ("images", "[]")}
    return bool(keys & {"sentences", "sentids"}) and "file_name" not in keys


def read(location: Location) -> Content:
    """The sentences in order, image by image."""
    path = Path(location.path)
    _, entries = _parse(path)
    images: list[str] = []
    captions: list[str] = []
    splits: list[str] = []
    for entry in entries:
        sentences, split = entry.value["sentences"], entry.value["split"].strip()
        images += [_name(entry.value)] * len(sentences)
        captions += [sentence["raw"] or "" for sentence in sentences]
        splits += [split] * len(sentences)
    empty = sum(not entry.value["sentences"] for entry in entries)
    notes = (f"{path.name}: {empty:,} images have no sentence and are left out",) if empty else ()
    folder = folder_of(list(dict.fromkeys(images)), _usual_folders(path))
    return Content(as_rows(path, images, captions, splits), pictures_in([] if folder is None else [folder]), notes)


def _parse(path: Path) -> tuple[str, list[Entry]]:
    """The text of the document and its images."""
    cursor = Cursor.open(path, purpose="a JSON document of Karpathy's splits")
    cursor.require_kind("{", name="the document", expected=EXPECTED)
    entries: list[Entry] | None = None
    for key in cursor.members():
        if key == "images":
            if entries is not None:
                raise InputError("the key 'images' occurs twice", where=path)
            cursor.require_kind("[", name="'images'", expected=EXPECTED)
            entries = list(cursor.entries())
    cursor.finish()
    if entries is None:
        raise InputError(f"no key 'images', expected {EXPECTED}", where=path)
    refuse([problem for number, entry in enumerate(entries) for problem in _problems(path, number, entry.value)])
    return cursor.text, entries


def _problems(path: Path, number: int, value: Any) -> Iterator[InputError]:
    """What is wrong with an image."""
    name = f"images[{number}]"
    problem = missing_key(path, name, value, ("filename", "split", "sentences"), IMAGE)
    if problem is not None:
        yield problem
        return
    for key in ("filename", "split"):
        if not (isinstance(value[key], str) and value[key].strip()):
            yield InputError(f"'{key}' is {kind_of(value[key])} without a name", where=f"{path}: {name}")
    if not isinstance(value["sentences"], list):
        yield InputError(f"'sentences' is {kind_of(value['sentences'])}, expected a list", where=f"{path}: {name}")
        return
    for place, sentence in enumerate(value["sentences"]):
        here = f"{name}.sentences[{place}]"
        problem = missing_key(path, here, sentence, ("raw",), SENTENCE)
        problem = problem or not_text(path, here, "raw", sentence["raw"])
        if problem is not None:
            yield problem


def _name(image: dict[str, Any]) -> str:
    """The name of an image: its file in the folder that the document names, if it names one."""
    folder = image.get("filepath")
    name = str(image["filename"]).strip()
    return f"{folder.strip()}/{name}" if isinstance(folder, str) and folder.strip() else name


def _usual_folders(path: Path) -> Iterator[Path]:
    """Where the images may lie: beside the document, or in a folder of a usual name."""
    data = path.stem.removeprefix("dataset_")
    names = (*_FOLDERS, data, f"{data}-images", f"{data}_images", f"{data}/images")
    for folder in (path.parent, path.absolute().parent.parent):
        yield from (folder, *(folder / name for name in names))


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the document again; an image that loses all its sentences stays, with an empty list."""
    return written(output, lambda temporary: _write(Path(location.path), judged, temporary))


def _write(path: Path, judged: Judged, output: Path) -> int:
    text, entries = _parse(path)
    arrivals, row = _arrivals(path, text, entries, judged), 0
    edits: list[Edit] = []
    for number, entry in enumerate(entries):
        rows = range(row, row + len(entry.value["sentences"]))
        for place, sentence in zip(rows, entry.value["sentences"], strict=True):
            judged.check(place, _name(entry.value), sentence["raw"] or "")
            refuse_marked(judged, sentence)
        stays = [judged.keeps(place) and place not in judged.moved for place in rows]
        corrected = not judged.corrected.keys().isdisjoint(rows)
        if judged.mark or not all(stays) or number in arrivals or corrected:
            edits += _edits(path, text, entry, judged, rows, stays, arrivals[number])
        row = rows.stop
    judged.check_count(row)
    write_document(text, edits, output)
    return row


def _arrivals(path: Path, text: str, entries: Sequence[Entry], judged: Judged) -> dict[int, list[_Arrival]]:
    """The sentences that are moved to each image, by the image's number."""
    numbers = {_name(entry.value): number for number, entry in reversed(list(enumerate(entries)))}
    found: dict[int, list[_Arrival]] = defaultdict(list)
    row = 0
    for entry in entries:
        count = len(entry.value["sentences"])
        moved = [place for place in range(row, row + count) if place in judged.moved]
        listed = entries_of(path, text, entry.start, "sentences") if moved else None
        sentences = [] if listed is None else listed[2]
        for place in moved:
            if judged.moved[place] not in numbers:
                raise judged.changed(f"{judged.moved[place]} is no image of the document")
            target = numbers[judged.moved[place]]
            value, start, end = sentences[place - row]
            changes = []
            if "imgid" in entries[target].value:
                changes += with_value(path, text, start, "imgid", entries[target].value["imgid"])
            if judged.mark:
                changes.append(with_correspondence(text, start, end, judged.correspondence.get(place)))
            own = edited(text[start:end], [Edit(one.start - start, one.end - start, one.text) for one in changes])
            found[target].append(_Arrival(own, json.dumps(value["sentid"]) if "sentid" in value else None))
        row += count
    return found


def _edits(
    path: Path,
    text: str,
    entry: Entry,
    judged: Judged,
    rows: range,
    stays: Sequence[bool],
    arrivals: Sequence[_Arrival],
) -> Iterator[Edit]:
    """The edits of an image whose sentences change: `sentences`, and `sentids` in step with it."""
    sentences = entries_of(path, text, entry.start, "sentences")
    assert sentences is not None
    start, end, old = sentences
    new = []
    for sentence, place, stay in zip(old, rows, stays, strict=True):
        if stay:
            own = text[sentence.start : sentence.end]
            if place in judged.corrected:
                own = _recaptioned(path, own, judged.corrected[place], sentence.value)
            if judged.mark:
                own = edited(own, [with_correspondence(own, 0, len(own), judged.correspondence.get(place))])
            new.append(own)
    yield with_entries(text, start, end, old, [*new, *(arrival.sentence for arrival in arrivals)])
    ids = entries_of(path, text, entry.start, "sentids")
    if ids is None or (all(stays) and not arrivals):
        return
    start, end, numbers = ids
    gone = _places(numbers, [one for one, stay in zip(old, stays, strict=True) if not stay])
    kept = [text[one.start : one.end] for place, one in enumerate(numbers) if place not in gone]
    yield with_entries(text, start, end, numbers, [*kept, *(one.sentid for one in arrivals if one.sentid is not None)])


def _recaptioned(path: Path, own: str, caption: str, value: dict[str, Any]) -> str:
    """The text of a sentence with other words: `raw`, and `tokens` in step with it, in small letters as there."""
    edits = with_value(path, own, 0, "raw", caption)
    if "tokens" in value:
        edits += with_value(path, own, 0, "tokens", re.findall(r"[^\W_]+", caption.lower()))
    return edited(own, edits)


def _places(numbers: Sequence[Entry], sentences: Sequence[Entry]) -> set[int]:
    """The places in `sentids` of these sentences, by their numbers; of equal numbers the first."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, number in reversed(list(enumerate(numbers))):
        places[json.dumps(number.value)].append(place)
    keys = [json.dumps(sentence.value["sentid"]) for sentence in sentences if "sentid" in sentence.value]
    return {places[key].pop() for key in keys if places.get(key)}


LAYOUT = Layout(
    "Karpathy's splits (dataset_flickr30k.json, dataset_flickr8k.json, dataset_coco.json)",
    recognises,
    RowsSource.opening(read),
    clean,
)
