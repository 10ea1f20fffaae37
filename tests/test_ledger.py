"""Ledger: Eq. 10-12 pair by pair, the authors' recorded beliefs, and what must not matter."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crcl.ledger import Correction, Ledger, cut, refine
from crcl.losses import active_complementary, matching_log_probs, pair_probability

Seen = dict[int, float]
"""p̂ of the pairs that were seen in an epoch."""
each_correction = pytest.mark.parametrize("correction", ["paper", "official", "none"])


def feed(ledger: Ledger, seen: Seen, *, batch: int = 3) -> dict[int, float]:
    """Show the ledger an epoch's p̂ in batches, and collect the labels that it gives."""
    labels: dict[int, float] = {}
    numbers = list(seen)
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        given_labels = ledger.observe(torch.tensor(part), torch.tensor([seen[i] for i in part]))
        labels |= dict(zip(part, given_labels.tolist(), strict=True))
    return labels


def random_epoch(rng: np.random.Generator, pairs: int, *, share: float = 0.8) -> Seen:
    """p̂ of some pairs in random order, many of them below the threshold."""
    numbers = rng.permutation(pairs)[: rng.binomial(pairs, share)]
    return {int(i): float(np.float32(rng.random() ** 3)) for i in numbers}


def slow_paper(
    pieces: list[list[Seen]], pairs: int, *, momentum: float, freeze_epochs: int
) -> list[list[dict[int, float]]]:
    """Eq. 11 for one pair after the other; piece j and epoch t count from 1. Where there is no p̂, nothing changes."""
    beliefs: list[list[dict[int, float]]] = [[{} for _ in epochs] for epochs in pieces]
    for pair in range(pairs):
        end_of_previous_piece = 1.0
        for j in range(1, len(pieces) + 1):
            belief = end_of_previous_piece
            for t in range(1, len(pieces[j - 1]) + 1):
                probability = pieces[j - 1][t - 2].get(pair) if t > 1 else None
                if t <= freeze_epochs:
                    belief = end_of_previous_piece
                elif probability is None:
                    pass
                elif j == 1 and t == freeze_epochs + 1:
                    belief = probability
                else:
                    belief = momentum * belief + (1 - momentum) * probability
                beliefs[j - 1][t - 1][pair] = belief
            end_of_previous_piece = belief
    return beliefs


