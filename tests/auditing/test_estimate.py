"""Decoys: known mismatches that are trained on, left out of what is written, and tell how sure an audit is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from tiny import Noting, small_config, write_folder

from crcl.auditing import estimate as decoys
from crcl.auditing.scores.rating import Rating
from crcl.auditing.scores.resampling import share_interval
from crcl.auditing.thresholds import Choice, Correspondences, choose_threshold
from crcl.data import decoys as drawn_decoys
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.progress import SILENT
from crcl.runs.folder import Run
from crcl.training import session
from crcl.training.inputs import read_data

Tiny = Callable[..., Split]


def test_a_decoy_is_a_caption_with_an_image_that_it_is_not_shown_with(tiny: Tiny) -> None:
    pairs = tiny(images=7, captions=5)
    drawn = drawn_decoys.draw(pairs, 0.4, seed=3)
    assert drawn.shape == (14, 2)
    assert len(np.unique(drawn[:, 0])) == 14
    assert (pairs.image_index[drawn[:, 0]] != drawn[:, 1]).all()
    assert set(drawn[:, 1]) <= set(range(7))
    assert (drawn_decoys.draw(pairs, 0.4, seed=3) == drawn).all()
    assert (drawn_decoys.draw(pairs, 0.4, seed=4) != drawn).any()


def test_a_decoy_is_no_pair_of_the_data_where_captions_say_the_same(tiny: Tiny) -> None:
    pairs = tiny(images=20, captions=5)
    texts = [f"text {number % 7}" for number in range(100)]
    texts[:20] = ["shown with all"] * 20
    shown = np.concatenate([np.arange(20), pairs.image_index[20:]])
    same = replace(pairs, captions=texts, image_index=shown)
    drawn = drawn_decoys.draw(same, 0.9, seed=1)
    real = set(zip(texts, shown.tolist(), strict=True))
    decoy = [(texts[caption], image) for caption, image in drawn.tolist()]
    assert not {pair for pair in decoy if pair[0] != "shown with all"} & real
    assert (same.image_index[drawn[:, 0]] != drawn[:, 1]).all()
    assert (drawn_decoys.draw(same, 0.9, seed=1) == drawn).all()


def test_decoys_link_few_images_with_each_other(tiny: Tiny) -> None:
    pairs = replace(tiny(images=100, captions=5), captions=[f"text {number}" for number in range(500)])
    drawn = drawn_decoys.draw(pairs, 0.5, seed=3)
    linked = coo_array((np.ones(len(drawn)), (pairs.image_index[drawn[:, 0]], drawn[:, 1])), shape=(100, 100))
    _, group_of = connected_components(linked, directed=False)
    assert np.bincount(group_of).max() <= 17


def test_every_other_image_can_be_drawn(tiny: Tiny) -> None:
    pairs = tiny(images=4, captions=500)
    drawn = drawn_decoys.draw(pairs, 1.0, seed=0)
    counts = np.zeros((4, 4), dtype=int)
    np.add.at(counts, (pairs.image_index[drawn[:, 0]], drawn[:, 1]), 1)
    assert (np.diag(counts) == 0).all()
    assert (counts[~np.eye(4, dtype=bool)] > 120).all()  # 167 expected


def test_decoys_stand_behind_the_pairs(tiny: Tiny) -> None:
    pairs = replace(tiny(images=5, captions=2), truth=np.ones(10, dtype=bool))
    both = drawn_decoys.add(pairs, np.array([[3, 4], [0, 1]]))
    assert list(both.captions) == [*pairs.captions, pairs.captions[3], pairs.captions[0]]
    assert both.image_index.tolist() == [*pairs.image_index.tolist(), 4, 1]
    assert both.caption_rows is not None
    assert both.caption_rows[-2:].tolist() == [3, 0]
    assert both.truth is not None
    assert both.truth.tolist() == [True] * 10 + [False] * 2


def test_a_training_believes_in_decoys_as_in_pairs_and_writes_of_pairs_only(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    config = small_config(data, "data.decoys=0.25")
    run = session.train(config, tmp_path / "run")
    assert run.sizes["pairs"] == 48
    assert run.load_ledger().shape == (48,)
    beliefs = run.load_decoy_ledger()
    assert beliefs.shape == (12,)
    assert ((beliefs > 0) & (beliefs < 1)).all()
    assert sum(run.metrics()[-1]["beliefs"]) == 48
    again = read_data(config, Run.open(tmp_path / "run"))
    assert len(again.train) == 60
    assert again.decoys is not None
    assert (again.train.image_index[48:] == again.decoys[:, 1]).all()


def test_without_decoys_nothing_is_different(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = session.train(small_config(data), tmp_path / "run")
    assert run.decoys() is None
    assert len(run.load_decoy_ledger()) == 0


def test_a_training_goes_on_from_a_run_with_the_same_decoys_only(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    first = session.train(small_config(data, "data.decoys=0.25"), tmp_path / "first")
    said: list[str] = []
    start = {"train.start": str(tmp_path / "first")}
    second = session.train(small_config(data, "data.decoys=0.25", **start), tmp_path / "second", progress=Noting(said))
    begun = second.load_start()
    assert begun is not None
    assert begun.beliefs is not None
    np.testing.assert_array_equal(begun.beliefs, np.concatenate([first.load_ledger(), first.load_decoy_ledger()]))
    assert said == ["training on 48 pairs and 12 decoys (known mismatches)"]
    said.clear()
    third = session.train(small_config(data, **start), tmp_path / "third", progress=Noting(said))
    begun = third.load_start()
    assert begun is not None
    assert begun.beliefs is None
    assert "decoys" in said[0]


def test_decoys_need_a_second_image(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=1, captions=2)
    with pytest.raises(InputError, match="one image"):
        session.train(small_config(data, "data.decoys=0.5", "noise.rate=0"), tmp_path / "run")


def mixture(rng: np.random.Generator, rate: float, *, pairs: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Beliefs in pairs of which so many are mismatched, and which those are."""
    wrong = rng.random(pairs) < rate
    return np.where(wrong, rng.beta(1, 12, pairs), rng.beta(6, 2, pairs)), wrong


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.2, 0.4, 0.6, 0.8])
def test_the_rate_of_a_known_mixture_is_found_and_the_interval_holds_it(rate: float) -> None:
    rng = np.random.default_rng(round(100 * rate))
    errors, held = [], 0
    for _ in range(20):
        beliefs, wrong = mixture(rng, rate)
        found = decoys.estimate(beliefs, rng.beta(1, 12, 1000))
        errors.append(found.rate - wrong.mean())
        held += found.low <= wrong.mean() <= found.high
    assert abs(np.mean(errors)) < 0.015
    assert np.quantile(np.abs(errors), 0.9) < 0.055
    assert held >= 16  # of 20; 19 expected


