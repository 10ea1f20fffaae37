"""Verdicts that are followed as they are added are those that the store has."""

import shutil
from pathlib import Path

import numpy as np

from crcl.runs.following import Following
from crcl.runs.verdicts import SAID, Verdict, Verdicts


def check(following: Following) -> set[int]:
    changed = following.update()
    assert following.current == following.verdicts.current()
    assert following.differing == following.verdicts.disagreements()
    return changed


def test_what_is_followed_is_what_the_store_has_after_every_step(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path, "known")
    following, rng = Following(verdicts), np.random.default_rng(0)
    assert check(following) == set()
    for _ in range(40):
        who = f"reviewer {rng.integers(3)}"
        if rng.random() < 0.4:
            undone = verdicts.undo(reviewer=who) or []
            assert check(following) >= {verdict.row for verdict in undone}
        else:
            rows = rng.integers(0, 6, rng.integers(1, 4)).tolist()
            verdicts.add([Verdict(row, SAID[rng.integers(3)]) for row in rows], reviewer=who)  # type: ignore[arg-type]
            if rng.random() < 0.7:  # else several steps are read at once
                check(following)
    assert check(Following(verdicts)) >= set(following.current)


def test_a_store_that_was_removed_or_replaced_is_read_anew(tmp_path: Path) -> None:
    verdicts, other = Verdicts(tmp_path, "known"), Verdicts(tmp_path / "other", "known")
    other.folder.mkdir()
    verdicts.add([Verdict(1, "right"), Verdict(2, "right")], reviewer="Ana")
    for row in range(3, 6):
        other.add([Verdict(row, "wrong")], reviewer="Ana")
    following = Following(verdicts)
    check(following)
    for path in tmp_path.glob("verdicts.sqlite*"):
        path.unlink()
    assert check(following) == {1, 2}
    verdicts.add([Verdict(1, "right")], reviewer="Ana")
    check(following)
    for path in tmp_path.glob("verdicts.sqlite*"):
        path.unlink()
    shutil.copy(other.path, verdicts.path)
    assert check(following) == {1, 3, 4, 5}
