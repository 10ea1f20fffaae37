"""A CLIP trained from tars: images are looked at once, then decoded whenever a batch needs them, and stored nowhere."""

import json
import multiprocessing
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import drawn
from small_clip import SIDE, save_clip
from tarred import write_tar, write_tars
from tiny import Stop, StopAfter, assert_same_runs, call

import crcl
from crcl.errors import InputError
from crcl.features.vision import Pixels

SETTINGS = ["train.pieces=[1,2]", "train.batch_size=8", "train.lr=0.001", "train.device=cpu", "ledger.freeze_epochs=1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tars of scenes, two of which cannot be used, a CLIP, and a run that was trained on both."""
    folder = tmp_path_factory.mktemp("clip")
    write_tars(drawn(60, 1), folder / "tars", each=10)
    broken = [("broken.jpg", b"\xff\xd8 no image"), ("broken.txt", b"a dog"), ("gone.png", b""), ("gone.txt", b"a cat")]
    write_tar(folder / "tars/train/00099.tar", broken)
    save_clip(folder / "clip")
    train(folder, "run")
    return folder


def train(home: Path, run: str, *settings: str, **options: Any) -> crcl.Run:
    return crcl.train(
        home / "tars",
        home / run,
        matcher="clip",
        noise=0.4,
        model=str(home / "clip"),
        settings=[*SETTINGS, *settings],
        **options,
    )


def test_it_trains_what_stored_pixels_train(home: Path) -> None:
    crcl.extract_features(home / "tars", home / "pixels", model=str(home / "clip"), pixels=True)
    pairs = crcl.read(home / "tars").with_features(home / "pixels/features.npy", home / "pixels/ids.txt")
    options: dict[str, Any] = {
        "matcher": "clip",
        "noise": 0.4,
        "settings": [*SETTINGS, f"matcher.model={home / 'clip'}"],
    }
    assert_same_runs(home / "run", crcl.train(pairs, home / "stored", **options).path)
    made = home / "run-features"
    assert (made / "ids.txt").read_text() == (home / "pixels/ids.txt").read_text()
    np.testing.assert_array_equal(np.load(made / "hashes.npy"), np.load(home / "pixels/hashes.npy"))
    assert {"broken.jpg", "gone.png"} <= {
        line.split('"')[1] for line in (made / "skipped.csv").read_text().splitlines()
    }
    assert not list(made.glob("*/")) + list(made.glob("features*"))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [["train.workers=0"], ["train.workers=2", "train.save_minutes=0"]], ids=str)
def test_killed_and_resumed_it_ends_bit_identical(home: Path, settings: list[str]) -> None:
    run = f"killed{len(settings)}"

    def killed() -> None:
        with pytest.raises(Stop):
            train(home, run, *settings, progress=StopAfter(8))
        signal.raise_signal(signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    looked_at = (home / f"{run}-features/ids.txt").stat().st_mtime_ns
    assert_same_runs(train(home, run, *settings, resume=True).path, home / "run")
    assert (home / f"{run}-features/ids.txt").stat().st_mtime_ns == looked_at


@pytest.mark.slow
def test_its_run_is_evaluated_audited_and_reads_photos(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 <= crcl.evaluate(home / "run", split="dev").rsum <= 600
    shutil.copytree(home / "run", home / "audited")
    assert len(crcl.audit(home / "audited").to_pandas()) == 48
    answer = call(capsys, monkeypatch, "info", str(home / "run"))
    assert answer.code == 0, answer.err
    assert crcl.load(home / "run").takes_photos


def test_an_image_that_can_no_longer_be_read_ends_the_training_with_its_name(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "tars", tmp_path / "tars")
    shutil.copytree(home / "clip", tmp_path / "clip")

    class Changing(StopAfter):
        def step_done(self, *given: Any) -> None:
            for tar in (tmp_path / "tars/train").glob("*.tar"):
                tar.write_bytes(tar.read_bytes()[:512])
            from crcl.data.pictures import tars

            tars._open_shard.cache_clear()

    with pytest.raises(InputError, match=r"image '.*\.png' cannot be used any longer: its shard .* has changed"):
        train(tmp_path, "run", progress=Changing(1))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("size", [(33, 20), (20, 33), (SIDE, SIDE), (5, 7), (3, 2), (300, 4), (640, 480)])
def test_pixels_are_those_of_the_models_own_processor(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    from PIL import Image

    model = Pixels(str(save_clip(tmp_path / kind, kind)))
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(values)
    expected = model.prepare(image).reshape(-1).astype(np.float16)
    np.testing.assert_array_equal(model.recipe(10**8).pixels(image), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"side": 10**9}, "does not say"),
        ({"mean": [0, 0]}, "does not say"),
        ({"side": 100}, "cannot be made"),
        ({"deviation": [0, 1, 1]}, "cannot be made"),
        ({"resample": "3"}, "does not say"),
        ({"more": 1}, "does not say"),
    ],
)
def test_a_recipe_from_strangers_is_checked(home: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    features = tmp_path / "pixels.json"
    features.write_text(json.dumps(json.loads((home / "run-features/pixels.json").read_text()) | changes))
    shutil.copy(home / "run-features/ids.txt", tmp_path)
    with pytest.raises(InputError, match=message):
        crcl.read(home / "tars").with_features(features, tmp_path / "ids.txt").split("train")
    features.write_text("[" * 100_000)
    with pytest.raises(InputError, match="does not say"):
        crcl.read(home / "tars").with_features(features, tmp_path / "ids.txt").split("train")