def test_where_matches_are_disbelieved_too_the_rate_is_read_off_lower_down() -> None:
    rng = np.random.default_rng(4)
    gains = []
    for _ in range(10):
        wrong = rng.random(20_000) < 0.3
        beliefs, known = np.where(wrong, rng.beta(1, 12, 20_000), rng.beta(1.5, 4, 20_000)), rng.beta(1, 12, 3000)
        usual = (beliefs <= np.quantile(known, 0.6)).mean() / 0.6
        assert usual > 0.38  # the bound is far from tight there
        gains.append(usual - decoys.estimate(beliefs, known).rate)
    assert np.mean(gains) > 0.03


def test_precision_and_recall_are_those_of_the_truth() -> None:
    rng = np.random.default_rng(5)
    beliefs, wrong = mixture(rng, 0.2, pairs=100_000)
    found = decoys.estimate(beliefs, rng.beta(1, 12, 20_000))
    for threshold in (0.05, 0.1, 0.3, 0.5):
        flagged = found.at(threshold)
        below = beliefs < threshold
        np.testing.assert_allclose(flagged.precision, wrong[below].mean(), atol=0.05)
        np.testing.assert_allclose(flagged.recall, below[wrong].mean(), atol=0.05)
        np.testing.assert_allclose(flagged.count, below.sum(), rtol=0.05)


