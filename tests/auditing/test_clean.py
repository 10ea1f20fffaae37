"""The table again: without the suspects or marked, everything else as it was; never the table itself."""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from reading import read
from tiny import Answer, call, small_config, write_folder

import crcl as front_door
from crcl.auditing import clean as cleaning
from crcl.auditing.clean import Cleaned, Cleaning
from crcl.auditing.partners import choose_moves, moves
from crcl.data.cleaning.tables import _with_key, with_member
from crcl.data.sources.base import Location
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.methods.base import Partners
from crcl.runs.folder import Run
from crcl.training import session

Crcl = Callable[..., Answer]
SPLITS = ["train", "train", "dev", "train", "test", "train"]
CAPTIONS = ["a dog", 'a "quoted", cat', "held out", "two\nlines", "never seen", "  spaces around "]
BELIEFS = np.array([0.9, 0.05, 0.1, 0.099], dtype=np.float32)  # of rows 0, 1, 3, 5
SUSPECTS = {1, 5}
ROWS: list[dict[str, Any]] = [
    {"id": f"00{row}", "image": f"{row % 3}.jpg", "caption": caption, "split": split, "price": "1e5", "note": note}
    for row, (caption, split, note) in enumerate(
        zip(CAPTIONS, SPLITS, ["", "NA", "null", "=1+1", "é", '"'], strict=True)
    )
]


def written(folder: Path, suffix: str) -> Path:
    """The rows as a table, with features of its three images."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"pairs{suffix}"
    np.save(folder / "features.npy", np.ones((3, 2, 4), dtype=np.float32))
    (folder / "ids.txt").write_text("0.jpg\n1.jpg\n2.jpg\n")
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), "utf-8")
    elif suffix == ".parquet":
        price = pa.array([1e5] * len(ROWS), pa.float64())
        table = pa.Table.from_pylist(ROWS).drop_columns("price").append_column("price", price)
        table = table.replace_schema_metadata({"made by": "somebody"})
        pa.parquet.write_table(table, path, row_group_size=2)
    else:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(ROWS[0]), delimiter="\t" if suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(ROWS)
        path.write_bytes(text.getvalue().encode())
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a table by a reader that knows nothing of ours."""
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def clean(
    table: Path,
    output: Path,
    pairs: Split,
    beliefs: np.ndarray,
    *,
    mark: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Cleaned:
    """Clean a table by `crcl.auditing.clean`."""
    how = Cleaning(mark=mark, overwrite=overwrite)
    return cleaning.clean(Location(str(table)), output, pairs, beliefs, how=how, **options)


def pairs_of(path: Path) -> Split:
    pairs = read(path)
    assert pairs.caption_rows is not None
    assert pairs.caption_rows.tolist() == [0, 1, 3, 5]
    return pairs


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (Cleaning(images="copy"), "its images stay where they are: .*; leave images=... out"),
        (Cleaning(images="hard"), "'hard': image files are linked or copied; give images=... as link or copy"),
        (Cleaning(rewrite=True), "only tars are written anew; leave rewrite=True out"),
    ],
)
def test_what_cannot_be_done_with_a_table_is_refused_and_not_left_undone(
    tmp_path: Path, how: Cleaning, told: str
) -> None:
    table = written(tmp_path, ".csv")
    pairs = pairs_of(table)
    with pytest.raises(InputError, match=told):
        cleaning.clean(Location(str(table)), tmp_path / "cleaned.csv", pairs, np.ones(len(pairs)), how=how)
    assert not (tmp_path / "cleaned.csv").exists()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_the_suspects_are_left_out_and_all_else_stays(tmp_path: Path, suffix: str) -> None:
    table = written(tmp_path, suffix)
    before, output = table.read_bytes(), tmp_path / "new" / f"cleaned{suffix}"
    assert clean(table, output, pairs_of(table), BELIEFS) == Cleaned(removed=2, kept=4, unjudged=2)
    assert rows_of(output) == [row for number, row in enumerate(rows_of(table)) if number not in SUSPECTS]
    assert table.read_bytes() == before
    assert [file.name for file in output.parent.iterdir()] == [output.name]
    if suffix == ".parquet":
        assert pa.parquet.read_schema(output).equals(pa.parquet.read_schema(table), check_metadata=True)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_endings_in_capitals_are_of_the_same_format(tmp_path: Path, suffix: str) -> None:
    table = written(tmp_path, suffix)
    capital = table.rename(table.with_suffix(suffix.upper()))
    assert clean(capital, tmp_path / f"cleaned{suffix}", pairs_of(capital), BELIEFS).removed == 2
    assert clean(capital, tmp_path / f"again{suffix.upper()}", pairs_of(capital), BELIEFS).removed == 2
    assert len(rows_of(tmp_path / f"cleaned{suffix}")) == 4


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_marked_rows_all_stay_and_have_their_belief(tmp_path: Path, suffix: str) -> None:
    table = written(tmp_path, suffix)
    output = tmp_path / f"marked{suffix}"
    assert clean(table, output, pairs_of(table), BELIEFS, mark=True) == Cleaned(removed=0, kept=6, unjudged=2)
    found = rows_of(output)
    beliefs = [row.pop("correspondence") for row in found]
    assert found == rows_of(table)
    assert [bool(belief in ("", None)) for belief in beliefs] == [False, False, True, False, True, False]
    told = np.array([np.float32(beliefs[row]) for row in (0, 1, 3, 5)])
    np.testing.assert_array_equal(told, BELIEFS)  # to the last bit
    if suffix == ".parquet":
        schema = pa.parquet.read_schema(output)
        assert schema.remove(schema.get_field_index("correspondence")).equals(
            pa.parquet.read_schema(table), check_metadata=True
        )


