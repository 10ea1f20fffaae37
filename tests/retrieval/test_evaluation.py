"""Retrieval scores: folds, ensembles, and similarities on disk."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scorers import scorer_for

from crcl import metrics
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError, TrainingError
from crcl.matchers import VSE, Bow, Encoded
from crcl.retrieval.evaluation import evaluate, evaluate_each, mean_similarities
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.similarity_file import similarity_file

Tiny = Callable[..., Split]


def test_scores_are_the_metrics_of_the_similarities(tiny: Tiny) -> None:
    pairs = tiny(images=12)
    scorer = scorer_for(pairs)
    found = evaluate([scorer], pairs)
    assert found == metrics.retrieval(scorer.similarities(pairs), pairs.image_index)
    assert found == evaluate([scorer], pairs, tokens=scorer.tokens(pairs))


@pytest.mark.parametrize("repeated", [False, True], ids=["stored once", "stored rows chosen"])
def test_folds_are_consecutive_parts_whose_scores_are_averaged(tiny: Tiny, repeated: bool) -> None:
    """Whatever the order of the captions and the number of captions per image."""
    pairs = tiny(images=12, captions=3)
    image_index = np.random.default_rng(0).integers(0, 12, len(pairs))
    rows = np.random.default_rng(1).permutation(12) if repeated else None
    pairs = replace(pairs, image_index=image_index, feature_rows=rows)
    scorer = scorer_for(pairs)
    sims = scorer.similarities(pairs)
    parts = []
    for fold in range(3):
        members = np.flatnonzero(image_index // 4 == fold)
        parts.append(metrics.retrieval(sims[4 * fold : 4 * fold + 4, members], image_index[members] - 4 * fold))
    assert evaluate([scorer], pairs, folds=3) == metrics.mean(parts)


def test_an_ensemble_scores_with_the_mean_of_the_similarities(tiny: Tiny) -> None:
    """Each matcher reads the captions with its own words."""
    pairs = tiny(images=12)
    words = Vocabulary.build(pairs.captions, minimum=1).words
    backwards = Vocabulary([*words[:4], *words[:3:-1]])
    scorers = [
        scorer_for(pairs, Bow, seed=1),
        scorer_for(pairs, VSE, seed=2),
        scorer_for(pairs, Bow, seed=3, vocabulary=backwards),
    ]
    sims = [scorer.similarities(pairs) for scorer in scorers]
    mean = mean_similarities(scorers, pairs)
    np.testing.assert_allclose(mean, np.mean(sims, axis=0), atol=1e-6)
    assert evaluate(scorers, pairs) == metrics.retrieval(mean, pairs.image_index)
    assert evaluate(scorers, pairs, folds=2) != evaluate(scorers[:1], pairs, folds=2)


@pytest.mark.parametrize("folds", [0, -1, 5, 13])
def test_folds_that_do_not_divide_the_images_are_refused(tiny: Tiny, folds: int) -> None:
    pairs = tiny(images=12)
    with pytest.raises(InputError, match=f"12 images cannot be split into {folds} folds of equal size"):
        evaluate([scorer_for(pairs)], pairs, folds=folds)


def test_no_pairs_are_refused(tiny: Tiny) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs)
    nothing = replace(pairs, captions=[], image_index=np.zeros(0, dtype=np.int64))
    with pytest.raises(InputError, match="tiny: no pairs to evaluate on"):
        evaluate([scorer], nothing)


class Counting(torch.nn.Module):
    """Knows images and captions by their first number, and counts how often it sees each."""

    def __init__(self) -> None:
        super().__init__()
        self.images: Counter[int] = Counter()
        self.texts: Counter[int] = Counter()
        self.cells: Counter[tuple[int, int]] = Counter()

    def encode_images(self, regions: torch.Tensor, mask: torch.Tensor) -> Encoded:
        self.images.update(regions[:, 0, 0].int().tolist())
        return Encoded(regions[:, 0, :1])

    def encode_texts(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Encoded:
        self.texts.update(tokens[:, 1].tolist())
        return Encoded(tokens[:, 1:2].float())

    def similarity(self, images: Encoded, texts: Encoded) -> torch.Tensor:
        rows, columns = (side.features[:, 0].int().tolist() for side in (images, texts))
        self.cells.update((row, column) for row in rows for column in columns)
        return -(images.features - texts.features.T).abs()


def counted_pairs(images: int) -> tuple[Split, Vocabulary]:
    """Two captions for each image, each of a word of its own; the features hold the image's number."""
    features = np.arange(images, dtype=np.float32)[:, None, None].repeat(3, axis=1)
    captions = [f"word{number}" for number in range(2 * images)]
    pairs = Split(
        captions, np.repeat(np.arange(images), 2), features, [str(i) for i in range(images)], source="counted"
    )
    return pairs, Vocabulary.build(captions, minimum=1)


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("on_disk", [False, True])
def test_each_matcher_encodes_everything_once_and_scores_no_cell_twice(
    tmp_path: Path, folds: int, on_disk: bool
) -> None:
    pairs, vocabulary = counted_pairs(12)
    matchers = [Counting(), Counting()]
    scorers = [Scorer(matcher, vocabulary, batch_size=5) for matcher in matchers]
    if on_disk and folds == 1:
        with similarity_file(tmp_path / "sims.npy", pairs) as sims:
            evaluate_each(scorers, pairs, out=sims)
    else:
        evaluate_each(scorers, pairs, folds=folds)
    for matcher in matchers:
        assert matcher.images == Counter(range(12))
        assert sorted(matcher.texts.values()) == [1] * 24
        assert len(matcher.cells) == 12 * 24 / folds
        assert set(matcher.cells.values()) == {1}


