"""NAAF: the authors' numbers, words one at a time, and the threshold that training finds."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from published_weights import assert_same_gradients, encoded, with_weights
from torch import Tensor

from crcl.distributed import Part, dividing
from crcl.matchers import NAAF, Encoded
from crcl.matchers.local import naaf
from crcl.matchers.local.naaf import boundaries

Numbers = Callable[[str], dict[str, np.ndarray]]
SIZES = {"features": 6, "vocabulary": 12, "embedding": 8, "word": 5}


def authors(numbers: dict[str, np.ndarray]) -> NAAF:
    """The authors keep both thresholds among their options."""
    states = {"threshold": np.float32(0), "safe_threshold": numbers["option.safe_threshold"]}
    return with_weights(NAAF, numbers, more=states)


def test_equals_the_authors_implementation(recorded: Numbers) -> None:
    numbers = recorded("zoo/naaf")
    matcher = authors(numbers)
    images, texts = encoded(matcher, numbers)
    np.testing.assert_allclose(images.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(matcher.similarity(images, texts), numbers["similarities"], atol=1e-5)


def batch_of(numbers: dict[str, np.ndarray]) -> tuple[Encoded, Encoded]:
    regions, words = (torch.from_numpy(numbers[f"{side}_embeddings"]) for side in ("image", "text"))
    real = torch.arange(words.shape[1]) < torch.from_numpy(numbers["lengths"])[:, None]
    return Encoded(regions, torch.ones(regions.shape[:2], dtype=torch.bool)), Encoded(words * real[..., None], real)


def test_similarities_in_training_are_the_authors_at_the_thresholds_that_their_captions_saw(recorded: Numbers) -> None:
    numbers = recorded("zoo/naaf_training")
    matcher, (images, texts) = NAAF(**SIZES).train(), batch_of(numbers)
    for j, threshold in enumerate(numbers["thresholds"][:-1]):
        matcher.threshold.fill_(float(threshold))
        with torch.no_grad():
            column = matcher.similarity(images, texts.part(slice(j, j + 1)))[:, 0]
        np.testing.assert_allclose(column, numbers["similarities"][:, j], atol=1e-5)


def test_thresholds_are_the_authors_once_enough_words_are_collected(recorded: Numbers) -> None:
    numbers = recorded("zoo/naaf_training")
    images, texts = batch_of(numbers)
    sims = torch.from_numpy(numbers["similarities"])
    best = (images.features[:, None] @ texts.features.mT).amax(2)  # (images, captions, W)
    matched, mismatched = [], []
    for j, real in enumerate(texts.mask):
        expected = numbers["thresholds"][j + 1], numbers["safe_thresholds"][j + 1]
        if sims[:, j].argmax() != j:
            assert expected == (numbers["thresholds"][j], numbers["safe_thresholds"][j])
            continue
        matched.append(best[j, j][real])
        mismatched.append(best[sims[:, j].argmin(), j][real])
        if sum(map(len, matched)) <= 200:
            assert expected == (0, 0)
            continue
        found = boundaries(torch.cat(matched), torch.cat(mismatched))
        for new, old, left in zip(found, ("thresholds", "safe_thresholds"), expected, strict=True):
            assert 0.7 * float(new) + 0.3 * numbers[old][j] == pytest.approx(left, abs=1e-5)


def test_a_batch_in_training_moves_both_thresholds_and_the_rest_does_not(recorded: Numbers) -> None:
    images, texts = batch_of(recorded("zoo/naaf_training"))
    matcher = NAAF(**SIZES).train()
    matcher.similarity(images, texts.part(slice(0, 35)))  # no pairs
    matcher.similarity(images.part(slice(0, 9)), texts.part(slice(0, 9)))  # fewer than 200 words
    matcher.eval().similarity(images, texts)
    assert (matcher.threshold, matcher.safe_threshold) == (0, 0)
    matcher.train().similarity(images, texts)
    assert 0.3 < matcher.threshold.item() < 0.7
    assert 0.2 < matcher.safe_threshold.item() < matcher.threshold.item()
    assert "threshold" in matcher.state_dict()


def test_densities_that_do_not_meet_give_no_boundary() -> None:
    torch.manual_seed(0)
    narrow, wide = 0.5 + 0.01 * torch.randn(300), 0.5 + 0.3 * torch.randn(300)
    found, safe = boundaries(wide, narrow, penalty=1e-3)
    assert found is None
    assert safe.item() == 0


def looped(matcher: NAAF, images: Encoded, texts: Encoded, threshold: float) -> Tensor:
    """Pair by pair and word by word, from the formulas of training."""
    rows = []
    for v, seen in zip(images.features, images.mask, strict=True):
        for t, read in zip(texts.features, texts.mask, strict=True):
            s = t[read] @ v[seen].T  # (words, regions)
            positive = torch.nn.functional.leaky_relu(s, 0.1)
            usual = ((20 * positive / (positive.norm(dim=0) + 1e-8)).softmax(1) * s).sum(1)
            total = usual.sum()
            for word, row in zip(t[read], s, strict=True):
                above = row > threshold
                if above.any():
                    weights = (20 * (row[above] - threshold)).exp()
                    context = (weights / weights.sum()) @ v[seen][above]
                    total = total + word @ context / context.norm()
                total = total + (row.max() - threshold).clamp(max=0)
            rows.append(total / len(s))
    return torch.stack(rows).view(len(images), len(texts))


@pytest.mark.parametrize("memory", [4.0, 1e-9], ids=["kept", "computed again"])
def test_gradients_equal_those_of_a_loop_over_pairs_and_words(memory: float) -> None:
    torch.manual_seed(0)
    matcher = NAAF(**SIZES, memory=memory).train()
    matcher.threshold.fill_(0.3)
    mask, lengths = torch.arange(4) < torch.tensor([4, 2, 1])[:, None], torch.tensor([4, 7, 2])
    images = matcher.encode_images(torch.randn(3, 4, 6), mask)
    texts = matcher.encode_texts(torch.randint(1, 12, (3, 7)), lengths)
    sims = matcher.similarity(images, texts)
    assert_same_gradients(sims, looped(matcher, images, texts, 0.3), list(matcher.parameters()))


def test_what_words_find_and_lack_adds_up_to_the_similarity(recorded: Numbers) -> None:
    numbers = recorded("zoo/naaf")
    matcher = authors(numbers)
    images, texts = encoded(matcher, numbers)
    with torch.no_grad():
        found, lacking = matcher.words(images, texts)
        sums = (found + lacking).sum(2) / texts.mask.sum(1)
        torch.testing.assert_close(sums, matcher.similarity(images, texts))
    assert (lacking < 0).any()
    assert torch.equal(matcher.lacking(images, texts), lacking < 0)
    assert not (found * ~texts.mask).any()


def test_parts_of_a_batch_move_both_thresholds_as_the_whole_batch_does(
    recorded: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, texts = batch_of(recorded("zoo/naaf_training"))
    whole = NAAF(**SIZES).train()
    whole.similarity(images, texts)
    parts = [Part.of(len(images), number, 3) for number in range(3)]
    sent: list[Tensor] = []
    for exchange in (lambda own, part: (sent.append(own), own)[1], lambda own, part: torch.cat(sent)):
        monkeypatch.setattr(naaf, "gather", exchange)
        for part in parts:
            matcher = NAAF(**SIZES).train()
            with dividing(part):
                matcher.similarity(images, texts.part(part.own))
    assert matcher.threshold.item() == pytest.approx(whole.threshold.item(), abs=1e-6)
    assert matcher.safe_threshold.item() == pytest.approx(whole.safe_threshold.item(), abs=1e-6)
