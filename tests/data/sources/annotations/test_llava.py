"""LLaVA's conversations as JSON and as JSONL: read, cleaned and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from annotated import documented, judge, llava_records, refusal, write_json
from drawn import assert_same_audit, drawn
from tiny import call

import crcl
from crcl.auditing.clean import Cleaning
from crcl.data.sources import layout_of
from crcl.errors import InputError

SUFFIXES = pytest.mark.parametrize("suffix", [".json", ".jsonl"])


def record(name: str | None, *answers: str, **more: Any) -> dict[str, Any]:
    """A conversation about an image, or about none."""
    turns = [turn for text in answers for turn in ({"from": "human", "value": "?"}, {"from": "gpt", "value": text})]
    return {"id": "x1", **({} if name is None else {"image": name}), "conversations": turns, **more}


RECORDS: list[dict[str, Any]] = [
    record(None, "a text without an image", split="train"),
    record("a.jpg", " a dög ", "no, a cat", split="train", weight=1.0),
    record("b.jpg", "two cats", split="train"),
    record(None, "another text", image=["a.jpg", "b.jpg"], split="train"),
    record("a.jpg", "held out", split="val"),
    record("b.jpg", split="train"),
    record("c.jpg", "a ball", split="train"),
]
ROWS = [1, 2, 4, 6]
"""The places of the rows among the records."""


def write(path: Path, records: list[Any], **options: Any) -> Path:
    """Records in the format of the path's ending."""
    if path.suffix == ".json":
        return write_json(path, records, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, **options) + "\n" for one in records), "utf-8")
    return path


def load(path: Path) -> list[Any]:
    """The records by a reader that knows nothing of ours."""
    text = path.read_text("utf-8")
    return list(json.loads(text)) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


@SUFFIXES
def test_the_drawn_scenes_give_the_same_audit_and_come_back_without_the_suspects(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"chat{suffix}", llava_records(drawn(captions=2)))
    drawn(captions=2).write_images(tmp_path / "images")
    before = path.read_bytes()
    audit = assert_same_audit(path, tmp_path, captions=2)
    suspects = {int(row) for row in audit.suspects["row"].to_pylist()}
    assert suspects
    assert audit.clean(tmp_path / f"cleaned{suffix}").removed == len(suspects)
    assert path.read_bytes() == before
    expected = [one for row, one in enumerate(llava_records(drawn(captions=2))) if row not in suspects]
    assert load(tmp_path / f"cleaned{suffix}") == expected
    assert len(crcl.read(tmp_path / f"cleaned{suffix}")) == 400 - len(suspects)


@SUFFIXES
def test_the_first_answer_is_the_caption_and_what_has_none_is_counted(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"chat{suffix}", RECORDS)
    assert layout_of(path) == "llava"
    pairs = crcl.read(path)
    assert pairs.captions == ["a dög", "two cats", "held out", "a ball"]
    assert pairs.images == ["a.jpg", "b.jpg", "a.jpg", "c.jpg"]
    assert pairs.splits == ["train", "dev"]
    assert pairs.notes == (
        f"chat{suffix}: 1 records have no image and are left out",
        f"chat{suffix}: 1 records have several images and are left out",
        f"chat{suffix}: 1 records have no answer and are left out",
    )


@SUFFIXES
@pytest.mark.parametrize("style", [{}, {"separators": (",", ":"), "ensure_ascii": False}, {"indent": 2}], ids=str)
def test_the_text_of_a_cleaned_file_is_as_its_author_would_have_written_it(
    tmp_path: Path, suffix: str, style: dict[str, Any]
) -> None:
    if suffix == ".jsonl" and "indent" in style:
        return  # a record is one line
    path = write(tmp_path / f"chat{suffix}", RECORDS, **style)
    done = judge(path, tmp_path / f"cleaned{suffix}", suspects={0, 3})
    assert (done.removed, done.kept, done.unjudged) == (2, 2, 1)
    kept = [one for place, one in enumerate(RECORDS) if place not in (ROWS[0], ROWS[3])]
    same = write(tmp_path / f"same{suffix}", kept, **style)
    assert (tmp_path / f"cleaned{suffix}").read_bytes() == same.read_bytes()
    judge(path, tmp_path / f"marked{suffix}", suspects={0}, how=Cleaning(mark=True))
    beliefs = dict(zip(ROWS, [0.125, 0.75, None, 0.75], strict=True))
    marked = [one | {"correspondence": beliefs.get(place)} for place, one in enumerate(RECORDS)]
    same = write(same, marked, **style)
    assert (tmp_path / f"marked{suffix}").read_bytes() == same.read_bytes()
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        judge(same, tmp_path / f"again{suffix}", how=Cleaning(mark=True))


