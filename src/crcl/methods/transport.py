"""Partial optimal transport: a soft matching of rows and columns of a cost matrix that leaves some unmatched.

All rows have the same weight and sum to 1, and so do the columns; only a part of that mass is moved.
"""

import math

import torch
from torch import Tensor


def partial_plan(
    cost: Tensor,
    mass: float,
    *,
    regularisation: float = 0.07,
    forbidden: Tensor | None = None,
    steps: int = 1000,
    tolerance: float = 1e-3,
) -> Tensor:
    """Logarithm of the cheapest plan that moves `mass` from rows to columns. (rows, columns)

    No row gives more than 1 / rows, no column receives more than 1 / columns. `forbidden` cells move nothing: -inf.
    Entropy smooths the plan; the smaller the `regularisation`, the closer the plan is to the optimal one. Computed by
    Sinkhorn iterations in the log domain, with a dummy row and a dummy column for the mass that is not moved. They
    stop as soon as the row sums deviate from their targets by less than `tolerance` in total. Without gradient.
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass must be greater than 0 and at most 1, got {mass}")
    if not regularisation > 0:
        raise ValueError(f"regularisation must be greater than 0, got {regularisation}")
    logits = _with_dummies(cost.detach(), regularisation, forbidden)
    rows, columns = (_log_weights(size, mass).to(logits) for size in cost.shape)
    per_row, per_column = torch.zeros_like(rows), torch.zeros_like(columns)
    for step in range(steps):
        reached = (logits + per_column).logsumexp(1)
        if step and float(((per_row + reached).exp() - rows.exp()).abs().sum()) < tolerance:
            break
        per_row = rows - reached
        per_column = columns - (logits + per_row[:, None]).logsumexp(0)
    return (logits + per_row[:, None] + per_column)[:-1, :-1]


def _with_dummies(cost: Tensor, regularisation: float, forbidden: Tensor | None) -> Tensor:
    """Logits for Sinkhorn, with a dummy row and column that cost nothing; nothing moves from dummy to dummy."""
    inner = -cost.to(torch.promote_types(cost.dtype, torch.float32)) / regularisation
    if forbidden is not None:
        inner = inner.masked_fill(forbidden, -torch.inf)
    logits = inner.new_zeros(len(inner) + 1, inner.shape[1] + 1)
    logits[:-1, :-1] = inner
    logits[-1, -1] = -torch.inf
    return logits


def _log_weights(size: int, mass: float) -> Tensor:
    """Logarithms of the weights: 1 / size for each, and for the dummy the mass that is not moved."""
    weights = torch.full((size + 1,), -math.log(size), dtype=torch.float64)
    weights[-1] = math.log1p(-mass) if mass < 1 else -math.inf
    return weights