def moved_to(pairs: Split, **images: str) -> np.ndarray:
    """The image that each pair is moved to by its row, as in row1="2.jpg"."""
    numbers = {f"row{row}": place for place, row in enumerate(pairs.rows)}
    found = np.full(len(pairs), -1)
    for row, name in images.items():
        found[numbers[row]] = list(pairs.image_ids).index(name)
    return found


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_moved_row_names_another_image_and_stays_as_it_is_otherwise(tmp_path: Path, suffix: str) -> None:
    table = written(tmp_path, suffix)
    before, output, pairs = table.read_bytes(), tmp_path / f"cleaned{suffix}", pairs_of(table)
    done = clean(table, output, pairs, BELIEFS, moved=moved_to(pairs, row1="2.jpg"))
    assert done == Cleaned(removed=1, kept=5, unjudged=2, moved=1)
    expected = [row | ({"image": "2.jpg"} if number == 1 else {}) for number, row in enumerate(rows_of(table))]
    del expected[5]  # the other suspect
    assert rows_of(output) == expected
    assert table.read_bytes() == before
    again = read(output, features=tmp_path / "features.npy", ids=tmp_path / "ids.txt")
    assert again.captions[1] == pairs.captions[1]
    assert again.image_ids[again.image_index[1]] == "2.jpg"
    if suffix == ".parquet":
        assert pa.parquet.read_schema(output).equals(pa.parquet.read_schema(table), check_metadata=True)


def test_only_the_image_of_a_moved_csv_record_changes_a_byte(tmp_path: Path) -> None:
    table = written(tmp_path, ".csv")
    lines = [
        b'\xef\xbb\xbfcaption,id,"image",split,note\r\n',
        b'"a ""quoted"", dog",007,0.jpg,train,\xff latin\r\n',
        b'a cat, 1e5,"one, two.jpg",train,"N""A"\n',
        b'5" pipe,8,2.jpg,dev,\n',
        b'"two\r\nlines",9,  0.jpg,train,x',
    ]
    table.write_bytes(b"".join(lines))
    (tmp_path / "ids.txt").write_text("0.jpg\none, two.jpg\n2.jpg\n")
    pairs = read(table)
    moved = moved_to(pairs, row0="one, two.jpg", row1="0.jpg", row3="one, two.jpg")
    clean(table, tmp_path / "moved.csv", pairs, np.zeros(3, np.float32), moved=moved)
    assert (tmp_path / "moved.csv").read_bytes() == (
        lines[0] + lines[1].replace(b"0.jpg", b'"one, two.jpg"') + lines[2].replace(b"one, two.jpg", b"0.jpg")
        + lines[3] + lines[4].replace(b"  0.jpg", b'"one, two.jpg"')
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ('{"image":"0.jpg",  "c": "a }, \\"image\\": 3"}\n', '{"image":"é.jpg",  "c": "a }, \\"image\\": 3"}\n'),
        ('\ufeff{ "c": {"image": [{}]}, "image" : "x" }\r\n', '\ufeff{ "c": {"image": [{}]}, "image" : "é.jpg" }\r\n'),
    ],
)
def test_only_the_image_of_a_moved_json_line_changes(line: str, moved: str) -> None:
    assert with_member(line, "image", '"é.jpg"') == moved


