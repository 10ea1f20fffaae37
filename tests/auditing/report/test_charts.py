"""The charts of the report: what is drawn, and what would be chance and is not."""

from dataclasses import replace

import numpy as np
from made_audits import made_audit, made_estimate

from crcl.auditing.estimate import estimate
from crcl.auditing.report import charts


def test_the_precision_of_a_handful_of_flagged_pairs_or_decoys_is_not_drawn() -> None:
    correspondence = np.linspace(0, 1, 1001)
    found = made_audit(correspondence, truth=correspondence > 0.3)
    figure = charts.precision_recall(found, made_estimate())
    assert figure is not None
    lines = {line.get_label(): line.get_xydata() for line in figure.axes[0].lines}
    x, y = np.array(lines["precision, true"]).T
    assert x[np.isfinite(y)].min() == 0.02  # twenty flagged
    few = replace(made_estimate(), recall=np.linspace(0, 1, 101))
    figure = charts.precision_recall(found, few)
    assert figure is not None
    x, y = np.array(figure.axes[0].lines[0].get_xydata()).T
    assert x[np.isfinite(y)].min() == 0.4  # twenty of fifty decoys
    assert np.isfinite(lines["recall, estimated"]).all()


def mixture() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correspondences of pairs of which a fifth is mismatched, of decoys, and the truth."""
    rng = np.random.default_rng(0)
    truth = np.arange(2000) >= 400
    pairs = np.where(truth, rng.beta(8, 2, 2000), rng.beta(1, 12, 2000)).astype(np.float32)
    return pairs, rng.beta(1, 12, 300).astype(np.float32), truth


def test_the_trade_off_is_marked_where_the_threshold_is_and_the_true_one_lies_beside_it() -> None:
    pairs, decoys, truth = mixture()
    found, known = replace(made_audit(pairs, truth=truth), threshold=0.2), estimate(pairs, decoys)
    figure = charts.tradeoff(found, known)
    lines = {line.get_label(): np.array(line.get_xydata()) for line in figure.axes[0].lines}
    kept, wrong = lines["threshold 0.2"][0]
    assert kept == 100 * (pairs >= 0.2).mean()
    assert abs(wrong - 100 * (~truth[pairs >= 0.2]).mean()) < 3
    shown = lines["wrong, estimated"]
    assert shown[:, 0].min() >= 1  # twenty of two thousand pairs
    assert np.abs(shown[:, 1] - lines["wrong, true"][:, 1]).max() < 3
    assert abs(lines["wrong, true"][0][1] - 20) < 1  # where nearly all are kept
    assert "wrong, true" not in {line.get_label() for line in charts.tradeoff(made_audit(pairs), known).axes[0].lines}


def test_the_text_of_the_trade_off_has_its_numbers() -> None:
    pairs, decoys, _ = mixture()
    found = replace(made_audit(pairs), threshold=0.2)
    last = charts.charts(found, estimate(pairs, decoys))[-1]
    assert last.title == "What cleaning keeps"
    assert f"At this threshold {100 * (pairs >= 0.2).mean():.1f} % are kept" in last.text
    none = charts.charts(replace(found, threshold=1.0), estimate(pairs, decoys))[-1]
    assert "are kept, of which" not in none.text
    assert len(charts.charts(found, None)) == 1
