"""Tars of images and captions, as webdataset and img2dataset have them."""

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import webdataset
from annotated import documented
from drawn import assert_same_audit, drawn
from tarred import read_tar, sample, write_tar, write_tars
from tiny import call

import crcl
from crcl.auditing.result import Audit
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.tars import Tars
from crcl.data.sources import layout_of
from crcl.errors import InputError
from crcl.progress import Advance, Progress, reading_shown_by


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "crcl" / "tars"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the audit is, and the data."""
    return tmp_path_factory.mktemp("tars")


@pytest.fixture(scope="module")
def audited(folder: Path) -> Audit:
    """The audit of the scenes as tars."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return assert_same_audit(write_tars(drawn(), folder / "data"), folder)


def rows(path: Path) -> list[dict[str, str]]:
    """What is read, from the data itself."""
    found = crcl.read(path).source.rows()
    assert found is not None
    return found.to_pylist()


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        crcl.read(path, **options)
    return str(caught.value)


def samples(folder: Path) -> list[dict[str, Any]]:
    """All samples of a folder of tars, by webdataset."""
    shards = [str(path) for path in sorted(folder.rglob("*.tar"))]
    found = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    return [{key: value for key, value in one.items() if key not in ("__url__", "__local_path__")} for one in found]


def test_the_audit_of_tars_is_that_of_a_table(audited: Audit) -> None:
    assert len(audited.findings.pairs) == 160


def test_cleaned_tars_are_those_samples_of_the_data_that_are_kept_as_webdataset_reads_them(
    audited: Audit, folder: Path, tmp_path: Path
) -> None:
    run, data = audited.run.path, folder / "data"
    before = {path: path.read_bytes() for path in data.rglob("*.tar")}
    threshold = float(np.quantile(audited.correspondence, 0.3))
    lists = crcl.clean(run, tmp_path / "lists", threshold=threshold)
    done = crcl.clean(run, tmp_path / "tars", threshold=threshold, rewrite=True)
    assert (done.removed, done.kept, done.unjudged) == (48, 152, 40)
    assert lists == done
    assert {path: path.read_bytes() for path in data.rglob("*.tar")} == before
    suspects = {
        audited.findings.pairs.image_ids[image].removesuffix(".png")
        for image in audited.findings.pairs.image_index[audited.correspondence < threshold]
    }
    expected = [one for one in samples(data) if one["__key__"] not in suspects]
    assert samples(tmp_path / "tars") == expected
    assert set(expected[0]) == {"__key__", "png", "txt", "json"}
    assert (tmp_path / "lists/keep.txt").read_text().splitlines() == [one["__key__"] for one in expected]
    keep = set((tmp_path / "lists/keep.txt").read_text().splitlines())  # as docs/data.md says
    shards = [str(path) for path in sorted(data.rglob("*.tar"))]
    chosen = webdataset.WebDataset(shards, shardshuffle=False).select(lambda sample: sample["__key__"] in keep)
    assert [one["__key__"] for one in chosen] == [one["__key__"] for one in expected]
    table = pyarrow.parquet.read_table(tmp_path / "lists/keep.parquet").to_pylist()
    assert {row["key"] for row in table if not row["kept"]} == suspects
    assert [row["correspondence"] is None for row in table] == [row["shard"].startswith("val/") for row in table]
    assert len(crcl.read(tmp_path / "tars")) == 152
    assert layout_of(tmp_path / "tars") == "tars"


def test_marked_tars_have_the_correspondence_in_their_json(audited: Audit, tmp_path: Path) -> None:
    crcl.clean(audited.run.path, tmp_path / "tars", mark=True, rewrite=True)
    found = [
        *webdataset.WebDataset([str(f) for f in sorted(tmp_path.glob("tars/*/*.tar"))], shardshuffle=False).decode()
    ]
    values = {one["__key__"]: one["json"]["correspondence"] for one in found}
    assert all(one["json"]["url"] == "http://é" for one in found)
    pairs = audited.findings.pairs
    keys = [pairs.image_ids[image].removesuffix(".png") for image in pairs.image_index]
    np.testing.assert_array_equal(np.array([values[key] for key in keys], np.float32), audited.correspondence)
    assert sum(value is None for value in values.values()) == 40
    assert len(crcl.read(tmp_path / "tars")) == 200


