"""Parquet with images in it is written again without the suspects; `datasets` reads it, and all else is as it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from drawn import SETTINGS, drawn
from hub_files import STRUCT, TEXT, cell, write_hub, write_parquet
from tiny import room

import crcl
from crcl.auditing.result import Audit
from crcl.data.cleaning.judged import Judged
from crcl.data.sources import LAYOUTS
from crcl.data.sources.base import Location
from crcl.errors import InputError

NUMBERED = {"dtype": "int64", "_type": "Value"}


def load(path: Path, cache: Path) -> Any:
    """The data as `datasets` reads it, with images as bytes."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    files = {"train": str(path)}
    if path.is_dir():
        files = {split: str(path / "data" / f"{split}-*.parquet") for split in ("train", "validation")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(cache))
    return loaded.cast_column("image", datasets.Image(decode=False))


def clean(path: Path, output: Path, suspects: set[int], *, moved: dict[int, str] | None = None, **how: Any) -> int:
    """Clean a file or a folder of which every pair was judged."""
    rows = crcl.read(path).source.rows()
    assert rows is not None
    pairs = [(row["image"], row["caption"]) for row in rows.to_pylist()]
    judged = {row: pair for row, pair in enumerate(pairs) if all(pair)}
    beliefs = {row: np.float32(row / 100) for row in judged}
    write = LAYOUTS["hub-parquet"].clean
    assert write is not None
    return write(Location(str(path)), Judged(path, judged, beliefs, suspects, moved or {}, **how), output)


def write(path: Path, captions: Any, *, group: int = 3, **more: Any) -> Path:
    """A file with an image for each cell of captions."""
    images = [cell(f"bytes {i}".encode(), f"{i}.png") for i in range(len(captions))]
    columns = {"n": list(range(len(captions))), "image": pa.array(images, STRUCT), "caption": captions}
    return write_parquet(path, columns | more, group=group)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, by pyarrow alone."""
    return list(pa.parquet.ParquetFile(path).read().to_pylist())


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Audit]:
    """The scenes in the hub's layout, and their audit."""
    folder = tmp_path_factory.mktemp("columns")
    write_hub(drawn(), folder / "hub")
    (folder / "hub/README.md").write_text("# Scenes\n")
    return folder, crcl.audit(folder / "hub", folder / "audit", settings=SETTINGS)


def test_cleaned_files_are_read_by_datasets_with_all_else_as_it_was(audited: tuple[Path, Audit]) -> None:
    folder, audit = audited
    done = audit.clean(folder / "cleaned")
    before, after = load(folder / "hub", folder / "cache"), load(folder / "cleaned", folder / "cache")
    assert after["train"].features == before["train"].features
    gone = {int(row) for row in audit.suspects["row"].to_pylist()}
    assert 10 < len(gone) == done.removed
    assert list(after["train"]) == [row for row in before["train"] if row["number"] not in gone]
    assert list(after["validation"]) == list(before["validation"])
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        old, new = (pa.parquet.ParquetFile(folder / f"{of}/data/{name}.parquet") for of in ("hub", "cleaned"))
        assert new.schema_arrow.equals(old.schema_arrow, check_metadata=True)
        assert new.num_row_groups == old.num_row_groups
    assert (folder / "cleaned/README.md").read_text() == "# Scenes\n"
    again = crcl.read(folder / "cleaned")
    assert len(again) == 200 - done.removed
    assert again.pictures is not None
    assert again.pictures.read("000199.png") == drawn().pictures[199]


def test_marked_files_are_read_by_datasets_with_the_new_column(audited: tuple[Path, Audit]) -> None:
    folder, audit = audited
    assert audit.clean(folder / "marked", mark=True).removed == 0
    before, after = load(folder / "hub", folder / "cache"), load(folder / "marked", folder / "cache")
    np.testing.assert_array_equal(np.float32(after["train"]["correspondence"]), audit.correspondence)
    assert set(after["validation"]["correspondence"]) == {None}
    for split in ("train", "validation"):
        assert list(after[split].remove_columns("correspondence")) == list(before[split])
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        clean(folder / "marked", folder / "again", set(), mark=True)
    assert not (folder / "again").exists()


def test_captions_are_moved_with_the_bytes_of_the_other_image(audited: tuple[Path, Audit]) -> None:
    folder, audit = audited
    done = audit.clean(folder / "moved", relink=0.05)
    assert done.moved > 5
    before = {row["number"]: row for row in load(folder / "hub", folder / "cache")["train"]}
    after = {row["number"]: row for row in load(folder / "moved", folder / "cache")["train"]}
    changed = [number for number in after if after[number]["image"] != before[number]["image"]]
    assert len(changed) == done.moved
    pictures = dict(zip(drawn().names, drawn().pictures, strict=True))
    for number in after:
        assert after[number]["caption"] == before[number]["caption"]
        assert after[number]["image"]["bytes"] == pictures[after[number]["image"]["path"]]
    assert len(set(crcl.read(folder / "moved").images)) < len(crcl.read(folder / "moved"))  # copies are one image