def test_without_mismatches_almost_none_is_estimated() -> None:
    rng = np.random.default_rng(0)
    found = decoys.estimate(rng.beta(6, 2, 20_000), rng.beta(1, 12, 1000))
    assert found.rate < 0.005


def test_where_nothing_is_told_apart_all_pairs_may_be_mismatched() -> None:
    rng = np.random.default_rng(0)
    found = decoys.estimate(rng.beta(1, 12, 20_000), rng.beta(1, 12, 1000))
    assert found.rate > 0.9
    assert found.high > 0.97


def test_what_is_kept_is_as_clean_as_the_estimate_says() -> None:
    rng = np.random.default_rng(3)
    pairs, wrong = mixture(rng, 0.3)
    truth = ~wrong
    found = decoys.estimate(pairs, rng.beta(1, 12, 4000))
    kept = found.kept()
    for threshold in (0.05, 0.2, 0.5):
        place = int(np.argmin(np.abs(kept.thresholds - threshold)))
        above = pairs >= kept.thresholds[place]
        assert kept.share[place] == pytest.approx(above.mean(), abs=1e-9)
        assert kept.wrong[place] == pytest.approx((~truth[above]).mean(), abs=0.02)
    chosen = found.at_wrong(0.05)
    assert chosen is not None
    left = pairs >= chosen
    assert (~truth[left]).mean() == pytest.approx(0.05, abs=0.02)
    assert found.at_wrong(1e-9) is None or (~truth[pairs >= found.at_wrong(1e-9)]).mean() < 0.01
    assert found.at_wrong(0.9) == found.thresholds[0]  # nothing need be flagged


def test_a_choice_by_what_is_kept_flags_the_rest() -> None:
    rng = np.random.default_rng(3)
    pairs, _ = mixture(rng, 0.3, pairs=5000)
    found = Correspondences(pairs, decoys.estimate(pairs, rng.beta(1, 12, 1000)))
    how: dict[str, Any] = {"own": 0.5, "method": "relink", "progress": SILENT}
    threshold = choose_threshold(found, Choice(keep=0.3), **how)
    assert (pairs >= threshold).mean() == pytest.approx(0.3, abs=0.001)
    threshold = choose_threshold(found, Choice(wrong_at_most=0.1), **how)
    assert threshold == found.estimate.at_wrong(0.1)
    with pytest.raises(InputError, match=r"keep and precision are given|precision and keep are given"):
        Choice(precision=0.9, keep=0.5)
    with pytest.raises(InputError, match="keep must be between 0 and 1"):
        Choice(keep=1.5)
    with pytest.raises(InputError, match="estimated from decoys"):
        choose_threshold(Correspondences(pairs), Choice(wrong_at_most=0.1), **how)


@pytest.mark.parametrize("choice", [Choice(precision=0.9), Choice(wrong_at_most=0.1)])
def test_why_the_decoys_allow_no_estimate_is_told(choice: Choice) -> None:
    how: dict[str, Any] = {"own": None, "method": "relink", "progress": SILENT}
    with pytest.raises(InputError, match="and this run has none"):
        choose_threshold(Correspondences(np.ones(9)), choice, **how)
    high = Correspondences(np.ones(9), unsure="the decoys are high", ratings={"belief": Rating(0.5, 0.01)})
    with pytest.raises(InputError, match="cannot be estimated: the decoys are high") as told:
        choose_threshold(high, choice, **how)
    assert told.value.hint == "give a {threshold}"  # more decoys would be as high
    with pytest.raises(InputError, match="cannot be estimated: 3 are too few") as told:
        choose_threshold(Correspondences(np.ones(9), unsure="3 are too few"), choice, **how)
    assert told.value.hint == "train with more {decoys}, or give a {threshold}"


