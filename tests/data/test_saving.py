"""Pairs in memory are written to a folder, whole or not at all, and are the same when they are read again."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny import SMALL, room

from crcl.config import load
from crcl.data.images import decode
from crcl.data.pairs import Pairs
from crcl.errors import InputError, TrainingError
from crcl.training import inputs
from crcl.training.session import train

FEATURES = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
TEXTS = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float16)
CAPTIONS = [f'caption {number},\n"quoted"' for number in range(6)]


def in_memory(**changes: Any) -> Pairs:
    """Pairs with features and vectors of captions."""
    return Pairs.of(FEATURES, CAPTIONS, **({"text_features": TEXTS, "ids": ["a", "b/ü", "c"]} | changes))


def test_saved_pairs_are_the_same_when_they_are_read_again(tmp_path: Path) -> None:
    held, saved = in_memory(), in_memory().save(tmp_path / "data")
    assert saved.location is not None
    for pairs in (saved, Pairs.at(saved.location)):
        for split in ("train", "dev"):
            before, after = held.split(split), pairs.split(split)
            assert after.fingerprint() == before.fingerprint()
            assert after.features_digest() == before.features_digest()
            assert np.array_equal(after.rows, before.rows)


def test_features_of_rows_are_saved_once_for_each_image(tmp_path: Path) -> None:
    table = {"image": ["a", "b", "a", ""], "caption": ["x", "y", "z", "w"]}
    held = Pairs.of(table, features=np.arange(8.0).reshape(4, 2)).without_empty()
    saved = held.save(tmp_path / "data")
    assert np.load(tmp_path / "data" / "features.npy").shape == (2, 1, 2)
    for split in ("train", "dev"):
        assert saved.split(split).features_digest() == held.split(split).features_digest()


def test_the_same_pairs_again_are_not_written_and_others_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    in_memory().save(folder)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert in_memory().save(folder).split("train").captions
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    advice = "data: exists and contains other data; name another folder, or pass overwrite=True to replace it"
    for other in (in_memory(ids=["a", "b", "d"]), in_memory(text_features=TEXTS + 1), in_memory(text_features=None)):
        with pytest.raises(InputError, match=re.escape(advice)):
            other.save(folder)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="contains other data"):
        in_memory().save(tmp_path / "mine")


def test_other_pairs_are_replaced_when_asked_for_but_no_folder_of_somebody_else(tmp_path: Path) -> None:
    in_memory().save(tmp_path / "data")
    other = in_memory(ids=["a", "b", "d"]).save(tmp_path / "data", overwrite=True)
    assert "d" in {*other.split("train").image_ids, *other.split("dev").image_ids}
    assert [file.name for file in tmp_path.iterdir()] == ["data"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match=r"mine: exists and contains other data; name another folder$"):
        in_memory().save(tmp_path / "mine", overwrite=True)


def test_pictures_become_files_under_numbers(tmp_path: Path) -> None:
    red, turned = Image.new("CMYK", (4, 4), (0, 255, 255, 0)), Image.new("RGBA", (4, 8), (0, 0, 255, 0))
    saved = Pairs.of([red, turned, red], ["x", "y", "z"]).save(tmp_path / "data")
    assert sorted(file.name for file in (tmp_path / "data" / "images").iterdir()) == ["0000000.png", "0000001.png"]
    first, second = (decode(image.read()) for image in saved.wanted_images())
    np.testing.assert_allclose(first.getpixel((0, 0)), (255, 0, 0), atol=10)
    assert second.getpixel((0, 0)) == (255, 255, 255)
    assert not saved.has_features
    other = Pairs.of([red, Image.new("RGB", (4, 8)), red], ["x", "y", "z"])
    with pytest.raises(InputError, match="contains other data"):
        other.save(tmp_path / "data")


def test_a_picture_that_cannot_be_read_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match=r"image images/0000001.png cannot be read"):
        Pairs.of([Image.new("RGB", (4, 4)), Image.open(path)], ["x", "y"]).save(tmp_path / "data")
    with pytest.raises(InputError, match="floating-point pixels"):
        Pairs.of([Image.new("F", (4, 4))], ["x"]).save(tmp_path / "data")
    assert [file.name for file in tmp_path.iterdir()] == ["cut.png"]


def test_files_in_a_list_are_found_from_where_the_pairs_were_saved(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in "ab":
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / f"{name}.png")
    files = [tmp_path / "photos" / f"{name}.png" for name in "ab"]
    saved = Pairs.of(files, ["x", "y"]).save(tmp_path / "data")
    assert [len(image.read()) > 0 for image in saved.wanted_images()] == [True, True]


def test_on_a_full_disk_nothing_is_left(tmp_path: Path) -> None:
    large = np.ones((100, 40, 50), dtype=np.float32)
    with room(50_000), pytest.raises(TrainingError, match="could not save"):
        Pairs.of(large, [f"caption {number}" for number in range(100)]).save(tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_pairs_on_the_disk_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("image,caption\na,x\nb,y\n")
    pairs = Pairs.of(tmp_path / "pairs.csv")
    assert pairs.save(tmp_path / "data") is pairs
    assert not (tmp_path / "data").exists()


def test_a_run_on_saved_pairs_finds_its_data_by_its_config(tmp_path: Path) -> None:
    features = np.random.default_rng(2).normal(size=(20, 2, 5)).astype(np.float32)
    saved = Pairs.of(features, [f"a dog number {number}" for number in range(40)]).save(tmp_path / "data")
    assert saved.location is not None
    config = load(base=saved.location.absolute().settings(), settings=[*SMALL, "data.min_count=1"])
    run = train(config, tmp_path / "run", pairs=saved)
    assert inputs.audited_pairs(run, config).captions == saved.split("train").captions
