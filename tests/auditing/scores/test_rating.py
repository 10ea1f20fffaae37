"""Scores are rated by decoys: the AUROC with its error, and the best is taken unless chance may have made it so."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from crcl.auditing.scores.rating import BY_NAME_ONLY, Rating, best, rate, rate_all


def drawn(seed: int, *, pairs: int = 900, decoys: int = 200, apart: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=pairs) + apart, rng.normal(size=decoys)


def test_the_auroc_is_that_of_pairs_against_decoys_with_ties() -> None:
    pairs, decoys = (np.round(part, 1) for part in drawn(0))
    labels = np.arange(len(pairs) + len(decoys)) < len(pairs)
    assert rate(pairs, decoys).auroc == pytest.approx(roc_auc_score(labels, np.concatenate([pairs, decoys])))


def test_the_error_is_the_spread_over_repeated_draws() -> None:
    ratings = [rate(*drawn(seed)) for seed in range(200)]
    spread = np.std([rating.auroc for rating in ratings])
    assert np.mean([rating.error for rating in ratings]) == pytest.approx(spread, rel=0.15)


def test_a_difference_on_the_same_pairs_is_surer_than_each_score() -> None:
    pairs, decoys = drawn(1)
    rng = np.random.default_rng(2)
    noisier = pairs + rng.normal(size=len(pairs)) * 0.3, decoys + rng.normal(size=len(decoys)) * 0.3
    found = rate(pairs, decoys, beside=noisier)
    assert found.added == pytest.approx(found.auroc - rate(*noisier).auroc)
    assert 0 < found.added_error < 0.7 * found.error
    again = rate(pairs, decoys, beside=(pairs, decoys))
    assert (again.added, again.added_error) == (0.0, 0.0)


def test_all_are_compared_with_the_runs_own_and_the_best_comes_first() -> None:
    scores = {"linear": drawn(0, apart=1.0), "belief": drawn(0, apart=2.0), "cosine": drawn(0, apart=0.5)}
    found = rate_all(scores, "belief")
    assert list(found) == ["belief", "linear", "cosine"]
    assert found["belief"].added == 0
    assert found["cosine"].added < found["linear"].added < 0


def test_another_score_is_taken_only_if_it_is_surely_better() -> None:
    own = Rating(0.80, 0.01)
    assert best({"belief": own, "linear": Rating(0.82, 0.01, 0.02, 0.005)}, "belief") == "linear"
    assert best({"belief": own, "linear": Rating(0.802, 0.01, 0.002, 0.005)}, "belief") == "belief"
    worse = {"belief": own, "linear": Rating(0.7, 0.01, -0.1, 0.005)}
    assert best(worse, "belief") == "belief"


def test_a_score_that_is_clearly_worse_by_near_decoys_is_not_taken() -> None:
    random = {"linear": Rating(0.86, 0.01), "combined": Rating(0.868, 0.01, 0.008, 0.002)}
    near = {"linear": Rating(0.7, 0.03), "combined": Rating(0.66, 0.03, -0.039, 0.008)}
    assert best(random, "linear") == "combined"
    assert best(random, "linear", near) == "linear"
    unsure = near | {"combined": Rating(0.69, 0.03, -0.01, 0.008)}
    assert best(random, "linear", unsure) == "combined"


@pytest.mark.parametrize("name", sorted(BY_NAME_ONLY))
def test_scores_that_flatter_decoys_are_never_taken_unnamed(name: str) -> None:
    assert best({"belief": Rating(0.8, 0.01), name: Rating(0.99, 0.001, 0.19, 0.001)}, "belief") == "belief"