def test_image_names_that_are_numbers_stay_numbers_in_json() -> None:
    assert with_member('{"image": 7, "caption": "a dog"}', "image", "12") == '{"image": 12, "caption": "a dog"}'


@pytest.mark.parametrize("kind", [pa.int32(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())])
def test_the_image_column_of_a_parquet_file_keeps_its_type(tmp_path: Path, kind: pa.DataType) -> None:
    table = tmp_path / "pairs.parquet"
    names = pa.array(["10", "11", None, "10"]).cast(pa.string())
    names = names.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else names.cast(kind)
    captions = pa.array(["a dog", "a cat", "nothing", "a car"])
    pa.parquet.write_table(pa.table({"image": names, "caption": captions}), table)
    pairs = Split(
        captions=["a dog", "a cat", "a car"],
        image_index=np.array([0, 1, 0]),
        features=np.zeros((2, 1, 1), np.float32),
        image_ids=["10", "11"],
        caption_rows=np.array([0, 1, 3]),
    )
    clean(table, tmp_path / "moved.parquet", pairs, np.ones(3, np.float32), moved=np.array([1, -1, -1]))
    found = pa.parquet.read_table(tmp_path / "moved.parquet")
    assert found["image"].type == kind
    assert found["image"].cast(pa.string()).to_pylist() == ["11", "11", None, "10"]


def test_records_of_a_csv_file_are_kept_byte_by_byte(tmp_path: Path) -> None:
    table = written(tmp_path, ".csv")
    lines = [
        b'\xef\xbb\xbfid,"image",caption,split,note\r\n',
        b"007,0.jpg,a dog,train,\xff latin\r\n",  # no UTF-8, in a column that nobody reads
        b"\r\n",
        b'1e5,1.jpg,"a ""quoted"", cat",train,"NA"\n',
        b'8,2.jpg,5" pipe,dev,\n',  # a quote within a value is no quotation
        b'9,0.jpg,"two\r\nlines",train,x\r\n',
        b"10,1.jpg,never seen,test,\n",
        b"11,2.jpg,  spaces around ,train,no line end",
    ]
    table.write_bytes(b"".join(lines))
    pairs = pairs_of(table)
    clean(table, tmp_path / "cleaned.csv", pairs, BELIEFS)
    assert (tmp_path / "cleaned.csv").read_bytes() == b"".join(lines[i] for i in (0, 1, 2, 4, 5, 6))
    clean(table, tmp_path / "marked.csv", pairs, BELIEFS, mark=True)
    assert (tmp_path / "marked.csv").read_bytes() == (
        lines[0][:-2] + b",correspondence\r\n" + lines[1][:-2] + b",0.9\r\n" + lines[2] + lines[3][:-1] + b",0.05\n"
        + lines[4][:-1] + b",\n" + lines[5][:-2] + b",0.1\r\n" + lines[6][:-1] + b",\n" + lines[7] + b",0.099"
    )  # fmt: skip


