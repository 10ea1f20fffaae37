"""An ensemble: the mean of its members' similarities, each encoded and scored once."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import small_config, write_folder
from torch import Tensor, nn

from crcl.errors import InputError
from crcl.matchers import SAF, SGR, Bow, Encoded, Ensemble
from crcl.matchers.ensemble import shares_of
from crcl.retrieval.opening import open_scorer
from crcl.training import inputs, session

SIZES = {"features": 6, "vocabulary": 12, "embedding": 8, "word": 5}


def local(kind: type[SAF] | type[SGR]) -> nn.Module:
    return kind(**SIZES, regions=4, similarity=6).eval()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    lengths = torch.tensor([5, 3])
    return torch.randn(3, 4, 6), torch.ones(3, 4, dtype=torch.bool), torch.randint(1, 12, (2, 5)), lengths


def test_the_ensembles_similarity_is_the_mean_of_its_members(batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    members = [local(SAF), local(SGR)]
    both = Ensemble(members)
    sims = both.similarity(both.encode_images(*batch[:2]), both.encode_texts(*batch[2:]))
    apart = [m.similarity(m.encode_images(*batch[:2]), m.encode_texts(*batch[2:])) for m in members]
    torch.testing.assert_close(sims, (apart[0] + apart[1]) / 2)


def test_shares_weigh_the_members_and_are_saved_with_them(
    batch: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    members = [local(SAF), local(SGR)]
    weighted = Ensemble(members, shares=torch.tensor([0.75, 0.25]))
    sims = weighted.similarity(weighted.encode_images(*batch[:2]), weighted.encode_texts(*batch[2:]))
    apart = [m.similarity(m.encode_images(*batch[:2]), m.encode_texts(*batch[2:])) for m in members]
    torch.testing.assert_close(sims, 0.75 * apart[0] + 0.25 * apart[1])
    assert weighted.state_dict()["shares"].tolist() == [0.75, 0.25]
    assert "shares" not in Ensemble(members).state_dict()
    assert shares_of(weighted) == [0.75, 0.25]
    assert shares_of(Ensemble(members)) == [0.5, 0.5]
    assert shares_of(members[0]) == [1.0]  # type: ignore[arg-type]


def test_joined_encodings_are_those_of_the_whole(batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    both = Ensemble([local(SAF), local(SGR)])
    images = both.encode_images(*batch[:2])
    joined = Encoded.join(
        [both.encode_images(batch[0][:1], batch[1][:1]), both.encode_images(batch[0][1:], batch[1][1:])]
    )
    assert len(joined) == len(images) == 3
    for one, other in zip(joined.members, images.members, strict=True):
        torch.testing.assert_close(one.features, other.features)
        torch.testing.assert_close(one.pooled, other.pooled)


def test_members_share_no_memory_though_they_were_given_the_same_word_weights() -> None:
    weights = torch.ones(12)
    one, other = (Bow(**SIZES, word_weights=weights) for _ in range(2))
    assert one.word_weights.data_ptr() != other.word_weights.data_ptr()


def test_an_ensemble_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])


def two_networks(path: Path, **more: Tensor) -> Path:
    """A run whose networks are twice the same one, with more weights beside theirs."""
    run = session.train(small_config(write_folder(path / "data")), path / "run")
    weights = run.load_matcher()
    run.save_matcher({f"members.{n}.{name}": value.clone() for n in (0, 1) for name, value in weights.items()} | more)
    about = json.loads((run.path / "config.json").read_text("utf-8"))
    about["sizes"]["networks"] = 2
    (run.path / "config.json").write_text(json.dumps(about), "utf-8")
    return run.path


def test_a_run_of_two_networks_opens_as_their_ensemble(tmp_path: Path) -> None:
    opened, config, scorer = open_scorer(two_networks(tmp_path))
    assert opened.networks == 2
    assert isinstance(scorer.matcher, Ensemble)
    assert all(isinstance(member, Bow) for member in scorer.matcher.members)
    assert np.isfinite(scorer.similarities(inputs.open_pairs(config).split("test"))).all()


@pytest.mark.parametrize("shares", [[0.7, 0.7], [1.5, -0.5], [1.0], [1, 0, 0]])
def test_shares_that_are_none_are_refused_when_a_run_is_opened(tmp_path: Path, shares: list[float]) -> None:
    path = two_networks(tmp_path, shares=torch.tensor(shares))
    with pytest.raises(InputError, match=r"(?s)matcher.safetensors: does not fit its config.json: .*shares"):
        open_scorer(path)


def test_the_shares_of_a_run_are_those_it_was_saved_with(tmp_path: Path) -> None:
    scorer = open_scorer(two_networks(tmp_path, shares=torch.tensor([0.25, 0.75])))[2]
    assert shares_of(scorer.matcher) == [0.25, 0.75]
