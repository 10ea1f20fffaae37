"""The snippets of the design and the examples in docstrings run as written, on drawn scenes and a small CLIP."""

import doctest
import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_clip import draw_scenes, save_clip, teach

import crcl
from crcl import config
from crcl.training import session

pytestmark = pytest.mark.slow

AUDITING = """
import crcl

audit = crcl.audit("pairs.csv", images="photos", model="openai/clip-vit-base-patch32")   # all in one, as the command
audit.rate, audit.precision, audit.recall       # estimates with intervals
audit.to_pandas(); audit.report("report"); audit.clean("cleaned.csv")
"""
TRAINING = """
pairs = crcl.read("pairs.csv", images="photos")  # any layout; also a DataFrame, a datasets.Dataset, or lists
run = crcl.train(pairs, "runs/mine", matcher="sgr", method="crcl", noise=0.4)
crcl.evaluate(run, split="test").rsum
model = crcl.load("runs/mine")                   # raw photos and sentences in, numbers out
similarity = model.similarity(["a.jpg", "b.jpg"], ["two dogs", "a red car"])

from crcl.losses import active_complementary     # and the loss and the ledger in anybody's own loop
from crcl.ledger import Ledger
"""
SMALL = ["matcher.embedding=16", "matcher.word=8", "matcher.similarity=8", "train.pieces=[1,3]", "train.device=cpu"]
"""In place of the defaults, which are the paper's and take an hour."""
MODULES = [
    "api.reading", "api.auditing", "api.reviewing", "api.scoring", "api.searching", "api.serving", "api.studies",
    "api.training", "auditing.result", "data.pairs", "errors", "experiments.reproduce", "progress",
    "retrieval.index.folder", "retrieval.index.hits", "retrieval.model",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with `pairs.csv`, `photos`, two more photos and a CLIP, in which the snippets have run."""
    home, before = tmp_path_factory.mktemp("documented"), Path.cwd()
    os.chdir(home)
    shutil.copy(draw_scenes(Path("scenes"), train=44), "pairs.csv")
    shutil.copytree("scenes/images", "photos")
    teach(save_clip(Path("openai/clip-vit-base-patch32")), Path("pairs.csv"), Path("photos"))
    lines = Path("pairs.csv").read_text("utf-8").splitlines()  # every fifth of the first captions gets another image
    images = [line.partition(",")[0] for line in lines[1:81:5]]
    for row, image in zip(range(1, 81, 5), [*images[1:], images[0]], strict=True):
        lines[row] = f"{image},{lines[row].partition(',')[2]}"
    Path("pairs.csv").write_text("\n".join(lines) + "\n", "utf-8")
    for name, photo in zip(("a.jpg", "b.jpg"), sorted(Path("photos").iterdir()), strict=False):
        Image.open(photo).save(name)
    defaults = config.load(settings=SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "load", lambda **given: config.load(**{"over": defaults, **given}))
        yield home
    os.chdir(before)


@pytest.fixture(scope="module")
def scope(folder: Path) -> dict[str, Any]:
    """What the names of the snippets stand for after they have run."""
    names: dict[str, Any] = {}
    exec(AUDITING, names)
    exec(TRAINING, names)
    return names


def test_the_snippets_of_the_design_run_as_written(scope: dict[str, Any]) -> None:
    assert scope["audit"].rate.low <= scope["audit"].rate <= scope["audit"].rate.high
    assert Path("report/index.html").is_file()
    assert Path("cleaned.csv").is_file()
    assert scope["similarity"].shape == (2, 2)
    assert crcl.evaluate(scope["run"], split="test").rsum > 0


class AnyNumbers(doctest.OutputChecker):
    """Numbers stand for any numbers: they depend on the machine, all else must be as it is shown.

    Of the few pairs here, an estimate with an interval may be None.
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        want, got = (" ".join(re.sub(r"-?\d+(\.\d*)?(e-?\d+)?", "#", text).split()) for text in (want, got))
        want, got = (re.sub(r"# \(# to #\)|\bNone\b", "#", text) for text in (want, got))
        return want == got or (want.startswith("array(") and got.startswith("array("))


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_run_and_print_what_they_show(module: str, scope: dict[str, Any]) -> None:
    loaded = importlib.import_module(f"crcl.{module}")
    examples = [test for test in doctest.DocTestFinder().find(loaded, extraglobs={"crcl": crcl}) if test.examples]
    assert examples
    said: list[str] = []
    runner = doctest.DocTestRunner(checker=AnyNumbers())
    for test in examples:
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_every_public_function_has_an_example_that_runs() -> None:
    for name in crcl.__all__:
        public = getattr(crcl, name)
        if callable(public) and not isinstance(public, type):
            assert ">>> " in (public.__doc__ or ""), name
            assert "+SKIP" not in (public.__doc__ or ""), name
