"""Pools of DataComp: tables with uids, and vectors in .npz files beside them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from annotated import documented
from drawn import SETTINGS, drawn
from embedded import made_up
from reading import read, splits
from tiny import call

import crcl
from crcl.data.cleaning.uids import DTYPE
from crcl.data.sources import datacomp, layout_of
from crcl.errors import InputError

VECTORS = SETTINGS | {"matcher.name": "linear-vectors"}
Save = Callable[..., None]


def uid(row: int) -> str:
    return hashlib.md5(str(row).encode()).hexdigest()


def mismatched(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of both sides; a fifth of the texts is shown with other images."""
    images, texts = made_up(rows)
    wrong = np.random.default_rng(1).permutation(rows)[: rows // 5]
    texts[wrong] = texts[np.roll(wrong, 1)]
    return images, texts


def write_pool(
    folder: Path, rows: int = 200, *, shards: int = 3, save: Save = np.savez, below: str = "metadata"
) -> Path:
    """The captions of drawn scenes with made-up vectors of both models."""
    images, texts = mismatched(rows)
    captions = [caption for _, caption, _ in drawn(200).rows()][:rows]
    (folder / below).mkdir(parents=True, exist_ok=True)
    for shard, here in enumerate(np.array_split(np.arange(rows), shards)):
        stem = hashlib.md5(f"shard {shard}".encode()).hexdigest()
        table = {
            "uid": [uid(row) for row in here],
            "url": [f"https://example.org/{row}.jpg" for row in here],
            "text": [captions[row] for row in here],
            "split": ["train" if row < rows * 4 // 5 else "val" for row in here],
        }
        pa.parquet.write_table(pa.table(table), folder / below / f"{stem}.parquet")
        vectors = {"l14_img": images[here], "l14_txt": texts[here]}
        vectors |= {"b32_img": images[here][:, :8], "b32_txt": texts[here][:, :8]}
        save(folder / below / f"{stem}.npz", **vectors)
    return folder


def write_the_same_as_clip_retrieval_does(pool: Path, folder: Path) -> Path:
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    for number, file in enumerate(sorted((pool / "metadata").glob("*.parquet"))):
        table = pa.parquet.read_table(file).select(["uid", "text", "split"])
        pa.parquet.write_table(table.rename_columns(["key", "caption", "split"]), folder / f"metadata/{number}.parquet")
        with np.load(file.with_suffix(".npz")) as arrays:
            np.save(folder / f"img_emb/{number}.npy", arrays["l14_img"])
            np.save(folder / f"text_emb/{number}.npy", arrays["l14_txt"])
    return folder


def first_file(pool: Path, ending: str) -> Path:
    return sorted((pool / "metadata").glob(f"*{ending}"))[0]


def refusal(folder: Path, layout: str = "datacomp") -> str:
    with pytest.raises(InputError) as caught:
        crcl.read(folder, layout=layout).split("train")
    return str(caught.value)


def test_a_pool_gives_the_same_audit_as_the_same_vectors_in_the_other_layout_and_lists_of_uids(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    other = write_the_same_as_clip_retrieval_does(pool, tmp_path / "embeddings")
    assert (layout_of(pool), layout_of(other)) == ("datacomp", "embeddings")
    expected = crcl.audit(other, tmp_path / "other-audit", settings=VECTORS)
    audit = crcl.audit(pool, tmp_path / "audit", settings=VECTORS)
    np.testing.assert_array_equal(audit.correspondence, expected.correspondence)
    assert (audit.rate, audit.precision, audit.recall) == (expected.rate, expected.precision, expected.recall)
    suspects = set(audit.table.filter(audit.table["suspect"])["row"].to_pylist())
    assert 5 < len(suspects) < 80
    rows = crcl.read(pool)
    for found, folder in ((audit, "kept"), (expected, "other-kept")):
        done = found.clean(tmp_path / folder)
        assert (done.removed, done.kept) == (len(suspects), 200 - len(suspects))
        kept = [name for row, name in enumerate(rows.images) if row not in suspects]
        assert (tmp_path / folder / "keep.txt").read_text().splitlines() == kept
        table = pa.parquet.read_table(tmp_path / folder / "keep.parquet")
        assert table["caption"].to_pylist() == rows.captions
        assert table["kept"].to_pylist() == [row not in suspects for row in range(200)]
        judged = [value for value in table["correspondence"].to_pylist() if value is not None]
        np.testing.assert_array_equal(np.float32(judged), audit.correspondence.astype(np.float32))
    numbers = np.load(tmp_path / "kept/keep.npy", allow_pickle=False)
    assert numbers.dtype == DTYPE == np.dtype("u8,u8")
    pairs = [(int(name[:16], 16), int(name[16:], 16)) for name in kept]
    assert [tuple(number) for number in numbers.tolist()] == sorted(pairs)
    assert not (tmp_path / "other-kept/keep.npy").exists()
    audit.clean(tmp_path / "marked", mark=True)
    assert len((tmp_path / "marked/keep.txt").read_text().splitlines()) == 200


def test_the_command_line_audits_and_cleans_a_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pool(tmp_path / "pool")
    audit, clean = documented("DataComp's pools")
    audited = call(capsys, monkeypatch, *audit, "--layout", "datacomp-b32")
    assert audited.code == 0, audited.err
    cleaned = call(capsys, monkeypatch, *clean, "--threshold", "0.3")
    assert cleaned.code == 0, cleaned.err
    assert sorted(file.name for file in Path("kept").iterdir()) == ["keep.npy", "keep.parquet", "keep.txt"]
    assert call(capsys, monkeypatch, "info", "pool").code == 0


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("below", ["metadata", "."])
def test_every_row_has_its_own_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Save, below: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pool = write_pool(tmp_path / "pool", 60, save=save, below=below)
    assert layout_of(pool) == "datacomp"
    assert splits(pool) == ["train", "dev"]
    images, texts = mismatched(60)
    row_of = {uid(row): row for row in range(60)}
    for layout, size in (("datacomp", 16), ("datacomp-b32", 8)):
        pairs = read(pool, layout=layout)
        rows = [row_of[pairs.image_ids[image]] for image in pairs.image_index]
        assert len(rows) == 48
        np.testing.assert_array_equal(pairs.gather(pairs.image_index)[:, 0], images[rows][:, :size].astype(np.float32))
        np.testing.assert_array_equal(pairs.gather_texts(np.arange(48)), texts[rows][:, :size].astype(np.float32))


def test_the_smaller_vectors_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", 60)
    for file in (pool / "metadata").glob("*.npz"):
        with np.load(file) as arrays:
            kept = {name: arrays[name] for name in arrays if name.startswith("b32")}
        np.savez(file, **kept)
    assert read(pool).features.shape[-1] == 8
    np.savez(first_file(pool, ".npz"), other=np.zeros((20, 4), np.float16))
    message = refusal(pool)
    assert f"{first_file(pool, '.npz')}: no l14_img and l14_txt" in message
    assert f"{first_file(pool, '.npz')}: no b32_img and b32_txt" in message


def test_rows_of_one_uid_are_one_image(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", 60)
    file = first_file(pool, ".parquet")
    table = pa.parquet.read_table(file)
    names = [table["uid"][0].as_py()] * 2 + table["uid"].to_pylist()[2:]
    pa.parquet.write_table(table.set_column(0, "uid", pa.array(names)), file)
    pairs = read(pool)
    assert len(pairs) == 48
    assert len(set(pairs.image_ids)) == 47


def test_a_pool_that_does_not_fit_together_is_refused_by_file(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", 60)
    archive, table = first_file(pool, ".npz"), first_file(pool, ".parquet")
    whole, rows = archive.read_bytes(), pa.parquet.read_table(table)
    good = {f"{model}_{side}": np.zeros((20, 16), np.float16) for model in ("l14", "b32") for side in ("img", "txt")}
    np.savez(archive, **good | {"l14_txt": np.zeros((19, 16), np.float16)})
    assert f"{archive}:l14_txt: 19 rows, but its table has 20" in refusal(pool)
    np.savez(archive, **good | {"l14_img": np.array([[object()]] * 20)})
    assert f"{archive}:l14_img: contains Python objects, which are never loaded" in refusal(pool)
    np.savez(archive, **good | {"l14_img": np.zeros((20, 4), np.float16)})
    assert "4 numbers per row, but" in refusal(pool) or "16 numbers per row, but" in refusal(pool)
    archive.write_bytes(whole[: len(whole) // 2])
    assert f"{archive}: not a readable .npz file" in refusal(pool)
    archive.unlink()
    assert f"{archive}: not found; each table needs its vectors beside it" in refusal(pool)
    archive.write_bytes(whole)
    bad = rows["uid"].to_pylist()
    for uid in ("not-a-uid", "g" * 32):
        bad[3] = uid
        pa.parquet.write_table(rows.set_column(0, "uid", pa.array(bad)), table)
        assert f"row 4 (the first is 1): uid '{uid}' is not 32 hexadecimal digits" in refusal(pool)
    pa.parquet.write_table(rows.drop_columns(["uid"]), table)
    assert f"{table}: no column 'uid'" in refusal(pool)
    table.write_bytes(b"PAR1")
    assert f"{table}: not a readable parquet table" in refusal(pool)


def test_a_folder_without_tables_is_refused_and_a_run_is_no_pool(tmp_path: Path) -> None:
    assert "no .parquet files, neither in it nor in metadata" in refusal(tmp_path)
    pool = write_pool(tmp_path / "pool", 60)
    (pool / "config.json").write_text("{}")
    assert not datacomp.recognises(pool)
    assert not datacomp.recognises(tmp_path / "absent")
