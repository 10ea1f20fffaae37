"""Features of a folder or a table of images: what is written, what is kept, what is left out."""

import csv
import io
import multiprocessing
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from extraction import draw, draw_folder, run
from image_files import bomb, halves, saved
from numpy.typing import NDArray
from PIL import Image
from reading import read
from tiny import SMALL, call

from crcl.data.rows.stored import read_skipped, skipped_text
from crcl.errors import InputError, TrainingError
from crcl.features.grid import PixelGrid, grid_features
from crcl.storage import locked


def reasons(output: Path) -> dict[str, str]:
    rows = list(csv.reader(io.StringIO((output / "skipped.csv").read_text("utf-8"), newline="")))
    assert rows[0] == ["image", "reason"]
    return dict(rows[1:])


class Mortal(PixelGrid):
    """Killed as by kill -9 when it has computed so many batches."""

    def __init__(self, batches: int) -> None:
        super().__init__(grid=2)
        self.left = batches

    def compute(self, prepared: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return super().compute(prepared)


def test_the_files_hold_the_features_of_each_image_in_float16(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 7)
    found = run(images, tmp_path / "out", batch_size=3)
    features = np.load(tmp_path / "out/features.npy")
    names = (tmp_path / "out/ids.txt").read_text().splitlines()
    assert (features.dtype, features.shape) == (np.dtype("float16"), (7, 4, 72))
    assert (found.images, found.shape, found.computed, found.skipped) == (7, (4, 72), 7, [])
    assert names == [f"{number:03d}.png" for number in range(7)]
    for name, row in zip(names, features, strict=True):
        expected = grid_features(Image.open(images / name), grid=2)
        np.testing.assert_array_equal(row, expected.astype(np.float16))


def test_hashes_of_pixels_are_written_and_are_equal_for_copies_in_other_formats(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 3)
    picture = Image.open(io.BytesIO(draw(1)))
    (images / "as.bmp").write_bytes(saved(picture, "BMP"))
    (images / "resized.png").write_bytes(saved(picture.resize((16, 12)), "PNG"))
    run(images, tmp_path / "out", batch_size=2)
    names = (tmp_path / "out/ids.txt").read_text().splitlines()
    hashes = np.load(tmp_path / "out/hashes.npy")
    assert (names, hashes.dtype, hashes.shape) == (
        sorted(path.name for path in images.iterdir()),
        np.dtype("uint8"),
        (5, 32),
    )
    _, number = np.unique(hashes, axis=0, return_inverse=True)
    of = dict(zip(names, number.tolist(), strict=True))
    assert of["as.bmp"] == of["001.png"]
    assert len(set(of.values())) == 4
    run(images, tmp_path / "again", cache=tmp_path / "out/cache")
    np.testing.assert_array_equal(np.load(tmp_path / "again/hashes.npy"), hashes)


def test_a_cache_without_hashes_of_pixels_still_serves(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 2)
    (images / "copy.png").write_bytes(draw(1))
    run(images, tmp_path / "out")
    for path in (tmp_path / "out/cache").rglob("*.npz"):
        with np.load(path) as arrays:
            kept = {name: arrays[name] for name in arrays if name != "contents"}
        np.savez(path, **kept)
    assert run(images, tmp_path / "out").computed == 0
    hashes = np.load(tmp_path / "out/hashes.npy")
    assert (hashes[1] == hashes[2]).all()  # the files are equal
    assert (hashes[0] != hashes[1]).any()


def test_killed_in_the_middle_it_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 11)
    (images / "004.png").write_bytes(b"broken")
    run(images, tmp_path / "whole", batch_size=2)
    target = lambda: run(images, tmp_path / "killed", Mortal(3), batch_size=2)  # noqa: E731
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed/features.npy").exists()
    assert run(images, tmp_path / "killed", batch_size=2).computed == 10 - (2 + 2 + 1)  # the third has a broken image
    for name in ("features.npy", "ids.txt", "skipped.csv", "about.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
    whole, killed = (sorted(file.name for file in (tmp_path / name).rglob("*")) for name in ("whole", "killed"))
    assert whole == killed


def test_the_same_content_is_computed_once_and_found_again_under_another_name(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 4)
    (images / "twin.png").write_bytes(draw(2))
    assert run(images, tmp_path / "out").computed == 4
    first = np.load(tmp_path / "out/features.npy")
    np.testing.assert_array_equal(first[2], first[4])
    (images / "below").mkdir()
    (images / "000.png").rename(images / "below/moved.png")
    (images / "003.png").write_bytes(draw(99))
    assert run(images, tmp_path / "out").computed == 1
    second = np.load(tmp_path / "out/features.npy")
    assert (tmp_path / "out/ids.txt").read_text().split() == [
        "001.png",
        "002.png",
        "003.png",
        "below/moved.png",
        "twin.png",
    ]
    np.testing.assert_array_equal(second[3], first[0])
    assert (second[2] != first[3]).any()


def test_other_settings_are_kept_apart_and_never_replaced_unasked(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 2)
    run(images, tmp_path / "out")
    with pytest.raises(InputError, match=r"another model or other settings; name another folder"):
        run(images, tmp_path / "out", PixelGrid(grid=3))
    assert run(images, tmp_path / "out", PixelGrid(grid=3), overwrite=True).computed == 2
    assert np.load(tmp_path / "out/features.npy").shape == (2, 9, 72)
    assert run(images, tmp_path / "out", overwrite=True).computed == 0
    assert run(images, tmp_path / "new", cache=tmp_path / "out/cache").computed == 0
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own/features.npy", np.zeros(3))
    with pytest.raises(InputError, match="not made by"):
        run(images, tmp_path / "own")


@pytest.mark.parametrize("name", ["ids.txt", "skipped.csv", "about.json"])
def test_a_file_of_ones_own_is_not_replaced(tmp_path: Path, name: str) -> None:
    images = draw_folder(tmp_path / "images", 2)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / name).write_text("{}")
    with pytest.raises(InputError, match=rf"{name}: exists already and is not part of extracted features"):
        run(images, tmp_path / "own")
    assert (tmp_path / "own" / name).read_text() == "{}"
    run(images, tmp_path / "own", overwrite=True)


