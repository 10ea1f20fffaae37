"""CC3M's and CC12M's lists: addresses and captions without a header, whose images are never fetched."""

import socket
from pathlib import Path

import numpy as np
import pytest
from annotated import documented, judge, refusal
from drawn import SETTINGS, drawn
from tiny import call

import crcl
from crcl.auditing.clean import Cleaning
from crcl.data.sources import layout_of
from crcl.errors import InputError

LINES = (
    'http://x.org/a.jpg?q=1\ta "dog\nhttps://x.org/b.jpg\ta cat, asleep\r\n\nno tab here\n'
    "http://x.org/c.jpg\ta ball\t\tmore\nhttp://x.org/a.jpg?q=1\tein Köter\nhttp://x.org/d.jpg\thttp as a word"
)
"""Four rows, one blank line and two lines that are no rows."""


def address(name: str) -> str:
    return f"https://example.org/{name}"


def write_list(path: Path, *, caption_first: bool) -> Path:
    """The drawn scenes as lines of address and caption."""
    pairs = [(address(name), caption) for name, caption, _ in drawn().rows()]
    path.write_text("".join("\t".join(pair[::-1] if caption_first else pair) + "\n" for pair in pairs), "utf-8")
    return path


def write_features(folder: Path) -> tuple[Path, Path]:
    """Features of the drawn scenes, by their addresses."""
    made = crcl.extract_features(drawn().write_images(folder / "images"), folder / "made")
    assert made.shape
    names = (folder / "made/ids.txt").read_text("utf-8").splitlines()
    (folder / "urls.txt").write_text("".join(f"{address(name)}\n" for name in names), "utf-8")
    np.save(folder / "features.npy", np.load(folder / "made/features.npy"))
    return folder / "features.npy", folder / "urls.txt"


@pytest.mark.parametrize("caption_first", [True, False])
def test_a_list_gives_the_audit_of_a_table_with_the_same_features(tmp_path: Path, caption_first: bool) -> None:
    features, ids = write_features(tmp_path)
    path = write_list(tmp_path / "cc.tsv", caption_first=caption_first)
    assert layout_of(path) == "cc"
    table = {"image": [address(row[0]) for row in drawn().rows()], "caption": [row[1] for row in drawn().rows()]}
    names = ids.read_text("utf-8").splitlines()
    expected = crcl.audit(
        crcl.read(table, features=np.load(features), ids=names), tmp_path / "expected", settings=SETTINGS
    )
    audit = crcl.audit(crcl.read(path, features=features, ids=ids), tmp_path / "audit", settings=SETTINGS)
    assert audit.findings.pairs.captions == expected.findings.pairs.captions
    np.testing.assert_array_equal(audit.correspondence, expected.correspondence)
    audit = audit.at(threshold=0.5)  # the pairs are too few for an estimate
    suspects = {int(row) for row in audit.suspects["row"].to_pylist()}
    assert suspects
    assert audit.clean(tmp_path / "cleaned.tsv").removed == len(suspects)
    lines = path.read_text("utf-8").splitlines()
    kept = [line for row, line in enumerate(lines) if row not in suspects]
    assert (tmp_path / "cleaned.tsv").read_text("utf-8").splitlines() == kept
    assert len(crcl.read(tmp_path / "cleaned.tsv")) == len(kept)


def test_lines_stay_as_they_are_and_those_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "cc12m.tsv"
    path.write_bytes(LINES.encode())
    pairs = crcl.read(path)
    assert pairs.images == [f"http{s}://x.org/{name}" for s, name in (("", "a.jpg?q=1"), ("s", "b.jpg"))] + [
        "http://x.org/a.jpg?q=1",
        "http://x.org/d.jpg",
    ]
    assert pairs.captions == ['a "dog', "a cat, asleep", "ein Köter", "http as a word"]
    assert pairs.notes == ("cc12m.tsv: 2 lines do not have two values and are left out",)
    gone = _judged_row(path)
    judge(path, tmp_path / "cleaned.tsv", suspects={gone})
    lines = LINES.encode().splitlines(keepends=True)
    place = [0, 1, 5, 6][gone]
    assert (tmp_path / "cleaned.tsv").read_bytes() == b"".join(lines[:place] + lines[place + 1 :])


def _judged_row(path: Path) -> int:
    """A row that is not held out."""
    names = list(dict.fromkeys(crcl.read(path).images))
    features = np.ones((len(names), 1, 2), dtype=np.float32)
    return int(crcl.read(path, features=features, ids=names).split("train").rows[0])


