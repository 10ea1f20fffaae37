"""Imagefolders of Hugging Face: metadata beside images, in split folders and in zip files."""

import csv
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from annotated import documented
from drawn import SETTINGS, Drawn, assert_same_audit, drawn
from tiny import call

import crcl
from crcl.data.pictures.base import UnusableError
from crcl.data.sources import imagefolder, layout_of
from crcl.errors import InputError

PNG = drawn(4).pictures[0]
FORMATS = pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])


def write_metadata(path: Path, records: list[dict[str, Any]]) -> Path:
    """A metadata file in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)
    return path


def write_imagefolder(data: Drawn, folder: Path, ending: str) -> Path:
    """The scenes as `train/images/000000.png`, `train/metadata.csv` and the same for validation."""
    for split, name in (("train", "train"), ("val", "validation")):
        records = [
            {"file_name": f"images/{image}", "number": number, "text": caption}
            for number, (image, caption, of) in enumerate(data.rows())
            if of == split
        ]
        write_metadata(folder / name / f"metadata.{ending}", records)
        (folder / name / "images").mkdir()
        for image, picture, of in zip(data.names, data.pictures, data.splits, strict=True):
            if of == split:
                (folder / name / "images" / image).write_bytes(picture)
    return folder


def as_zips(folder: Path) -> Path:
    """Each split folder as a zip file instead."""
    for split in [path for path in folder.iterdir() if path.is_dir()]:
        shutil.make_archive(str(split), "zip", split)
        shutil.rmtree(split)
    return folder


def put(folder: Path, *records: dict[str, Any], ending: str = "csv", images: str = "abc") -> Path:
    """A folder with metadata and images a.png, b.png, c.png."""
    write_metadata(folder / f"metadata.{ending}", list(records))
    for name in images:
        (folder / f"{name}.png").write_bytes(PNG)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        crcl.read(folder, layout="imagefolder", **options)
    return str(caught.value)


def load(folder: Path, cache: Path) -> Any:
    """The data as Hugging Face's own reader sees it."""
    return datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(cache))


def test_the_scenes_give_the_same_audit_and_come_back_as_an_imagefolder(tmp_path: Path) -> None:
    data = drawn()
    folder = write_imagefolder(data, tmp_path / "data", "csv")
    before = contents(folder)
    audit = assert_same_audit(folder, tmp_path)
    suspects = set(audit.table.filter(audit.table["suspect"])["row"].to_pylist())
    assert 5 < len(suspects) < 80
    audit.clean(tmp_path / "cleaned", images="link")
    lines = (folder / "train/metadata.csv").read_text().splitlines()
    kept = [line for row, line in enumerate(lines[1:]) if row not in suspects]
    assert (tmp_path / "cleaned/train/metadata.csv").read_text().splitlines() == [lines[0], *kept]
    assert (tmp_path / "cleaned/validation/metadata.csv").read_bytes() == before[folder / "validation/metadata.csv"]
    found = load(tmp_path / "cleaned", tmp_path / "hf")
    assert set(found) == {"train", "validation"}
    rows = data.rows()
    assert found["train"]["number"] == [row for row in range(160) if row not in suspects]
    assert found["train"]["text"] == [rows[row][1] for row in range(160) if row not in suspects]
    raw = found["train"].cast_column("image", datasets.Image(decode=False))
    paths = [Path(cell["path"]) for cell in raw["image"]]
    assert [path.read_bytes() for path in paths] == [data.pictures[row] for row in range(160) if row not in suspects]
    assert crcl.read(tmp_path / "cleaned").captions == [row[1] for at, row in enumerate(rows) if at not in suspects]
    audit.clean(tmp_path / "marked", mark=True, images="copy")
    marked = load(tmp_path / "marked", tmp_path / "hf")["train"]
    assert marked["correspondence"] == pytest.approx(audit.correspondence.tolist(), abs=1e-6)
    assert marked["number"] == list(range(160))
    assert contents(folder) == before


