"""Why pairs are suspect: each rule holds where it should and nowhere else, and the fix follows from the rules."""

import pydoc
from dataclasses import replace

import numpy as np
import pytest
from embedded import write_embeddings
from made_audits import made_audit

import crcl
from crcl.auditing import reasons
from crcl.auditing.estimate import estimate
from crcl.auditing.findings import Findings
from crcl.auditing.scores.of_run import Scores
from crcl.auditing.suggestions import Suggestions
from crcl.auditing.thresholds import Correspondences
from crcl.data.duplicates import Copies, same_captions
from crcl.methods.base import Partners

NO_PARTNERS = Partners(np.zeros((300, 0), np.int64), np.zeros((300, 0), np.float32))


def correspondences(pairs: int = 300, low: int = 50, decoys: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Of pairs, of which the first are suspect, and of decoys: half of them below the suspects from the 25th on."""
    correspondence = np.concatenate([np.linspace(0, 0.09, low), np.linspace(0.5, 1, pairs - low)])
    return correspondence.astype(np.float32), np.linspace(0, 0.09, decoys).astype(np.float32)


def copies_of(found: Findings, **changed: np.ndarray) -> Copies:
    images = found.pairs.images
    none = Copies(
        np.arange(images),
        np.full(images, -1),
        np.full(images, np.nan),
        same_captions(found.pairs.captions),
        np.zeros(len(found.pairs), dtype=bool),
    )
    return replace(none, **changed)


def known(**scores: np.ndarray) -> Correspondences:
    """What decoys say, with scores of 300 pairs and 100 random and 20 other decoys."""
    correspondence, decoys = correspondences()
    belief = np.concatenate([correspondence, decoys, np.ones(20, np.float32)])
    kinds = np.array(["random"] * 100 + ["near"] * 20)
    offsets = {name: scores.pop(name) for name in ("image_offset", "caption_offset") if name in scores}
    return Correspondences(
        correspondence,
        estimate(correspondence, decoys),
        scores=Scores({"belief": belief} | scores, kinds, "belief", offsets),
    )


def names(found: reasons.Reasons, pair: int) -> list[str]:
    return [name for name, _ in found.of(pair)]


def test_a_suspect_below_the_median_decoy_fits_no_better_than_a_random_caption() -> None:
    audit = made_audit(correspondences()[0])
    found = reasons.find_reasons(audit, known(), copies_of(audit), NO_PARTNERS)
    assert [pair for pair in range(300) if names(found, pair) == ["random"]] == list(range(25))
    assert found.counts() == {"fits no better than a random caption": 25}
    columns = found.columns(audit.rows)
    assert columns["reason"].to_pylist() == ["fits no better than a random caption"] * 25 + [None] * 275
    assert columns["fix"].to_pylist() == ["drop"] * 50 + [None] * 250


def test_neighbours_and_siblings_are_compared_with_the_median_random_decoy() -> None:
    audit = made_audit(correspondences()[0])
    score = np.concatenate([np.full(10, -1), np.full(290, 2.0), np.linspace(-0.5, 1, 100), np.full(20, -9)])
    siblings = score.copy()
    siblings[:5] = np.nan  # captions without siblings
    found = reasons.find_reasons(audit, known(neighbours=score, consistency=siblings), copies_of(audit), NO_PARTNERS)
    assert found.counts()["no neighbour agrees"] == 10
    assert found.counts()["unlike its sibling captions"] == 5
    assert names(found, 7) == ["random", "neighbours", "siblings"]
    assert names(found, 3) == ["random", "neighbours"]


def test_a_score_that_does_not_tell_decoys_from_pairs_gives_no_reason() -> None:
    rng = np.random.default_rng(0)
    assert reasons.below_decoys(rng.normal(size=300), rng.normal(size=100)) is None
    assert reasons.below_decoys(np.ones(300), np.zeros(19)) is None  # too few
    assert reasons.below_decoys(np.full(300, np.nan), np.zeros(100)) is None
    low = reasons.below_decoys(np.array([1.0, -1.0, np.nan, *np.ones(297)]), np.zeros(100))
    assert low is not None
    assert low.nonzero()[0].tolist() == [1]


def test_what_random_partners_fit_nearly_as_well_as_matching_ones_fits_everything() -> None:
    audit = made_audit(correspondences()[0])
    rng = np.random.default_rng(0)
    cosine = np.concatenate([rng.normal(0.1, 0.02, 50), rng.normal(0.3, 0.02, 250), rng.normal(0.1, 0.02, 120)])
    offset = np.full(420, 0.1)
    image, caption = offset.copy(), offset.copy()
    image[[3, 200]], caption[4] = 0.25, 0.21
    given = known(cosine=cosine, image_offset=image, caption_offset=caption)
    found = reasons.find_reasons(audit, given, copies_of(audit), NO_PARTNERS)
    assert [pair for pair in range(300) if "everything" in names(found, pair)] == [3]  # 200 is not suspect
    assert [pair for pair in range(300) if "generic" in names(found, pair)] == [4]
    assert reasons.fits_everything(image, cosine[:50], cosine[300:]) is None  # pairs that fit as decoys do


def test_a_suspect_whose_caption_was_cut_says_so() -> None:
    audit = made_audit(correspondences()[0])
    cut = np.arange(50) >= 40
    found = reasons.find_reasons(audit, known(), copies_of(audit), NO_PARTNERS, cut)
    assert [pair for pair in range(300) if "cut" in names(found, pair)] == list(range(40, 50))
    assert found.counts()["caption cut"] == 10
    assert "cut" not in reasons.find_reasons(audit, known(), copies_of(audit), NO_PARTNERS).holds


def test_a_caption_that_many_images_carry_is_generic_and_is_never_relinked() -> None:
    audit = made_audit(correspondences()[0])
    generic = np.arange(300) < 2
    partners = believed({1: (70, 0.9), 2: (71, 0.9)})
    found = reasons.find_reasons(audit, known(), copies_of(audit, generic=generic), partners)
    assert found.of(1) == [("random", None), ("elsewhere", 70), ("generic", None)]
    assert [found.fix(pair) for pair in (1, 2)] == ["drop", "relink to 71.jpg (row 71)"]


def believed(beliefs: dict[int, tuple[int, float]], pairs: int = 300) -> Partners:
    images, values = np.zeros((pairs, 2), np.int64), np.zeros((pairs, 2), np.float32)
    for pair, (image, belief) in beliefs.items():
        images[pair], values[pair] = (5, image), (0.01, belief)
    return Partners(images, values)


def test_a_caption_belongs_elsewhere_if_it_and_the_image_are_best_for_each_other() -> None:
    rows = np.arange(300) + 1000
    audit = made_audit(correspondences()[0], caption_rows=rows)
    partners = believed({1: (70, 0.9), 2: (70, 0.8), 3: (71, 0.4), 4: (12, 0.6)})
    found = reasons.find_reasons(audit, known(), copies_of(audit), partners)
    assert [pair for pair in range(300) if "elsewhere" in names(found, pair)] == [1, 4]  # 2: 70 has a better one
    assert found.fix(1) == "relink to 70.jpg (row 1070)"
    assert reasons.told(*found.of(1)[-1]) == "fits the image of row 1070 far better"
    assert found.fix(12) == "replace by caption 4"  # as that belongs to image 12
    assert found.fix(2) == "drop"
    assert found.fix(1, named=str.upper) == "relink to 70.JPG (row 1070)"


def test_an_image_may_want_as_many_captions_as_images_have_but_none_that_it_has() -> None:
    audit = made_audit(correspondences()[0], images=150)  # two captions each: pairs 70 and 220 show image 70
    captions = list(audit.pairs.captions)
    captions[220] = "Caption  3"
    pairs = replace(audit.pairs, captions=captions)
    partners = believed({1: (70, 0.9), 2: (70, 0.8), 3: (70, 0.95), 4: (70, 0.7)})
    belongs = reasons.belonging(partners, pairs, same_captions(captions))
    assert {pair: image for pair, image in enumerate(belongs.tolist()) if image >= 0} == {1: 70, 2: 70}
    none = Partners(np.zeros((300, 0), np.int64), np.zeros((300, 0), np.float32))
    assert (reasons.belonging(none, pairs, same_captions(captions)) == -1).all()


def test_without_beliefs_in_other_images_both_must_be_suggested_for_each_other() -> None:
    audit = made_audit(correspondences()[0])
    similarity = np.full(300, 0.5, np.float32)
    rows = np.arange(4)
    suggestions = Suggestions(
        rows,
        captions=np.array([[9], [0], [8], [2]]),
        caption_fit=np.ones((4, 1)),
        images=np.array([[1], [3], [3], [-1]]),  # 0 with image 1, and 2 with image 3, want each other
        image_fit=np.array([[0.9], [0.9], [0.4], [0.0]]),  # but image 3 fits caption 2 worse than pairs do that match
    )
    belongs = reasons.belonging_by_similarity(
        replace(audit, similarity=similarity, suggestions=suggestions), same_captions(audit.pairs.captions)
    )
    assert {pair: image for pair, image in enumerate(belongs.tolist()) if image >= 0} == {0: 1}
    assert (reasons.belonging_by_similarity(audit, np.arange(300)) == -1).all()


def test_a_copy_of_an_image_with_another_caption_is_named_by_its_row() -> None:
    captions = [f"caption {row}" for row in range(300)]
    captions[2] = captions[252]
    audit = made_audit(correspondences()[0], captions=captions, caption_rows=np.arange(300) + 1000)
    same, near = np.arange(300), np.full(300, -1)
    same[250], same[260], same[252], same[11] = 1, 1, 2, 10
    near[3] = 253
    found = reasons.find_reasons(audit, known(), copies_of(audit, same=same, near=near), NO_PARTNERS)
    assert reasons.told(*found.of(1)[-1]) == "copy of the image of row 1260 with another caption"  # the most believed
    assert found.fix(1) == "replace by caption 260"
    assert "copy" not in names(found, 2)  # its copy has the same caption
    assert found.of(3)[-1] == ("copy", 1253)
    assert found.of(10)[-1] == ("copy", 1011)
    assert found.fix(10) == "drop"  # that one is suspect too
    assert "copy" not in names(found, 4)


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> crcl.Audit:
    """Of vectors of one space; the captions of the first hundred pairs have changed places."""
    folder = write_embeddings(tmp_path_factory.mktemp("reasons") / "data", 400, image=24, text=24, shards=1)
    file = folder / "text_emb" / "text_emb_0.npy"
    texts = np.load(file)
    texts[:100] = np.roll(texts[:100], 1, axis=0)
    np.save(file, texts)
    return crcl.audit(folder, folder.parent / "audit", quick=True)


def test_an_audit_has_reasons_in_its_table_and_counts_them(audit: crcl.Audit) -> None:
    table = audit.suspects
    told = [reason for row in table["reason"].to_pylist() for reason in (row or "").split("; ") if reason]
    assert sum(audit.reasons.values()) == len(told)
    assert {"no neighbour agrees", "fits another image far better"} <= set(audit.reasons)
    assert None not in table["fix"].to_pylist()
    assert set(audit.table["fix"].to_pylist()) >= {None, "drop"}
    again = audit.at(threshold=0)
    assert again.reasons == {}
    assert "reason" not in again.table.column_names


def test_captions_that_changed_places_are_relinked_to_their_image(audit: crcl.Audit) -> None:
    moved = [fix for fix in audit.suspects["fix"].to_pylist() if fix.startswith("relink")]
    rows = [
        row
        for row, fix in zip(audit.suspects["row"].to_pylist(), audit.suspects["fix"].to_pylist(), strict=True)
        if fix.startswith("relink")
    ]
    right = [f"(row {(row - 1) % 100})" in fix for row, fix in zip(rows, moved, strict=True)]
    assert len(right) > 30
    assert np.mean(right) > 0.9


def test_an_audit_prints_its_caveats_and_documents_its_copies(
    audit: crcl.Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crcl.Audit, "caveats", lambda self: ["Trust it less."])
    assert repr(audit).splitlines()[-1] == "  Trust it less."
    assert "Images and captions that occur more than once" in pydoc.render_doc(crcl.Audit, renderer=pydoc.plaintext)