def test_marked_lines_have_a_third_value_and_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cc12m.tsv"
    path.write_bytes(LINES.encode())
    row = _judged_row(path)
    judge(path, tmp_path / "marked.tsv", suspects={row}, how=Cleaning(mark=True))
    marked = (tmp_path / "marked.tsv").read_bytes().splitlines()
    lines = LINES.encode().splitlines()
    found = []
    for place, (one, other) in enumerate(zip(marked, lines, strict=True)):
        if place in (0, 1, 5, 6):
            found.append(one.rpartition(b"\t")[2])
            assert one.rpartition(b"\t")[0] == other
        else:
            assert one == other
    assert found[row] == b"0.125"
    assert set(found) <= {b"0.125", b"0.75", b""}
    assert layout_of(tmp_path / "marked.tsv") == "cc"
    assert crcl.read(tmp_path / "marked.tsv").captions == crcl.read(path).captions
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        judge(tmp_path / "marked.tsv", tmp_path / "again.tsv", how=Cleaning(mark=True))


def test_a_moved_line_has_another_address(tmp_path: Path) -> None:
    path = write_list(tmp_path / "cc.tsv", caption_first=True)
    row = _judged_row(path)
    names = list(dict.fromkeys(crcl.read(path).images))
    pairs = crcl.read(path, features=np.ones((200, 1, 2), dtype=np.float32), ids=names).split("train")
    other = str(pairs.image_ids[7])
    assert judge(path, tmp_path / "moved.tsv", moved={row: other}).moved == 1
    lines = path.read_text("utf-8").splitlines()
    lines[row] = f"{lines[row].split(chr(9))[0]}\t{other}"
    assert (tmp_path / "moved.tsv").read_text("utf-8").splitlines() == lines


def test_tables_with_a_header_stay_tables(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("image\tcaption\nhttp://x.org/a.jpg\ta dog\nhttp://x.org/b.jpg\ta cat\n")
    assert layout_of(path) == "table"
    path.write_text("image\tcaption\na.jpg\ta dog\n")
    assert layout_of(path) == "table"
    path.write_text("http://x.org/a.jpg\ta dog\tmore\n")
    assert layout_of(path) == "table"
    path.write_text("")
    assert layout_of(path) == "table"


def test_without_features_the_audit_says_what_to_do_and_fetches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr(socket.socket, "connect", connect)
    write_list(tmp_path / "cc3m.tsv", caption_first=True)
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, "audit", "cc3m.tsv")
    assert answer.code == 2
    assert "cc3m.tsv: images are addresses on the web, which are never fetched; download them" in answer.err
    assert "img2dataset, and name the folder that it writes instead of this list; or pass --features" in answer.err
    (tmp_path / "pairs.csv").write_text(
        "image,caption\nhttp://x.org/a.jpg,a dog\nhttp://x.org/b.jpg,a cat\nhttp://x.org/c.jpg,a car\n"
    )
    answer = call(capsys, monkeypatch, "audit", "pairs.csv")
    assert answer.code == 2
    assert "which are never fetched" in answer.err


def test_a_list_that_is_none_or_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cc.tsv"
    path.write_text("a dog\ta cat\n")
    assert "expected lines of caption<TAB>address or address<TAB>caption, without a header" in refusal(
        path, layout="cc"
    )
    path.write_bytes(b"http://x.org/a.jpg\ta dog\nhttp://x.org/b.jpg\tcaf\xe9\n")
    assert f"{path}:2: not UTF-8 (byte 0xe9" in refusal(path)


def test_a_list_is_recognised_by_its_beginning_alone(tmp_path: Path) -> None:
    path = write_list(tmp_path / "cc.tsv", caption_first=False)
    with path.open("r+b") as file:
        file.truncate(2**41)  # two terabytes of nothing: reading it all is not possible
    assert layout_of(path) == "cc"


def test_the_commands_of_the_page_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_features(tmp_path)
    write_list(tmp_path / "cc3m.tsv", caption_first=True)
    monkeypatch.chdir(tmp_path)
    for words in documented("CC3M and CC12M"):
        chosen = ["--threshold", "0.5"] if words[0] == "clean" else []  # the pairs are too few for an estimate
        answer = call(capsys, monkeypatch, *words, *chosen)
        assert answer.code == 0, answer.err
    assert 0 < len((tmp_path / "cleaned.tsv").read_text("utf-8").splitlines()) < 200
