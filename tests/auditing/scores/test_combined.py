"""Scores combined by decoys: better than each alone, never against any of them, and honest about the decoys."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from crcl.auditing.scores.combined import combined, fit, rank


def made(pairs: int = 4000, decoys: int = 1000, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Two scores that each see half, one that sees nothing; 30 % of the pairs are wrong."""
    rng = np.random.default_rng(seed)
    wrong = np.concatenate([rng.random(pairs) < 0.3, np.ones(decoys, dtype=bool)])
    useful = [rng.normal(size=len(wrong)) + 1.2 * ~wrong for _ in range(2)]
    return [*useful, rng.normal(size=len(wrong))], wrong


def test_two_scores_that_see_different_things_detect_better_together() -> None:
    scores, wrong = made()
    together = combined(scores, 1000)
    found = [roc_auc_score(~wrong[:4000], score[:4000]) for score in (*scores, together)]
    assert found[3] > max(found[:3]) + 0.05
    assert together.dtype == np.float32
    assert 0 <= together.min() < together.max() <= 1


def test_it_never_falls_where_a_score_rises() -> None:
    scores, _ = made()
    opposed = [scores[0], -scores[1]]  # a score that is upside down
    together = combined(opposed, 1000)
    order = np.argsort(scores[0], kind="stable")
    assert roc_auc_score(np.arange(5000) >= 4000, -together) == pytest.approx(
        roc_auc_score(np.arange(5000) >= 4000, -scores[0]), abs=0.01
    )
    assert np.corrcoef(np.arange(5000), together[order])[0, 1] > 0.9


def test_the_weights_are_those_of_logistic_regression_where_none_is_bounded() -> None:
    scores, _ = made(3000, 3000)
    ranks = np.stack([rank(score) for score in scores[:2]], axis=1)
    known = np.arange(6000) >= 3000
    weights, constant = fit(ranks, known)
    theirs = LogisticRegression(C=1 / (6000 * 1e-3), tol=1e-8).fit(ranks, known)
    np.testing.assert_allclose(weights, theirs.coef_[0], atol=2e-3)
    assert constant == pytest.approx(theirs.intercept_[0], abs=2e-3)


def test_a_decoy_has_no_part_in_its_own_judge() -> None:
    scores, _ = made(400, 100)
    before = combined(scores, 100, folds=5)
    # a decoy that becomes an outlier changes the regressions that judge other parts, but ranks of others only by one
    part = np.random.default_rng([0xC0B1, 0])
    part.permutation(400)
    of_decoy = part.permutation(100) % 5
    changed = [score.copy() for score in scores]
    for score in changed:
        score[400] = 50.0
    after = combined(changed, 100, folds=5)
    same = np.flatnonzero(of_decoy == of_decoy[0])[1:] + 400
    assert np.abs(after[same] - before[same]).max() < 0.02
    assert after[400] > before[400]


def test_without_a_score_the_others_decide() -> None:
    scores, _ = made(1000, 200)
    holes = scores[1].copy()
    holes[::2] = np.nan
    together = combined([scores[0], holes], 200)
    assert np.isfinite(together).all()
    assert rank(np.full(5, np.nan)).tolist() == [0.0] * 5
    assert rank(np.full(5, 3.0)).tolist() == [0.0] * 5