def test_the_command_line_audits_and_cleans_tars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tar(write_tars(drawn(), tmp_path / "shards") / "train" / "00009.tar", [("alone.jpg", b"x")])
    settings = [word for setting in ("method=relink", "matcher.name=linear") for word in ("--set", setting)]
    audit, lists, rewrite = documented("Tars of webdataset and img2dataset")
    told = call(capsys, monkeypatch, *audit, *settings)
    assert told.code == 0, told.err
    assert "1 image without a caption is left out" in told.out + told.err
    done = call(capsys, monkeypatch, *lists)
    assert done.code == 0, done.err
    assert "written to kept" in done.out + done.err
    assert sorted(path.name for path in Path("kept").iterdir()) == ["keep.parquet", "keep.txt"]
    done = call(capsys, monkeypatch, *rewrite)
    assert done.code == 0, done.err
    assert sorted(str(path) for path in Path("cleaned").rglob("*.tar")) == [
        *(f"cleaned/train/{number:05}.tar" for number in (0, 1, 2, 3, 9)),
        "cleaned/val/00000.tar",
    ]
    again = call(capsys, monkeypatch, *rewrite)
    assert again.code == 2
    assert "exists already" in again.err
    broken = call(capsys, monkeypatch, "audit", str(write_tar(tmp_path / "x.tar", [("a.jpg", b"x")])))
    assert broken.code == 2
    assert "x.tar: no image with a caption in it; 1 image without a caption is left out" in " ".join(broken.err.split())


def test_one_tar_a_folder_and_folders_of_splits_are_read(tmp_path: Path) -> None:
    members = [member for n in range(3) for member in sample(f"{n}", f"caption {n}", image=b"%d" % n)]
    one = write_tar(tmp_path / "one" / "a.tar", members)
    expected = [{"image": f"{n}.jpg", "caption": f"caption {n}"} for n in range(3)]
    assert rows(one) == rows(one.parent) == expected
    pictures = crcl.read(one).pictures
    assert isinstance(pictures, Tars)
    assert [pictures.read(f"{n}.jpg") for n in range(3)] == [b"0", b"1", b"2"]
    write_tar(tmp_path / "two/train/0.tar", sample("a"))
    write_tar(tmp_path / "two/val/0.tar", sample("b"))
    assert [(row["image"], row["split"]) for row in rows(tmp_path / "two")] == [("a.jpg", "train"), ("b.jpg", "dev")]
    write_tar(tmp_path / "three/cc3m-train-00000.tar", sample("a"))
    write_tar(tmp_path / "three/cc3m-validation-00000.tar", sample("b"))
    assert [(row["image"], row["split"]) for row in rows(tmp_path / "three")] == [("a.jpg", "train"), ("b.jpg", "dev")]
    write_tar(tmp_path / "four/part-0/0.tar", sample("a"))
    write_tar(tmp_path / "four/part-1/0.tar", sample("b"))
    assert [row["image"] for row in rows(tmp_path / "four")] == ["a.jpg", "b.jpg"]