def slow_cut(belief: float, threshold: float) -> float:
    """Eq. 12."""
    return 0.0 if belief < threshold else belief


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    freeze_epochs=st.integers(0, 3),
    momentum=st.sampled_from([0.0, 0.5, 0.8, 0.99]),
    threshold=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 999),
)
def test_paper_correction_is_equations_11_and_12_pair_by_pair(
    lengths: list[int], freeze_epochs: int, momentum: float, threshold: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pieces = [[random_epoch(rng, 7) for _ in range(length)] for length in lengths]
    slow = slow_paper(pieces, 7, momentum=momentum, freeze_epochs=freeze_epochs)
    ledger = Ledger(7, momentum=momentum, threshold=threshold, freeze_epochs=freeze_epochs)
    for piece, epochs in enumerate(pieces):
        for epoch, seen in enumerate(epochs):
            ledger.begin_epoch(piece, epoch)
            labels = feed(ledger, seen)
            expected = [slow[piece][epoch][pair] for pair in range(7)]
            np.testing.assert_allclose(ledger.correspondence, expected, atol=1e-6)
            for pair, label in labels.items():
                if abs(expected[pair] - threshold) > 1e-6:
                    assert label == pytest.approx(slow_cut(expected[pair], threshold), abs=1e-6)


def test_official_correction_agrees_with_the_authors_beliefs_losses_and_gradients(
    recorded: Callable[[str], dict[str, np.ndarray]],
) -> None:
    numbers = recorded("crcl_steps")
    steps = sorted({name.split("/")[0] for name in numbers if "/" in name})
    assert len(steps) == 32
    tau, scale = float(numbers["tau"]), float(numbers["scale"])
    ledger = Ledger(
        len(numbers["000/stored_before"]),
        momentum=float(numbers["beta"]),
        threshold=float(numbers["epsilon"]),
        freeze_epochs=int(numbers["freeze_epochs"]),
        correction="official",
    )
    now = None
    for step in steps:
        piece, epoch = int(numbers[f"{step}/piece"]), int(numbers[f"{step}/epoch"])
        if now != (piece, epoch):
            now = (piece, epoch)
            ledger.begin_epoch(piece, epoch)
        np.testing.assert_allclose(ledger.correspondence, numbers[f"{step}/stored_before"], atol=1e-6)
        sims = torch.from_numpy(numbers[f"{step}/similarities"]).requires_grad_()
        probability = pair_probability(*matching_log_probs(sims, tau))
        labels = ledger.observe(torch.from_numpy(numbers[f"{step}/pairs"]), probability)
        loss = active_complementary(sims, labels, tau=tau, scale=scale).mean()
        loss.backward()
        np.testing.assert_allclose(ledger.correspondence, numbers[f"{step}/stored_after"], atol=1e-6)
        assert loss.item() == pytest.approx(float(numbers[f"{step}/loss"]), rel=1e-4)
        gradient = numbers[f"{step}/gradient"]
        assert sims.grad is not None
        np.testing.assert_allclose(sims.grad, gradient, rtol=1e-4, atol=1e-4 * np.abs(gradient).max())


def test_everybody_is_believed_at_first() -> None:
    ledger = Ledger(4)
    assert len(ledger) == 4
    assert ledger.correspondence.tolist() == [1, 1, 1, 1]


def test_in_the_paper_the_threshold_acts_on_reading_only() -> None:
    ledger = Ledger(2, freeze_epochs=1)
    ledger.begin_epoch(0, 0)
    feed(ledger, {0: 0.05, 1: 0.6})
    ledger.begin_epoch(0, 1)
    assert feed(ledger, {0: 0.9, 1: 0.6}) == pytest.approx({0: 0.0, 1: 0.6})
    np.testing.assert_allclose(ledger.correspondence, [0.05, 0.6])
    ledger.begin_epoch(0, 2)
    np.testing.assert_allclose(ledger.correspondence, [0.8 * 0.05 + 0.2 * 0.9, 0.6], rtol=1e-6)


def test_in_the_authors_code_a_label_below_the_threshold_is_stored_as_zero() -> None:
    ledger = Ledger(1, freeze_epochs=1, correction="official")
    for epoch, probability in enumerate([0.05, 0.2, 0.9]):
        ledger.begin_epoch(0, epoch)
        feed(ledger, {0: probability})
    np.testing.assert_allclose(ledger.correspondence, [0.2 * 0.9], rtol=1e-6)


def test_a_belief_at_the_threshold_is_kept() -> None:
    np.testing.assert_array_equal(cut(np.float32([0.0, 0.24, 0.25, 1.0]), 0.25), np.float32([0, 0, 0.25, 1]))


def test_frozen_epochs_of_a_later_piece_keep_the_beliefs_of_the_piece_before() -> None:
    ledger = Ledger(1, freeze_epochs=1)
    for piece, epoch, probability in [(0, 0, 0.5), (0, 1, 0.7), (0, 2, 0.9)]:
        ledger.begin_epoch(piece, epoch)
        feed(ledger, {0: probability})
    kept = 0.8 * 0.5 + 0.2 * 0.7
    ledger.begin_epoch(1, 0)
    np.testing.assert_allclose(ledger.correspondence, [kept], rtol=1e-6)
    feed(ledger, {0: 0.3})
    ledger.begin_epoch(1, 1)
    np.testing.assert_allclose(ledger.correspondence, [0.8 * kept + 0.2 * 0.3], rtol=1e-6)


@each_correction
def test_a_pair_that_is_not_seen_keeps_its_belief(correction: Correction) -> None:
    ledger = Ledger(3, freeze_epochs=1, correction=correction)
    ledger.begin_epoch(0, 0)
    feed(ledger, {0: 0.4, 1: 0.7, 2: 0.9})
    ledger.begin_epoch(0, 1)
    before = feed(ledger, {0: 0.5, 1: 0.6})
    belief = ledger.correspondence[2]
    for epoch in (2, 3):
        ledger.begin_epoch(0, epoch)
        feed(ledger, {0: 0.5, 1: 0.6})
    assert set(before) == {0, 1}
    assert ledger.correspondence[2] == belief


def test_a_pair_first_seen_after_the_frozen_epochs_goes_on_from_belief_one() -> None:
    ledger = Ledger(2, freeze_epochs=1)
    ledger.begin_epoch(0, 0)
    feed(ledger, {0: 0.4})
    ledger.begin_epoch(0, 1)
    feed(ledger, {0: 0.4, 1: 0.5})
    ledger.begin_epoch(0, 2)
    np.testing.assert_allclose(ledger.correspondence, [0.4, 0.8 + 0.2 * 0.5], rtol=1e-6)


def test_refine_leaves_its_arguments_alone() -> None:
    correspondence, probability = np.float32([0.5, 0.5]), np.float32([0.2, np.nan])
    refined = refine(correspondence, probability, piece=0, epoch=3)
    np.testing.assert_allclose(refined, [0.8 * 0.5 + 0.2 * 0.2, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(correspondence, np.float32([0.5, 0.5]))
    np.testing.assert_array_equal(probability, np.float32([0.2, np.nan]))
    assert refined.dtype == np.float32


def test_without_correction_the_label_is_the_current_probability_after_the_frozen_epochs() -> None:
    ledger = Ledger(2, freeze_epochs=1, correction="none")
    ledger.begin_epoch(0, 0)
    assert feed(ledger, {0: 0.04, 1: 0.7}) == {0: 1.0, 1: 1.0}
    ledger.begin_epoch(0, 1)
    assert feed(ledger, {0: 0.03, 1: 0.6}) == pytest.approx({0: 0.03, 1: 0.6})
    assert feed(ledger, {0: 0.5}) == pytest.approx({0: 0.5})
    np.testing.assert_allclose(ledger.correspondence, [0.5, 0.6])


def test_probabilities_recorded_at_the_end_of_an_epoch_replace_those_of_its_steps() -> None:
    ledger = Ledger(2, freeze_epochs=1)
    ledger.begin_epoch(0, 0)
    feed(ledger, {0: 0.4, 1: 0.7})
    ledger.record(torch.tensor([1]), torch.tensor([0.9]))
    ledger.begin_epoch(0, 1)
    np.testing.assert_allclose(ledger.correspondence, [0.4, 0.9])


@each_correction
def test_the_order_of_the_batches_does_not_matter(correction: Correction) -> None:
    rng = np.random.default_rng(0)
    epochs = [random_epoch(rng, 12) for _ in range(8)]
    one, other = Ledger(12, correction=correction), Ledger(12, correction=correction)
    for number, seen in enumerate(epochs):
        shuffled = {pair: seen[pair] for pair in rng.permutation(list(seen)).tolist()}
        for ledger in (one, other):
            ledger.begin_epoch(*divmod(number, 4))
        assert feed(one, seen) == feed(other, shuffled, batch=5)
        np.testing.assert_array_equal(one.correspondence, other.correspondence)


@each_correction
def test_a_saved_ledger_goes_on_in_the_middle_of_an_epoch(correction: Correction) -> None:
    rng = np.random.default_rng(1)
    epochs = [random_epoch(rng, 9) for _ in range(7)]
    whole, first = Ledger(9, correction=correction), Ledger(9, correction=correction)
    resumed = Ledger(9, correction=correction)
    for epoch, seen in enumerate(epochs):
        middle = len(seen) // 2
        halves = [dict(list(seen.items())[:middle]), dict(list(seen.items())[middle:])]
        whole.begin_epoch(0, epoch)
        first.begin_epoch(0, epoch)
        feed(whole, seen)
        feed(first, halves[0])
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        resumed = Ledger(9, correction=correction)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        feed(resumed, halves[1])
        np.testing.assert_array_equal(resumed.correspondence, whole.correspondence)
        np.testing.assert_array_equal(resumed.probability, whole.probability)
        assert (resumed.piece, resumed.epoch) == (0, epoch)
        first = resumed


def test_a_saved_state_does_not_change_with_the_ledger() -> None:
    ledger = Ledger(2, correction="official", freeze_epochs=0)
    state = ledger.state_dict()
    feed(ledger, {0: 0.5, 1: 0.5})
    assert state["correspondence"].tolist() == [1, 1]
    other = Ledger(2, correction="official", freeze_epochs=0)
    other.load_state_dict(state)
    feed(other, {0: 0.5, 1: 0.5})
    assert state["correspondence"].tolist() == [1, 1]
    assert bool(state["probability"].isnan().all())


@each_correction
def test_labels_are_float32_without_gradient_whatever_the_probabilities_are(correction: Correction) -> None:
    ledger = Ledger(2, freeze_epochs=0, correction=correction)
    probability = torch.tensor([0.5, 0.25], dtype=torch.bfloat16, requires_grad=True)
    labels = ledger.observe(torch.tensor([1, 0]), probability)
    assert labels.dtype == torch.float32
    assert not labels.requires_grad
    assert ledger.probability.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pairs": 0}, "at least one pair, got 0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"momentum must be in \[0, 1\)"),
        ({"threshold": 1.5}, r"threshold must be in \[0, 1\), got 1.5"),
        ({"threshold": float("nan")}, r"threshold must be in \[0, 1\)"),
        ({"freeze_epochs": -1}, "freeze_epochs must be 0 or more, got -1"),
        ({"correction": "papers"}, "correction must be paper, official or none, got 'papers'"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ledger(**({"pairs": 3} | wrong))  # type: ignore[arg-type]


def test_a_saved_ledger_of_other_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="the saved ledger has 3 pairs, the data 2"):
        Ledger(2).load_state_dict(Ledger(3).state_dict())


@pytest.mark.parametrize("correction", ["paper", "official", "none"])
def test_fixed_beliefs_are_the_labels_of_their_pairs_while_the_ledger_goes_on_judging_them(correction):
    fixed = np.array([1, 0, np.nan, np.nan], dtype=np.float32)
    plain, known = (Ledger(4, freeze_epochs=1, correction=correction, fixed=of) for of in (None, fixed))
    numbers, probability = torch.arange(4), torch.tensor([0.2, 0.9, 0.2, 0.9])
    for epoch in range(3):
        for ledger in (plain, known):
            ledger.begin_epoch(0, epoch)
        labels, expected = known.observe(numbers, probability), plain.observe(numbers, probability)
        assert labels[:2].tolist() == [1, 0]
        assert labels[2:].tolist() == expected[2:].tolist()
    np.testing.assert_array_equal(known.correspondence, plain.correspondence)
    assert known.told[:2].tolist() == [1, 0]
    assert known.told[2:].tolist() == plain.told[2:].tolist()


def test_fixed_beliefs_must_fit_the_pairs():
    with pytest.raises(ValueError, match="fixed must have 2 beliefs"):
        Ledger(2, fixed=np.array([2.0, np.nan]))