@SUFFIXES
def test_a_moved_record_names_another_image(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"chat{suffix}", RECORDS)
    assert judge(path, tmp_path / f"moved{suffix}", moved={1: "c.jpg"}).moved == 1
    expected = [one | {"image": "c.jpg"} if place == ROWS[1] else one for place, one in enumerate(RECORDS)]
    assert (tmp_path / f"moved{suffix}").read_bytes() == write(tmp_path / f"same{suffix}", expected).read_bytes()


def test_blank_lines_line_ends_and_a_mark_of_order_stay(tmp_path: Path) -> None:
    lines = [json.dumps(one) for one in RECORDS]
    path = tmp_path / "chat.jsonl"
    path.write_bytes("\ufeff\r\n".encode() + "\r\n\r\n".join(lines).encode())
    assert layout_of(path) == "llava"
    judge(path, tmp_path / "cleaned.jsonl", suspects={0})
    expected = path.read_bytes().replace(f"{lines[ROWS[0]]}\r\n".encode(), b"")
    assert (tmp_path / "cleaned.jsonl").read_bytes() == expected


def test_a_table_with_captions_stays_a_table(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"image": "a", "caption": "x"}\n{"image": "b", "caption": "y"}\n')
    assert layout_of(path) == "table"
    path.write_text(json.dumps({"image": "a", "caption": "x", "conversations": RECORDS[1]["conversations"]}) + "\n")
    assert layout_of(path) == "table"


@pytest.mark.parametrize("place", ["", "images", "chat"])
def test_images_are_found_in_the_usual_places(tmp_path: Path, place: str) -> None:
    path = write(tmp_path / "chat.json", llava_records(drawn(10)))
    assert crcl.read(path).pictures is None
    drawn(10).write_images(tmp_path / place)
    pictures = crcl.read(path).pictures
    assert pictures is not None
    assert pictures.read("000003.png") == drawn(10).pictures[3]


@SUFFIXES
@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([RECORDS[1], 3], "a number, expected"),
        ([RECORDS[1], {"image": "a.jpg"}], "no list 'conversations', expected"),
        ([{"image": 7, "conversations": [{"from": "gpt", "value": "x"}]}], "'image' is a number, expected the name"),
        ([RECORDS[1], {"image": "a.jpg", "conversations": ["hello"]}], "a turn of 'conversations' is text"),
        ([RECORDS[0]], "no record has an image and an answer: 1 have no image"),
        ([], "has no rows"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, suffix: str, records: list[Any], told: str) -> None:
    path = write(tmp_path / f"chat{suffix}", records)
    message = refusal(path, layout="llava")
    assert message.startswith(str(path))
    assert told in message
    if len(records) == 2:
        assert (": [1]: " if suffix == ".json" else ": line 2: ") in message


def test_an_object_where_the_list_belongs_and_broken_lines_are_refused(tmp_path: Path) -> None:
    path = write_json(tmp_path / "chat.json", {"data": RECORDS})
    assert "the document is an object where a list belongs" in refusal(path, layout="llava")
    lines = tmp_path / "chat.jsonl"
    lines.write_text(json.dumps(RECORDS[1]) + "\n" + json.dumps(RECORDS[2])[:-9] + "\n")
    assert f"{lines}:2: not one complete JSON object on a line" in refusal(lines)
    lines.write_text(json.dumps(RECORDS[1]) + "\n" + "[" * 100_000 + "\n")
    assert f"{lines}:2: nested too deeply" in refusal(lines)
    lines.write_bytes(json.dumps(RECORDS[1]).encode() + b'\n{"image": "caf\xe9"}\n')
    assert f"{lines}:2: not UTF-8 (byte 0xe9" in refusal(lines)


def test_a_hundred_thousand_answers_about_one_image_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "chat.json", [record("a.jpg", f"answer {n}") for n in range(100_000)])
    pairs = crcl.read(path)
    assert len(pairs) == 100_000
    assert set(pairs.images) == {"a.jpg"}


@SUFFIXES
def test_a_file_is_recognised_by_its_beginning_alone(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"chat{suffix}", RECORDS)
    with path.open("r+b") as file:
        file.truncate(2**41)  # two terabytes of nothing: reading it all is not possible
    assert layout_of(path) == "llava"


def test_the_commands_of_the_page_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "llava/chat.json", llava_records(drawn()))
    drawn().write_images(tmp_path / "llava/images")
    monkeypatch.chdir(tmp_path)
    for words in documented("LLaVA's conversations"):
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 0, answer.err
    assert 0 < len(load(tmp_path / "cleaned.json")) < len(load(path)) == 200