def test_lines_of_a_jsonl_file_are_kept_byte_by_byte(tmp_path: Path) -> None:
    table = written(tmp_path, ".jsonl")
    lines = [
        b'{"image":"0.jpg",  "caption": "a dog", "split":"train", "n": 1.50, "deep": {"a": [1, {}]}}\r\n',
        b'{"split": "train", "image": "1.jpg", "caption": "a \\"quoted\\", cat"}\n',
        b"\n",
        b'{"image": "2.jpg", "caption": "held out", "split": "dev"}\n',
        b'{"image": "0.jpg", "caption": "two\\nlines", "split": "train", "e": "\\u00e9 }" }\n',
        b'{"image": "1.jpg", "caption": "never seen", "split": "test"}\n',
        b'{"image": "2.jpg", "caption": "  spaces around ", "split": "train"}',
    ]
    table.write_bytes(b"".join(lines))
    pairs = pairs_of(table)
    clean(table, tmp_path / "cleaned.jsonl", pairs, BELIEFS)
    assert (tmp_path / "cleaned.jsonl").read_bytes() == b"".join(lines[i] for i in (0, 2, 3, 4, 5))
    clean(table, tmp_path / "marked.jsonl", pairs, BELIEFS, mark=True)
    marked = (tmp_path / "marked.jsonl").read_bytes().split(b"\n")
    assert marked[0] == lines[0].rstrip()[:-1] + b', "correspondence": 0.9}\r'
    assert marked[3].endswith(b'"dev", "correspondence": null}')
    assert marked[4].endswith(b'\\u00e9 }", "correspondence": 0.1}')


@pytest.mark.parametrize("line", ["{}\n", "{ }", '{"a": {}}\n'])
def test_an_object_with_one_more_key_is_an_object(line: str) -> None:
    assert json.loads(_with_key(line, None)) == json.loads(line) | {"correspondence": None}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_that_is_marked_already_is_refused(tmp_path: Path, suffix: str) -> None:
    table = written(tmp_path, suffix)
    pairs = pairs_of(table)
    clean(table, tmp_path / f"marked{suffix}", pairs, BELIEFS, mark=True)
    again = tmp_path / f"again{suffix}"
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        clean(tmp_path / f"marked{suffix}", again, pairs, BELIEFS, mark=True)
    assert not again.exists()
    clean(tmp_path / f"marked{suffix}", again, pairs, BELIEFS)  # but it can be cleaned
    assert len(rows_of(again)) == 4


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_that_was_changed_meanwhile_is_refused(tmp_path: Path, suffix: str) -> None:
    table = written(tmp_path, suffix)
    pairs = pairs_of(table)
    other = replace(pairs, captions=[*pairs.captions[:-1], "another caption"])
    for judged in (other, replace(pairs, caption_rows=np.array([0, 1, 3, 6]))):
        with pytest.raises(InputError, match="cannot be cleaned"):
            clean(table, tmp_path / f"cleaned{suffix}", judged, BELIEFS)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["features.npy", "ids.txt", table.name]


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_table_itself_is_never_written_to(tmp_path: Path, link: Any) -> None:
    table = written(tmp_path, ".csv")
    before, output = table.read_bytes(), table
    if link is not None:
        output = tmp_path / "other.csv"
        link(table, output)
    with pytest.raises(InputError, match="that is the data itself"):
        clean(table, output, pairs_of(table), BELIEFS, overwrite=True)
    assert table.read_bytes() == before


def test_an_existing_file_is_replaced_only_if_asked(tmp_path: Path) -> None:
    table = written(tmp_path, ".csv")
    output = tmp_path / "cleaned.csv"
    output.write_text("precious")
    with pytest.raises(InputError, match="exists already; pass overwrite=True to replace it"):
        clean(table, output, pairs_of(table), BELIEFS)
    assert output.read_text() == "precious"
    clean(table, output, pairs_of(table), BELIEFS, overwrite=True)
    assert len(rows_of(output)) == 4


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    table = written(tmp_path, ".csv")
    (tmp_path / "in the way").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        clean(table, tmp_path / "in the way" / "cleaned.csv", pairs_of(table), BELIEFS)


