"""A method and a matcher are known by one record each: a new one is added here and used from end to end."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import SMALL, call, small_config, write_folder
from torch import Tensor, nn

import crcl
from crcl import config
from crcl.errors import InputError
from crcl.experiments.keys import is_read, job_key
from crcl.losses import info_nce
from crcl.matchers import MATCHERS, BuildContext, Encoded, MatcherRecord, MatcherSettings
from crcl.matchers.base import inner_products, l2
from crcl.methods import METHODS, MethodRecord
from crcl.methods.base import Learner, Plan
from crcl.methods.plain import Objective
from crcl.methods.settings import LossSettings
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.settings import Positive, Section, ShareBelowOne
from crcl.training import inputs, session

SOURCE = Path(crcl.__file__).parent


class SoftSettings(Section):
    """InfoNCE at a temperature of its own."""

    warmth: Positive = 2.0
    """Factor of the temperature."""
    threshold: ShareBelowOne = 0.25
    """Below this a pair is taken as mismatched."""


def build(
    *, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, soft: SoftSettings
) -> Objective:
    tau = soft.warmth * loss.tau
    return Objective(make_learner(), lambda sims: info_nce(sims, tau=tau), pairs, tau=tau)


SOFT = MethodRecord(
    name="soft",
    summary="InfoNCE at a higher temperature",
    build=build,
    sections={"loss": LossSettings, "soft": SoftSettings},
    threshold="soft.threshold",
    refuses=lambda matcher: "" if matcher.bounded else f"similarities of {matcher.name} have no bounds",
    contradictions=lambda *, pieces, loss, soft: ["soft.warmth: too hot"] if soft.warmth * loss.tau > 1 else [],
)


class MeanSettings(MatcherSettings):
    """Slope of the means."""

    slope: Positive = 1.0
    """Factor of the vectors before they are compared (mean)."""


class Mean(nn.Module):
    """The mean region and the mean word, each projected once."""

    def __init__(self, *, features: int, vocabulary: int, embedding: int, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.image = nn.Linear(features, embedding)
        self.words = nn.Embedding(vocabulary, embedding, padding_idx=0)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(l2(self.image(regions.mul(mask[..., None]).sum(1))) * self.slope)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        real = torch.arange(tokens.shape[1]) < lengths[:, None]
        return Encoded(l2(self.words(tokens).mul(real[..., None]).sum(1)))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


def make(settings: MeanSettings, context: BuildContext) -> Mean:
    features, vocabulary = context.sizes["features"], context.sizes["vocabulary"]
    return Mean(features=features, vocabulary=vocabulary, embedding=settings.embedding, slope=settings.slope)


MEAN = MatcherRecord(name="mean", summary="mean region, mean word", kind=Mean, make=make, settings=MeanSettings)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "soft", SOFT)
    monkeypatch.setitem(MATCHERS, "mean", MEAN)


TOY = ["method=soft", "matcher.name=mean", "soft.warmth=1.5", "matcher.slope=0.5", "soft.threshold=0.3"]


@pytest.mark.usefixtures("added")
def test_an_added_method_and_matcher_are_trained_and_evaluated_by_the_library(tmp_path: Path) -> None:
    chosen = small_config(write_folder(tmp_path / "data"), *TOY)
    run = session.train(chosen, tmp_path / "run")
    assert len(run.metrics()) == 2  # the last piece only
    _, stored, scorer = open_scorer(run.path)
    assert stored == chosen
    assert isinstance(scorer.matcher, Mean)
    assert scorer.matcher.slope == 0.5
    assert evaluate([scorer], inputs.open_pairs(stored).split("test")).rsum > 0
    assert stored.own_threshold() == 0.3


@pytest.mark.usefixtures("added")
def test_an_added_method_and_matcher_are_trained_evaluated_and_audited_by_the_api(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = crcl.train(data, tmp_path / "run", method="soft", matcher="mean", noise=0.4, settings=[*SMALL[1:], *TOY[2:]])
    assert crcl.evaluate(run).rsum > 0
    found = crcl.audit(run)
    assert found.threshold == 0.3
    assert found.detection is not None
    assert crcl.load(run).config.matcher.name == "mean"


@pytest.mark.usefixtures("added")
def test_an_added_method_and_matcher_are_trained_evaluated_and_audited_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = write_folder(tmp_path / "data"), tmp_path / "run"
    settings = [word for setting in [*SMALL, *TOY] for word in ("--set", setting)]
    commands = (
        ["train", str(data), "-o", str(run), *settings, "--method", "soft", "--matcher", "mean", "--noise", "0.4"],
        ["evaluate", str(run)],
        ["audit", str(run)],
        ["info", str(run)],
        ["export", str(run)],
    )
    said = {}
    for words in commands:
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 0, (words, answer.err)
        said[words[0]] = answer.out
    assert "At threshold 0.3, " in said["audit"]
    assert "soft on mean" in said["info"]


@pytest.mark.usefixtures("added")
def test_settings_of_added_records_are_described_checked_and_part_of_what_a_run_is_known_by() -> None:
    assert {row.key: row.description for row in config.describe_keys()}["soft.warmth"] == "Factor of the temperature."
    with pytest.raises(InputError) as caught:
        config.load(settings=["soft.warmht=1", "matcher.slope=0", "method=sof"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "soft.warmht: unknown key (did you mean 'soft.warmth'?)"
    assert lines[1].endswith("got 'sof' (did you mean 'soft'?)")
    assert lines[2] == "matcher.slope: must be greater than 0, got 0"
    with pytest.raises(InputError, match="too hot"):
        config.load(settings=["method=soft", "soft.warmth=100"])
    with pytest.raises(InputError, match="method soft does not go with matcher scan: similarities of scan have no"):
        config.load(settings=["method=soft", "matcher.name=scan"])
    assert is_read("soft.warmth", "soft", "mean")
    assert not is_read("soft.warmth", "infonce", "mean")
    assert not is_read("matcher.slope", "soft", "vse")
    keys = {job_key(config.load(settings=["method=soft", f"soft.warmth={warmth}"]), "") for warmth in (1.0, 3.0)}
    assert len(keys) == 2


def test_what_is_added_changes_no_run_key_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = job_key(config.load(), "")
    monkeypatch.setitem(METHODS, "soft", SOFT)
    monkeypatch.setitem(MATCHERS, "mean", MEAN)
    assert job_key(config.load(), "") == before
    assert "soft" in config.to_dict(config.load())
    monkeypatch.undo()
    assert "soft" not in config.to_dict(config.load())


def test_a_section_of_another_method_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "soft", MethodRecord(name="soft", summary="", build=build, sections={"gsc": Section}))
    with pytest.raises(ValueError, match="method soft declares section 'gsc' with another class"):
        config.load()


def test_records_are_called_as_their_tables_call_them() -> None:
    assert [record.name for record in METHODS.values()] == list(METHODS)
    assert [record.name for record in MATCHERS.values()] == list(MATCHERS)
    assert all(record.summary for record in (*METHODS.values(), *MATCHERS.values()))


OTHER_MEANINGS = {"crcl", "complementary", "clip"}
"""Names that are also those of the package, of a part of the loss, and of a kind of published model."""
DECLARED = {Path("experiments/demo.py")}
"""An experiment names the methods that it compares."""


@pytest.mark.parametrize("name", sorted(set(METHODS) - OTHER_MEANINGS))
def test_a_methods_name_occurs_in_its_own_file_and_the_table_only(name: str) -> None:
    """Whoever needs to know something of a method asks its record."""
    own = Path(inspect.getfile(METHODS[name].build)).relative_to(SOURCE)
    quoted = re.compile(rf"""["']{name}(\.\w+)?["']""")
    naming = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if quoted.search(path.read_text("utf-8"))}
    assert naming - DECLARED == {own, Path("methods/__init__.py")}
