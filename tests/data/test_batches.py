"""Batches: each pair once, the same whatever the workers, augmented at the stated rates, features never touched."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crcl.data import noise
from crcl.data.batches import Batch, Batches, Standardize
from crcl.data.maps.shards import Shards
from crcl.data.order import Shuffle
from crcl.data.split import Split
from crcl.data.text.vectors import TextVectors
from crcl.data.text.vocabulary import END, PAD, START, Tokens, Vocabulary
from crcl.errors import InputError

Tiny = Callable[..., Split]
FIELDS = ("pairs", "regions", "region_mask", "tokens", "lengths")


def batches_of(pairs: Split, **options: Any) -> Batches:
    vocabulary = Vocabulary.build(pairs.captions, minimum=1)
    settings = {"batch_size": 4, "vocabulary": len(vocabulary), "mask_token": vocabulary.mask} | options
    return Batches(pairs, vocabulary.encode(pairs.captions), **settings)


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(getattr(one, field), getattr(other, field)) for field in FIELDS)


def tokens_of(lengths: list[int]) -> Tokens:
    """Captions of these lengths, start and end included, whose words are all 4."""
    captions = [[START, *[4] * (length - 2), END] for length in lengths]
    return Tokens(np.concatenate(captions).astype(np.int32), np.cumsum([0, *lengths]))


@pytest.mark.parametrize(
    ("images", "batch_size", "sizes"),
    [
        (6, 4, [4, 4, 4]),
        (7, 4, [4, 4, 4, 2]),
        (6, 11, [11]),  # the twelfth pair would be a batch of its own
        (6, 100, [12]),
    ],
)
def test_every_pair_is_seen_once_an_epoch_but_a_single_one_left_over(
    tiny: Tiny, images: int, batch_size: int, sizes: list[int]
) -> None:
    pairs = tiny(images=images)
    batches = batches_of(pairs, batch_size=batch_size)
    epoch = list(batches.epoch(0))
    seen = torch.cat([batch.pairs for batch in epoch]).tolist()
    assert [len(batch) for batch in epoch] == sizes
    assert len(batches) == len(sizes)
    assert len(seen) == len(set(seen)) == sum(sizes)
    assert set(seen) <= set(range(len(pairs)))


def test_order_differs_from_epoch_to_epoch_from_seed_to_seed_and_from_stream_to_stream(tiny: Tiny) -> None:
    pairs = tiny(images=10)
    batches = batches_of(pairs, batch_size=20)

    def order(batches: Batches, epoch: int, stream: int = 0) -> tuple[int, ...]:
        return tuple(next(batches.epoch(epoch, stream=stream)).pairs.tolist())

    orders = {order(batches, 0), order(batches, 1), order(batches, 2), order(batches, 0, 1)}
    orders.add(order(batches_of(pairs, batch_size=20, seed=1), 0))
    assert len(orders) == 5


def test_some_pairs_come_round_and_round_each_time_in_another_order(tiny: Tiny) -> None:
    batches = batches_of(tiny(images=10))
    among = np.array([1, 2, 3, 5, 8, 13])
    whole = list(islice(batches.cycle(0, among, stream=3), 6))
    rounds = [torch.cat([batch.pairs for batch in whole[first : first + 2]]).tolist() for first in (0, 2, 4)]
    assert all(sorted(order) == among.tolist() for order in rounds)
    assert len(set(map(tuple, rounds))) == 3
    assert all(map(same, whole[:2], batches.epoch(0, among=among, stream=3)))
    for start in range(5):
        assert all(map(same, whole[start:], batches.cycle(0, among, start=start, stream=3)))


@pytest.mark.parametrize("pairs", [0, 1])
def test_too_few_pairs_for_a_batch_come_round_never(tiny: Tiny, pairs: int) -> None:
    assert list(batches_of(tiny()).cycle(0, np.arange(pairs), start=2)) == []


def test_one_seed_gives_one_training(tiny: Tiny) -> None:
    one, other = batches_of(tiny(), seed=3), batches_of(tiny(), seed=3)
    for epoch in range(3):
        assert all(map(same, one.epoch(epoch), other.epoch(epoch)))


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_the_same_whatever_the_number_of_workers(tiny: Tiny, workers: int) -> None:
    pairs = tiny()
    expected = list(batches_of(pairs).epoch(5, start=1))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = list(batches_of(pairs, workers=workers).epoch(5, start=1))
    assert len(found) == len(expected) == 2
    assert all(map(same, found, expected))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_in_blocks_are_the_same_from_any_batch_on_whatever_the_number_of_workers(
    tiny: Tiny, workers: int
) -> None:
    pairs, blocks = tiny(images=30), Shuffle(4, 2)
    whole = list(batches_of(pairs, shuffle=blocks).epoch(5))
    assert sorted(torch.cat([batch.pairs for batch in whole]).tolist()) == list(range(60))
    for start in (1, 7):
        found = list(batches_of(pairs, shuffle=blocks, workers=workers).epoch(5, start=start))
        assert len(found) == len(whole) - start
        assert all(map(same, found, whole[start:]))


def test_blocks_are_those_of_the_images_that_are_shown(tiny: Tiny) -> None:
    pairs = tiny(images=30)
    images = np.random.default_rng(0).permutation(30).repeat(2)
    for shown, batches in (
        (images, batches_of(pairs.show(images), shuffle=Shuffle(4, 2), batch_size=8).epoch(0)),
        (images, batches_of(pairs, shuffle=Shuffle(4, 2), batch_size=8).epoch(0, images=images)),
    ):
        assert len(set(shown[next(batches).pairs.numpy()] // 4)) <= 2


def test_images_and_vectors_of_the_next_window_are_asked_for(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, asked = tiny(images=30), list[np.ndarray]()
    pairs = replace(pairs, text_features=Shards([np.ones((60, 3), np.float32)]))
    monkeypatch.setattr(Split, "read_ahead", lambda pairs, images: asked.append(images))
    monkeypatch.setattr(Split, "read_texts_ahead", lambda pairs, captions: asked.append(-1 - captions))
    batches = replace_tokens(batches_of(pairs, shuffle=Shuffle(4, 2)), TextVectors(pairs)).epoch(0)
    first = next(batches)
    found = np.concatenate(asked)
    assert set(found[found < 0]) >= set((-1 - first.pairs).tolist())
    assert set(found[found >= 0]) >= set(pairs.image_index[first.pairs.numpy()].tolist())
    list(batches)
    assert set(np.concatenate(asked)) == {*range(30), *range(-60, 0)}


def replace_tokens(batches: Batches, tokens: TextVectors) -> Batches:
    batches.tokens = tokens
    return batches


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_features_are_refused_by_their_own_message_in_worker_processes_too(tiny: Tiny, workers: int) -> None:
    pairs = tiny()
    features = pairs.features.copy()
    features[3, 1, 2] = np.nan
    batches = batches_of(replace(pairs, features=features), workers=workers)
    with pytest.raises(InputError, match=r"^tiny: NaN or infinity in row 3 \(image '3\.jpg'\)"):
        list(batches.epoch(0))


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_an_epoch_goes_on_in_its_middle(tiny: Tiny, start: int) -> None:
    batches = batches_of(tiny())
    whole, rest = list(batches.epoch(2))[start:], list(batches.epoch(2, start=start))
    assert len(whole) == len(rest)
    assert all(map(same, whole, rest))


def test_an_epoch_can_be_held_among_some_pairs(tiny: Tiny) -> None:
    batches = batches_of(tiny())
    among = np.array([1, 3, 5, 7, 8, 10])
    epoch = list(batches.epoch(0, among=among))
    assert len(epoch) == batches.count(len(among)) == 2
    assert sorted(torch.cat([batch.pairs for batch in epoch]).tolist()) == among.tolist()


def test_without_augmentation_a_batch_is_the_pairs_as_they_are(tiny: Tiny) -> None:
    pairs = tiny()
    batches = batches_of(pairs, augment=False)
    for batch in batches.epoch(0):
        assert batch.regions.dtype == torch.float32
        assert batch.tokens.dtype == batch.lengths.dtype == batch.pairs.dtype == torch.int64
        assert bool(batch.region_mask.all())
        for place, pair in enumerate(batch.pairs.tolist()):
            np.testing.assert_array_equal(batch.regions[place], pairs.features[pairs.image_index[pair]])
            ids = batches.tokens[pair]
            assert batch.tokens[place].tolist() == [*ids, *[PAD] * (batch.tokens.shape[1] - len(ids))]
            assert batch.lengths[place] == len(ids)


def test_a_single_epoch_can_go_without_augmentation(tiny: Tiny) -> None:
    pairs = tiny()
    found = list(batches_of(pairs).epoch(0, augment=False))
    assert all(map(same, found, batches_of(pairs, augment=False).epoch(0)))


def test_noise_changes_the_image_that_is_shown(tiny: Tiny) -> None:
    pairs = tiny()
    shown = pairs.show(np.roll(pairs.image_index, 5))
    batch = batches_of(shown, augment=False).make(np.array([7]), None)
    np.testing.assert_array_equal(batch.regions[0], pairs.features[shown.image_index[7]])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_can_show_other_images_with_the_captions(tiny: Tiny, workers: int) -> None:
    pairs = tiny(images=10)
    batches = batches_of(pairs, workers=workers)
    images = np.random.default_rng(0).integers(0, 10, len(pairs))
    among = np.arange(3, 18)
    images[~np.isin(np.arange(len(pairs)), among)] = -1  # of pairs that are not asked for
    own = list(batches.epoch(1, among=among, augment=False))
    other = list(batches.epoch(1, among=among, augment=False, images=images))
    assert len(own) == len(other) == 4
    for plain, shown in zip(own, other, strict=True):
        assert torch.equal(plain.pairs, shown.pairs)
        assert torch.equal(plain.tokens, shown.tokens)
        np.testing.assert_array_equal(shown.regions, pairs.gather(images[shown.pairs.numpy()]))
    whole = list(batches.epoch(1, among=among, images=images))  # augmented
    assert all(map(same, whole[2:], batches.epoch(1, among=among, images=images, start=2)))
    themselves = batches.epoch(1, images=pairs.image_index)
    assert all(map(same, batches.epoch(1), themselves))


@pytest.mark.parametrize("dropped_regions", ["removed", "blanked"])
def test_what_stands_behind_the_real_words_and_regions_is_zero(tiny: Tiny, dropped_regions: str) -> None:
    for batch in batches_of(tiny(images=20, regions=9), dropped_regions=dropped_regions).epoch(0):
        width = torch.arange(batch.tokens.shape[1])
        assert not batch.tokens[width >= batch.lengths[:, None]].any()
        assert not batch.regions[~batch.region_mask].any()
        counts = batch.region_mask.sum(1)
        assert torch.equal(batch.region_mask, torch.arange(batch.regions.shape[1]) < counts[:, None])
        assert counts.max() == batch.regions.shape[1]
        assert batch.lengths.max() == batch.tokens.shape[1]


def test_removed_regions_leave_the_others_in_their_order(tiny: Tiny) -> None:
    pairs = tiny(images=20, regions=9)
    for batch in batches_of(pairs).epoch(0):
        for place, pair in enumerate(batch.pairs.tolist()):
            stored = [row.tobytes() for row in pairs.features[pairs.image_index[pair]]]
            kept = batch.regions[place][batch.region_mask[place]].numpy()
            places = [stored.index(row.tobytes()) for row in kept]
            assert places == sorted(set(places))


def test_blanked_regions_keep_their_slots_and_hold_a_ten_billionth(tiny: Tiny) -> None:
    pairs = tiny(images=40, regions=9)
    blanked = total = 0
    for batch in batches_of(pairs, dropped_regions="blanked").epoch(0):
        assert batch.regions.shape[1] == 9
        assert bool(batch.region_mask.all())
        original = torch.from_numpy(pairs.features[pairs.image_index[batch.pairs.numpy()]])
        blank = (batch.regions == torch.tensor(1e-10)).all(2)
        assert torch.equal(batch.regions[~blank], original[~blank])
        blanked, total = blanked + int(blank.sum()), total + blank.numel()
    assert blanked / total == pytest.approx(0.2, abs=0.06)


def test_words_are_masked_replaced_and_dropped_at_the_stated_rates(tiny: Tiny) -> None:
    """A tenth masked, a fiftieth replaced by any id, 8 in 100 dropped; start and end can be hit too."""
    count, length, vocabulary, mask = 500, 42, 1000, 999
    pairs = tiny(images=count, captions=1, regions=2)
    batches = Batches(pairs, tokens_of([length] * count), vocabulary=vocabulary, mask_token=mask, batch_size=count)
    (batch,) = batches.epoch(0)
    real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    words, total = batch.tokens[real], count * length
    masked, kept_words = int((words == mask).sum()), int((words == 4).sum())
    starts, ends = int((words == START).sum()), int((words == END).sum())
    replaced = len(words) - masked - kept_words - starts - ends
    assert masked / total == pytest.approx(0.10, abs=0.01)
    assert replaced / total == pytest.approx(0.02, abs=0.005)
    assert 1 - len(words) / total == pytest.approx(0.08, abs=0.01)
    assert starts / count == pytest.approx(0.8, abs=0.06)
    assert ends / count == pytest.approx(0.8, abs=0.06)
    random_words = words[~torch.isin(words, torch.tensor([START, END, 4, mask]))]
    assert 0 <= random_words.min() < 50
    assert 950 < random_words.max() < vocabulary


def test_regions_are_dropped_at_the_stated_rate(tiny: Tiny) -> None:
    batches = batches_of(tiny(images=300, captions=1, regions=36), batch_size=300)
    (batch,) = batches.epoch(0)
    assert batch.region_mask.sum().item() / (300 * 36) == pytest.approx(0.8, abs=0.015)


@pytest.mark.parametrize("dropped_regions", ["removed", "blanked"])
def test_no_caption_and_no_image_is_ever_empty(tiny: Tiny, dropped_regions: str) -> None:
    """Of 2,000 captions of two tokens a dozen lose both by chance, and of as many images of one region 400 lose it."""
    count = 2000
    pairs = tiny(images=count, captions=1, regions=1)
    options: dict[str, Any] = {"vocabulary": 9, "mask_token": 8, "dropped_regions": dropped_regions}
    (batch,) = Batches(pairs, tokens_of([2] * count), batch_size=count, **options).epoch(0)
    assert batch.lengths.min() == 1
    assert batch.region_mask.sum(1).min() == 1
    assert bool((batch.regions[:, 0].abs().amax(1) > 1e-9).all())


def test_augmentation_differs_from_batch_to_batch_and_from_epoch_to_epoch(tiny: Tiny) -> None:
    batches = batches_of(tiny(regions=30), batch_size=6)
    masks = [batch.region_mask.sum(1).tolist() for epoch in (0, 1) for batch in batches.epoch(epoch)]
    assert len(masks) == 4
    assert all(one != other for one, other in combinations(masks, 2))


@pytest.mark.parametrize("dropped_regions", ["removed", "blanked"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_on_disk_are_never_written(tmp_path: Path, tiny: Tiny, dropped_regions: str, dtype: type) -> None:
    """Even where the file could be written to."""
    pairs = tiny()
    file = tmp_path / "train_ims.npy"
    np.save(file, pairs.features.astype(dtype))
    before = file.read_bytes()
    writable = np.load(file, mmap_mode="r+")
    stored = replace(pairs, features=writable)
    standardize = Standardize.measure(stored)
    batches = batches_of(stored, dropped_regions=dropped_regions, standardize=standardize)
    for epoch in range(3):
        for batch in batches.epoch(epoch):
            batch.regions.fill_(7)
    writable.flush()
    assert file.read_bytes() == before


def test_features_in_memory_may_be_read_only(tiny: Tiny) -> None:
    pairs = tiny()
    assert not pairs.features.flags.writeable
    before = pairs.features.copy()
    list(batches_of(pairs, dropped_regions="blanked", standardize=Standardize.measure(pairs)).epoch(0))
    np.testing.assert_array_equal(pairs.features, before)


@pytest.mark.parametrize("block", [1, 4, 512])
def test_standardization_measures_what_numpy_does(tiny: Tiny, block: int) -> None:
    pairs = tiny(images=9)
    features = (3 * pairs.features + np.arange(5)).astype(np.float32)
    found = Standardize.measure(replace(pairs, features=features), block=block)
    centred = features.astype(np.float64) - features.astype(np.float64).mean((0, 1))
    np.testing.assert_allclose(found.mean, features.mean((0, 1)), rtol=1e-5)
    assert found.deviation == pytest.approx(centred.std(), rel=1e-6)
    np.testing.assert_allclose(found(features.copy()), centred / centred.std(), atol=1e-5)


def test_standardization_of_features_that_never_vary_is_finite(tiny: Tiny) -> None:
    pairs = tiny()
    constant = replace(pairs, features=np.full_like(pairs.features, 2.5))
    found = Standardize.measure(constant)
    assert np.isfinite(found(constant.features.copy())).all()


def test_batches_are_standardized_before_anything_is_dropped(tiny: Tiny) -> None:
    pairs = tiny()
    shifted = replace(pairs, features=pairs.features + np.float32(100))
    standardize = Standardize.measure(shifted)
    plain = list(batches_of(shifted, standardize=standardize, augment=False).epoch(0))
    for batch in plain:
        expected = standardize(shifted.gather(shifted.image_index[batch.pairs.numpy()]))
        np.testing.assert_array_equal(batch.regions, expected)
    for batch in batches_of(shifted, standardize=standardize).epoch(0):
        assert not batch.regions[~batch.region_mask].any()


@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=8),
    chosen=st.lists(st.integers(0, 7), min_size=1, max_size=9),
)
def test_pad_puts_captions_side_by_side(lengths: list[int], chosen: list[int]) -> None:
    offsets = np.cumsum([0, *lengths])
    tokens = Tokens(np.arange(1, offsets[-1] + 1, dtype=np.int32), offsets)
    numbers = np.array(chosen) % len(lengths)
    ids, real = tokens.side_by_side(numbers)
    assert ids.shape == real.shape == (len(numbers), max(lengths[n] for n in numbers))
    for row, is_real, number in zip(ids, real, numbers, strict=True):
        assert row[is_real].tolist() == tokens[number].tolist()
        assert not row[~is_real].any()
        assert all(a >= b for a, b in pairwise(is_real))


def test_joined_batches_hold_the_same_words_and_regions_with_nothing_behind_them(tiny: Tiny) -> None:
    batches = batches_of(tiny())
    for one, other in pairwise(batches.epoch(0)):
        joined = one.join(other.first(3))
        assert joined.pairs.tolist() == [*one.pairs.tolist(), *other.pairs.tolist()[:3]]
        for row, (part, at) in enumerate([(one, i) for i in range(4)] + [(other, i) for i in range(3)]):
            words, regions = int(part.lengths[at]), int(part.region_mask[at].sum())
            assert (joined.lengths[row], joined.region_mask[row].sum()) == (words, regions)
            assert torch.equal(joined.tokens[row, :words], part.tokens[at, :words])
            assert torch.equal(joined.regions[row, :regions], part.regions[at, :regions])
            assert not joined.tokens[row, words:].any()
            assert not joined.regions[row, regions:].any()


def test_a_batch_stays_itself_on_its_own_device(tiny: Tiny) -> None:
    batch = next(batches_of(tiny()).epoch(0))
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, field).device.type for field in FIELDS} == {"meta"}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_an_epoch_does_not_tell_which_pairs_are_mismatched(tiny: Tiny, seed: int) -> None:
    pairs = tiny(images=1000, captions=1)
    shown = noise.mismatch(pairs.image_index, 0.4, seed)
    for epoch in range(2):
        batches = batches_of(pairs, batch_size=100, seed=seed, augment=False)
        wrong = [(shown[batch.pairs] != pairs.image_index[batch.pairs]).mean() for batch in batches.epoch(epoch)]
        assert 0.2 < min(wrong) <= max(wrong) < 0.6
