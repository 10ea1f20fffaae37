"""Every container that can carry a new caption gets it, and nothing else changes; the others say that they cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from image_files import halves, saved
from tarred import write_tar

from crcl.data.cleaning.judged import Judged
from crcl.data.cleaning.lists import TABLE
from crcl.data.sources import LAYOUTS, layout_of, open_source
from crcl.data.sources.base import Location
from crcl.errors import InputError

ROWS = [("a.png", "a dog"), ("a.png", 'a "wet" dog, running'), ("b.png", "a cat"), ("c.png", "a bird")]
PNG = saved(halves(), "PNG")
NEW = {1: 'a lion, "asleep" – ünï', 3: "=SUM(A1)"}


def _csv(folder: Path, delimiter: str, name: str, header: str) -> Path:
    lines = [
        "\t".join(row) if delimiter == "\t" else f'{row[0]},"{row[1].replace(chr(34), chr(34) * 2)}"' for row in ROWS
    ]
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n" if header else "\n".join(lines) + "\n", "utf-8")
    return path


def csv_table(folder: Path) -> Path:
    return _csv(folder, ",", "pairs.csv", "image,caption")


def jsonl_table(folder: Path) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps({"image": image, "n": 1e5, "caption": text}) + "\n" for image, text in ROWS))
    return path


def parquet_table(folder: Path) -> Path:
    path = folder / "pairs.parquet"
    images, captions = zip(*ROWS, strict=True)
    texts = pa.array(captions).dictionary_encode()
    pa.parquet.write_table(pa.table({"image": images, "caption": texts}), path, row_group_size=2)
    return path


def with_pictures(folder: Path, captions: Any = None) -> Path:
    path = folder / "data.parquet"
    names = [image for image, _ in ROWS] if captions is None else ["a.png", "b.png", "c.png"]
    images = [{"bytes": PNG, "path": name} for name in names]
    texts = [text for _, text in ROWS] if captions is None else captions
    pa.parquet.write_table(pa.table({"image": images, "caption": texts}), path)
    return path


def with_pictures_and_lists(folder: Path) -> Path:
    return with_pictures(folder, [[ROWS[0][1], ROWS[1][1]], ["a cat"], ["a bird"]])


def _imagefolder(folder: Path) -> Path:
    data = folder / "data"
    (data / "train").mkdir(parents=True)
    for name in {image for image, _ in ROWS}:
        (data / "train" / name).write_bytes(PNG)
    return data


def imagefolder(folder: Path) -> Path:
    data = _imagefolder(folder)
    table = csv_table(data / "train")
    table.write_text(table.read_text("utf-8").replace("image,caption", "file_name,text"), "utf-8")
    table.rename(table.with_name("metadata.csv"))
    return data


def lists_in_jsonl(folder: Path) -> Path:
    data = _imagefolder(folder)
    texts = {"a.png": [ROWS[0][1], ROWS[1][1]], "b.png": ["a cat"], "c.png": "a bird"}
    lines = [json.dumps({"file_name": image, "text": text}) + "\n" for image, text in texts.items()]
    (data / "train/metadata.jsonl").write_text("".join(lines))
    return data


def lists_in_parquet(folder: Path) -> Path:
    data = _imagefolder(folder)
    lists = [[ROWS[0][1], ROWS[1][1]], ["a cat"], ["a bird"]]
    table = pa.table({"file_name": ["a.png", "b.png", "c.png"], "text": lists})
    pa.parquet.write_table(table, data / "train/metadata.parquet")
    return data


def captioned(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    for name in ("a", "b", "c"):
        (data / f"{name}.png").write_bytes(PNG)
        (data / f"{name}.txt").write_text(
            "".join(f"{text}\n" for image, text in ROWS if image == f"{name}.png"), "utf-8"
        )
    return data


def coco(folder: Path) -> Path:
    images = [{"id": number, "file_name": f"{name}.png"} for number, name in enumerate("abc")]
    said = [{"id": row, "image_id": "abc".index(image[0]), "caption": text} for row, (image, text) in enumerate(ROWS)]
    path = folder / "captions_train.json"
    path.write_text(json.dumps({"images": images, "annotations": said}))
    return path


def karpathy(folder: Path) -> Path:
    images = []
    for name in ("a.png", "b.png", "c.png"):
        texts = [(row, text) for row, (image, text) in enumerate(ROWS) if image == name]
        sentences = [{"raw": text, "tokens": text.split(), "sentid": row} for row, text in texts]
        images.append(
            {"filename": name, "split": "train", "sentences": sentences, "sentids": [row for row, _ in texts]}
        )
    path = folder / "dataset_small.json"
    path.write_text(json.dumps({"images": images, "dataset": "small"}, indent=1))
    return path


def llava(folder: Path) -> Path:
    talks = [
        {"image": image, "conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": text}]}
        for image, text in ROWS
    ]
    path = folder / "talks.json"
    path.write_text(json.dumps(talks, indent=2))
    return path


def cc(folder: Path) -> Path:
    path = folder / "Train.tsv"
    path.write_text("".join(f"{text}\thttp://x/{image}\n" for image, text in ROWS))
    return path


def open_clip(folder: Path) -> Path:
    return _csv(folder, "\t", "pairs.csv", "filepath\ttitle")


def rows_of(path: Path) -> list[tuple[str, str]]:
    rows = open_source(Location(str(path))).rows()
    assert rows is not None
    return list(zip(rows["image"].to_pylist(), rows["caption"].to_pylist(), strict=True))


def clean(path: Path, output: Path, **options: Any) -> int:
    """Write data again with new captions."""
    expected = dict(enumerate((image.strip(), text.strip()) for image, text in rows_of(path)))
    judged = Judged(path, expected, {}, set(), {}, **{"corrected": NEW, **options})
    layout = LAYOUTS[layout_of(path) or ""]
    assert layout.clean is not None
    return layout.clean(Location(str(path)), judged, output)


CONTAINERS = [
    csv_table, jsonl_table, parquet_table, lists_in_jsonl, lists_in_parquet, with_pictures, with_pictures_and_lists,
    imagefolder, captioned, coco, karpathy, llava, cc, open_clip,
]  # fmt: skip


@pytest.mark.parametrize("write", CONTAINERS, ids=lambda write: write.__name__)
def test_new_captions_are_written_and_all_else_stays(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path)
    before = rows_of(path)
    assert [text for _, text in before] == [text for _, text in ROWS]
    output = tmp_path / "cleaned" if path.is_dir() else tmp_path / f"cleaned{path.suffix}"
    assert clean(path, output, **({"images": "copy"} if path.is_dir() else {})) == 4
    assert rows_of(output) == [(image, NEW.get(row, text)) for row, (image, text) in enumerate(before)]
    assert rows_of(path) == before


def test_the_words_of_a_karpathy_sentence_follow_its_caption(tmp_path: Path) -> None:
    path = karpathy(tmp_path)
    clean(path, tmp_path / "cleaned.json")
    sentence = json.loads((tmp_path / "cleaned.json").read_text())["images"][0]["sentences"][1]
    assert sentence == {"raw": NEW[1], "tokens": ["a", "lion", "asleep", "ünï"], "sentid": 1}


@pytest.mark.parametrize("write", [captioned, cc])
def test_a_caption_of_several_lines_is_refused_where_a_caption_is_a_line(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    with pytest.raises(InputError, match=r"the new caption of row 1 \(the first is 1\) has several lines or tabs"):
        clean(path, tmp_path / "cleaned.tsv", corrected={0: "two\nlines"})
    assert not (tmp_path / "cleaned.tsv").exists()


def test_a_caption_within_a_structure_is_not_replaced(tmp_path: Path) -> None:
    path = with_pictures(tmp_path, [[{"raw": text}] for text in ("a dog", "a cat", "a bird")])
    with pytest.raises(InputError, match=r"in which no caption can be replaced; leave verdicts=\.\.\. out"):
        clean(path, tmp_path / "cleaned.parquet", corrected={0: "new"})
    assert not (tmp_path / "cleaned.parquet").exists()


def test_lists_of_tars_have_new_captions_and_rewritten_tars_refuse_them(tmp_path: Path) -> None:
    texts = [(f"{row}.txt", text.encode()) for row, (_, text) in enumerate(ROWS)]
    files = [member for name, text in texts for member in ((name.replace("txt", "png"), PNG), (name, text))]
    data = tmp_path / "data"
    data.mkdir()
    write_tar(data / "00000.tar", files)
    assert clean(data, tmp_path / "lists") == 4
    table = pa.parquet.read_table(tmp_path / "lists" / TABLE)
    assert table["new_caption"].to_pylist() == [NEW.get(row) for row in range(4)]
    assert (tmp_path / "lists/keep.txt").read_text().split() == ["0", "2"]
    with pytest.raises(InputError, match=r"cannot be replaced within tars; leave rewrite=True out: keep\.parquet"):
        clean(data, tmp_path / "tars", rewrite=True)
    assert not (tmp_path / "tars").exists()
