"""Features that several real processes make are those that one makes, and a killed process loses no finished work."""

import os
import signal
import time
from pathlib import Path

import pytest
from extraction import draw, draw_folder
from several import second, torchrun
from tiny import finish

import crcl
from crcl.features.cache import Cache

pytestmark = pytest.mark.slow
FILES = ("features.npy", "ids.txt", "hashes.npy", "skipped.csv", "about.json")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_two_processes_make_the_features_that_one_makes(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 30)
    (images / "003.png").write_bytes(b"broken")
    command = ["-m", "crcl", "features", str(images), "-o", str(tmp_path / "shared"), "--batch-size", "4"]
    answer = finish(torchrun(2, *command))
    assert answer.code == 0, answer.err
    assert answer.out.count("29 images, 36 x 72 each (29 computed now)") == 1, "one process tells"
    crcl.extract_features(images, tmp_path / "alone", batch_size=4)
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


def test_a_killed_process_ends_the_others_with_a_message_and_what_was_made_is_used_again(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 400)
    for number in range(400, 800):
        (images / f"{number}.png").write_bytes(draw(number))
    command = ["-m", "crcl", "features", str(images), "-o", str(tmp_path / "shared"), "--batch-size", "2"]
    broken, cache = torchrun(2, *command, "--workers", "0"), tmp_path / "shared/cache"
    while len(list(cache.glob("*/*.npz"))) < 4:
        assert broken.poll() is None, finish(broken).err
        time.sleep(0.01)
    os.kill(second(broken.pid), signal.SIGKILL)
    killed = time.monotonic()
    answer = finish(broken)
    assert time.monotonic() - killed < 60
    assert answer.code != 0
    assert "stopped by torchrun, because a process ended" in answer.err
    assert not (tmp_path / "shared/features.npy").exists()
    kept = len(Cache(next(cache.iterdir())).places)
    assert 8 <= kept < 800
    again = finish(torchrun(2, *command))
    assert again.code == 0, again.err
    assert f"800 images, 36 x 72 each ({800 - kept} computed now)" in again.out
    crcl.extract_features(images, tmp_path / "alone", batch_size=2)
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")