@pytest.mark.parametrize("folds", [1, 3])
def test_the_members_of_an_ensemble_have_the_scores_they_have_alone(tiny: Tiny, folds: int) -> None:
    pairs = tiny(images=12)
    scorers = [scorer_for(pairs, seed=seed) for seed in range(3)]
    found = evaluate_each(scorers, pairs, folds=folds)
    assert found.members == [evaluate([scorer], pairs, folds=folds) for scorer in scorers]
    assert found.together == evaluate(scorers, pairs, folds=folds)
    assert found.together not in found.members
    alone = evaluate_each(scorers[:1], pairs, folds=folds)
    assert alone.together == alone.members[0] == found.members[0]


@pytest.mark.parametrize("folds", [1, 3])
def test_progress_is_that_of_all_matchers_and_folds_together(tiny: Tiny, folds: int) -> None:
    pairs = tiny(images=12)
    told: list[tuple[int, int]] = []
    scorers = [scorer_for(pairs, seed=seed) for seed in range(2)]
    evaluate(scorers, pairs, folds=folds, advance=lambda done, total: told.append((done, total)))
    done = [step[0] for step in told]
    assert done == sorted(set(done))
    assert {step[1] for step in told} == {2 * (12 + 24)}
    assert done[-1] == 2 * (12 + 24)


def test_similarities_on_disk_are_those_in_memory(tiny: Tiny, tmp_path: Path) -> None:
    pairs = tiny(images=12)
    scorers = [scorer_for(pairs, seed=seed) for seed in range(3)]
    with similarity_file(tmp_path / "sims.npy", pairs) as sims:
        assert isinstance(sims, np.memmap)
        assert not (tmp_path / "sims.npy").exists()  # not before all is done
        found = evaluate_each(scorers, pairs, out=sims)
    written = np.load(tmp_path / "sims.npy", allow_pickle=False)
    assert written.dtype == np.float32
    np.testing.assert_array_equal(written, mean_similarities(scorers, pairs))
    assert found == evaluate_each(scorers, pairs)
    assert [file.name for file in tmp_path.iterdir()] == ["sims.npy"]


def test_similarities_on_disk_take_no_memory_of_their_size(tmp_path: Path) -> None:
    """Neither filling, adding nor ranking makes a copy of the whole; two matrices of 16 MB, blocks of 1 MB."""
    images, captions = 2000, 2000
    pairs, vocabulary = counted_pairs(images)
    pairs = replace(pairs, captions=pairs.captions[:captions], image_index=pairs.image_index[:captions])
    scorers = [scorer_for(pairs, seed=seed, vocabulary=vocabulary, batch_size=128) for seed in range(2)]
    with similarity_file(tmp_path / "sims.npy", pairs) as sims:
        tracemalloc.start()
        found = evaluate_each(scorers, pairs, out=sims)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < sims.nbytes / 2
    whole = np.load(tmp_path / "sims.npy", allow_pickle=False)
    assert metrics.retrieval(whole, pairs.image_index) == found.together


def test_folds_leave_no_matrix(tiny: Tiny) -> None:
    pairs = tiny(images=12)
    with pytest.raises(ValueError, match="no matrix"):
        evaluate_each([scorer_for(pairs)], pairs, folds=2, out=np.empty((12, 24), np.float32))


def test_similarities_that_are_not_finite_end_the_evaluation_at_once(tiny: Tiny) -> None:
    pairs = tiny(images=12)
    scorer = scorer_for(pairs)
    with torch.no_grad():
        scorer.matcher.text_linear.weight.fill_(torch.nan)
    with pytest.raises(TrainingError, match="tiny: the matcher's similarities are NaN"):
        evaluate([scorer], pairs)


def test_nothing_is_left_of_similarities_that_were_not_finished(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "sims.npy").write_bytes(b"old")

    def stop() -> None:
        with similarity_file(tmp_path / "sims.npy", tiny()) as sims:
            sims[:] = 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert [file.name for file in tmp_path.iterdir()] == ["sims.npy"]
    assert (tmp_path / "sims.npy").read_bytes() == b"old"
