"""Drawn scenes with captions, to be written in any layout of data, and the audit that all of these must give."""

import csv
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import crcl
from crcl.auditing.result import Audit
from crcl.data.scenes.captions import write_captions
from crcl.data.scenes.drawing import draw
from crcl.data.scenes.world import random_scene

SETTINGS = {"method": "relink", "matcher.name": "linear"}
"""A quick audit."""


@dataclass(frozen=True)
class Drawn:
    """Images with captions, those of train first; a fifth of the train captions is mismatched."""

    names: list[str]
    """File names of the images."""
    pictures: list[bytes]
    """PNG files."""
    captions: list[list[str]]
    """The captions of each image."""
    splits: list[str]
    """train or val."""

    def rows(self) -> list[tuple[str, str, str]]:
        """(image, caption, split) of every pair."""
        each = zip(self.names, self.captions, self.splits, strict=True)
        return [(name, caption, split) for name, captions, split in each for caption in captions]

    def write_images(self, folder: Path) -> Path:
        """Write the image files into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in zip(self.names, self.pictures, strict=True):
            (folder / name).write_bytes(picture)
        return folder


@cache
def drawn(images: int = 200, captions: int = 1) -> Drawn:
    """So many scenes; four fifths are train."""
    rng = np.random.default_rng(7)
    train = images * 4 // 5
    scenes = [random_scene(rng) for _ in range(images)]
    pictures = []
    for scene in scenes:
        file = io.BytesIO()
        draw(scene, rng).save(file, format="PNG", compress_level=1)
        pictures.append(file.getvalue())
    texts = [list(write_captions(scene, rng, count=captions)) for scene in scenes]
    wrong = rng.permutation(train)[: train // 5]
    mismatched = list(texts)
    for place, other in zip(wrong, np.roll(wrong, 1), strict=True):
        mismatched[place] = texts[other]
    names = [f"{number:06d}.png" for number in range(images)]
    return Drawn(names, pictures, mismatched, ["train"] * train + ["val"] * (images - train))


def write_table(data: Drawn, folder: Path) -> Path:
    """The scenes as a table with a folder of images: what every other layout is compared with."""
    data.write_images(folder / "images")
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption", "split"])
        writer.writerows((f"images/{name}", caption, split) for name, caption, split in data.rows())
    return folder / "pairs.csv"


_REFERENCES: dict[int, Audit] = {}


def reference(folder: Path, captions: int = 1) -> Audit:
    """The audit of the table; made once."""
    if captions not in _REFERENCES:
        folder.mkdir(parents=True, exist_ok=True)
        table = write_table(drawn(captions=captions), folder)
        _REFERENCES[captions] = crcl.audit(table, folder / "audit", settings=SETTINGS)
    return _REFERENCES[captions]


def assert_same_audit(path: Path, folder: Path, captions: int = 1, **options: str) -> Audit:
    """Audit data in another layout, in `folder`, and compare every number with the audit of the table; return it."""
    expected = reference(folder / "reference", captions)
    pairs = crcl.read(path, **options)
    found = crcl.audit(pairs, folder / "audit", settings=SETTINGS)
    assert found.findings.pairs.captions == expected.findings.pairs.captions
    np.testing.assert_array_equal(found.findings.pairs.image_index, expected.findings.pairs.image_index)
    np.testing.assert_array_equal(found.correspondence, expected.correspondence)
    assert (found.rate, found.precision, found.recall) == (expected.rate, expected.precision, expected.recall)
    return found