def test_where_no_image_could_be_used_the_same_command_can_be_given_again(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="none of the 1 images can be used"):
        run(images, tmp_path / "out")
    (images / "b.png").write_bytes(draw(0))
    run(images, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04"])
def test_half_a_part_of_the_cache_is_computed_again(tmp_path: Path, content: bytes) -> None:
    images = draw_folder(tmp_path / "images", 2)
    run(images, tmp_path / "out")
    (part,) = (tmp_path / "out/cache").glob("*/*.npz")
    part.write_bytes(content)
    assert run(images, tmp_path / "out").computed == 2


def test_a_skipped_image_may_have_a_name_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "skipped.csv").write_text(skipped_text([("a" * 140_000, "no such file"), ("b.png", "broken")]))
    assert read_skipped(tmp_path / "skipped.csv") == {"a" * 140_000, "b.png"}


def test_a_damaged_part_of_the_cache_is_computed_again(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 4)
    run(images, tmp_path / "out", batch_size=2)
    expected = (tmp_path / "out/features.npy").read_bytes()
    first, second = sorted((tmp_path / "out/cache").rglob("*.npz"))
    first.write_bytes(first.read_bytes()[:100])
    assert run(images, tmp_path / "out", batch_size=2).computed == 2
    assert (tmp_path / "out/features.npy").read_bytes() == expected
    content = bytearray(second.read_bytes())
    content[content.rindex(b"NUMPY") + 200] ^= 1  # within the features
    second.write_bytes(content)
    with pytest.raises(TrainingError, match="damaged"):
        run(images, tmp_path / "out", batch_size=2)
    assert run(images, tmp_path / "out", batch_size=2).computed == 2
    assert (tmp_path / "out/features.npy").read_bytes() == expected


def test_features_too_large_for_float16_are_skipped(tmp_path: Path) -> None:
    class Loud(PixelGrid):
        def compute(self, prepared):
            features = super().compute(prepared)
            features[1] *= 1e6
            return features

    images = draw_folder(tmp_path / "images", 3)
    for computed in (3, 0):
        assert run(images, tmp_path / "out", Loud(grid=2)).computed == computed
        assert reasons(tmp_path / "out") == {"001.png": "its features are not finite in float16"}
        assert np.isfinite(np.load(tmp_path / "out/features.npy")).all()


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 2)
    run(images, tmp_path / "out")

    def second() -> None:
        try:
            run(images, tmp_path / "out")
        except InputError as error:
            os._exit(2 if "another process" in str(error) else 1)

    with locked(tmp_path / "out"):
        process = multiprocessing.get_context("fork").Process(target=second)
        process.start()
        process.join()
    assert process.exitcode == 2


