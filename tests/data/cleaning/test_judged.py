"""What was judged is checked against the data as it is now, and cleaned data is complete or not there."""

from pathlib import Path

import numpy as np
import pytest

from crcl.data.cleaning.judged import Judged, written, written_folder
from crcl.errors import InputError

JUDGED = Judged(Path("data"), {1: ("a.png", "a cat"), 4: ("b.png", "a dog")}, {1: np.float32(0.2)}, {1}, {})


def test_a_judged_row_must_be_the_same_pair_and_others_may_be_anything() -> None:
    JUDGED.check(1, " a.png", "a cat ")
    JUDGED.check(2, "new.png", None)
    for image, caption in (("b.png", "a cat"), ("a.png", "a dog")):
        with pytest.raises(
            InputError, match=r"data: cannot be cleaned \(row 2 \(the first is 1\) is not the pair that was judged"
        ):
            JUDGED.check(1, image, caption)


def test_data_that_ends_before_the_last_judged_row_is_refused() -> None:
    JUDGED.check_count(5)
    with pytest.raises(InputError, match=r"it has 4 rows, but row 5 \(the first is 1\) was judged"):
        JUDGED.check_count(4)


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    def fails(folder: Path) -> int:
        (folder / "half").write_text("half")
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        written_folder(tmp_path / "new", fails)
    assert list(tmp_path.iterdir()) == []


def test_folders_above_the_output_are_made_and_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    assert written(tmp_path / "deep/er/file", lambda path: path.write_text("abc")) == 3
    assert written_folder(tmp_path / "far/away/folder", lambda path: (path / "inside").write_text("ab")) == 2
    assert (tmp_path / "far/away/folder/inside").read_text() == "ab"
    for write in (written, written_folder):
        with pytest.raises(InputError, match="file/new: cannot be written"):
            write(tmp_path / "deep/er/file/new", lambda path: 0)
