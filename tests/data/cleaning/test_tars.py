"""Tars again: without the suspects or marked, everything else byte by byte."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tarred import read_tar, sample, write_tar

from crcl.data.cleaning.judged import Judged
from crcl.data.sources import tars
from crcl.data.sources.base import Location
from crcl.errors import InputError

Clean = Callable[..., int]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def clean(data: Path, output: Path, suspects: set[str], **options: Any) -> int:
    """Clean data whose captions are all judged; `suspects` are captions."""
    location = Location(str(data))
    rows = tars.read(location).rows.to_pylist()
    expected = {number: (row["image"], row["caption"]) for number, row in enumerate(rows)}
    beliefs = {number: np.float32(0.1 if row["caption"] in suspects else 0.9) for number, row in enumerate(rows)}
    wrong = {number for number, row in enumerate(rows) if row["caption"] in suspects}
    judged = Judged(data, **{"expected": expected, "correspondence": beliefs, "suspects": wrong, "moved": {}} | options)
    return tars.clean(location, judged, output)


def headers(path: Path) -> dict[str, bytes]:
    """All blocks of each member, headers too."""
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        found = tar.getmembers()
    ends = [info.offset for info in found[1:]] + [found[-1].offset_data + -(-found[-1].size // 512) * 512]
    return {info.name: content[info.offset : end] for info, end in zip(found, ends, strict=True)}


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_other_members_stay_with_their_headers_and_what_is_kept_whole_is_the_same_file(
    tmp_path: Path, kind: int
) -> None:
    members = [
        *(member for n in range(5) for member in sample(f"{n}", f"caption {n}", image=b"x" * 700 * n, url=f"{n}")),
        ("1.cls", b"7"),  # apart from the others of its key
        ("readme", b"of nobody"),
        ("alone.jpg", b"no caption"),
    ]
    data = write_tar(tmp_path / "data" / "a.tar", members, kind=kind, mtime=1234.5, uname="somebody").parent
    assert clean(data, tmp_path / "new", {"caption 1", "caption 4"}, rewrite=True) == 5
    before, after = headers(data / "a.tar"), headers(tmp_path / "new" / "a.tar")
    assert list(after.items()) == [(name, raw) for name, raw in before.items() if name[0] not in "14"]
    assert (tmp_path / "new" / "a.tar").stat().st_size % tarfile.RECORDSIZE == 0
    clean(data, tmp_path / "same", set(), rewrite=True)
    assert (tmp_path / "same" / "a.tar").read_bytes() == (data / "a.tar").read_bytes()


def test_the_table_beside_a_tar_loses_the_same_rows_and_keeps_failed_downloads(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_tar(data / "a.tar", [member for n in range(3) for member in sample(f"{n}", f"caption {n}")])
    (data / "a_stats.json").write_text("{}")
    schema = pa.schema([("key", pa.string()), ("status", pa.string()), ("width", pa.int16())], metadata={"a": "b"})
    keys = ["2", "gone", "0", "1"]
    table = pa.table([keys, ["success", "failed", "success", "success"], [1, None, 3, 4]], schema=schema)
    pa.parquet.write_table(table, data / "a.parquet", row_group_size=2)
    clean(data, tmp_path / "new", {"caption 2"}, rewrite=True)
    assert pa.parquet.read_table(tmp_path / "new" / "a.parquet").equals(table.slice(1), check_metadata=True)
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["a.parquet", "a.tar"]
    clean(data, tmp_path / "marked", {"caption 2"}, rewrite=True, mark=True)
    marked = pa.parquet.read_table(tmp_path / "marked" / "a.parquet")
    assert marked.drop_columns("correspondence").equals(table)
    assert marked["correspondence"].to_pylist() == [float(np.float32(0.1)), None, *[float(np.float32(0.9))] * 2]
    for other in (pa.table({"uid": ["x"]}), None):
        if other is None:
            (data / "a.parquet").write_bytes(b"no table")
        else:
            pa.parquet.write_table(other, data / "a.parquet")
        clean(data, tmp_path / f"without {other is None}", {"caption 2"}, rewrite=True)
        assert [file.name for file in (tmp_path / f"without {other is None}").iterdir()] == ["a.tar"]


def test_the_mark_is_added_to_the_json_as_it_is_written_or_as_json_of_its_own(tmp_path: Path) -> None:
    members = [
        ("a.jpg", b"x"),
        ("a.json", b'{"b": 1.50,  "caption": "good"\n }\n'),
        *sample("c", "wrong"),
        ("d.jpg", b"x"),
        ("d.txt", b"good too"),
        ("d.json", b"{}"),
        ("e.jpg", b"x"),
        ("e.json", b'{"captions": ["one", "wrong"]}'),
    ]
    data = write_tar(tmp_path / "data.tar", members, mode=0o600, kind=tarfile.PAX_FORMAT)
    clean(data, tmp_path / "new", {"wrong"}, rewrite=True, mark=True)
    assert read_tar(tmp_path / "new" / "data.tar") == [
        ("a.jpg", b"x"),
        ("a.json", b'{"b": 1.50,  "caption": "good", "correspondence": 0.9}\n'),
        ("c.jpg", b"\xff\xd8 no image"),
        ("c.json", b'{"correspondence": 0.1}'),
        ("c.txt", b"wrong"),
        ("d.jpg", b"x"),
        ("d.txt", b"good too"),
        ("d.json", b'{"correspondence": 0.9}'),
        ("e.jpg", b"x"),
        ("e.json", b'{"captions": ["one", "wrong"], "correspondence": [0.9, 0.1]}'),
    ]
    with tarfile.open(tmp_path / "new" / "data.tar") as tar:
        assert {info.mode for info in tar} == {0o600}
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        clean(tmp_path / "new" / "data.tar", tmp_path / "twice", set(), rewrite=True, mark=True)
    assert not (tmp_path / "twice").exists()


def test_of_several_captions_only_the_suspects_go(tmp_path: Path) -> None:
    record = {"é": 1, "captions": ["good", "", "wrong", 3, "good too"], "x": None}
    members = [
        *sample("a", None, **record),
        *sample("b", None, captions=["wrong", "wrong"]),
        *sample("c", None, caption="good"),
    ]
    data = write_tar(tmp_path / "data.tar", members)
    assert clean(data, tmp_path / "new", {"wrong"}, rewrite=True) == 6
    (_, image), (_, changed), *rest = read_tar(tmp_path / "new" / "data.tar")
    assert image == b"\xff\xd8 no image"
    assert json.loads(changed) == record | {"captions": ["good", "", 3, "good too"]}
    assert rest == [*sample("c", None, caption="good")]
    assert [row["caption"] for row in tars.read(Location(str(tmp_path / "new"))).rows.to_pylist()] == [
        *("good", "good too", "good")
    ]


def test_long_names_of_changed_members_stay(tmp_path: Path) -> None:
    key = "folder/" * 40 + "é"
    data = write_tar(tmp_path / "data.tar", sample(key, "good", url="x"), kind=tarfile.GNU_FORMAT)
    clean(data, tmp_path / "new", set(), rewrite=True, mark=True)
    assert [name for name, _ in read_tar(tmp_path / "new" / "data.tar")] == [
        f"{key}{end}" for end in (".jpg", ".txt", ".json")
    ]


def test_what_is_before_the_damage_is_written(tmp_path: Path) -> None:
    members = [member for n in range(3) for member in sample(f"{n}", f"caption {n}")]
    data = write_tar(tmp_path / "data" / "a.tar", members).parent
    content = (data / "a.tar").read_bytes()
    (data / "a.tar").write_bytes(content[: 2 * 2048 - 200])  # in the padding of the second text
    clean(data, tmp_path / "new", {"caption 0"}, rewrite=True)
    assert read_tar(tmp_path / "new" / "a.tar") == members[2:4]
    (data / "b.tar").write_bytes(b"<html>")
    clean(data, tmp_path / "newer", {"caption 0"}, rewrite=True)
    assert read_tar(tmp_path / "newer" / "b.tar") == []


def test_tars_that_changed_since_the_audit_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "data" / "a.tar", [*sample("a", "one"), *sample("b", "two")]).parent
    for rewrite in (False, True):
        with pytest.raises(InputError, match=r"row 2 \(the first is 1\) is not the pair that was judged"):
            clean(data, tmp_path / "new", set(), rewrite=rewrite, expected={1: ("b.jpg", "other")})
        with pytest.raises(InputError, match=r"it has 2 rows, but row 4 \(the first is 1\) was judged"):
            clean(data, tmp_path / "new", set(), rewrite=rewrite, expected={3: ("b.jpg", "two")})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data"]


def test_moved_captions_are_in_the_lists_and_not_in_tars(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "data" / "a.tar", [*sample("a", "one"), *sample("b", "two")]).parent
    with pytest.raises(InputError, match=r"cannot be moved.*leave rewrite=True out: keep\.parquet"):
        clean(data, tmp_path / "new", set(), rewrite=True, moved={0: "b.jpg"})
    clean(data, tmp_path / "lists", set(), moved={0: "b.jpg"})
    table = pa.parquet.read_table(tmp_path / "lists" / "keep.parquet")
    assert table["moved_to"].to_pylist() == ["b.jpg", None]
    assert (tmp_path / "lists" / "keep.txt").read_text() == "b\n"


def test_json_that_is_no_object_cannot_be_marked(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar", [*sample("a", "one"), ("a.json", b"[1]")])
    with pytest.raises(InputError, match=r"a\.json is no JSON object, so it cannot be marked; leave rewrite=True out"):
        clean(data, tmp_path / "new", set(), rewrite=True, mark=True)
    clean(data, tmp_path / "new", {"one"}, rewrite=True)
    assert read_tar(tmp_path / "new" / "a.tar") == []


def test_keys_of_lists_are_told_apart_by_the_tar_where_they_repeat(tmp_path: Path) -> None:
    for shard in "xy":
        write_tar(tmp_path / "data" / f"{shard}.tar", [*sample("a", f"{shard} one"), *sample("b", f"{shard} two")])
    clean(tmp_path / "data", tmp_path / "lists", {"x one"})
    assert (tmp_path / "lists" / "keep.txt").read_text() == "x.tar/b\ny.tar/a\ny.tar/b\n"
    table = pa.parquet.read_table(tmp_path / "lists" / "keep.parquet")
    assert table["shard"].to_pylist() == ["x.tar", "x.tar", "y.tar", "y.tar"]
    clean(tmp_path / "data", tmp_path / "new", {"x one"}, rewrite=True)
    assert [name for name, _ in read_tar(tmp_path / "new" / "x.tar")] == ["b.jpg", "b.txt"]
    assert len(read_tar(tmp_path / "new" / "y.tar")) == 4
