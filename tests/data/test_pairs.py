"""Pairs: all splits of data, wherever it lies."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tiny import write_folder

from crcl.data.pairs import Pairs
from crcl.data.pictures.files import Files
from crcl.data.sources import LAYOUTS, layout_of, memory
from crcl.data.sources.base import Location
from crcl.errors import InputError


def write_table(folder: Path, text: str = "image,caption\na,x\nb,y\nc,z\na,w\n", images: str = "abc") -> Path:
    """A table with features of its images."""
    folder.mkdir(exist_ok=True)
    (folder / "pairs.csv").write_text(text)
    np.save(folder / "features.npy", np.random.default_rng(0).normal(size=(len(images), 2, 3)).astype(np.float32))
    (folder / "ids.txt").write_text("\n".join(images))
    return folder / "pairs.csv"


def test_pairs_say_what_they_are(tmp_path: Path) -> None:
    pairs = Pairs.of(write_table(tmp_path))
    assert repr(pairs) == "Pairs('pairs.csv', 4 pairs, 3 images, splits train, dev)"
    assert (len(pairs), pairs.captions, pairs.images) == (4, ["x", "y", "z", "w"], ["a", "b", "c", "a"])
    folder = Pairs.of(write_folder(tmp_path / "data"))
    assert repr(folder) == "Pairs('data', 80 pairs, 40 images, splits train, dev, test)"
    assert len(folder.captions) == len(folder.images) == 80
    (tmp_path / "data" / "test_caps.txt").unlink()
    assert repr(Pairs.of(tmp_path / "data")) == "Pairs('data')"


def test_a_split_is_read_once_by_all_its_names(tmp_path: Path) -> None:
    pairs = Pairs.of(write_table(tmp_path))
    assert pairs.split("train") is pairs.split("train")
    assert pairs.split("val") is pairs.split("dev")


def test_the_same_pairs_are_opened_again_by_their_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(Path("data"))
    pairs = Pairs.of("data/pairs.csv", features="data/features.npy").without_empty()
    assert pairs.location is not None
    before = pairs.split("train").fingerprint()
    again = Location(**json.loads(json.dumps(asdict(pairs.location.absolute()))))
    monkeypatch.chdir("/")
    assert Pairs.at(again).split("train").fingerprint() == before
    assert again.settings() == {
        "data.path": str(tmp_path / "data" / "pairs.csv"),
        "data.features": str(tmp_path / "data" / "features.npy"),
        "data.image_column": "image",
        "data.caption_column": "caption",
        "data.skip_empty": True,
    }


def test_features_may_come_later_and_belong_to_a_copy(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    for name in ("features.npy", "ids.txt"):
        (tmp_path / name).rename(tmp_path / f"other_{name}")
    bare = Pairs.of(table)
    assert not bare.has_features
    full = bare.with_features(tmp_path / "other_features.npy", tmp_path / "other_ids.txt")
    assert full.has_features
    assert not bare.has_features
    assert len(full.split("train")) + len(full.split("dev")) == 4
    assert full.source.rows() is bare.source.rows()


def test_a_table_that_nothing_can_be_learnt_from_is_refused_before_long_work(tmp_path: Path) -> None:
    lacking = "image,caption\na,x\n,y\nb,\nb,z\nc,z\nd,z\n"
    assert Pairs.of(write_table(tmp_path, lacking)).check().tolist() == [1, 2]
    for text, told in (
        ("image,caption\n,x\n", "no row has both an image and a caption"),
        ("image,caption\na,x\nb,y\n", "only one training pair"),
        ("image,caption,split\na,x,train\na,y,train\nb,z,dev\n", "all training pairs show one image"),
        ("image,caption,split\na,x,train\nb,y,train\n", None),
        ("image,caption,split\na,x,train\nb,y,test\n", "only one image"),
    ):
        pairs = Pairs.of(write_table(tmp_path, text))
        if told is not None:
            with pytest.raises(InputError, match=told):
                pairs.check()
    assert not len(Pairs.of(write_folder(tmp_path / "data")).check())


def test_rows_that_are_not_judged_are_counted_by_reason(tmp_path: Path) -> None:
    text = "image,caption,split\na,x,train\nb,y,train\na,,train\nc,z,train\nd,z,dev\n"
    pairs = Pairs.of(write_table(tmp_path, text, "abd")).without_empty()
    (tmp_path / "skipped.csv").write_text("image,reason\nc,broken\n")
    assert pairs.unjudged(pairs.split("train")) == (1, 1, 1)
    held = Pairs.of({"image": list("abd"), "caption": list("xyz"), "split": ["train", "train", "dev"]})
    assert held.with_features(np.ones((3, 4))).unjudged(pairs.split("train")) == (1, 0, 0)


def test_a_layout_is_recognised_by_looking_and_only_data_has_one(tmp_path: Path) -> None:
    assert layout_of(write_table(tmp_path / "table")) == "table"
    assert layout_of(write_folder(tmp_path / "data")) == "precomp"
    (tmp_path / "embedded" / "img_emb").mkdir(parents=True)
    assert layout_of(tmp_path / "embedded") == "embeddings"
    assert layout_of(tmp_path) is layout_of(tmp_path / "nowhere") is None
    assert set(LAYOUTS) >= {"table", "embeddings", "precomp"}
    with pytest.raises(InputError, match=r"nowhere: not found, .*expected a table"):
        Pairs.of(tmp_path / "nowhere" / "nowhere")
    with pytest.raises(InputError, match=r"photos: no such folder; name the folder of the images"):
        Pairs.of(tmp_path / "table" / "pairs.csv", images=tmp_path / "photos")


def test_images_are_wanted_once_each_from_the_folder_of_the_table(tmp_path: Path) -> None:
    text = "image,caption\na,x\n,y\nb,z\na,w\n"
    wanted = Pairs.of(write_table(tmp_path, text)).wanted_images()
    assert [(image.name, image.pictures) for image in wanted] == [("a", Files(tmp_path)), ("b", Files(tmp_path))]
    with pytest.raises(InputError, match="has features, and no folder of image files; pass images="):
        Pairs.of(write_folder(tmp_path / "data")).wanted_images()


def test_captions_are_given_for_lists_and_arrays_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="with a list or an array only"):
        Pairs.of(write_table(tmp_path), ["x"])
    pairs = Pairs.of(write_table(tmp_path))
    assert Pairs.of(pairs) is pairs
    assert memory.NAME in repr(Pairs.of(["a", "b"], ["x", "y"]))