def test_the_scenes_in_zips_give_the_same_audit_and_come_back_as_zips(tmp_path: Path) -> None:
    data = drawn()
    folder = as_zips(write_imagefolder(data, tmp_path / "data", "jsonl"))
    before = contents(folder)
    audit = assert_same_audit(folder, tmp_path)
    assert crcl.read(folder).images[0] == "train.zip/images/000000.png"
    suspects = set(audit.table.filter(audit.table["suspect"])["row"].to_pylist())
    audit.clean(tmp_path / "cleaned", images="copy")
    assert sorted(file.name for file in (tmp_path / "cleaned").rglob("*")) == ["train.zip", "validation.zip"]
    with zipfile.ZipFile(tmp_path / "cleaned/train.zip") as found, zipfile.ZipFile(folder / "train.zip") as source:
        lines = source.read("metadata.jsonl").splitlines()
        assert found.read("metadata.jsonl").splitlines() == [
            line for row, line in enumerate(lines) if row not in suspects
        ]
        names = {f"images/{data.names[row]}" for row in range(160) if row not in suspects}
        assert {name for name in found.namelist() if name.endswith(".png")} == names
        assert all(found.read(name) == source.read(name) for name in names)
    assert len(crcl.read(tmp_path / "cleaned")) == 200 - len(suspects)
    assert load(tmp_path / "cleaned", tmp_path / "hf")["train"]["number"] == sorted(set(range(160)) - suspects)
    audit.clean(tmp_path / "lists")
    assert sorted(file.name for file in (tmp_path / "lists").rglob("*.*")) == ["metadata.jsonl"] * 2
    with pytest.raises(InputError, match="images in a zip file cannot be linked"):
        audit.clean(tmp_path / "links", images="link")
    assert not (tmp_path / "links").exists()
    assert contents(folder) == before


def test_the_command_line_audits_and_cleans_an_imagefolder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_imagefolder(drawn(60), tmp_path / "photos", "csv")
    words = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    audit, clean = documented("Imagefolder")
    audited = call(capsys, monkeypatch, *audit)
    assert audited.code == 0, audited.err
    cleaned = call(capsys, monkeypatch, *clean, "--threshold", "0.3")
    assert cleaned.code == 0, cleaned.err
    assert "written to cleaned" in cleaned.out
    bare = call(capsys, monkeypatch, "clean", "photos-audit/run", "-o", "bare", "--threshold", "0.3")
    assert bare.code == 0
    assert sorted(file.name for file in Path("bare").rglob("*.*")) == ["metadata.csv"] * 2
    again = call(capsys, monkeypatch, "audit", "bare", "--images", "photos", *words)  # its images are where they were
    assert again.code == 0, again.err
    table = "photos/train/metadata.csv"
    single = call(
        capsys, monkeypatch, "audit", table, "--image-column", "file_name", "--caption-column", "text", *words
    )
    assert single.code == 0, single.err


@FORMATS
def test_metadata_is_read_in_every_format_beside_its_images(tmp_path: Path, ending: str) -> None:
    folder = put(
        tmp_path,
        {"file_name": "a.png", "text": "one", "id": 1},
        {"file_name": "./b.png", "text": "two", "id": 2},
        {"file_name": "a.png", "text": "one", "id": 3},
        ending=ending,
    )
    assert layout_of(folder) == "imagefolder"
    pairs = crcl.read(folder)
    assert pairs.images == ["a.png", "b.png", "a.png"]
    assert pairs.captions == ["one", "two", "one"]  # duplicate rows are pairs
    assert pairs.notes == ("1 image files are not named by any metadata file",)
    assert pairs.pictures is not None
    assert pairs.pictures.read("b.png") == PNG
    assert layout_of(folder / f"metadata.{ending}") == "table"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_lists_of_captions_are_pairs_that_share_their_image(tmp_path: Path, ending: str) -> None:
    put(
        tmp_path,
        {"file_name": "a.png", "captions": ["one", "two"]},
        {"file_name": "b.png", "captions": []},
        {"file_name": "c.png", "captions": ["three"]},
        ending=ending,
    )
    pairs = crcl.read(tmp_path)
    assert pairs.images == ["a.png", "a.png", "b.png", "c.png"]
    assert pairs.captions == ["one", "two", "", "three"]
    assert len(pairs.without_empty()) == 3


def test_columns_have_usual_names_or_those_that_are_given(tmp_path: Path) -> None:
    folder = put(tmp_path / "one", {"image_file_name": "a.png", "prompt": "one", "alt": "other"})
    assert crcl.read(folder).captions == ["one"]
    assert crcl.read(folder, caption_column="alt").captions == ["other"]
    message = refusal(folder, caption_column="alte")
    assert "no column 'alte' (did you mean 'alt'?); columns: image_file_name, prompt, alt" in message
    both = put(tmp_path / "two", {"file": "a.png", "words": "one"})
    message = refusal(both)
    assert "metadata.csv: no column 'file_name'" in message
    assert "no column 'caption'" in message
    assert not imagefolder.recognises(both)
    assert crcl.read(both, layout="imagefolder", image_column="file", caption_column="words").captions == ["one"]