def test_plain_bytes_are_moved_too(tmp_path: Path) -> None:
    columns = {"key": ["a", "b", "c"], "jpg": pa.array([b"1", b"2", None], pa.binary()), "caption": ["x", "y", "z"]}
    path = write_parquet(tmp_path / "in.parquet", columns, group=1)
    assert clean(path, tmp_path / "out.parquet", set(), moved={0: "b"}) == 3
    assert [row["jpg"] for row in rows_of(tmp_path / "out.parquet")] == [b"2", b"2", None]
    assert [row["key"] for row in rows_of(tmp_path / "out.parquet")] == ["a", "b", "c"]


LISTS = [["a", "b"], None, ["c"], [], ["d", None, "e"]]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.string())])
def test_suspects_are_taken_out_of_lists_and_rows_without_a_caption_go(tmp_path: Path, kind: pa.DataType) -> None:
    path = write(tmp_path / "in.parquet", pa.array(LISTS, kind))
    assert clean(path, tmp_path / "out.parquet", {0, 3, 7}) == 8
    assert [(row["n"], row["caption"]) for row in rows_of(tmp_path / "out.parquet")] == [
        (0, ["b"]),
        (1, None),
        (3, []),
        (4, ["d", None]),
    ]
    assert pa.parquet.read_schema(tmp_path / "out.parquet") == pa.parquet.read_schema(path)
    assert rows_of(path)[0]["caption"] == ["a", "b"]


def test_marked_lists_have_a_list_of_correspondences_that_datasets_reads(tmp_path: Path) -> None:
    for kind in ("List", "Sequence"):
        features = {"image": {"_type": "Image"}, "n": NUMBERED, "caption": {"feature": TEXT, "_type": kind}}
        images = pa.array([cell(b"1", f"{i}") for i in range(5)], STRUCT)
        columns = {"n": range(5), "image": images, "caption": LISTS}
        path = write_parquet(tmp_path / f"{kind}.parquet", columns, features=features, group=2)
        assert clean(path, tmp_path / f"{kind}-out.parquet", {0}, mark=True) == 8
        out = tmp_path / f"{kind}-out.parquet"
        expected = [[0, 1], None, [3], [], [5, None, 7]]
        for rows in (rows_of(out), list(load(out, tmp_path / f"cache-{kind}")["train"])):
            found = [row["correspondence"] for row in rows]
            rounded = [each and [value if value is None else round(100 * value) for value in each] for each in found]
            assert rounded == expected
            assert [row["caption"] for row in rows] == LISTS
        assert pa.parquet.read_schema(out).metadata[b"mine"] == b"kept"


def test_structs_of_captions_are_taken_out_whole(tmp_path: Path) -> None:
    sentences = [[{"raw": "a", "sentid": 0}, {"raw": "b", "sentid": 1}], [{"raw": "c", "sentid": 2}]]
    columns = {"image": pa.array([cell(b"1", "x"), cell(b"2", "y")], STRUCT), "sentences": sentences}
    path = write_parquet(tmp_path / "in.parquet", columns)
    clean(path, tmp_path / "out.parquet", {0, 2})
    assert [row["sentences"] for row in rows_of(tmp_path / "out.parquet")] == [[{"raw": "b", "sentid": 1}]]


def test_lists_in_a_struct_stay_in_step(tmp_path: Path) -> None:
    kind = pa.struct([("raw", pa.list_(pa.string())), ("sentid", pa.list_(pa.int64()))])
    cells = [{"raw": ["a", "b"], "sentid": [0, 1]}, None, {"raw": ["c"], "sentid": [2]}, {"raw": [], "sentid": []}]
    path = write(tmp_path / "in.parquet", pa.array(cells, kind))
    assert clean(path, tmp_path / "out.parquet", {0, 3}) == 5
    assert [(row["n"], row["caption"]) for row in rows_of(tmp_path / "out.parquet")] == [
        (0, {"raw": ["b"], "sentid": [1]}),
        (1, None),
        (3, {"raw": [], "sentid": []}),
    ]
    assert pa.parquet.read_schema(tmp_path / "out.parquet") == pa.parquet.read_schema(path)
    clean(path, tmp_path / "marked.parquet", {0, 3}, mark=True)
    assert [row["correspondence"] and len(row["correspondence"]) for row in rows_of(tmp_path / "marked.parquet")] == [
        2,
        None,
        1,
        [],
    ]
    cells[2] = {"raw": ["c"], "sentid": [2, 3]}
    path = write(tmp_path / "uneven.parquet", pa.array(cells, kind))
    with pytest.raises(InputError, match=r"of different lengths in one cell.* pass mark"):
        clean(path, tmp_path / "uneven-out.parquet", {0})


def test_a_caption_that_is_a_struct_goes_with_its_row_and_can_be_moved(tmp_path: Path) -> None:
    captions = [{"raw": text, "sentid": number} for number, text in enumerate("abc")]
    path = write(tmp_path / "in.parquet", captions)
    clean(path, tmp_path / "out.parquet", {0}, moved={1: "2.png"})
    found = [(row["image"]["path"], row["caption"]) for row in rows_of(tmp_path / "out.parquet")]
    assert found == [("2.png", captions[1]), ("2.png", captions[2])]