def test_other_formats_and_thresholds_are_refused(tmp_path: Path) -> None:
    table = written(tmp_path, ".csv")
    pairs = pairs_of(table)
    with pytest.raises(InputError, match=r"ends in \.csv"):
        clean(table, tmp_path / "cleaned.parquet", pairs, BELIEFS)
    with pytest.raises(InputError, match="between 0 and 1"):
        clean(table, tmp_path / "cleaned.csv", pairs, BELIEFS, threshold=1.5)
    with pytest.raises(InputError, match="4 pairs, but correspondences of 3"):
        clean(table, tmp_path / "cleaned.csv", pairs, BELIEFS[:3])
    with pytest.raises(InputError, match="mismatched on purpose"):
        clean(table, tmp_path / "cleaned.csv", replace(pairs, truth=np.ones(4, dtype=bool)), BELIEFS)


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    """The command line in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: call(capsys, monkeypatch, *map(str, words))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A table of 24 images with two captions each, and a run on it; a tenth is held out."""
    folder = tmp_path_factory.mktemp("clean")
    data = write_folder(folder / "data")
    captions = (data / "train_caps.txt").read_text().splitlines()
    lines = [f"{row // 2}.jpg,{caption},{row:03d}" for row, caption in enumerate(captions)]
    table = folder / "pairs.csv"
    table.write_text("\n".join(["image,caption,code", *lines]) + "\n")
    (data / "train_ims.npy").rename(folder / "features.npy")
    (folder / "ids.txt").write_text("".join(f"{image}.jpg\n" for image in range(24)))
    run = session.train(small_config(table, **{"noise.rate": 0.0}), folder / "run").path
    return table, run


