"""The samples of a tar: captions from texts, JSON or the table beside it, and what is left out is counted."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tarred import Named, sample, write_tar

from crcl.data.rows import samples
from crcl.data.rows.samples import Samples, Shard, captions_in, read_samples
from crcl.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "crcl" / "tars"


def found_in(path: Path, members: Named) -> Samples:
    return read_samples(Shard(path.name, write_tar(path, members)))


def captions(found: Samples) -> dict[str, list[str]]:
    """Captions by name of image."""
    return {f"{row['key']}.{row['extension']}": row["captions"] for row in found.table.to_pylist()}


def counted(found: Samples) -> dict[str, int]:
    return {kind: count for kind, count in found.counts.items() if count}


def test_a_caption_is_the_text_or_the_json_or_the_table_beside_it(tmp_path: Path) -> None:
    members = [
        *sample("text", " two\nlines, one caption \n", caption="another"),
        *sample("empty-text", "", caption="of the JSON"),
        *sample("json", None, text="of the JSON", caption=" "),
        *sample("several", None, captions=["one ", "", 3, "two", "one"], caption=None),
        *sample("table", None, url="x"),
        *sample("none", None, url="x"),
    ]
    rows: list[dict[str, Any]] = [
        {"key": "table", "caption": "of the table ", "status": "success"},
        {"key": "text", "caption": "not this", "status": "success"},
        {"key": "gone", "caption": "x", "status": "failed_to_download"},
        {"key": "gone too", "caption": "x", "status": "failed_to_resize"},
        {"key": "none", "caption": None, "status": "success"},
    ]
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = found_in(tmp_path / "a.tar", members)
    assert captions(found) == {
        "text.jpg": ["two\nlines, one caption"],
        "empty-text.jpg": ["of the JSON"],
        "json.jpg": ["of the JSON"],
        "several.jpg": ["one", "two", "one"],
        "table.jpg": ["of the table"],
    }
    assert counted(found) == {"failed": 2, "no caption": 1}
    (tmp_path / "a.parquet").write_bytes(b"no table")
    assert counted(read_samples(Shard("a.tar", tmp_path / "a.tar"))) == {"tables": 1, "no caption": 2}


def test_offsets_lead_to_the_images_wherever_the_members_of_a_key_lie(tmp_path: Path) -> None:
    members = [
        ("b.txt", b"b"),
        ("a.seg.png", b"mask"),
        ("a.JPG", b"image a"),
        ("x/b.input.webp", b"image b"),
        ("c.jpeg", b"image c"),
        ("a.txt", b"a"),
        ("x/b.txt", b"xb"),
        ("c.txt", b"c"),
        ("c.cls", b"7"),
        ("c.depth.png", b"depth"),
    ]
    found = found_in(tmp_path / "a.tar", members)
    whole = (tmp_path / "a.tar").read_bytes()
    rows = found.table.to_pylist()
    assert [(row["key"], whole[row["offset"] : row["offset"] + row["size"]]) for row in rows] == [
        ("a", b"image a"),
        ("x/b", b"image b"),
        ("c", b"image c"),
    ]
    assert list(captions(found)) == ["a.JPG", "x/b.input.webp", "c.jpeg"]
    assert counted(found) == {"no image": 1}


def test_what_is_broken_or_repeated_is_counted_and_nothing_else_is_lost(tmp_path: Path) -> None:
    members = [
        *sample("good"),
        *sample("good", "a second time"),
        ("good.png", b"another image"),
        ("latin.jpg", b"x"),
        ("latin.txt", "café".encode("latin-1")),
        ("list.jpg", b"x"),
        ("list.json", b'[{"caption": "in a list"}]'),
        ("deep.jpg", b"x"),
        ("deep.json", b"[" * 100_000 + b"]" * 100_000),
        ("half.jpg", b"x"),
        ("half.json", b'{"caption": "half a character \\ud800"}'),
        *sample("/etc/passwd"),
        *sample("../../outside"),
        *sample("a/../b"),
        *sample("two\nlines"),
        *sample(" spaces"),
        ("good2.a\nb.jpg", b"x"),
        ("._good.jpg", b"of a Mac"),
        ("noextension", b"x"),
        *sample("good2"),
    ]
    found = found_in(tmp_path / "a.tar", members)
    assert captions(found) == {"good.jpg": ["a dog"], "good2.jpg": ["a dog"]}
    assert counted(found) == {"repeated": 2, "several": 1, "undecodable": 3, "no caption": 4, "names": 10}


def test_links_are_counted_and_never_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, target, kind in (
            ("a.txt", "/etc/passwd", tarfile.SYMTYPE),
            ("a.jpg", "b.jpg", tarfile.LNKTYPE),
            ("folder", "", tarfile.DIRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
        for name, content in sample("b"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    found = read_samples(Shard("a.tar", tmp_path / "a.tar"))
    assert captions(found) == {"b.jpg": ["a dog"]}
    assert counted(found) == {"links": 2}


def test_a_tar_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [member for n in range(4) for member in sample(str(n))])
    os.truncate(path, 2 * 2048 + 1024 + 300)  # before the text of the third
    found = read_samples(Shard("a.tar", path))
    assert list(captions(found)) == ["0.jpg", "1.jpg"]
    assert found.damage == "ends within a header"
    assert counted(found) == {"no caption": 1}


def test_a_hundred_thousand_captions_of_one_image_are_pairs_of_it(tmp_path: Path) -> None:
    texts = [f"caption {n}" for n in range(100_000)]
    assert captions(found_in(tmp_path / "a.tar", sample("a", None, captions=texts))) == {"a.jpg": texts}


def test_texts_beyond_sixteen_megabytes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_TEXT", 100)
    members = [*sample("a", "x" * 101), *sample("b", "x" * 100), *sample("c", None, caption="x" * 100)]
    found = found_in(tmp_path / "a.tar", members)
    assert list(captions(found)) == ["b.jpg"]
    assert counted(found) == {"undecodable": 2, "no caption": 2}


def test_a_shard_is_scanned_once_and_again_only_when_it_or_its_table_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    scanned: list[str] = []
    scan = samples._scan
    monkeypatch.setattr(samples, "_scan", lambda shard, *more: scanned.append(shard.name) or scan(shard, *more))
    shard = Shard("a.tar", tmp_path / "a.tar")
    first = found_in(shard.path, [*sample("a"), ("b.jpg", b"")])
    os.truncate(shard.path, 2560)
    second = read_samples(shard)
    again = read_samples(shard)
    assert len(scanned) == 2
    assert (again.table.equals(second.table), again.counts, again.damage) == (True, second.counts, second.damage)
    assert second.damage == "ends without an end mark"
    assert first.damage == ""
    pa.parquet.write_table(pa.table({"key": ["b"], "caption": ["x"]}), shard.table)
    assert list(captions(read_samples(shard))) == ["a.jpg", "b.jpg"]
    assert len(scanned) == 3
    for file in cache.iterdir():
        file.write_bytes(b"broken")
    assert list(captions(read_samples(shard))) == ["a.jpg", "b.jpg"]
    assert len(scanned) == 4
    assert not [file for file in tmp_path.iterdir() if file.name not in ("a.tar", "a.parquet", "cache")]


def test_compressed_and_vanished_tars_are_refused_by_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with pytest.raises(InputError, match=r"a\.tar: compressed by gzip.*unpack it to a plain \.tar"):
        read_samples(Shard("a.tar", tmp_path / "a.tar"))
    with pytest.raises(InputError, match=r"b\.tar: cannot be read \(No such file"):
        read_samples(Shard("b.tar", tmp_path / "b.tar"))


def test_captions_of_json_have_their_places() -> None:
    assert captions_in(json.loads('{"captions": ["", " a ", null, "b"], "text": [], "caption": {}}')) == (
        "captions",
        {1: "a", 3: "b"},
    )
    assert captions_in({"url": "x"}) == ("", {})
