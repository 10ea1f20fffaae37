"""Embeddings from files: a folder of shards, and a table with two files of vectors. Every refusal names the file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from annotated import documented
from embedded import made_up, write_embeddings
from reading import read, splits
from tiny import call

from crcl.data.maps.shards import Shards
from crcl.data.rows.splits import HELD_OUT
from crcl.errors import InputError
from crcl.runs.describe import describe


def test_shards_are_read_as_one_array(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)
    paths = []
    for number, part in enumerate(np.array_split(whole, 5)):
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], part)
    shards = Shards.open(paths)
    rows = np.array([22, 0, 7, 7, 4, 5, 14])
    assert shards.shape == whole.shape
    np.testing.assert_array_equal(shards[rows], whole[rows])
    assert all(isinstance(part, np.memmap) for part in shards.parts)
    assert [shards.place(row) for row in (0, 4, 5, 22)] == [
        f"{tmp_path}/0.npy: row 0",
        f"{tmp_path}/0.npy: row 4",
        f"{tmp_path}/1.npy: row 0",
        f"{tmp_path}/4.npy: row 3",
    ]


def test_every_pair_has_the_vectors_of_its_row(tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "data", 60, image=16, text=10)
    images, texts = made_up(60, image=16, text=10)
    seen = []
    assert splits(folder) == ["train", "dev"]
    for split in splits(folder):
        pairs = read(folder, split)
        rows = pairs.caption_rows
        assert rows is not None
        seen += rows.tolist()
        everything = np.arange(len(pairs))
        np.testing.assert_array_equal(pairs.gather(pairs.image_index)[:, 0], images[rows].astype(np.float32))
        np.testing.assert_array_equal(pairs.gather_texts(everything), texts[rows].astype(np.float32))
        assert [pairs.captions[i] for i in everything] == [f"what {row} shows" for row in rows]
        assert [pairs.image_ids[i] for i in pairs.image_index] == [f"photos/{row}.jpg" for row in rows]
    assert sorted(seen) == list(range(60))
    assert len(read(folder, "dev")) == HELD_OUT * 60


def test_shards_go_by_their_numbers_not_by_the_alphabet(tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "data", 48, shards=12)
    pairs = read(folder, "train")
    images, _ = made_up(48)
    assert pairs.caption_rows is not None
    np.testing.assert_array_equal(pairs.gather(pairs.image_index)[:, 0], images[pairs.caption_rows].astype(np.float32))


def test_captions_of_one_image_stay_together_and_splits_are_as_given(tmp_path: Path) -> None:
    columns = {
        "image_path": [f"{row // 2}.jpg" for row in range(12)],
        "split": ["train"] * 6 + ["val"] * 4 + ["test"] * 2,
    }
    folder = write_embeddings(tmp_path / "data", 12, columns=columns)
    assert splits(folder) == ["train", "dev", "test"]
    dev = read(folder, "dev")
    assert (len(dev), dev.images, list(dev.image_ids)) == (4, 2, ["3.jpg", "4.jpg"])
    images, _ = made_up(12)
    np.testing.assert_array_equal(dev.gather(np.array([0, 1]))[:, 0], images[[6, 8]].astype(np.float32))


def test_rows_without_a_name_or_a_caption_are_pairs_of_their_own(tmp_path: Path) -> None:
    columns = {
        "image_path": [None if row % 2 else f"{row}.jpg" for row in range(20)],
        "caption": [None if row % 2 else "a dog" for row in range(20)],
    }
    folder = write_embeddings(tmp_path / "data", 20, columns=columns)
    train, dev = read(folder, "train"), read(folder, "dev")
    assert train.images + dev.images == 20
    assert {*train.image_ids, *dev.image_ids} == {f"row {row}" if row % 2 else f"{row}.jpg" for row in range(20)}
    assert set(train.captions) == {"", "a dog"}


def test_info_tells_the_size_of_both_vectors(tmp_path: Path) -> None:
    facts = describe(write_embeddings(tmp_path / "data", image=16, text=10))
    assert ("train", "features 1 regions x 16 numbers, float16") in facts
    assert ("dev", "vectors of captions of 10 numbers, float16") in facts


def overwrite(name: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, array, allow_pickle=True)


def change(name: str, table: dict[str, list[str]]) -> Callable[[Path], None]:
    return lambda folder: pa.parquet.write_table(pa.table(table), folder / name)


def truncate(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (overwrite("img_emb/img_emb_1.npy", np.array([{}, 1], dtype=object)), "img_emb_1.npy: contains Python objects"),
        (overwrite("img_emb/img_emb_1.npy", np.zeros((20, 16))), "img_emb_1.npy: vectors are float64, expected float"),
        (overwrite("text_emb/text_emb_2.npy", np.zeros(20, np.float32)), r"text_emb_2.npy: vectors have shape \(20,\)"),
        (overwrite("text_emb/text_emb_2.npy", np.zeros((20, 9), np.float32)), "text_emb_2.npy: 9 numbers per row, but"),
        (overwrite("text_emb/text_emb_0.npy", np.zeros((19, 16), np.float32)), "text_emb_0.npy: 19 rows, but .*_0.npy"),
        (overwrite("text_emb/text_emb_0.npy", np.zeros((0, 16), np.float32)), "text_emb_0.npy: empty, shape"),
        (truncate("img_emb/img_emb_0.npy"), "img_emb_0.npy: not a complete .npy file"),
        (truncate("metadata/metadata_0.parquet"), "metadata_0.parquet: not a readable parquet table"),
        (
            lambda folder: (folder / "text_emb/text_emb_1.npy").unlink(),
            "text_emb: no .npy file with number 1, which belongs to",
        ),
        (
            lambda folder: (folder / "img_emb/img_emb_1.npy").unlink(),
            "img_emb: no .npy file with number 1, which belongs to",
        ),
        (
            lambda folder: (folder / "metadata").rename(folder / "other"),
            "metadata: not found; a folder of embeddings has",
        ),
        (overwrite("img_emb/copy_1.npy", np.zeros((20, 16))), "img_emb_1.npy: has the same number as copy_1.npy"),
        (change("metadata/metadata_1.parquet", {"caption": ["a"], "url": ["b"]}), "metadata_1.parquet: 1 rows, but"),
        (
            change("metadata/metadata_1.parquet", {"captions": ["a"]}),
            "metadata_1.parquet: no column 'caption' .*did you",
        ),
    ],
)
def test_a_damaged_folder_is_refused_with_the_name_of_the_file(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = write_embeddings(tmp_path / "data")
    damage(folder)
    with pytest.raises(InputError, match=message):
        read(folder, "train")


def test_a_vector_that_is_no_number_is_named_by_file_and_row(tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "data", columns={"split": ["train"] * 59 + ["dev"]})
    for side, file in (("img_emb", "img_emb_1.npy"), ("text_emb", "text_emb_2.npy")):
        vectors = np.load(folder / side / file)
        vectors[7, 3] = np.nan
        np.save(folder / side / file, vectors)
    pairs = read(folder, "train")
    with pytest.raises(InputError, match=r"NaN or infinity in .*img_emb_1.npy: row 7 \(image 'photos/27.jpg'\)"):
        pairs.gather(np.arange(59))
    with pytest.raises(InputError, match=r"NaN or infinity in .*text_emb_2.npy: row 7;"):
        pairs.gather_texts(np.arange(59))


def write_table(folder: Path) -> Path:
    rows = [f"{row // 2}.jpg,what {row} shows" for row in range(20)]
    (folder / "pairs.csv").write_text("\n".join(["image,caption", *rows]) + "\n")
    return folder / "pairs.csv"


def test_a_table_takes_vectors_row_by_row_and_its_images_by_row_or_by_id(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    images, texts = made_up(20, image=6, text=5)
    np.save(tmp_path / "by_row.npy", images)
    np.save(tmp_path / "by_id.npy", images[::2])
    np.save(tmp_path / "texts.npy", texts)
    (tmp_path / "by_id_ids.txt").write_text("".join(f"{image}.jpg\n" for image in range(10)))
    for stored in ("by_row.npy", "by_id.npy"):
        pairs = read(table, "train", features=tmp_path / stored, text_features=tmp_path / "texts.npy")
        assert pairs.caption_rows is not None
        np.testing.assert_array_equal(pairs.gather_texts(np.arange(len(pairs))), texts[pairs.caption_rows])
        first = pairs.caption_rows // 2 * 2
        np.testing.assert_array_equal(pairs.gather(pairs.image_index)[:, 0], images[first])


def test_vectors_that_do_not_fit_the_table_are_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    np.save(tmp_path / "images.npy", np.ones((20, 6), np.float32))
    np.save(tmp_path / "few.npy", np.ones((19, 6), np.float32))
    options = {"features": tmp_path / "images.npy", "text_features": tmp_path / "few.npy"}
    with pytest.raises(InputError, match=r"few.npy: 19 rows, but .*pairs.csv has 20"):
        read(table, "train", **options)
    options = {"features": tmp_path / "few.npy", "text_features": tmp_path / "images.npy"}
    with pytest.raises(InputError, match=r"pairs.csv: 20 rows, but .*few.npy has features of 19 images; .*an ids file"):
        read(table, "train", **options)
    (tmp_path / "img_emb").mkdir()
    with pytest.raises(InputError, match="this folder has its own features and ids; pass these with a table only"):
        read(tmp_path, "train", text_features=tmp_path / "images.npy")


def test_the_command_line_audits_embeddings_and_lists_what_to_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_embeddings(tmp_path / "embeddings", 200, columns={"key": [f"{row:09d}" for row in range(199)] + [None]})
    texts = np.load("embeddings/text_emb/text_emb_0.npy")
    np.save("embeddings/text_emb/text_emb_0.npy", np.concatenate([texts[1:20], texts[:1], texts[20:]]))
    audit, clean = documented("Embeddings of clip-retrieval")
    audited = call(capsys, monkeypatch, *audit)
    assert audited.code == 0, audited.err
    cleaned = call(capsys, monkeypatch, *clean, "--threshold", "0.5")
    assert cleaned.code == 0, cleaned.err
    table = pa.parquet.read_table("kept/keep.parquet")
    assert table["key"].to_pylist() == [*(f"{row:09d}" for row in range(199)), "photos/199.jpg"]
    assert table["image"].to_pylist() == [f"photos/{row}.jpg" for row in range(200)]
    kept = [row["key"] for row in table.to_pylist() if row["kept"]]
    assert Path("kept/keep.txt").read_text().splitlines() == kept
    low = [row["correspondence"] is not None and row["correspondence"] < 0.5 for row in table.to_pylist()]
    assert [not row for row in low] == table["kept"].to_pylist()
    assert any(low)
    assert call(capsys, monkeypatch, *clean).code == 2  # the folder is there


@pytest.mark.parametrize("caption", [None, "", "  "])
def test_captions_without_any_text_are_refused(tmp_path: Path, caption: str | None) -> None:
    folder = write_embeddings(tmp_path / "data", 12)
    for file in (folder / "metadata").iterdir():
        table = pyarrow.parquet.read_table(file)
        empty = pa.array([caption] * len(table), pa.string())
        pyarrow.parquet.write_table(table.set_column(table.column_names.index("caption"), "caption", empty), file)
    with pytest.raises(InputError, match=r"metadata: the column 'caption' has no text in any row; write"):
        splits(folder)
