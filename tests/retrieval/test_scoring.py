"""Scoring: the matrix by direct computation, folds, ensembles, and the matcher left as it was."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from crcl import metrics
from crcl.data.batches import Standardize
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError, TrainingError
from crcl.matchers import SAF, SCAN, SGR, VSE, Bow, Encoded
from crcl.matchers.base import device_of, scoring
from crcl.retrieval import scoring as score
from crcl.retrieval.scoring import Scorer, _by_length, evaluate, evaluate_each, mean_similarities
from crcl.retrieval.similarity_file import similarity_file

Tiny = Callable[..., Split]
each_matcher = pytest.mark.parametrize("matcher_class", [VSE, Bow, SAF, SGR, SCAN])
Kind = type[VSE] | type[Bow] | type[SAF] | type[SGR] | type[SCAN]


def scorer_for(
    pairs: Split,
    matcher_class: Kind = Bow,
    *,
    seed: int = 0,
    batch_size: int = 5,
    vocabulary: Vocabulary | None = None,
) -> Scorer:
    vocabulary = vocabulary or Vocabulary.build(pairs.captions, minimum=1)
    torch.manual_seed(seed)
    _, regions, features = pairs.features.shape
    own = {"regions": regions, "similarity": 6} if matcher_class in (SAF, SGR) else {}
    matcher = matcher_class(features=features, vocabulary=len(vocabulary), embedding=8, word=6, **own)
    return Scorer(matcher, vocabulary, batch_size=batch_size)


def direct_similarities(scorer: Scorer, pairs: Split) -> np.ndarray:
    """One image and one caption at a time."""
    matcher, tokens = scorer.matcher, scorer.tokens(pairs)
    sims = np.empty((pairs.images, len(pairs)))
    with scoring(matcher):
        for image in range(pairs.images):
            regions = torch.from_numpy(pairs.gather(np.array([image])))
            if scorer.standardize is not None:
                regions = torch.from_numpy(scorer.standardize(regions.numpy()))
            encoded = matcher.encode_images(regions, torch.ones(regions.shape[:2], dtype=torch.bool))
            for caption in range(len(pairs)):
                ids = torch.from_numpy(tokens[caption].astype(np.int64))[None]
                text = matcher.encode_texts(ids, torch.tensor([ids.shape[1]]))
                sims[image, caption] = matcher.similarity(encoded, text).item()
    return sims


@each_matcher
@pytest.mark.parametrize("standardized", [False, True])
def test_similarities_are_those_of_each_image_with_each_caption_alone(
    tiny: Tiny, matcher_class: Kind, standardized: bool
) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs, matcher_class)
    if standardized:
        scorer = replace(scorer, standardize=Standardize.measure(pairs))
    sims = scorer.similarities(pairs)
    assert sims.dtype == np.float32
    np.testing.assert_allclose(sims, direct_similarities(scorer, pairs), atol=1e-5)


@each_matcher
def test_the_batch_size_changes_nothing(tiny: Tiny, matcher_class: Kind) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs, matcher_class)
    expected = scorer.similarities(pairs)
    for batch_size in (1, 7, 100):
        np.testing.assert_allclose(replace(scorer, batch_size=batch_size).similarities(pairs), expected, atol=1e-5)


@pytest.mark.parametrize("memory", [1e-9, 1e-6])
def test_images_that_do_not_fit_into_memory_are_scored_part_by_part(tiny: Tiny, memory: float) -> None:
    pairs = tiny(images=7)
    whole = scorer_for(pairs, VSE)
    tight = replace(whole, memory=memory, batch_size=2)
    heard: list[tuple[int, int]] = []
    sims = tight.similarities(pairs, progress=lambda done, total: heard.append((done, total)))
    np.testing.assert_allclose(sims, whole.similarities(pairs), atol=1e-6)
    assert heard == sorted(heard)
    assert heard[-1] == (pairs.images + len(pairs),) * 2


def test_no_block_holds_more_images_than_so_many(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at hand at a time does not grow with the data, however little memory the images themselves take."""
    pairs = tiny(images=7)
    scorer, seen, heard = scorer_for(pairs), [], []
    expected = scorer.similarities(pairs)
    monkeypatch.setattr(score, "_IMAGES", 4)
    sims = np.zeros_like(expected)

    def see(rows: slice, columns: np.ndarray, block: torch.Tensor) -> None:
        seen.append(len(block))
        sims[rows, columns] = block.numpy()

    tokens, captions = scorer.tokens(pairs), np.arange(len(pairs))
    few = replace(scorer, batch_size=2)
    few.score(pairs, tokens, np.arange(7), captions, see, progress=lambda *now: heard.append(now))
    np.testing.assert_allclose(sims, expected, atol=1e-6)
    assert set(seen) == {4, 3}
    assert heard == sorted(heard)
    assert heard[-1] == (7 + 14, 7 + 14)


