"""Losses: slow loops written from the paper's sum signs, laws, recorded numbers, extreme input."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crcl import losses

Numbers = Callable[[str], dict[str, np.ndarray]]
LABELS = torch.tensor([0.0, 0.05, 0.3, 0.7, 1.0])
LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "active": lambda sims, labels, tau: losses.active(*losses.matching_log_probs(sims, tau), labels),
    "complementary": lambda sims, labels, tau: losses.complementary(*losses.matching_log_probs(sims, tau), 1 - labels),
    "active_complementary": lambda sims, labels, tau: losses.active_complementary(sims, labels, tau=tau),
    **{
        f"{terms}_terms": lambda sims, labels, tau, terms=terms: losses.active_complementary(
            sims, labels, tau=tau, terms=terms
        )
        for terms in ("active", "complementary")
    },
    "robust_complementary": lambda sims, labels, tau: losses.robust_complementary(sims, tau=tau, q=0.7),
    "evidential": lambda sims, labels, tau: losses.evidential(sims, labels > 0.5, tau=max(tau, 0.05)),
    "dynamic_hinge": lambda sims, labels, tau: losses.dynamic_hinge(sims, 2),
    "info_nce": lambda sims, labels, tau: losses.info_nce(sims, tau=tau),
    **{
        f"contrastive_{kind}": lambda sims, labels, tau, kind=kind: losses.contrastive_complementary(
            sims, tau=tau, kind=kind
        )
        for kind in ("log", "tan", "abs", "exp", "gce")
    },
    **{
        f"triplet_{kind}": lambda sims, labels, tau, kind=kind: losses.triplet(sims, negatives=kind)
        for kind in ("hardest", "sum", "mean")
    },
    "soft_triplet": lambda sims, labels, tau: losses.triplet(sims, losses.soft_margin(labels)),
}
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def similarities(size: int = 5, *, seed: int = 0, scale: float = 0.3) -> Tensor:
    return scale * torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_probabilities(sims: Tensor, tau: float) -> tuple[list[list[float]], list[list[float]]]:
    """Eq. 3, entry by entry."""
    e, everyone = [[math.exp(s / tau) for s in row] for row in sims.tolist()], range(len(sims))
    i2t = [[e[i][j] / sum(e[i][k] for k in everyone) for j in everyone] for i in everyone]
    t2i = [[e[i][j] / sum(e[k][j] for k in everyone) for j in everyone] for i in everyone]
    return i2t, t2i


def slow_complementary(sims: Tensor, tau: float, q: list[float]) -> list[float]:
    """Eq. 6."""
    p, r = slow_probabilities(sims, tau)
    everyone = range(len(sims))
    return [
        sum(math.tan(p[i][j]) for j in everyone if j != i) / sum(math.tan(p[i][k]) for k in everyone) ** q[i]
        + sum(math.tan(r[j][i]) for j in everyone if j != i) / sum(math.tan(r[k][i]) for k in everyone) ** q[i]
        for i in everyone
    ]


def slow_active(sims: Tensor, tau: float, labels: list[float]) -> list[float]:
    """L_d."""
    p, r = slow_probabilities(sims, tau)
    return [-labels[i] * (math.log(p[i][i]) + math.log(r[i][i])) for i in range(len(sims))]


def slow_triplet(sims: Tensor, margins: list[float], take: Callable[[list[float]], float]) -> list[float]:
    """Eq. 2 with any way to take one number from the hinges of an anchor."""
    s, everyone = sims.tolist(), range(len(sims))
    return [
        take([max(margins[i] - s[i][i] + s[i][j], 0) for j in everyone if j != i])
        + take([max(margins[i] - s[i][i] + s[j][i], 0) for j in everyone if j != i])
        for i in everyone
    ]


def test_matching_probabilities_are_equation_3() -> None:
    sims = similarities()
    i2t, t2i = losses.matching_log_probs(sims, 0.2)
    slow_i2t, slow_t2i = slow_probabilities(sims, 0.2)
    np.testing.assert_allclose(i2t.exp(), slow_i2t, rtol=1e-12)
    np.testing.assert_allclose(t2i.exp(), slow_t2i, rtol=1e-12)


def test_with_a_number_of_negatives_pair_probability_does_not_depend_on_the_batch() -> None:
    def probability(others: int, negatives: int) -> float:
        sims = torch.full((others + 1, others + 1), 0.2)  # every negative is equally strong
        sims.fill_diagonal_(0.4)
        found = losses.pair_probability(*losses.matching_log_probs(sims, 0.05), negatives=negatives)
        return float(found[0])

    assert probability(31, 0) > 2 * probability(127, 0)
    assert [probability(others, 127) for others in (31, 127, 511)] == pytest.approx([probability(127, 0)] * 3, rel=1e-4)


def test_pair_probability_is_the_mean_of_both_directions_and_has_no_gradient() -> None:
    sims = similarities().requires_grad_()
    probability = losses.pair_probability(*losses.matching_log_probs(sims, 0.2))
    p, r = slow_probabilities(sims.detach(), 0.2)
    np.testing.assert_allclose(probability, [(p[i][i] + r[i][i]) / 2 for i in range(5)], rtol=1e-12)
    assert not probability.requires_grad


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_complementary_loss_is_equation_6(q: float) -> None:
    sims = similarities()
    found = losses.complementary(*losses.matching_log_probs(sims, 0.1), q)
    np.testing.assert_allclose(found, slow_complementary(sims, 0.1, [q] * 5), rtol=1e-12)


def test_active_loss_is_the_weighted_logarithm_of_the_pairs_own_probabilities() -> None:
    sims = similarities()
    found = losses.active(*losses.matching_log_probs(sims, 0.1), LABELS.double())
    np.testing.assert_allclose(found, slow_active(sims, 0.1, LABELS.double().tolist()), rtol=1e-12)


@pytest.mark.parametrize("scale", [5.0, 0.5])
def test_active_complementary_loss_is_equation_8_with_each_pairs_own_q(scale: float) -> None:
    sims, labels = similarities(), LABELS.double()
    found = losses.active_complementary(sims, labels, tau=0.1, scale=scale)
    active = slow_active(sims, 0.1, labels.tolist())
    complementary = slow_complementary(sims, 0.1, (1 - labels).tolist())
    np.testing.assert_allclose(found, [a + scale * c for a, c in zip(active, complementary, strict=True)], rtol=1e-12)


@pytest.mark.parametrize(
    ("terms", "slow"),
    [
        ("active", lambda sims, labels: slow_active(sims, 0.1, labels)),
        ("complementary", lambda sims, labels: slow_complementary(sims, 0.1, [1 - label for label in labels])),
    ],
)
def test_the_ablation_takes_one_term_with_the_labels_of_both(
    terms: losses.Terms, slow: Callable[[Tensor, list[float]], list[float]]
) -> None:
    sims, labels = similarities(), LABELS.double()
    for scale in (5.0, 0.5):  # L_r alone has no scale
        found = losses.active_complementary(sims, labels, tau=0.1, scale=scale, terms=terms)
        np.testing.assert_allclose(found, slow(sims, labels.tolist()), rtol=1e-12)


@pytest.mark.parametrize(
    ("q", "uniform"), [(0.0, 2 * 4 * math.tan(1 / 5)), (1.0, 2 * 4 / 5), (0.5, 8 * (math.tan(1 / 5) / 5) ** 0.5)]
)
def test_a_fixed_q_is_equation_6_and_has_a_closed_form_where_all_are_alike(q: float, uniform: float) -> None:
    sims = similarities()
    found = losses.robust_complementary(sims, tau=0.1, q=q)
    np.testing.assert_allclose(found, slow_complementary(sims, 0.1, [q] * 5), rtol=1e-12)
    alike = losses.robust_complementary(torch.full((5, 5), 0.3, dtype=torch.float64), q=q)
    np.testing.assert_allclose(alike, [uniform] * 5, rtol=1e-12)


def test_info_nce_is_the_active_loss_with_all_labels_one() -> None:
    sims = similarities()
    np.testing.assert_allclose(losses.info_nce(sims, tau=0.1), slow_active(sims, 0.1, [1.0] * 5), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "penalty"),
    [
        ("log", lambda p: -math.log(1 - p + 1e-10)),
        ("tan", math.tan),
        ("abs", lambda p: p),
        ("exp", lambda p: math.exp(p - 1)),
        ("gce", lambda p: (1 - (1 - p + 1e-10) ** 0.3) / 0.3),
    ],
)
def test_contrastive_complementary_family_penalises_each_negative(
    kind: losses.Family, penalty: Callable[[float], float]
) -> None:
    sims, everyone = similarities(), range(5)
    p, r = slow_probabilities(sims, 0.1)
    slow = [sum(penalty(p[i][j]) + penalty(r[j][i]) for j in everyone if j != i) for i in everyone]
    np.testing.assert_allclose(losses.contrastive_complementary(sims, tau=0.1, kind=kind, q=0.3), slow, rtol=1e-9)


def test_tangent_family_is_the_complementary_loss_at_q_zero() -> None:
    sims = similarities()
    found = losses.contrastive_complementary(sims, tau=0.1, kind="tan")
    torch.testing.assert_close(found, losses.complementary(*losses.matching_log_probs(sims, 0.1), 0.0))


@pytest.mark.parametrize(
    ("negatives", "take"),
    [
        ("hardest", max),
        ("sum", sum),
        ("mean", lambda hinges: sum(hinges) / 5),
        (1, max),
        (3, lambda hinges: sum(sorted(hinges)[-3:]) / 3),
        (9, lambda hinges: sum(hinges) / 4),  # as many as there are
    ],
)
@pytest.mark.parametrize("margin", [0.2, [0.0, 0.05, 0.2, 0.4, 1.0]], ids=["one margin", "own margins"])
def test_triplet_loss_is_equation_2_with_the_anchors_own_margin(
    negatives: losses.Negatives | int, take: Callable[[list[float]], float], margin: float | list[float]
) -> None:
    sims = similarities()
    margins = margin if isinstance(margin, list) else [margin] * 5
    given_margin = torch.tensor(margin, dtype=torch.float64) if isinstance(margin, list) else margin
    found = losses.triplet(sims, given_margin, negatives=negatives)
    np.testing.assert_allclose(found, slow_triplet(sims, margins, take), rtol=1e-12)


@pytest.mark.parametrize(
    ("curve", "slow"),
    [
        ("linear", lambda y: 0.2 * y),
        ("exponential", lambda y: 0.2 * (10**y - 1) / 9),
        ("sine", lambda y: 0.2 * math.sin(math.pi * y / 2) ** 2),
    ],
)
def test_soft_margin_grows_from_zero_to_the_margin(curve: losses.Curve, slow: Callable[[float], float]) -> None:
    labels = torch.linspace(0, 1, 9, dtype=torch.float64)
    margins = losses.soft_margin(labels, 0.2, curve=curve)
    np.testing.assert_allclose(margins, [slow(y) for y in labels.tolist()], atol=1e-12)
    assert margins[0] == pytest.approx(0, abs=1e-12)
    assert margins[-1] == pytest.approx(0.2)
    assert bool((margins.diff() > 0).all())


@given(size=st.integers(2, 8), seed=st.integers(0, 999), scale=st.floats(0.01, 3), q=st.floats(0, 1))
def test_complementary_losses_over_all_positives_add_up_in_each_direction(
    size: int, seed: int, scale: float, q: float
) -> None:
    """Image i takes every text in turn as its positive, and text i every image: N - 1 at q = 1."""
    i2t, t2i = losses.matching_log_probs(similarities(size, seed=seed, scale=scale), 0.5)
    certain = torch.eye(size, dtype=torch.float64).log()  # a direction that costs nothing
    for exponent in (q, 1.0):
        images = sum(losses.complementary(i2t.roll(-shift, 1), certain, exponent) for shift in range(size))
        texts = sum(losses.complementary(certain, t2i.roll(-shift, 0), exponent) for shift in range(size))
        torch.testing.assert_close(images, (size - 1) * i2t.exp().tan().sum(1) ** (1 - exponent))
        torch.testing.assert_close(texts, (size - 1) * t2i.exp().tan().sum(0) ** (1 - exponent))
    torch.testing.assert_close(images, torch.full_like(images, size - 1))
    torch.testing.assert_close(texts, torch.full_like(texts, size - 1))


@each_loss
def test_permuting_a_batch_permutes_its_losses(loss: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    sims, labels = similarities(), LABELS.double()
    torch.testing.assert_close(loss(sims[order][:, order], labels[order], 0.1), loss(sims, labels, 0.1)[order])


@each_loss
def test_exchanging_images_and_texts_changes_no_loss(loss: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    sims, labels = similarities(), LABELS.double()
    torch.testing.assert_close(loss(sims.T, labels, 0.1), loss(sims, labels, 0.1))


@each_loss
def test_a_batch_of_one_pair_has_nothing_to_be_told_from(loss: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    assert loss(torch.tensor([[0.3]]), torch.tensor([0.6]), 0.1).tolist() == pytest.approx([0])


@each_loss
def test_gradient_agrees_with_finite_differences(loss: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    sims, labels = similarities(4).requires_grad_(), LABELS[1:].double()
    assert torch.autograd.gradcheck(lambda s: loss(s, labels, 0.3), (sims,))


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", ["cosines", "thousands", "certain and wrong"])
def test_values_and_gradients_are_finite_at_a_low_temperature_and_in_half_precision(
    loss: Callable[[Tensor, Tensor, float], Tensor], dtype: torch.dtype, size: str
) -> None:
    unit = similarities(5, scale=1.0)
    sims = {
        "cosines": unit.tanh(),
        "thousands": 20_000 * unit.tanh(),
        "certain and wrong": 1 - 2 * torch.eye(5, dtype=torch.float64).roll(1, 0),
    }[size]
    sims = sims.to(dtype).requires_grad_()
    values = loss(sims, LABELS, 0.01)
    values.mean().backward()
    assert sims.grad is not None
    assert values.dtype == torch.float32
    assert bool(torch.isfinite(values).all())
    assert bool(torch.isfinite(sims.grad).all())


@each_loss
def test_autocast_does_not_lower_the_precision_of_a_loss(loss: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    sims = similarities().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(sims, LABELS, 0.05)
    torch.testing.assert_close(inside, loss(sims, LABELS, 0.05), rtol=1e-6, atol=1e-6)


def test_no_gradient_flows_through_the_labels() -> None:
    sims, labels = similarities().requires_grad_(), LABELS.double().requires_grad_()
    losses.active_complementary(sims, labels).mean().backward()
    assert labels.grad is None
    assert sims.grad is not None


PEERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "triplet_hardest_sum": lambda sims, labels: losses.triplet(sims).sum(),
    "triplet_mean_sum": lambda sims, labels: losses.triplet(sims, negatives="mean").sum(),
    **{
        f"soft_margin_{name}_hardest_sum": lambda sims, labels, curve=curve: losses.triplet(
            sims, losses.soft_margin(labels, curve=curve)
        ).sum()
        for name, curve in {"linear": "linear", "exponential": "exponential", "sin": "sine"}.items()
    },
    **{
        f"rcl_{kind}": lambda sims, labels, kind=kind: losses.contrastive_complementary(sims, kind=kind, q=0.5).mean()
        for kind in ("log", "tan", "abs", "exp", "gce")
    },
    "rcl_infoNCE": lambda sims, labels: losses.info_nce(sims).mean(),
}


@pytest.mark.parametrize("name", PEERS)
def test_loss_and_gradient_agree_with_the_published_implementation(name: str, recorded: Numbers) -> None:
    numbers = recorded("peer_losses")
    sims = torch.from_numpy(numbers["similarities"]).requires_grad_()
    loss = PEERS[name](sims, torch.from_numpy(numbers["labels"]))
    loss.backward()
    assert loss.item() == pytest.approx(numbers[name].item(), rel=1e-4)
    assert sims.grad is not None
    gradient = numbers[f"{name}/gradient"]
    np.testing.assert_allclose(sims.grad, gradient, rtol=1e-4, atol=1e-4 * np.abs(gradient).max())


def test_each_pairs_mean_hinge_agrees_with_the_published_implementation(recorded: Numbers) -> None:
    numbers = recorded("peer_losses")
    found = losses.triplet(torch.from_numpy(numbers["similarities"]), negatives="mean")
    np.testing.assert_allclose(found, numbers["ncr_per_pair_loss"], rtol=1e-4, atol=1e-6)


def test_of_a_batch_the_smallest_losses_are_kept_and_the_others_count_as_nothing() -> None:
    values = torch.tensor([0.5, 0.1, 0.9, 0.1, 0.3, 0.7, 0.2], requires_grad=True)
    assert losses.smallest(values, 0.3).tolist() == pytest.approx([0, 0.1, 0, 0.1, 0, 0, 0])  # int(0.3 * 7)
    losses.smallest(values, 0.5).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert losses.smallest(values, 0.01).count_nonzero() == 1
    assert torch.equal(losses.smallest(values, 1.0), values)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 3)])
@each_loss
def test_similarities_that_are_not_square_are_refused(
    loss: Callable[[Tensor, Tensor, float], Tensor], shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"square \(K, K\) matrix.*got"):
        loss(torch.zeros(shape), torch.ones(3), 0.05)


@pytest.mark.parametrize("tau", [0.0, -0.05, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(tau: float) -> None:
    for loss in (losses.info_nce, losses.contrastive_complementary):
        with pytest.raises(ValueError, match="tau must be greater than 0"):
            loss(torch.eye(3), tau=tau)
    for labelled in (losses.active_complementary, losses.evidential):
        with pytest.raises(ValueError, match="tau must be greater than 0"):
            labelled(torch.eye(3), torch.ones(3), tau=tau)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="log, tan, abs, exp, gce, got 'sin'"):
        losses.contrastive_complementary(torch.eye(3), kind="sin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hardest, sum or mean, or a number of 1 or more, got 'max'"):
        losses.triplet(torch.eye(3), negatives="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hardest, sum or mean, or a number of 1 or more, got 0"):
        losses.triplet(torch.eye(3), negatives=0)
    with pytest.raises(ValueError, match="both, active or complementary, got 'none'"):
        losses.active_complementary(torch.eye(3), torch.ones(3), terms="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="linear, exponential or sine, got 'sin'"):
        losses.soft_margin(torch.ones(3), curve="sin")  # type: ignore[arg-type]
