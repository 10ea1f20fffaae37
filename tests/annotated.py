"""Drawn scenes written as annotation files that name images: COCO, Karpathy, LLaVA, open_clip, CC; and docs/data.md."""

import csv
import json
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import Drawn

import crcl
from crcl.auditing import clean as cleaning
from crcl.auditing.clean import PLAIN, Cleaned, Cleaning
from crcl.data.pairs import Pairs
from crcl.data.sources.base import Location
from crcl.errors import InputError

PAGE = Path(__file__).parents[1] / "docs/data.md"


def documented(title: str) -> list[list[str]]:
    """The commands of a section of docs/data.md, without the word crcl."""
    page = PAGE.read_text("utf-8")
    section = re.split(r"^## ", page.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = [shlex.split(line)[1:] for line in section.splitlines() if line.startswith("    crcl ")]
    assert found, title
    return found


def write_json(path: Path, document: Any, **options: Any) -> Path:
    """A document as `json.dump` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, **options), "utf-8")
    return path


def coco_document(data: Drawn, split: str) -> dict[str, Any]:
    """The images of a split as a document of COCO captions; all ids are odd."""
    chosen = [number for number, of in enumerate(data.splits) if of == split]
    captions = [(number, caption) for number in chosen for caption in data.captions[number]]
    return {
        "info": {"year": 2017, "weight": 1.50, "maker": "somebody"},
        "images": [{"license": 3, "file_name": data.names[number], "id": 2 * number + 1} for number in chosen],
        "licenses": [{"id": 3, "name": "CC BY"}],
        "annotations": [
            {"image_id": 2 * number + 1, "id": 1000 + place, "caption": caption}
            for place, (number, caption) in enumerate(captions)
        ],
    }


def write_coco(data: Drawn, folder: Path) -> Path:
    """The layout of COCO 2017, with a folder of images for each split; returns the folder of annotations."""
    for split in ("train", "val"):
        write_json(folder / f"annotations/captions_{split}2017.json", coco_document(data, split))
        (folder / f"{split}2017").mkdir()
    for name, picture, split in zip(data.names, data.pictures, data.splits, strict=True):
        (folder / f"{split}2017" / name).write_bytes(picture)
    return folder / "annotations"


def karpathy_document(data: Drawn, *, filepath: str | None = None) -> dict[str, Any]:
    """The images as a document of Karpathy's."""
    images: list[dict[str, Any]] = []
    sentid = 0
    for number, (name, captions, split) in enumerate(zip(data.names, data.captions, data.splits, strict=True)):
        sentences = [
            {"tokens": caption.split(), "raw": caption, "imgid": number, "sentid": sentid + place}
            for place, caption in enumerate(captions)
        ]
        where = {} if filepath is None else {"filepath": filepath}
        ids = {"sentids": [sentence["sentid"] for sentence in sentences], "imgid": number}
        images.append({**where, **ids, "sentences": sentences, "split": split, "filename": name})
        sentid += len(captions)
    return {"images": images, "dataset": "flickr30k"}


def llava_records(data: Drawn) -> list[dict[str, Any]]:
    """One conversation for each caption, with the split as a further key."""
    return [
        {
            "id": f"{number:06d}",
            "image": image,
            "conversations": [
                {"from": "human", "value": "<image>\nWhat is drawn here?"},
                {"from": "gpt", "value": caption},
                {"from": "human", "value": "And else?"},
                {"from": "gpt", "value": "Nothing."},
            ],
            "split": split,
        }
        for number, (image, caption, split) in enumerate(data.rows())
    ]


def write_open_clip(data: Drawn, path: Path) -> Path:
    """A table separated by tabs, with the splits as a further column."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["filepath", "title", "split"])
        writer.writerows((f"images/{name}", caption, split) for name, caption, split in data.rows())
    return path


def features_of(path: Path, folder: Path, names: list[str]) -> Pairs:
    """The data at a path with features of all its images."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "features.npy", np.ones((len(names), 2, 4), dtype=np.float32))
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
    return crcl.read(path, features=folder / "features.npy", ids=folder / "ids.txt")


def judge(
    path: Path,
    output: Path,
    *,
    suspects: Collection[int] = (),
    moved: Mapping[int, str] | None = None,
    how: Cleaning = PLAIN,
) -> Cleaned:
    """Clean data of which these rows are suspects with a correspondence of 0.125, the others have 0.75."""
    folder = output.parent / f"features of {output.name}"
    names = list(dict.fromkeys(crcl.read(path).images))
    pairs = features_of(path, folder, [name for name in names if name]).without_empty().split("train")
    rows = pairs.rows.tolist()
    beliefs = np.array([0.125 if row in suspects else 0.75 for row in rows], dtype=np.float32)
    images = [list(pairs.image_ids).index(moved[row]) if moved and row in moved else -1 for row in rows]
    return cleaning.clean(Location(str(path)), output, pairs, beliefs, threshold=0.5, moved=np.array(images), how=how)


def refusal(path: Path, **options: Any) -> str:
    """The message with which data is refused."""
    with pytest.raises(InputError) as caught:
        crcl.read(path, **options)
    return str(caught.value)
