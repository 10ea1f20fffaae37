"""Very many images: log-ratios from the images that an index finds and a sample of the others."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from crcl.errors import InputError
from crcl.methods.relink import RECORD, fold, linear, posterior, sampled, search
from crcl.methods.relink.inputs import Stored, unit
from crcl.methods.relink.linear import LinearModel, all_shown, divide
from crcl.methods.relink.posterior import Beliefs, Prior, Ratios

HIDDEN, SIZE = 16, 48
NONE = np.empty(0, np.int64)
needs_faiss = pytest.mark.skipif(not search.installed(), reason="faiss is not installed")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "IMAGES", 150)
    monkeypatch.setattr(fold, "CAPTIONS", 400)


class Made:
    """Vectors as `benchmarks/million.py` makes them: two noisy views of a hidden vector; some images change places."""

    def __init__(self, pairs: int = 3000, *, rate: float = 0.2, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        maps = rng.normal(size=(2, HIDDEN, SIZE))
        self.belongs = np.arange(pairs)  # the image of each caption
        wrong = np.sort(rng.permutation(pairs)[: round(rate * pairs)])
        self.belongs[wrong] = np.roll(wrong, 1)
        hidden = rng.normal(size=(pairs, HIDDEN))
        views = [hidden @ maps[0], hidden[self.belongs] @ maps[1]]
        sides = [unit(view + 0.7 * rng.normal(size=view.shape)).astype(np.float32) for view in views]
        self.right = self.belongs == np.arange(pairs)
        self.shown = divide(np.arange(pairs), NONE, folds=4, seed=0)
        self.model = LinearModel(Stored(sides[0]), Stored(sides[1]), self.shown, dimensions=HIDDEN)

    def exact(self, beliefs: Beliefs) -> tuple[Ratios, Prior]:
        projections = self.model.fit(beliefs)
        vectors = [self.model.fold_vectors(fold, one) for fold, one in enumerate(projections)]
        return linear.judge(vectors, self.shown)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    return Made()


def fold_of(made: Made) -> sampled.Fold:
    return fold.Fold(made.model, made.model.fit(all_shown(len(made.right)))[0], 0, seed=0)


@needs_faiss
def test_with_every_image_searched_and_every_caption_asked_the_numbers_are_the_exact_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(300)
    monkeypatch.setattr(posterior, "TEMPERATURES", (0.1,))
    monkeypatch.setattr(fold, "SURE", np.inf)
    monkeypatch.setattr(sampled, "FOUND", 300)
    monkeypatch.setattr(sampled, "FEWEST_CELLS", 1000)
    exact, prior = made.exact(all_shown(300))
    found, same_prior = sampled.judge(made.model, *made.model.fit_both(all_shown(300)))
    assert same_prior.rate == pytest.approx(prior.rate, abs=0.02)
    # the offsets differ: one leaves out the caption itself, the other the most similar one
    assert np.corrcoef(found.shown, exact.shown)[0, 1] > 0.99
    one, other = (posterior.beliefs(each, prior.rate, 300) for each in (found, exact))
    assert np.abs(one.shown - other.shown).mean() < 0.02
    sure = other.others[:, 0] > 0.2
    np.testing.assert_array_equal(found.images[sure, 0], exact.images[sure, 0])


@needs_faiss
def test_with_every_image_in_the_sample_the_exact_numbers_do_not_depend_on_what_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(300)
    monkeypatch.setattr(posterior, "TEMPERATURES", (0.1,))
    monkeypatch.setattr(fold, "IMAGES", 300)
    monkeypatch.setattr(sampled, "FOUND", 12)
    monkeypatch.setattr(fold, "SURE", np.inf)
    judged = []
    for cells in (1, 128):
        monkeypatch.setattr(sampled, "FEWEST_CELLS", cells)
        monkeypatch.setattr(sampled, "MOST_CELLS", cells)
        judged.append(sampled.judge(made.model, *made.model.fit_both(all_shown(300)))[0].shown)
    np.testing.assert_allclose(judged[0], judged[1], atol=1e-3)


@needs_faiss
def test_mismatched_captions_are_not_believed_and_find_their_images(made: Made) -> None:
    found, prior = sampled.judge(made.model, *made.model.fit_both(all_shown(3000)))
    beliefs = posterior.beliefs(found, prior.rate, 3000)
    assert prior.rate == pytest.approx(0.2, abs=0.02)
    assert beliefs.shown[made.right].mean() > 0.98
    assert beliefs.shown[~made.right].mean() < 0.03
    assert (beliefs.images[~made.right, 0] == made.belongs[~made.right]).mean() > 0.95
    assert beliefs.others[~made.right, 0].mean() > 0.4
    assert (found.images != np.arange(3000)[:, None]).all()
    assert ((found.images >= 0) & (found.images < 3000)).all()
    assert (beliefs.shown + beliefs.others.sum(1) < 1.05).all()


@needs_faiss
def test_beliefs_are_nearly_those_of_comparing_with_every_image(made: Made) -> None:
    exact, prior = made.exact(all_shown(3000))
    found, rough = sampled.judge(made.model, *made.model.fit_both(all_shown(3000)), near=prior.temperature)
    assert rough.rate == pytest.approx(prior.rate, abs=0.01)
    one, other = (posterior.beliefs(each, at.rate, 3000).shown for each, at in ((exact, prior), (found, rough)))
    assert np.abs(one - other).mean() < 0.01


@needs_faiss
def test_two_calls_give_the_same_numbers(made: Made) -> None:
    fits = made.model.fit_both(all_shown(3000))
    (one, prior), (other, same_prior) = (sampled.judge(made.model, *fits, seed=3) for _ in range(2))
    assert prior == same_prior
    for name, values in vars(one).items():
        np.testing.assert_array_equal(values, getattr(other, name))


def test_the_sum_over_images_is_unbiased_whatever_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(300)
    projections = made.model.fit(all_shown(300))[0]
    folds = [fold.Fold(made.model, projections, 0, seed=seed) for seed in range(200)]
    offsets = torch.zeros(300)
    captions = np.arange(20)
    logits = folds[0].texts[:20] @ folds[0].images.T / 0.1
    own = logits.gather(1, folds[0].shown[:20, None])[:, 0]
    expected = (logits.logsumexp(1) - own - np.log(300)).exp()  # the sum as a multiple of the shown image's term
    best = search.search_all(folds[0].images, folds[0].texts[:20], 9)
    partly = search.Best(best.similarities[:, 2::3], best.numbers[:, 2::3])
    for known in (None, best, partly):
        sums = [np.exp(-fold.judge(captions, 0.1, offsets, known).ratios.shown) for fold in folds]
        np.testing.assert_allclose(np.mean(sums, axis=0), expected, rtol=0.1)


def test_offsets_are_means_over_the_captions_asked_that_show_other_images(made: Made) -> None:
    own = fold_of(made)
    found = own.offsets(0.1)
    numbers = torch.cat([own.asked_show[:5], torch.tensor([7, 900])]).unique()
    some = own.offsets(0.1, numbers)
    assert some.isnan().sum() == 3000 - len(numbers)
    for number in numbers.tolist():
        terms = (own.images[number] @ own.asked.T / 0.1).double().exp()[own.asked_show != number].sort().values[:-1]
        assert found[number].item() == pytest.approx(float(terms.mean().log()), abs=1e-4)
        assert some[number].item() == pytest.approx(found[number].item(), abs=1e-5)


@needs_faiss
def test_captions_in_doubt_are_searched_for_and_more_cells_are_searched_until_most_are_found(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fold_of(made)
    candidates = sampled.Candidates(made.model, made.model.fit_all(all_shown(3000)))
    monkeypatch.setattr(sampled, "FEWEST_CELLS", 1)
    chosen = sampled.choose(own, candidates)
    assert 1 < chosen.cells < 2 * candidates.index.cells
    assert chosen.recall >= sampled.RECALL or chosen.cells >= candidates.index.cells
    doubtful = own.judge(np.arange(len(own.rows)), chosen.temperature, own.offsets(chosen.temperature)).doubtful
    assert doubtful[~made.right[own.rows]].mean() > 0.95


@needs_faiss
def test_an_index_that_looks_into_all_cells_finds_what_comparing_with_all_images_finds(made: Made) -> None:
    own = fold_of(made)
    index = search.Index(own.images, seed=5)
    found, exact = index.search(own.texts, 8, cells=index.cells), search.search_all(own.images, own.texts, 8)
    np.testing.assert_allclose(found.similarities, exact.similarities, atol=5e-4)  # they are kept as float16
    assert (found.numbers == exact.numbers).float().mean() > 0.97
    few = index.search(own.texts[:3], 3000, cells=1)
    assert (few.numbers[:, -1] == -1).all()
    assert few.similarities[:, -1].isneginf().all()


@needs_faiss
def test_candidates_are_ordered_by_the_judge_of_the_fold(made: Made) -> None:
    own, captions = fold_of(made), np.arange(40)
    found = sampled.Candidates(made.model, made.model.fit_all(all_shown(3000))).find(own, captions, cells=128)
    exact = search.search_all(own.images, own.texts[:40], 5)
    sims = (own.texts[:40, None] * own.images[found.numbers]).sum(2)
    torch.testing.assert_close(found.similarities, sims)
    assert (found.similarities.diff(dim=1) <= 0).all()
    assert (found.numbers[:, :5] == exact.numbers).float().mean() > 0.95


def test_the_first_round_judges_only_what_fits_read_and_believes_right_captions_more(made: Made) -> None:
    model = LinearModel(made.model.images, made.model.texts, made.shown, dimensions=HIDDEN, most=1200)
    assert model.read.sum() == 1200
    projections, found, prior = sampled.run_round(model, all_shown(3000), last=False, seed=1)
    beliefs = posterior.beliefs(found, prior.rate, 3000)
    assert len(projections) == 4
    assert (beliefs.shown[~model.read] == 1).all()
    assert not beliefs.others.any()
    read, wrong = model.read & made.right, model.read & ~made.right
    assert beliefs.shown[read].mean() > 0.9
    assert beliefs.shown[wrong].mean() < 0.3


@needs_faiss
def test_a_model_fitted_on_a_sample_finds_the_images_of_mismatched_captions(made: Made) -> None:
    model = LinearModel(made.model.images, made.model.texts, made.shown, dimensions=HIDDEN, most=1200)
    _, found, prior = sampled.run_round(model, all_shown(3000), last=False)
    told = posterior.beliefs(found, prior.rate, 3000)
    _, found, prior = sampled.run_round(model, told, last=True, near=prior.temperature)
    beliefs = posterior.beliefs(found, prior.rate, 3000)
    assert prior.rate == pytest.approx(0.2, abs=0.02)
    assert beliefs.shown[made.right].mean() > 0.97
    assert beliefs.shown[~made.right].mean() < 0.05
    assert (beliefs.images[~made.right, 0] == made.belongs[~made.right]).mean() > 0.9


def test_without_faiss_very_many_images_are_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"100,001 images needs the package faiss; pip install 'crcl\[search\]'"):
        search.library(sampled.EXACT + 1)
    assert not search.installed()
    assert RECORD.able(sampled.EXACT)
    assert not RECORD.able(sampled.EXACT + 1)