def test_splits_are_folders_zips_or_a_column(tmp_path: Path) -> None:
    put(tmp_path / "a/data/train", {"file_name": "a.png", "text": "one"})
    put(tmp_path / "a/data/dev", {"file_name": "a.png", "text": "two"})
    assert crcl.read(tmp_path / "a").splits == ["train", "dev"]
    put(tmp_path / "b/train-00000-of-00001", {"file_name": "a.png", "text": "one"})
    put(tmp_path / "b/test", {"file_name": "a.png", "text": "two"})
    assert crcl.read(as_zips(tmp_path / "b")).splits == ["train", "dev", "test"]
    put(
        tmp_path / "c",
        {"file_name": "a.png", "text": "x", "split": "val"},
        {"file_name": "b.png", "text": "y", "split": "train"},
    )
    assert crcl.read(tmp_path / "c").splits == ["train", "dev"]
    put(tmp_path / "d", {"file_name": "train/a.png", "text": "x"}, {"file_name": "test/a.png", "text": "y"})
    assert crcl.read(tmp_path / "d").splits == ["train", "dev", "test"]


@FORMATS
def test_files_that_are_missing_or_outside_are_left_out_one_by_one(tmp_path: Path, ending: str) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    folder = put(
        tmp_path / "data",
        *(
            {"file_name": name, "text": "x"}
            for name in ("a.png", "../secret.png", str(tmp_path / "secret.png"), "link.png", "gone.png")
        ),
        ending=ending,
    )
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    pairs = crcl.read(folder)
    assert len(pairs) == 5
    reasons = []
    for wanted in pairs.wanted_images()[1:]:
        with pytest.raises(UnusableError) as caught:
            wanted.read()
        reasons.append(str(caught.value))
    assert reasons == [*["outside the folder of images"] * 3, "not found"]


def test_metadata_that_leads_outside_is_not_read(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", {"file_name": "a.png", "text": "secret"})
    folder = put(tmp_path / "data", {"file_name": "a.png", "text": "one"})
    (folder / "train").mkdir()
    (folder / "train/metadata.csv").symlink_to(outside / "metadata.csv")
    assert "outside the folder" in refusal(folder)


def test_unreadable_metadata_and_zips_are_refused_by_name(tmp_path: Path) -> None:
    assert "no metadata.csv or metadata.jsonl or metadata.parquet in it" in refusal(tmp_path)
    folder = put(tmp_path / "two", {"file_name": "a.png", "text": "one"})
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "one"}\n')
    assert "two metadata files in one folder, metadata.csv and metadata.jsonl" in refusal(folder)
    folder = put(tmp_path / "list", {"file_name": "a.png", "text": "one"}, ending="jsonl")
    (folder / "metadata.jsonl").write_text("[1, 2]\n")
    assert "metadata.jsonl: not a readable jsonl table" in refusal(folder)
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "text": ["x"]}\n{"file_name": "b.png", "text": [7]}\n'
    )
    assert "metadata.jsonl:2: expected an object whose 'text' is a text or a list of texts" in refusal(folder)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/train.zip").write_bytes(b"PK\x03\x04 but no more")
    assert layout_of(tmp_path / "broken") == "imagefolder"
    assert "train.zip: not a readable zip file" in refusal(tmp_path / "broken")
    put(tmp_path / "zipped/train", {"file_name": "a.png", "words": "one"})
    message = refusal(as_zips(tmp_path / "zipped"))
    assert f"{tmp_path}/zipped/train.zip/metadata.csv: no column 'caption'" in message


def test_a_hundred_thousand_captions_of_one_image_are_read(tmp_path: Path) -> None:
    captions = [f"caption {number}" for number in range(100_000)]
    put(tmp_path, {"file_name": "a.png", "text": captions}, {"file_name": "b.png", "text": ["x"]}, ending="jsonl")
    pairs = crcl.read(tmp_path)
    assert pairs.captions[:-1] == captions
    assert set(pairs.images) == {"a.png", "b.png"}


def test_a_run_and_other_folders_are_no_imagefolders(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", {"file_name": "a.png", "text": "one"})
    assert imagefolder.recognises(folder)
    (folder / "config.json").write_text("{}")
    assert not imagefolder.recognises(folder)
    assert not imagefolder.recognises(tmp_path / "absent")
    assert not imagefolder.recognises(folder / "metadata.csv")