def hostile_folder(folder: Path) -> dict[str, str]:
    """Images that cannot be used, with a part of the reason, beside good ones; and a table of all of them."""
    draw_folder(folder / "photos", 12)
    (folder / "secret.png").write_bytes(draw(50))
    photos = folder / "photos"
    (photos / "zero.jpg").touch()
    (photos / "bomb.png").write_bytes(bomb(20_000, 20_000))
    (photos / "cut.jpg").write_bytes(saved(Image.open(photos / "001.png"), "JPEG")[:300])
    (photos / "text.png").write_text("not an image")
    (photos / "cmyk.jpg").write_bytes(saved(halves("CMYK"), "JPEG"))
    (photos / "anim.gif").write_bytes(saved(halves("P"), "GIF"))
    exif = Image.Exif()
    exif[0x0112] = 6
    (photos / "turned.jpg").write_bytes(saved(halves(), "JPEG", exif=exif))
    bad = {
        "zero.jpg": "empty file",
        "bomb.png": "pixels",
        "cut.jpg": "broken image",
        "text.png": "known format",
        "gone.jpg": "not found",
        "../secret.png": "outside",
        str(folder / "secret.png"): "outside",
        'a"b\n<script>.png': "line break",
    }
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image", "caption"))
        good = [f"{number:03d}.png" for number in range(12)] + ["cmyk.jpg", "anim.gif", "turned.jpg"]
        for name in [*good, *bad, *good]:
            rows.writerow((name, "a red thing here"))
    return bad


def test_what_strangers_send_is_listed_and_skipped_and_the_rest_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = hostile_folder(tmp_path)
    table, output = str(tmp_path / "pairs.csv"), tmp_path / "out"
    photos = str(tmp_path / "photos")
    answer = call(capsys, monkeypatch, "features", table, "--images", photos, "-o", str(output), "--grid", "2")
    assert answer.code == 0, answer.err
    assert "15 images, 4 x 72 each (15 computed now)" in answer.out
    assert "8 images were skipped" in answer.err
    found = reasons(output)
    assert found.keys() == bad.keys()
    for name, reason in bad.items():
        assert reason in found[name], name
    told = re.search(r"--features \S+ --ids \S+", answer.out)
    assert told
    settings = [word for setting in SMALL for word in ("--set", setting)]
    trained = call(capsys, monkeypatch, "train", table, "-o", str(tmp_path / "run"), *told[0].split(), *settings)
    assert trained.code == 0, trained.err
    pairs = [read(table, split, features=output / "features.npy", ids=output / "ids.txt") for split in ("train", "dev")]
    rows = np.sort(np.concatenate([part.caption_rows for part in pairs]))
    np.testing.assert_array_equal(rows, [*range(15), *range(23, 38)])  # numbers of the table as it is
    audited = call(capsys, monkeypatch, "audit", str(tmp_path / "run"))
    assert audited.code == 0, audited.err


def test_an_image_that_is_neither_stored_nor_skipped_is_still_an_error(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", 3)
    (images / "zero.png").touch()
    run(images, tmp_path / "out")
    table = tmp_path / "out/pairs.csv"
    table.write_text("image,caption,split\n000.png,a,train\nzero.png,b,train\nother.png,c,train\nzero.png,d,dev\n")
    with pytest.raises(InputError, match=r"'other\.png' has no features"):
        read(table, "train")
    with pytest.raises(InputError, match=r"none of the 1 images of split 'dev' could be read \(see .*skipped\.csv\)"):
        read(table, "dev")


def test_without_any_usable_image_the_reasons_are_told(tmp_path: Path, capsys, monkeypatch) -> None:
    for name in "ab":
        (tmp_path / f"{name}.png").write_text("no")
    files = [str(tmp_path / name) for name in ("a.png", "b.png")]
    answer = call(capsys, monkeypatch, "features", *files, "-o", str(tmp_path / "out"))
    assert answer.code == 2
    assert "none of the 2 images can be used (2 x not an image of a known format)" in answer.err
    assert len(reasons(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--global"], "pass --model with --global"),
        (["--model", "./none"], "no such folder"),
        (["--images", "none"], "no other one|no such folder"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, capsys, monkeypatch, words, message) -> None:
    images = draw_folder(tmp_path / "images", 1)
    answer = call(capsys, monkeypatch, "features", str(images), "-o", str(tmp_path / "out"), *words)
    assert answer.code == 2
    assert re.search(message, answer.err)