def test_a_threshold_is_found_by_its_precision() -> None:
    rng = np.random.default_rng(1)
    beliefs, wrong = mixture(rng, 0.2)
    found = decoys.estimate(beliefs, rng.beta(1, 12, 1000))
    lax, strict = (found.at_precision(precision) for precision in (0.7, 0.95))
    assert lax is not None
    assert strict is not None
    assert strict < lax
    assert wrong[beliefs < strict].mean() > 0.88
    assert found.at_precision(1.01) is None
    assert 0.1 < found.best_f1() < 0.6


def test_beliefs_that_are_all_the_same_end_without_warnings() -> None:
    found = decoys.estimate(np.full(100, 0.5, dtype=np.float32), np.full(30, 0.5, dtype=np.float32))
    assert found.rate == 1.0
    assert found.at(0.1).count == 0


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "known", "rate"), [(116, 29, 0.05), (500, 50, 0.02), (2000, 100, 0.01)])
def test_none_seen_is_not_none(pairs: int, known: int, rate: float) -> None:
    rng = np.random.default_rng(pairs)
    for _ in range(60):
        beliefs, _ = mixture(rng, rate, pairs=pairs)
        found = decoys.estimate(beliefs, rng.beta(1, 12, known))
        assert found.high > rate / 4  # the rate of a sample is itself by chance
        assert found.high - found.low > 1 / pairs


def test_decoys_that_are_believed_as_pairs_are_say_nothing() -> None:
    rng = np.random.default_rng(0)
    assert not decoys.distinguishable(np.ones(100), np.ones(30))
    assert not decoys.distinguishable(rng.random(3000), rng.random(1000))
    assert decoys.distinguishable(*mixture(rng, 0.2)[:1], rng.beta(1, 12, 100))


def test_mismatches_that_are_nearly_right_are_not_counted_and_recall_is_overestimated() -> None:
    rng = np.random.default_rng(0)
    nearly, plainly, right = rng.beta(6, 2, 2000), rng.beta(1, 12, 2000), rng.beta(6, 2, 16_000)
    found = decoys.estimate(np.concatenate([nearly, plainly, right]), rng.beta(1, 12, 1000))
    assert 0.08 < found.rate < 0.12  # 0.2 are wrong
    at = found.best_f1()
    assert found.at(at).recall > (np.concatenate([nearly, plainly]) < at).mean() + 0.3


def test_decoys_that_are_right_raise_the_rate_and_lower_recall_and_leave_precision() -> None:
    rng = np.random.default_rng(0)
    wrong, right = rng.beta(1, 12, 4000), rng.beta(6, 2, 16_000)
    known = np.concatenate([rng.beta(1, 12, 700), rng.beta(6, 2, 300)])
    found = decoys.estimate(np.concatenate([wrong, right]), known)
    assert 0.25 < found.rate < 0.32  # 0.2 are wrong
    at = found.best_f1()
    flagged = (wrong < at).sum(), (right < at).sum()
    assert found.at(at).recall < flagged[0] / len(wrong) - 0.2
    assert abs(found.at(at).precision - flagged[0] / sum(flagged)) < 0.1


@pytest.mark.slow
def test_the_interval_of_precision_holds_the_truth_and_is_narrower_with_more_decoys() -> None:
    rng = np.random.default_rng(0)
    held, widths = [], []
    for known in [100] * 20 + [5000] * 20:
        wrong, right = rng.beta(1, 12, 800), rng.beta(3, 2, 3200)
        found = decoys.estimate(np.concatenate([wrong, right]).astype(np.float32), rng.beta(1, 12, known))
        interval = found.precision_interval(0.3)
        assert interval is not None
        low, high = interval
        held.append(low <= (wrong < 0.3).sum() / ((wrong < 0.3).sum() + (right < 0.3).sum()) <= high)
        widths.append(high - low)
    assert np.mean(held) >= 0.85
    assert np.mean(widths[20:]) < 0.8 * np.mean(widths[:20])


