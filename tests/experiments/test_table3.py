"""Table 3: published models as they come and fine-tuned, which read pixels, beside CRCL, which reads regions."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from reproduced import TINY, Crcl, rows, words
from tiny import call, write_folder

from crcl import experiments
from crcl.data.pairs import Pairs
from crcl.experiments.keys import job_key
from crcl.experiments.planning import Planner
from crcl.features.extract import extract
from crcl.features.grid import PixelGrid
from crcl.features.vision import Pixels
from crcl.runs.folder import Run
from crcl.training import importing, session

LARGE, BASE = "openai/clip-vit-large-patch14", "openai/clip-vit-base-patch32"


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    return lambda *given: call(capsys, monkeypatch, *given)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in the field's layout, which has no pixels."""
    return write_folder(tmp_path / "pairs")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of drawn scenes with regions and pixels of its images, and two small models."""
    pytest.importorskip("transformers")
    from small_clip import draw_scenes, save_clip

    folder = tmp_path_factory.mktemp("table3")
    table = draw_scenes(folder / "scenes")
    for seed, name in enumerate(("large", "base")):
        save_clip(folder / name, seed=seed)
    for name, extractor in (("pixels", Pixels(str(folder / "base"))), ("regions", PixelGrid(grid=2))):
        extract(Pairs.of(table, images=table.parent / "images").wanted_images(), extractor, folder / name)
    return folder


def table3(folder: Path, out: Path, *more: str, regions: bool = True) -> list[str]:
    """Words that make it, with two seeds."""
    places = [
        f"data.{key}={folder / 'regions' / name}" for key, name in (("features", "features.npy"), ("ids", "ids.txt"))
    ]
    given = [word for setting in (*TINY, *(places if regions else ())) for word in ("--set", setting)]
    models = ["--model", f"{LARGE}={folder / 'large'}", "--model", f"{BASE}={folder / 'base'}"]
    size = ["--matcher", "bow", "--seeds", "2", "--pixels", str(folder / "pixels")]
    return [
        "reproduce",
        "table3",
        "--data",
        str(folder / "scenes" / "pairs.csv"),
        "-o",
        str(out),
        *size,
        *models,
        *given,
        *more,
    ]


@pytest.mark.slow
def test_table3_measures_models_as_they_come_and_fine_tuned(
    crcl: Crcl, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = table3(clips, tmp_path / "out")
    answer = crcl(*asked)
    assert answer.code == 0, answer.err
    page = (tmp_path / "out" / "table3.md").read_text("utf-8")
    assert str(clips) not in page
    assert f"--pixels PIXELS --model {LARGE}=FOLDER" in page
    assert "Every row but those of published models is trained on `bow`" in page
    found = {line["method"]: line for line in rows(tmp_path / "out" / "table3.csv") if line["score"] == "rSum"}
    assert {name: line["seeds"] for name, line in found.items()} == {
        "CLIP (ViT-L/14), zero-shot": "1",
        "CLIP (ViT-B/32), zero-shot": "1",
        "CLIP (ViT-L/14), fine-tuned": "2",
        "CLIP (ViT-B/32), fine-tuned": "2",
        "CRCL": "2",
    }
    pixels = ["--features", str(clips / "pixels" / "features.npy"), "--ids", str(clips / "pixels" / "ids.txt")]
    table = str(clips / "scenes" / "pairs.csv")
    by_hand: dict[str, float] = {}
    for name in ("large", "base"):
        run = str(tmp_path / name)
        assert crcl("import", str(clips / name), "--data", table, *pixels, "-o", run).code == 0
        by_hand[name] = json.loads(crcl("evaluate", run, "--json", "--device", "cpu").out)["rsum"]
    assert by_hand["large"] != by_hand["base"]
    assert float(found["CLIP (ViT-L/14), zero-shot"]["mean"]) == pytest.approx(by_hand["large"], abs=1e-3)
    assert float(found["CLIP (ViT-B/32), zero-shot"]["mean"]) == pytest.approx(by_hand["base"], abs=1e-3)
    stored = [Run.open(path) for path in (tmp_path / "out" / "runs").iterdir()]
    tuned = [run.config for run in stored if run.config["matcher"]["name"] == "clip" and not run.imported]
    assert {(run["matcher"]["model"], run["noise"]["rate"], run["train"]["seed"]) for run in tuned} == {
        (str(clips / name), 0.2, seed) for name in ("large", "base") for seed in (0, 1)
    }
    assert {run["method"] for run in tuned} == {"infonce"}

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("nothing is left to do")

    for module, name in ((session, "train"), (session, "open_scorer"), (importing, "import_model")):
        monkeypatch.setattr(module, name, refuse)
    assert crcl(*asked).code == 0


@pytest.mark.slow
def test_table3_has_one_command_for_each_run(crcl: Crcl, clips: Path, tmp_path: Path) -> None:
    answer = crcl(*table3(clips, tmp_path, "--print-jobs", "--seeds", "1", regions=False))
    assert answer.code == 0, answer.err
    commands = [shlex.split(line) for line in answer.out.splitlines()]
    assert [words[1] for words in commands] == ["import", "import", "train", "train"]  # no regions: no CRCL
    assert crcl(*commands[0][1:]).code == 0
    assert crcl(*commands[0][1:]).code == 0  # submitted again
    left = crcl(*table3(clips, tmp_path, "--print-jobs", "--seeds", "1", regions=False))
    assert left.out.splitlines() == answer.out.splitlines()[1:]
    gathered = crcl(*table3(clips, tmp_path, "--gather", "--seeds", "1", regions=False))
    assert gathered.code == 0
    assert "| CRCL | no features of regions are given |" in (tmp_path / "table3.md").read_text("utf-8")


def test_table3_without_pixels_says_how_to_make_them(crcl: Crcl, data: Path, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = crcl(*words("table3", data, out)[:6])
    assert answer.code == 2
    assert f"CLIP (ViT-L/14), zero-shot: reads the pixels of images for {LARGE}, but none are given" in answer.err
    assert (
        f"`crcl features` with --pixels makes for the model; or leave its rows out: --model {LARGE}=none" in answer.err
    )
    answer = crcl(*words("table3", data, out)[:6], "--pixels", str(clips / "pixels"))
    assert answer.code == 2
    assert f"{data} is no table that has some" in answer.err
    answer = crcl(*table3(clips, out, "--model", f"clip-vit-base-patch32={clips / 'base'}"))
    assert answer.code == 2
    assert f"model: no model 'clip-vit-base-patch32' (did you mean '{BASE}'?)" in answer.err
    answer = crcl(*table3(clips, out, "--set", "data.features=nowhere.npy"))  # not taken for no regions at all
    assert answer.code == 2
    assert "nowhere.npy" in answer.err
    assert not out.exists()


def test_without_its_models_table3_needs_no_pixels(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    none = ["--model", f"{LARGE}=none", "--model", f"{BASE}=none"]
    answer = crcl(*words("table3", data, tmp_path), *none, "--print-jobs")
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 2  # CRCL with two seeds
    crcl(*words("table3", data, tmp_path), *none, "--gather")
    assert "| CLIP (ViT-L/14), zero-shot | its model is left out |" in (tmp_path / "table3.md").read_text("utf-8")


def test_a_model_that_changes_is_another_run(clips: Path, tmp_path: Path) -> None:
    model = shutil.copytree(clips / "base", tmp_path / "base")
    (block, _) = Planner(
        experiments.profile("paper"),  # a table stands for MS-COCO 5K
        clips / "scenes" / "pairs.csv",
        seeds=1,
        pixels=clips / "pixels",
        models={LARGE: "none", BASE: str(model)},
    ).blocks(experiments.experiment("table3"))
    (trial,) = block.entries[1].trials
    assert (trial.split, trial.folds) == ("test", 1)
    config = trial.jobs[0].config
    before = job_key(config, "data")
    assert job_key(config, "data") == before
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert job_key(config, "data") != before