def test_keys_that_several_tars_have_are_told_apart_by_the_tar(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_tar(tmp_path / "data" / split / "00000.tar", [*sample("0", split, image=split.encode()), *sample(split)])
    pairs = crcl.read(tmp_path / "data")
    assert [row["image"] for row in rows(tmp_path / "data")] == [
        f"{split}/00000.tar/{key}.jpg" for split in ("train", "val") for key in ("0", split)
    ]
    assert pairs.notes == ("keys occur in several tars, so images are named TAR/KEY",)
    assert pairs.pictures is not None
    assert pairs.pictures.read("val/00000.tar/0.jpg") == b"val"


def test_several_captions_of_one_image_are_pairs_of_it_and_give_the_same_audit(tmp_path: Path) -> None:
    assert_same_audit(write_tars(drawn(captions=2), tmp_path / "data"), tmp_path, captions=2)


def test_what_is_damaged_or_alone_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_tar(data / "0.tar", [*sample("a"), *sample("b"), ("c.jpg", b"x"), ("d.txt", b"x"), ("e.txt", b"x")])
    cut = write_tar(data / "1.tar", [*sample("f"), *sample("g", image=b"x" * 5000)])
    os.truncate(cut, 4000)
    (data / "2.tar").write_bytes(b"<html>404</html>")
    (data / "3.tar").write_bytes(b"")
    pairs = crcl.read(data)
    assert [row["image"] for row in rows(data)] == ["a.jpg", "b.jpg", "f.jpg"]
    assert pairs.notes == (
        "1 image without a caption is left out",
        "2 captions without an image are left out",
        "3 of 4 tars could not be read to the end: 1.tar (ends within g.jpg), 2.tar (ends within a header), "
        "3.tar (empty)",
    )


def test_images_that_are_html_are_skipped_with_a_reason(tmp_path: Path) -> None:
    scenes = drawn(images=200)
    members = []
    for number, (name, picture) in enumerate(zip(scenes.names[:6], scenes.pictures[:6], strict=True)):
        key = name.removesuffix(".png")
        members += [(name, b"<html>gone</html>" if number == 2 else picture), (f"{key}.txt", b"a dog %d" % number)]
    path = write_tar(tmp_path / "a.tar", members)
    made = crcl.extract_features(crcl.read(path), tmp_path / "features")
    assert made.skipped == [("000002.png", "not an image of a known format")]
    assert "000002.png" in (tmp_path / "features" / "skipped.csv").read_text()


def test_a_shard_that_vanishes_makes_its_images_unusable_and_the_data_another(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for shard in "ab":
        write_tar(data / f"{shard}.tar", [*sample(f"{shard}1"), *sample(f"{shard}2")])
    pictures = crcl.read(data).pictures
    assert pictures is not None
    (data / "b.tar").unlink()
    assert pictures.read("a1.jpg") == b"\xff\xd8 no image"
    with pytest.raises(UnusableError, match=r"its shard b\.tar is gone"):
        pictures.read("b1.jpg")
    assert [row["image"] for row in rows(data)] == ["a1.jpg", "a2.jpg"]


def test_data_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_tar(data / "a.tar", sample("a"))
    with tarfile.open(data / "b.tar.gz", "w:gz"):
        pass
    assert refusal(data) == (
        f"{data / 'b.tar.gz'}: a compressed tar, so that no image in it can be read by itself; "
        "unpack it to a plain .tar"
    )
    assert layout_of(data / "b.tar.gz") == "tars"
    assert "unpack it" in refusal(data / "b.tar.gz")
    assert "none.tar: not found" in refusal(tmp_path / "none.tar", layout="tars")
    (tmp_path / "empty").mkdir()
    assert "contains no .tar files" in refusal(tmp_path / "empty", layout="tars")
    assert "a sample is KEY.jpg" in refusal(write_tar(tmp_path / "x.tar", []))


def test_only_tars_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    write_tar(tmp_path / "run" / "a.tar", sample("a"))
    (tmp_path / "plain" / "below").mkdir(parents=True)
    (tmp_path / "plain" / "below" / ".hidden.tar").write_bytes(b"")
    (tmp_path / "plain" / "folder.tar").mkdir()
    for path in ("run", "plain", "none", "none.tar", "plain/folder.tar", "run/config.json"):
        assert layout_of(tmp_path / path) != "tars", path
    write_tar(tmp_path / "plain" / "below" / "a.tar", sample("a"))
    assert layout_of(tmp_path / "plain") == layout_of(tmp_path / "run" / "a.tar") == "tars"
    (tmp_path / "plain" / "metadata").mkdir()  # a pool of DataComp has tars beside its vectors
    assert layout_of(tmp_path / "plain") != "tars"


def test_nothing_is_written_beside_the_data_and_a_lost_cache_is_made_again(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "data"
    write_tar(data / "a.tar", [*sample("a"), *sample("b")])
    first = rows(data)
    assert sorted(file.suffix for file in cache.iterdir()) == [".arrow", ".parquet"]
    for file in cache.iterdir():
        file.write_bytes(b"broken")
    assert rows(data) == first
    pictures = crcl.read(data).pictures
    assert pictures is not None
    assert pictures.read("b.jpg") == b"\xff\xd8 no image"
    assert [file.name for file in data.iterdir()] == ["a.tar"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    pictures = crcl.read(write_tar(tmp_path / "a.tar", [*sample("a"), *sample("b")])).pictures
    assert pictures is not None
    assert pictures.read("b.jpg") == b"\xff\xd8 no image"


def test_captions_are_taken_from_another_key_of_the_json_if_it_is_named(tmp_path: Path) -> None:
    members = [*sample("a", "alt", better="written anew", url="x"), *sample("b", "alt", url="x")]
    path = write_tar(tmp_path / "a.tar", [*members, *sample("c", "alt", better=["one", "two"])])
    assert [row["caption"] for row in rows(path)] == ["alt"] * 3
    pairs = crcl.read(path, caption_column="better")
    assert pairs.captions == ["written anew", "one", "two"]
    assert pairs.notes == ("1 image without a caption is left out",)
    assert "no image with a caption in it; 3 images without a caption" in refusal(path, caption_column="none")


def test_tars_that_webdataset_writes_are_read(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(3):
            writer.write({"__key__": f"{number:05}", "png": b"%d" % number, "txt": "ä", "json": {"a": number}})
    assert rows(tmp_path / "a.tar") == [{"image": f"{n:05}.png", "caption": "ä"} for n in range(3)]
    assert [name for name, _ in read_tar(tmp_path / "a.tar")][:3] == ["00000.json", "00000.png", "00000.txt"]


def test_the_progress_of_indexing_is_shown_in_bytes(tmp_path: Path) -> None:
    for shard in range(2):
        members = [member for key in range(600) for member in sample(f"{shard}-{key}")]
        write_tar(tmp_path / "data" / f"{shard}.tar", members)
    seen: list[tuple[str, int, int]] = []

    class Shown(Progress):
        @contextmanager
        def task(self, name: str) -> Iterator[Advance]:
            yield lambda done, total: seen.append((name, done, total))

    with reading_shown_by(Shown()):
        crcl.read(tmp_path / "data").source.rows()
    sizes = [(tmp_path / "data" / f"{shard}.tar").stat().st_size for shard in range(2)]
    assert {(name, total) for name, _, total in seen} == {("indexing tars", sum(sizes))}
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert len(done) >= 6  # within the tars too
    assert {sizes[0], sum(sizes)} <= set(done)
    seen.clear()
    crcl.read(tmp_path / "data").source.rows()
    assert not seen


def test_a_folder_is_not_replaced_even_if_that_is_asked_for(
    folder: Path, audited: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    run = str(audited.run.path)
    answer = call(capsys, monkeypatch, "clean", run, "-o", str(tmp_path / "mine"), "--threshold", "0.5", "--overwrite")
    assert answer.code == 2
    assert "mine: exists already, and a folder is never replaced; name a new one" in answer.err
    told = call(capsys, monkeypatch, "clean", "--help").out.replace("│", " ")
    assert "a folder is never replaced" in " ".join(told.split())