def test_captions_in_lists_are_not_moved_and_none_is_taken_out_of_lists_of_fixed_length(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", LISTS)
    with pytest.raises(InputError, match="several captions, which share one image"):
        clean(path, tmp_path / "out.parquet", set(), moved={0: "2.png"})
    path = write(tmp_path / "fixed.parquet", pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2)))
    with pytest.raises(InputError, match=r"lists of fixed length.* pass mark"):
        clean(path, tmp_path / "out.parquet", {1})
    assert not (tmp_path / "out.parquet").exists()
    clean(path, tmp_path / "out.parquet", {1}, mark=True)
    assert [len(row["correspondence"]) for row in rows_of(tmp_path / "out.parquet")] == [2, 2]


def test_rows_without_an_image_or_a_caption_stay(tmp_path: Path) -> None:
    columns = {"image": pa.array([cell(b"1", "x"), None, cell(b"2", "y")], STRUCT), "text": ["a", "b", None]}
    path = write_parquet(tmp_path / "in.parquet", columns)
    assert clean(path, tmp_path / "out.parquet", {0}) == 3
    assert rows_of(tmp_path / "out.parquet") == rows_of(path)[1:]


def test_compression_and_row_groups_stay_and_an_empty_rest_is_a_file_too(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([cell(b"1", "x"), cell(b"2", "y")], STRUCT), "caption": [["a"], ["b"]]})
    codecs = {"image.bytes": "NONE", "image.path": "ZSTD", "caption.list.element": "GZIP"}
    pa.parquet.write_table(table, tmp_path / "in.parquet", compression=codecs, row_group_size=1)
    clean(tmp_path / "in.parquet", tmp_path / "out.parquet", set())
    groups = [pa.parquet.ParquetFile(tmp_path / name).metadata.row_group(1) for name in ("in.parquet", "out.parquet")]
    old, new = ({of.column(i).path_in_schema: of.column(i).compression for i in range(3)} for of in groups)
    assert old == new == {"image.bytes": "UNCOMPRESSED", "image.path": "ZSTD", "caption.list.element": "GZIP"}
    clean(tmp_path / "in.parquet", tmp_path / "none.parquet", {0, 1})
    assert rows_of(tmp_path / "none.parquet") == []
    assert pa.parquet.read_schema(tmp_path / "none.parquet") == table.schema


def test_data_that_has_changed_since_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "data/in.parquet", ["a", "b"])
    judged = Judged(path, {0: ("0.png", "a"), 1: ("1.png", "other")}, {}, set(), {})
    write_it = LAYOUTS["hub-parquet"].clean
    assert write_it is not None
    for where, output in ((path, "out.parquet"), (path.parent, "out")):
        with pytest.raises(InputError, match=r"row 2 \(the first is 1\) is not the pair that was judged"):
            write_it(Location(str(where)), judged, tmp_path / "to" / output)
    assert list((tmp_path / "to").iterdir()) == []


def test_a_full_disk_leaves_no_half_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "data/in.parquet", [bytes(np.random.default_rng(0).integers(97, 123, 100_000)).decode(), "b"])
    with room(10_000), pytest.raises(InputError, match="out: cannot be written"):
        clean(tmp_path / "data", tmp_path / "to/out", set())
    assert list((tmp_path / "to").iterdir()) == []


CARD = """---
license: mit
dataset_info:
  features:
  - name: image
    dtype: image

  splits:
  - name: train
    num_examples: 2
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
---
# My data
dataset_info: stays here
"""


def test_small_text_files_go_along_and_a_card_loses_what_is_no_longer_so(tmp_path: Path) -> None:
    write(tmp_path / "hub/data/train-00000-of-00001.parquet", ["a", "b"])
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "hub/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "hub/LICENSE").write_text("mine")
    (tmp_path / "hub/large.txt").write_bytes(b"x" * (2**20 + 1))
    (tmp_path / "hub/00000_stats.json").write_text("{}")
    (tmp_path / "hub/README.md").write_text(CARD)
    clean(tmp_path / "hub", tmp_path / "out", {1})
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["LICENSE", "README.md", "data"]
    lines = CARD.splitlines(keepends=True)
    assert (tmp_path / "out/README.md").read_text() == "".join(lines[:2] + lines[10:])


def test_a_marked_folder_with_a_card_is_loaded_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    write(tmp_path / "hub/data/train-00000-of-00001.parquet", ["a", "b"])
    (tmp_path / "hub/README.md").write_text(CARD)
    clean(tmp_path / "hub", tmp_path / "out", set(), mark=True)
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(found["train"].column_names) == {"n", "image", "caption", "correspondence"}


def test_a_damaged_row_group_is_told_of_the_data_and_not_of_what_is_written(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", [f"caption {number}" for number in range(6)], group=2)
    content = bytearray(path.read_bytes())
    group = pa.parquet.read_metadata(path).row_group(1)
    start = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
    content[start : start + 24] = b"\xff" * 24
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data\.parquet: not a readable parquet file .*; get it again"):
        clean(path, tmp_path / "cleaned.parquet", {0})
    assert not (tmp_path / "cleaned.parquet").exists()
