"""Images are decoded in worker processes: the same results in the same order, whatever the workers do."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from extraction import draw, draw_folder, run
from numpy.typing import NDArray
from PIL import Image

from crcl.data.images import MOST_PIXELS
from crcl.data.pictures.base import UnusableError
from crcl.errors import TrainingError
from crcl.features.decoding import FEW, MOST, prepared, usual_workers
from crcl.features.grid import PixelGrid, grid_features

PREPARE = partial(grid_features, grid=2)


def crash_on_small(image: Image.Image) -> NDArray[np.float32]:
    """What a decoder with a bug does."""
    if image.width == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return grid_features(image, grid=2)


def fail(image: Image.Image) -> NDArray[np.float32]:
    raise KeyError("no such thing")


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_order_whatever_the_number_of_workers(workers: int) -> None:
    contents = [draw(number) if number % 5 else UnusableError("not found") for number in range(40)]
    contents[7] = b"no image"
    found = list(prepared(contents, PREPARE, most_pixels=MOST_PIXELS, workers=workers))
    expected = list(prepared(contents, PREPARE, most_pixels=MOST_PIXELS))
    assert len(found) == 40
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, UnusableError):
            assert str(one) == str(other)
        else:
            assert one[0] == other[0]
            np.testing.assert_array_equal(one[1], other[1])
    assert str(found[7]) == "not an image of a known format"


def test_features_are_the_same_bytes_with_workers_and_without(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 9)
    (images / "004.png").write_bytes(b"broken")
    for name, workers in (("alone", 0), ("two", 2)):
        assert run(images, tmp_path / name, batch_size=2, workers=workers).computed == 8
    for name in ("features.npy", "ids.txt", "skipped.csv", "about.json", "hashes.npy"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_an_image_that_kills_its_decoder_is_left_out_and_the_others_are_not() -> None:
    from image_files import saved

    contents = [draw(0), saved(Image.new("RGB", (1, 1)), "PNG"), draw(1)]
    first, second, third = prepared(contents, crash_on_small, most_pixels=MOST_PIXELS, workers=2)
    assert str(second) == "its decoder crashed"
    np.testing.assert_array_equal(first[1], next(prepared(contents, PREPARE, most_pixels=MOST_PIXELS))[1])
    assert not isinstance(third, UnusableError)


def test_an_error_in_a_worker_is_told() -> None:
    with pytest.raises(TrainingError, match="KeyError: 'no such thing'"):
        list(prepared([draw(0)], fail, most_pixels=MOST_PIXELS, workers=1))


def test_few_images_are_decoded_without_workers() -> None:
    assert usual_workers(FEW - 1) == 0
    assert 1 <= usual_workers(FEW) <= MOST


class Own(PixelGrid):
    def prepare(self, image: Image.Image) -> NDArray[np.float32]:
        return np.zeros((1, 2), np.float32)


def test_an_extractor_with_a_preparation_of_its_own_works_without_workers(tmp_path: Path) -> None:
    run(draw_folder(tmp_path / "images", 3), tmp_path / "out", Own(), workers=2)
    assert not np.load(tmp_path / "out/features.npy").any()


PROGRAM = """
import os, signal, sys, time
from functools import partial
from crcl.features.decoding import prepared
from crcl.features.grid import grid_features
content = open(sys.argv[1], "rb").read()
found = prepared([content] * 1000, partial(grid_features, grid=2), most_pixels=10**6, workers=2)
next(found)
print("started", flush=True)
time.sleep(60)
"""


def test_workers_end_when_their_program_is_killed(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(draw(0))
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "a.png")], stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"started\n"
    tasks = Path(f"/proc/{program.pid}/task").glob("*/children")
    workers = [worker for task in tasks for worker in task.read_text().split()]
    assert workers
    program.kill()
    program.wait()
    program.stdout.close()
    for _ in range(100):
        if not any(_alive(worker) for worker in workers):
            return
        time.sleep(0.1)
    raise AssertionError("workers are left")


def _alive(worker: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
