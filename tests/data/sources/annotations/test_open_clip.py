"""open_clip's tables: `.csv` files that are separated by tabs."""

import csv
from pathlib import Path

import pytest
from annotated import documented, judge, refusal, write_open_clip
from drawn import assert_same_audit, drawn
from tiny import call

import crcl
from crcl.auditing.clean import Cleaning
from crcl.data.sources import layout_of

TABLE = (
    'url\ttitle\tfilepath\tsplit\r\nx,y\t"a ""big"", dog"\ta.jpg\ttrain\r\n\r\nz\ta cat\tb.jpg\ttrain\r\n'
    'z\t"two\nlines"\tc.jpg\ttrain\r\né\theld out\tb.jpg\tval\r\n'
)


def load(path: Path) -> list[dict[str, str]]:
    """The rows by a reader that knows nothing of ours."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_the_drawn_scenes_give_the_same_audit_and_come_back_without_the_suspects(tmp_path: Path) -> None:
    path = write_open_clip(drawn(), tmp_path / "train.csv")
    drawn().write_images(tmp_path / "images")
    before = path.read_bytes()
    assert layout_of(path) == "open_clip"
    audit = assert_same_audit(path, tmp_path)
    suspects = {int(row) for row in audit.suspects["row"].to_pylist()}
    assert suspects
    assert audit.clean(tmp_path / "cleaned.csv").removed == len(suspects)
    assert path.read_bytes() == before
    assert load(tmp_path / "cleaned.csv") == [one for row, one in enumerate(load(path)) if row not in suspects]
    assert layout_of(tmp_path / "cleaned.csv") == "open_clip"
    assert len(crcl.read(tmp_path / "cleaned.csv")) == 200 - len(suspects)


def test_records_stay_byte_by_byte_and_a_moved_one_names_another_file(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(TABLE.encode())
    assert crcl.read(path).captions == ['a "big", dog', "a cat", "two\nlines", "held out"]
    assert judge(path, tmp_path / "cleaned.csv", suspects={1}).removed == 1
    assert (tmp_path / "cleaned.csv").read_bytes() == TABLE.replace("z\ta cat\tb.jpg\ttrain\r\n", "").encode()
    assert judge(path, tmp_path / "moved.csv", moved={0: "c.jpg"}).moved == 1
    assert (tmp_path / "moved.csv").read_bytes() == TABLE.replace("\ta.jpg", "\tc.jpg").encode()


def test_marked_rows_have_a_last_column(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(TABLE.encode())
    judge(path, tmp_path / "marked.csv", suspects={0}, how=Cleaning(mark=True))
    found = load(tmp_path / "marked.csv")
    assert [row.pop("correspondence") for row in found] == ["0.125", "0.75", "0.75", ""]
    assert found == load(path)


def test_other_columns_are_named_and_tables_with_commas_stay_tables(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("path\ttext\na.jpg\ta dog, big\nb.jpg\ta cat\n")
    assert layout_of(path) == "table"
    pairs = crcl.read(path, layout="open_clip", image_column="path", caption_column="text")
    assert pairs.captions == ["a dog, big", "a cat"]
    assert "no column 'filepath'" in refusal(path, layout="open_clip")
    path.write_text("filepath,title\na.jpg,a dog\nb.jpg,a cat\n")
    assert layout_of(path) == "table"
    assert crcl.read(path, image_column="filepath", caption_column="title").captions == ["a dog", "a cat"]


def test_a_table_that_is_not_utf8_or_has_an_open_quotation_mark_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(b"filepath\ttitle\na.jpg\tcaf\xe9\n")
    assert f"{path}:2: not UTF-8 (byte 0xe9" in refusal(path)
    path.write_text('filepath\ttitle\na.jpg\ta dog\nb.jpg\t"a cat\nc.jpg\ta ball\n')
    assert f"{path}:3: a quotation mark that opens here is never closed" in refusal(path)


def test_the_commands_of_the_page_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs").mkdir()
    write_open_clip(drawn(), tmp_path / "pairs/train.csv")
    drawn().write_images(tmp_path / "pairs/images")
    monkeypatch.chdir(tmp_path)
    for words in documented("open_clip's table"):
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 0, answer.err
    assert 0 < len(load(tmp_path / "cleaned.csv")) < 200