def test_nothing_flagged_has_no_interval_of_precision() -> None:
    rng = np.random.default_rng(0)
    found = decoys.estimate(rng.beta(6, 2, 500) + 0.01, rng.beta(1, 12, 50))
    assert found.precision_interval(0.0) is None
    assert np.isnan(found.at(0.0).precision)


@pytest.mark.parametrize("rate", [0.002, 0.003, 0.0075])
def test_few_mismatches_of_many_pairs_are_flagged_without_as_many_others(rate: float) -> None:
    rng = np.random.default_rng(0)
    wrong = np.arange(100_000) < rate * 100_000
    beliefs = np.where(wrong, rng.beta(1, 40, 100_000), rng.beta(40, 2, 100_000))
    found = decoys.estimate(beliefs, rng.beta(1, 40, 5000))
    flagged = beliefs < found.best_f1()
    assert wrong[flagged].mean() > 0.9
    assert flagged[wrong].mean() > 0.9
    precise = found.at_precision(0.9)
    assert precise is not None
    assert wrong[beliefs < precise].mean() > 0.85


@pytest.mark.parametrize("threshold", [0.3, 0.45])
def test_what_is_expected_at_a_threshold_is_of_the_pairs_below_it_not_below_the_next_one_to_choose(threshold) -> None:
    rng = np.random.default_rng(0)
    beliefs = np.concatenate([rng.beta(1, 40, 60), rng.beta(40, 2, 20_000)])
    found = decoys.estimate(beliefs, rng.beta(1, 40, 1000))
    assert not ((found.thresholds > 0.25) & (found.thresholds <= threshold)).any()
    flagged = found.at(threshold)
    assert flagged.count == 60
    assert flagged.recall == 1
    assert flagged.precision == pytest.approx(found.rate * len(beliefs) / 60)


def test_a_threshold_that_flags_none_has_no_precision_and_is_not_chosen_by_it() -> None:
    rng = np.random.default_rng(0)
    for pairs in (400, 3000):
        found = decoys.estimate(rng.beta(40, 2, pairs), rng.beta(1, 40, 100))
        assert np.isnan(found.precision[found.flagged == 0]).all()
        precise = found.at_precision(0.99)
        assert precise is None or (found.correspondence < precise).any()


def test_where_none_is_mismatched_none_is_flagged() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        found = decoys.estimate(rng.beta(40, 2, 3000), rng.beta(1, 40, 200))
        assert found.rate == 0
        assert not (found.correspondence < found.best_f1()).any()


def test_a_score_that_hardly_sees_anything_estimates_an_upper_bound_only() -> None:
    rng = np.random.default_rng(0)
    known = rng.beta(2, 2, 200)
    for shape in (2.6, 3.5):  # all match, but look nearly like decoys
        blurred = decoys.estimate(rng.beta(shape, 2, 2000), known)
        assert blurred.rate > 0.3
        assert blurred.doubtful
        assert blurred.low == 0
        interval = blurred.precision_interval(0.5)
        assert interval is not None
        assert interval[0] == 0
    wrong, right = rng.beta(1, 8, 1600), rng.beta(8, 1, 400)  # 80 % wrong, and seen
    clear = decoys.estimate(np.concatenate([wrong, right]), rng.beta(1, 8, 200))
    assert not clear.doubtful
    assert clear.low > 0.4


def test_the_recall_of_mismatches_lies_in_its_interval_in_nine_of_ten_data_sets() -> None:
    rng, within = np.random.default_rng(0), 0
    for _ in range(200):
        wrong = rng.random(1000) < 0.3
        pairs = 1 / (1 + np.exp(-2 * (rng.normal(size=1000) + np.where(wrong, -1.25, 1.25))))
        found = decoys.estimate(pairs, 1 / (1 + np.exp(-2 * (rng.normal(size=60) - 1.25))))
        threshold = found.best_f1()
        low, high = found.recall_interval(threshold)
        assert 0 <= low <= found.at(threshold).recall <= high <= 1
        within += low <= (pairs[wrong] < threshold).mean() <= high
    assert within >= 180


