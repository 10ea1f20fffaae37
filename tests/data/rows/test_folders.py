"""Images with text files: pairs of files, splits of folders, lines of captions."""

from collections import Counter
from pathlib import Path

import pytest

from crcl.data.pictures.base import UnusableError
from crcl.data.rows.folders import Entry, entries, parse, split_of, splits_of_names


def test_the_first_folder_that_is_named_like_a_split_counts() -> None:
    assert [split_of(name) for name in ("train/a.png", "Val/a.png", "x/test/a.png", "test.png", "trains/a.png")] == [
        "train",
        "dev",
        None,
        None,
        None,
    ]
    assert split_of("data/validation/a.png", depth=2) == "dev"
    assert [split_of(f"{name}.zip/a.png") for name in ("train", "test-00001-of-2", "data")] == ["train", "test", None]


def test_images_outside_of_the_folders_of_splits_are_for_training() -> None:
    assert splits_of_names(["a.png", "val/b.png"]) == ["train", "dev"]
    assert splits_of_names(["a.png", "x/b.png"]) is None


def test_lines_are_kept_as_they_are_beside_their_captions() -> None:
    assert parse(b"\xef\xbb\xbfone \r\n\n two") == [(b"\xef\xbb\xbfone \r\n", "one"), (b"\n", ""), (b" two", "two")]
    with pytest.raises(UnusableError, match="not UTF-8"):
        parse(b"caf\xe9")


def test_entries_come_in_the_order_of_their_paths_and_the_rest_is_counted(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/1.png", "a.png", "c.png", "b/1.txt", "b/2.txt", "a.txt", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    counts: Counter[str] = Counter()
    found = list(entries(tmp_path, counts))
    assert found[0] == Entry("a.png", "a.txt", [(b"text", "text")])
    assert [entry.image for entry in found] == ["a.png", "b/1.png", "b/2.png"]
    assert counts == Counter({"image without text": 1, "text without image": 1})
