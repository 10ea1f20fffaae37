"""Edits of JSON text: what is left out, added or changed gives the text that json itself would have written."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import judge, write_json

import crcl
from crcl.data.cleaning import documents
from crcl.data.cleaning.documents import edited, entries_of, removals, with_correspondence, with_entries, with_value
from crcl.data.rows.documents import Cursor

PATH = Path("a.json")
STYLES = pytest.mark.parametrize(
    "style", [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"separators": (" , ", " : ")}], ids=str
)


@STYLES
@pytest.mark.parametrize("kept", list(itertools.product([True, False], repeat=4)), ids=str)
def test_any_entries_are_left_out(style: dict[str, Any], kept: tuple[bool, ...]) -> None:
    values = [1, {"a": ["]"]}, "x, y", [2]]
    text = json.dumps(values, **style)
    spans = [(one.start, one.end) for one in Cursor(PATH, text).entries()]
    found = edited(text, removals(spans, kept))
    left = [value for value, keep in zip(values, kept, strict=True) if keep]
    assert json.loads(found) == left
    if left:
        assert found == json.dumps(left, **style)


@STYLES
def test_a_correspondence_is_the_last_key(style: dict[str, Any]) -> None:
    if style.get("separators") == (" , ", " : "):
        return  # the space before a comma is not copied
    for value in ({"a": 1}, {"a": "}", "b": {"c": [{}]}}, {'"\\': None}):
        text = json.dumps(value, **style)
        found = edited(text, [with_correspondence(text, 0, len(text), np.float32(0.25))])
        assert found == json.dumps(value | {"correspondence": 0.25}, **style)
    assert edited("{ }", [with_correspondence("{ }", 0, 3, None)]) == '{"correspondence": null }'


@STYLES
def test_a_value_is_changed_where_it_stands(style: dict[str, Any]) -> None:
    value = {"image_id": 7, "more": {"image_id": 8}, "text": '"image_id": 9'}
    text = json.dumps(value, **style)
    assert edited(text, with_value(PATH, text, 0, "image_id", "ü")) == json.dumps(value, **style).replace("7", '"ü"', 1)
    assert with_value(PATH, text, 0, "absent", 1) == []
    twice = '{"a": 1, "a": 2}'
    assert edited(twice, with_value(PATH, twice, 0, "a", 3)) == '{"a": 1, "a": 3}'


@STYLES
def test_a_list_gets_other_entries_spaced_as_the_old_ones(style: dict[str, Any]) -> None:
    value = {"a": "[1]", "list": [1, 2, 3], "b": []}
    text = json.dumps(value, **style)
    listed = entries_of(PATH, text, 0, "list")
    assert listed is not None
    assert edited(text, [with_entries(text, *listed, ["3", "4"])]) == json.dumps(value | {"list": [3, 4]}, **style)
    assert edited(text, [with_entries(text, *listed, [])]) == json.dumps(value | {"list": []}, **style)
    empty = entries_of(PATH, text, 0, "b")
    assert empty is not None
    assert json.loads(edited(text, [with_entries(text, *empty, ["5", "6"])])) == value | {"b": [5, 6]}
    assert entries_of(PATH, text, 0, "a") is None  # text, not a list


def test_a_kill_while_writing_leaves_nothing_and_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(9)]
    annotations = [{"image_id": n, "caption": f"caption {n}"} for n in range(9)]
    for split in ("train", "val"):
        path = tmp_path / f"annotations/captions_{split}.json"
        write_json(path, {"images": images, "annotations": annotations})
    parts = documents._parts

    def killed(text: str, edits: Any) -> Any:
        yield next(parts(text, edits))
        raise KeyboardInterrupt

    monkeypatch.setattr(documents, "_parts", killed)
    with pytest.raises(KeyboardInterrupt):
        judge(tmp_path / "annotations", tmp_path / "out/cleaned", suspects={0})
    assert not any("cleaned" in file.name and "features" not in file.name for file in (tmp_path / "out").iterdir())
    monkeypatch.setattr(documents, "_parts", parts)
    judge(tmp_path / "annotations", tmp_path / "out/cleaned", suspects={0})
    assert len(crcl.read(tmp_path / "out/cleaned")) == 17
