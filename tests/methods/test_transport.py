"""Partial transport: its marginals, its mass, what is forbidden, and the cheapest plans by scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

from crcl.methods.transport import partial_plan


def costs(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cheapest(cost: Tensor, mass: float, forbidden: Tensor | None = None) -> float:
    """What moving the mass costs at least, by linear programming over all cells."""
    rows, columns = cost.shape
    of_rows = np.kron(np.eye(rows), np.ones(columns))
    of_columns = np.kron(np.ones(rows), np.eye(columns))
    found = linprog(
        cost.flatten().numpy(),
        A_ub=np.vstack([of_rows, of_columns]),
        b_ub=np.concatenate([np.full(rows, 1 / rows), np.full(columns, 1 / columns)]),
        A_eq=np.ones((1, rows * columns)),
        b_eq=[mass],
        bounds=[(0, 0 if forbidden is not None and cell else None) for cell in _cells(forbidden, cost)],
    )
    assert found.success
    return float(found.fun)


def _cells(forbidden: Tensor | None, cost: Tensor) -> list[bool]:
    return [False] * cost.numel() if forbidden is None else forbidden.flatten().tolist()


@given(
    rows=st.integers(2, 9),
    columns=st.integers(2, 9),
    mass=st.sampled_from([0.05, 0.1, 0.5, 0.9, 1.0]),
    regularisation=st.sampled_from([0.1, 0.3]),
    seed=st.integers(0, 99),
)
def test_the_mass_is_moved_and_no_row_or_column_gives_more_than_it_has(
    rows: int, columns: int, mass: float, regularisation: float, seed: int
) -> None:
    cost = costs(rows, columns, seed)
    plan = partial_plan(cost, mass, regularisation=regularisation, steps=2000, tolerance=1e-6).exp()
    assert plan.shape == (rows, columns)
    assert plan.sum().item() == pytest.approx(mass, abs=1e-5)
    assert (plan.sum(1) <= 1 / rows + 1e-5).all()
    assert (plan.sum(0) <= 1 / columns + 1e-5).all()
    if mass == 1:
        np.testing.assert_allclose(plan.sum(1), 1 / rows, atol=1e-5)
        np.testing.assert_allclose(plan.sum(0), 1 / columns, atol=1e-5)


@pytest.mark.parametrize(("mass", "forbid"), [(0.1, False), (0.1, True), (0.5, False), (0.5, True), (1.0, True)])
def test_with_little_regularisation_it_costs_what_the_cheapest_plan_costs(mass: float, forbid: bool) -> None:
    cost, forbidden = costs(6, 6, seed=3), torch.eye(6, dtype=torch.bool) if forbid else None
    plan = partial_plan(cost, mass, regularisation=0.01, forbidden=forbidden, steps=3000, tolerance=1e-4).exp()
    assert plan.sum().item() == pytest.approx(mass, abs=1e-3)
    assert (plan * cost).sum().item() == pytest.approx(cheapest(cost, mass, forbidden), abs=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_the_whole_mass_it_is_the_cheapest_assignment(seed: int) -> None:
    cost = costs(7, 7, seed)
    cost[torch.arange(7), torch.randperm(7, generator=torch.Generator().manual_seed(seed))] /= 4  # clearly the best
    plan = partial_plan(cost, 1.0, regularisation=0.01, steps=2000, tolerance=1e-4)
    rows, columns = linear_sum_assignment(cost.numpy())
    np.testing.assert_array_equal(plan.argmax(1)[rows], columns)


def test_a_small_mass_goes_where_it_is_cheapest() -> None:
    cost = torch.ones(4, 4, dtype=torch.float64)
    cost[2, 1] = 0.2
    plan = partial_plan(cost, 0.1, regularisation=0.01).exp()
    assert plan[2, 1] > 0.099


def test_forbidden_cells_are_empty_and_their_mass_goes_elsewhere() -> None:
    cost = 1 - torch.eye(8)  # by cost alone everything would stay on the diagonal
    assert partial_plan(cost, 0.5, regularisation=0.05).exp().diagonal().sum() > 0.49
    plan = partial_plan(cost, 0.5, regularisation=0.05, forbidden=torch.eye(8, dtype=torch.bool))
    assert (plan.diagonal() == -torch.inf).all()
    assert plan.exp().sum().item() == pytest.approx(0.5, abs=1e-3)
    np.testing.assert_allclose(plan.exp()[~torch.eye(8, dtype=torch.bool)], 0.5 / 56, rtol=1e-3)


def test_it_goes_by_differences_of_cost_alone_as_far_as_all_of_the_mass_must_move() -> None:
    cost = costs(6, 6)
    one, other = (partial_plan(x, 1.0, regularisation=0.1, tolerance=1e-9).exp() for x in (cost, cost + 3))
    np.testing.assert_allclose(one, other, atol=1e-7)


def test_in_single_precision_at_the_published_sizes_it_stays_finite() -> None:
    sims = 2 * torch.rand(128, 128, generator=torch.Generator().manual_seed(0)) - 1
    for regularisation in (0.07, 0.01):
        plan = partial_plan(1 - sims, 0.1, regularisation=regularisation, steps=100)
        assert plan.dtype == torch.float32
        assert plan.isfinite().all()
        assert plan.exp().sum().item() == pytest.approx(0.1, abs=0.02)


def test_half_precision_is_taken_to_single_and_no_gradient_is_kept() -> None:
    cost = costs(4, 4).half().requires_grad_()
    plan = partial_plan(cost, 0.3)
    assert plan.dtype == torch.float32
    assert not plan.requires_grad


@pytest.mark.parametrize(("mass", "regularisation"), [(0.0, 0.1), (1.1, 0.1), (0.5, 0.0)])
def test_what_cannot_be_is_refused(mass: float, regularisation: float) -> None:
    with pytest.raises(ValueError, match="must be greater than 0"):
        partial_plan(costs(3, 3), mass, regularisation=regularisation)