def test_progress_counts_comparing_where_there_are_more_images_than_captions(tiny: Tiny) -> None:
    """A million images and ten captions: most of the work is left when the images are encoded."""
    pairs = tiny(images=7)
    scorer, heard = replace(scorer_for(pairs), batch_size=7), []
    captions = np.array([0, 3])
    scorer.score(
        pairs, scorer.tokens(pairs), np.arange(7), captions, lambda *_: None, progress=lambda *now: heard.append(now)
    )
    assert heard[0] == (7, 14)
    assert heard[-1] == (14, 14)


def test_known_tokens_need_not_be_made_again(tiny: Tiny) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs)
    wordless = replace(pairs, captions=["?"] * len(pairs))
    np.testing.assert_array_equal(
        scorer.similarities(wordless, tokens=scorer.tokens(pairs)), scorer.similarities(pairs)
    )


@each_matcher
def test_pair_similarities_are_those_of_the_images_that_are_shown(tiny: Tiny, matcher_class: Kind) -> None:
    pairs = tiny(images=25)
    pairs = pairs.show(np.roll(pairs.image_index, 3))
    scorer = scorer_for(pairs, matcher_class, batch_size=64)
    own = scorer.similarities(pairs)[pairs.image_index, np.arange(len(pairs))]
    np.testing.assert_allclose(scorer.pair_similarities(pairs), own, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_matcher_is_left_in_the_mode_it_was_in(tiny: Tiny, training: bool) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs)
    module = scorer.matcher
    assert isinstance(module, torch.nn.Module)
    module.train(training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, second = scorer.similarities(pairs), scorer.similarities(pairs)
    assert module.training is training
    assert all(part.training is training for part in module.modules())
    np.testing.assert_array_equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_mode_is_restored_after_an_error_too(tiny: Tiny) -> None:
    matcher = scorer_for(tiny()).matcher
    assert isinstance(matcher, torch.nn.Module)

    def fail() -> None:
        with scoring(matcher):
            assert not matcher.training
            assert torch.is_inference_mode_enabled()
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        fail()
    assert matcher.training
    assert not torch.is_inference_mode_enabled()


def test_the_device_is_that_of_the_parameters() -> None:
    assert device_of(torch.nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(torch.nn.Identity()).type == "cpu"


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
    with pytest.raises(InputError, match=f"12 images cannot be cut into {folds} folds of one size"):
        evaluate([scorer_for(pairs)], pairs, folds=folds)


def test_no_pairs_are_refused(tiny: Tiny) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs)
    nothing = replace(pairs, captions=[], image_index=np.zeros(0, dtype=np.int64))
    with pytest.raises(InputError, match="tiny: no pairs to evaluate on"):
        evaluate([scorer], nothing)


def test_progress_is_told_until_all_is_done(tiny: Tiny) -> None:
    pairs = tiny()
    scorer, told = scorer_for(pairs), []
    scorer.similarities(pairs, progress=lambda done, total: told.append((done, total)))
    assert told == [(5, 18), (6, 18), (10, 18), (14, 18), (18, 18)]  # 6 images, 12 captions
    told.clear()
    scorer.pair_similarities(pairs, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (12, 12)


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
    evaluate(scorers, pairs, folds=folds, progress=lambda done, total: told.append((done, total)))
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


def test_captions_are_taken_by_length_among_those_side_by_side() -> None:
    lengths = np.random.default_rng(0).integers(3, 20, 1000)
    order = _by_length(lengths, 256)
    assert sorted(order) == list(range(1000))
    for start in range(0, 1000, 256):
        group = order[start : start + 256]
        assert set(group) == set(range(start, min(start + 256, 1000)))
        assert (np.diff(lengths[group]) >= 0).all()
    np.testing.assert_array_equal(_by_length(lengths, 1000), np.argsort(lengths, kind="stable"))


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


@each_matcher
def test_blocks_side_by_side_give_the_same_in_the_same_order(tiny: Tiny, matcher_class: Kind) -> None:
    pairs = tiny(images=5, captions=7)
    scorer = scorer_for(pairs, matcher_class, batch_size=3)
    alone, seen = scorer.similarities(pairs), []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = scorer.similarities(pairs, progress=lambda done, total: seen.append(done))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(together, alone)
    assert seen == sorted(seen)


def test_an_error_in_a_block_ends_the_scoring_and_leaves_the_threads_as_they_were(tiny: Tiny) -> None:
    pairs = tiny(images=5, captions=7)
    scorer = scorer_for(pairs, VSE, batch_size=3)
    scorer.matcher.txt.embed.weight.data.fill_(float("nan"))
    torch.set_num_threads(2)
    try:
        with pytest.raises(TrainingError, match="NaN"):
            scorer.similarities(pairs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
