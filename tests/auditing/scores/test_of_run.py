"""The scores of an audit: which there are, that decoys are judged as mismatches are, and that they are kept."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from embedded import LATENT, write_embeddings
from sklearn.metrics import roc_auc_score

import crcl
from crcl.auditing.scores.interval import Interval
from crcl.auditing.scores.of_run import stored_scores
from crcl.errors import InputError
from crcl.runs.folder import Run

PAIRS, WRONG = 400, 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of one space; the captions of the first hundred pairs have changed places."""
    folder = write_embeddings(tmp_path_factory.mktemp("scores") / "data", PAIRS, image=24, text=24, shards=1)
    file = folder / "text_emb" / "text_emb_0.npy"
    texts = np.load(file)
    texts[:WRONG] = np.roll(texts[:WRONG], 1, axis=0)
    np.save(file, texts)
    return folder


@pytest.fixture(scope="module")
def audit(data: Path) -> crcl.Audit:
    return crcl.audit(data, data.parent / "audit", quick=True)


def test_vectors_of_one_space_are_judged_by_all_scores_but_those_of_siblings(audit: crcl.Audit) -> None:
    assert LATENT < 24
    table = audit.scores
    assert table is not None
    assert set(table["score"].to_pylist()) == {
        "linear",
        "combined",
        "cosine",
        "contrast",
        "neighbours",
        "similarity",
    }
    assert table["auroc"].to_pylist() == sorted(table["auroc"].to_pylist(), reverse=True)
    assert table.filter(table["taken"])["score"].to_pylist() == [audit.score]


@pytest.mark.parametrize("name", ["linear", "combined", "cosine", "contrast", "neighbours"])
def test_every_score_finds_the_mismatches_and_decoys_look_like_them(audit: crcl.Audit, name: str) -> None:
    scores = stored_scores(audit.run)
    judged = audit.findings.pairs.rows  # some rows are held out
    wrong = judged < WRONG
    score = scores.of(name)
    pairs, decoys = score[: scores.pairs], score[scores.pairs :]
    assert roc_auc_score(~wrong, pairs) > 0.9
    likeness = roc_auc_score(np.arange(wrong.sum() + len(decoys)) < wrong.sum(), np.concatenate([pairs[wrong], decoys]))
    assert 0.3 < likeness < 0.7


@pytest.mark.parametrize("name", ["cosine", "similarity", "combined"])
def test_a_named_score_orders_the_pairs_and_leads_to_an_estimate(audit: crcl.Audit, name: str) -> None:
    found = crcl.audit(audit.run, score=name)
    assert found.score == name
    assert found.rate is not None
    assert found.correspondence.min() >= 0
    assert found.correspondence.max() <= 1
    scores = stored_scores(audit.run).of(name)[: len(found.correspondence)]
    order = np.argsort(scores, kind="stable")
    assert (np.diff(found.correspondence[order]) >= 0).all()
    cleaned = crcl.clean(audit.run, audit.run.path.parent / f"by-{name}", score=name)
    assert cleaned.removed == found.suspect_count


def test_every_score_tells_rate_precision_and_recall_with_intervals(audit: crcl.Audit) -> None:
    assert audit.scores is not None
    estimated = [row for row in audit.scores.to_pylist() if row["rate"] is not None]
    assert len(estimated) > 3
    for row in estimated:
        for name in ("rate", "precision", "recall"):
            value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
            assert 0 <= low <= high <= 1
            assert value is None if Interval(0, low, high).vague else low <= value <= high
    (taken,) = (row for row in estimated if row["taken"])
    assert audit.recall is not None
    assert taken["recall"] == audit.recall
    assert (taken["recall_low"], taken["recall_high"]) == (audit.recall.low, audit.recall.high)
    assert audit.recalls["random"] == audit.recall


def test_all_scores_are_columns_of_the_table(audit: crcl.Audit) -> None:
    names = {name.removeprefix("score_") for name in audit.table.column_names if name.startswith("score_")}
    assert names == set(audit.scores["score"].to_pylist())  # type: ignore[index]
    row = audit.table.slice(0, 1).to_pylist()[0]
    judged = audit.findings.pairs.rows.tolist()
    assert row["score_cosine"] == stored_scores(audit.run).values["cosine"][judged.index(row["row"])]


def test_scores_are_computed_once(audit: crcl.Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*given: object, **options: object) -> None:
        raise AssertionError("read or computed again")

    for name in ("_without_training", "read_data"):
        monkeypatch.setattr(f"crcl.auditing.scores.of_run.{name}", again)
    assert crcl.audit(audit.run).table.equals(audit.table)


def test_many_pairs_are_scored_in_parts_that_change_no_cosine(
    data: Path, audit: crcl.Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crcl.auditing.scores.of_run.MANY", 100)
    monkeypatch.setattr("crcl.auditing.scores.of_run._PART", 128)
    found = crcl.audit(data, tmp_path / "audit", quick=True)
    values, whole = stored_scores(found.run).values, stored_scores(audit.run).values
    assert {"neighbours", "consistency"} & set(values) == set()
    np.testing.assert_allclose(values["cosine"], whole["cosine"], atol=1e-6)
    assert np.corrcoef(values["contrast"], whole["contrast"])[0, 1] > 0.95


def test_scores_of_older_beliefs_are_left(audit: crcl.Audit, tmp_path: Path) -> None:
    copy = Run.open(shutil.copytree(audit.run.path, tmp_path / "copy"))
    beliefs = np.concatenate([copy.load_ledger(), copy.load_decoy_ledger()])
    copy.save_ledger(1 - beliefs)
    assert set(stored_scores(copy).values) == {"linear"}


def test_an_unknown_score_is_refused_with_the_names(audit: crcl.Audit) -> None:
    with pytest.raises(InputError, match="no score is called 'cosines'"):
        crcl.audit(audit.run, score="cosines")
    with pytest.raises(InputError, match="no score consistency"):
        crcl.audit(audit.run, score="consistency")


def test_without_decoys_there_is_nothing_to_compare_scores_by(data: Path, tmp_path: Path) -> None:
    found = crcl.audit(data, tmp_path / "audit", decoys=0.0, quick=True)
    assert found.scores is None
    assert found.score == "linear"
    with pytest.raises(InputError, match="compared by decoys"):
        crcl.audit(found.run, score="cosine")


@pytest.mark.parametrize("constant", [("img_emb", "text_emb"), ("img_emb",), ("text_emb",)])
def test_vectors_that_say_nothing_lead_to_no_numbers(tmp_path: Path, constant: tuple[str, ...]) -> None:
    data = write_embeddings(tmp_path / "data", 200, image=24, text=24, shards=1)
    for side in constant:
        file = data / side / f"{side}_0.npy"
        np.save(file, np.repeat(np.load(file)[:1], 200, axis=0))
    found = crcl.audit(data, tmp_path / "audit", quick=True)
    assert (found.rate, found.precision, found.p_wrong, found.suspect_count) == (None, None, None, 0)
    assert "nothing can be estimated" in found.unsure
    assert not any("upper bound" in line for line in found.summary())