def test_the_recall_at_a_chosen_threshold_may_be_lower_than_at_a_given_one() -> None:
    rng = np.random.default_rng(1)
    pairs = np.concatenate([rng.beta(2, 6, 300), rng.beta(6, 2, 700)])
    found = decoys.estimate(pairs, rng.beta(2, 6, 50))
    best = found.best_f1()
    beside = float(np.nextafter(best, 0))  # flags the same pairs
    assert found.recall_interval(best)[0] < found.recall_interval(beside)[0]


def test_pairs_that_are_known_count_as_they_are_and_the_others_as_estimated() -> None:
    rng = np.random.default_rng(3)
    truth = rng.random(20_000) > 0.3
    beliefs = np.where(truth, rng.beta(6, 2, len(truth)), rng.beta(2, 6, len(truth)))
    told_rate = float((~truth).mean())  # the accounting is what is tested, not how the rate is told
    found = replace(decoys.estimate(beliefs, rng.beta(2, 6, 2000)), rate=told_rate)
    worst = np.zeros(len(truth), dtype=bool)
    worst[np.argsort(beliefs)[:3000]] = True
    anywhere = rng.random(len(truth)) < 0.2
    for seen in (worst, anywhere, worst | anywhere):
        known = found.with_known(seen & ~truth, seen & truth)
        told = np.where(seen, truth, beliefs)
        for threshold in (0.2, 0.4, 0.6):
            flagged, at = told < threshold, known.at(threshold)
            assert at.count == flagged.sum()
            assert at.precision == pytest.approx((~truth[flagged]).mean(), abs=0.02)
            assert at.recall == pytest.approx(flagged[~truth].mean(), abs=0.03)
            low, high = known.precision_interval(threshold) or (0, 0)
            assert low <= at.precision + 1e-9
            assert at.precision <= high + 1e-9
            assert known.kept_at(threshold)[1] == pytest.approx((~truth[~flagged]).mean(), abs=0.02)
        assert known.best_f1() > 0


def test_the_rate_is_within_what_is_known() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(1000) > 0.5
    beliefs = np.where(truth, rng.beta(6, 2, 1000), rng.beta(2, 6, 1000))
    all_known = decoys.estimate(beliefs, rng.beta(2, 6, 100)).with_known(~truth, truth)
    assert (all_known.rate, all_known.low, all_known.high) == pytest.approx([(~truth).mean()] * 3)
    assert all_known.at(0.5).precision == all_known.at(0.5).recall == 1
    assert all_known.at(0.0).count == (~truth).sum()


def test_recall_by_kind_of_decoy_has_an_interval_that_is_wider_with_fewer_decoys() -> None:
    rng = np.random.default_rng(0)
    pairs, known = rng.beta(6, 2, 1000), rng.beta(2, 8, 200)
    near, swap = np.linspace(0, 1, 25), np.linspace(0, 1, 400)
    found = Correspondences(pairs, decoys.estimate(pairs, known), other_decoys={"near": near, "swap": swap})
    recalls = found.recall(0.5)
    assert found.estimate is not None
    assert (recalls["random"].low, recalls["random"].high) == found.estimate.recall_interval(0.5)
    few, many = recalls["near"], recalls["swap"]
    assert few == pytest.approx(0.48)
    assert (few.low, few.high) == pytest.approx((0.30, 0.67), abs=0.01)
    assert many == 0.5
    assert (many.low, many.high) == pytest.approx((0.45, 0.55), abs=0.01)


def test_the_interval_of_a_share_holds_the_share_and_the_true_one_in_nineteen_of_twenty_samples() -> None:
    assert share_interval(0.0, 30)[0] == 0
    assert share_interval(1.0, 30)[1] == 1
    rng = np.random.default_rng(0)
    for true in (0.1, 0.5, 0.8):
        drawn = rng.binomial(60, true, 500) / 60
        intervals = [share_interval(share, 60) for share in drawn]
        assert all(low <= share <= high for share, (low, high) in zip(drawn, intervals, strict=True))
        assert np.mean([low <= true <= high for low, high in intervals]) > 0.92