def test_the_command_says_how_many_rows_were_removed_kept_and_not_judged(
    crcl: Crcl, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    table, run = trained
    with np.load(run / "ledger.npz") as ledger:
        beliefs = ledger["correspondence"]
    threshold = float(np.median(beliefs))
    removed = int((beliefs < threshold).sum())
    answer = crcl("clean", run, "-o", tmp_path / "cleaned.csv", "--threshold", threshold)
    assert answer.code == 0, answer.err
    assert f"{removed} rows removed, {48 - removed} kept" in answer.out
    assert "4 rows were not judged" in answer.out
    kept = (tmp_path / "cleaned.csv").read_text().splitlines()
    original = table.read_text().splitlines()
    assert len(kept) == 49 - removed
    assert [line for line in original if line in set(kept)] == kept  # same lines, same order

    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("pairs.csv", "features.npy", "ids.txt"):
        (moved / name).write_bytes((table.parent / name).read_bytes())
    answer = crcl("clean", run, "-o", tmp_path / "marked.csv", "--mark", "--data", moved / "pairs.csv")
    assert answer.code == 0, answer.err
    assert "0 rows removed, 48 kept" in answer.out
    marked = rows_of(tmp_path / "marked.csv")
    pairs = read(moved / "pairs.csv")
    assert pairs.caption_rows is not None
    told = {row: np.float32(marked[row]["correspondence"]) for row in pairs.caption_rows}
    np.testing.assert_array_equal(list(told.values()), beliefs)
    assert sum(row["correspondence"] == "" for row in marked) == 4


def test_the_command_refuses_what_is_no_table(crcl: Crcl, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = session.train(small_config(data), tmp_path / "run").path
    answer = crcl("clean", run, "-o", tmp_path / "cleaned.csv")
    assert answer.code == 2
    assert "so it cannot be cleaned" in answer.err
    assert "column 'row' says which captions to leave out" in answer.err


@pytest.fixture(scope="module")
def relinked(trained: tuple[Path, Path]) -> Path:
    """A run of method relink on the same table."""
    settings = {"noise.rate": 0.0, "method": "relink", "matcher.name": "linear", "train.pieces": [1]}
    return session.train(small_config(trained[0], **settings), trained[1].with_name("relinked")).path


def with_partners(run: Path, folder: Path, moves: dict[int, tuple[int, float]]) -> Path:
    """A copy of a run that disbelieves some captions, by number, and believes in another image."""
    copy = shutil.copytree(run, folder / "believing")
    opened = Run.open(copy)
    images, beliefs = opened.load_partners() or (np.empty(0), np.empty(0))
    beliefs[:] = 0
    shown = np.ones(opened.sizes["pairs"], np.float32)
    for row, (image, belief) in moves.items():
        images[row, 3], beliefs[row, 3], shown[row] = image, belief, 1 - belief
    opened.save_ledger(shown)
    opened.save_partners(images, beliefs)
    return copy


def test_the_command_moves_captions_to_the_image_they_belong_to_and_removes_the_other_suspects(
    crcl: Crcl, trained: tuple[Path, Path], relinked: Path, tmp_path: Path
) -> None:
    table = trained[0]
    pairs = read(table)
    moves = {0: (4, 0.95), 5: (7, 0.9), 9: (2, 0.89)}
    run = with_partners(relinked, tmp_path, moves)
    words = ["clean", run, "-o", tmp_path / "cleaned.csv", "--relink", "0.9"]
    answer = crcl(*words)
    assert answer.code == 0, answer.err
    assert "1 rows removed, 47 kept, 2 of these moved to another image, at threshold 0.5" in answer.out
    expected = rows_of(table)
    for row in (0, 5):
        expected[pairs.rows[row]]["image"] = str(pairs.image_ids[moves[row][0]])
    del expected[pairs.rows[9]]
    assert rows_of(tmp_path / "cleaned.csv") == expected
    audit = front_door.audit(run)
    assert audit.clean(tmp_path / "by audit.csv", relink=0.9).moved == 2
    assert (tmp_path / "by audit.csv").read_bytes() == (tmp_path / "cleaned.csv").read_bytes()
    assert front_door.clean(run, tmp_path / "all.csv", relink=0.5).moved == 3


def test_the_command_keeps_a_share_of_the_pairs(crcl: Crcl, trained: tuple[Path, Path], tmp_path: Path) -> None:
    run = trained[1]
    judged = Run.open(run).sizes["pairs"]
    answer = crcl("clean", run, "-o", tmp_path / "best.csv", "--keep", "0.25")
    assert answer.code == 0, answer.err
    assert f"{judged - round(judged / 4):,} rows removed" in answer.out
    answer = crcl("clean", run, "-o", tmp_path / "other.csv", "--keep", "0.25", "--threshold", "0.5")
    assert answer.code == 2
    assert "give --threshold or --keep" in answer.err
    assert not (tmp_path / "other.csv").exists()


def test_what_cannot_be_moved_is_refused_with_what_to_do(
    crcl: Crcl, trained: tuple[Path, Path], relinked: Path, tmp_path: Path
) -> None:
    output = tmp_path / "cleaned.csv"
    for run, words, told in (
        (trained[1], ["--relink", "0.9"], "has no beliefs in other images"),
        (relinked, ["--relink", "0"], "above 0 and at most 1"),
        (relinked, ["--relink", "1.01"], "above 0 and at most 1"),
        (relinked, ["--relink", "nan"], "above 0 and at most 1"),
        (relinked, ["--relink", "0.9", "--mark"], "give --mark or --relink"),
    ):
        answer = crcl("clean", run, "-o", output, *words)
        assert answer.code == 2
        assert told in answer.err
        assert not output.exists()


def test_images_that_are_known_by_their_row_are_not_moved(relinked: Path, trained: tuple[Path, Path]) -> None:
    run, pairs = Run.open(relinked), read(trained[0])
    by_row = Location(str(trained[0]), text_features="vectors.npy")
    with pytest.raises(InputError, match=r"images are known by their row.*pass ids="):
        moves(run, by_row, pairs, 0.9)
    assert moves(run, by_row, pairs, None) is None


def test_a_caption_is_moved_to_the_most_believed_image_unless_that_has_it_already() -> None:
    pairs = Split(
        captions=["a dog", "a dog", "a cat", "a car", "a cow", "a cow"],
        image_index=np.array([0, 1, 2, 3, 0, 1]),
        features=np.zeros((4, 1, 1), np.float32),
        image_ids=["0", "1", "2", "3"],
    )
    partners = Partners(
        np.array([[1, 2], [2, 3], [0, 1], [0, 1], [3, 2], [3, 2]]),
        np.array([[0.9, 0.0], [0.1, 0.9], [0.5, 0.1], [0.4, 0.1], [0.9, 0.0], [0.9, 0.0]], np.float32),
    )
    shown = np.array([0.1, 0.0, 0.4, 0.5, 0.1, 0.1], np.float32)
    # row 0: image 1 has "a dog" already; row 3: its own image is believed more; row 5: as row 4
    assert choose_moves(partners, pairs, shown, 0.4).tolist() == [-1, 3, 0, -1, 3, -1]
    assert choose_moves(partners, pairs, shown, 0.9).tolist() == [-1, 3, -1, -1, 3, -1]
    assert choose_moves(partners, pairs, shown, 0.91).tolist() == [-1] * 6
