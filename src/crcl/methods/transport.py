"""Partial optimal transport: which rows and columns of a cost matrix belong together, if only some of them do.

Plain functions. Every row and every column weighs the same, and together 1; only a part of that mass is moved.
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
    """The cheapest way to move `mass` from rows to columns, as the logarithm of the plan. (rows, columns)

    No row gives more than 1 / rows, no column takes more than 1 / columns. `forbidden` cells are left empty: -inf. The
    plan is blurred by its entropy; the smaller the `regularisation`, the nearer it comes to the cheapest one of all.
    Sinkhorn's steps in the log domain, with a dummy row and a dummy column for what is not moved. They end as soon as
    the rows miss what they have to give by less than `tolerance`, all of them together. Without gradient.
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
    """What Sinkhorn starts from: nothing goes from dummy to dummy, anything for free to or from one of them."""
    inner = -cost.to(torch.promote_types(cost.dtype, torch.float32)) / regularisation
    if forbidden is not None:
        inner = inner.masked_fill(forbidden, -torch.inf)
    logits = inner.new_zeros(len(inner) + 1, inner.shape[1] + 1)
    logits[:-1, :-1] = inner
    logits[-1, -1] = -torch.inf
    return logits


def _log_weights(size: int, mass: float) -> Tensor:
    """1 / size for each, and for the dummy what is not moved."""
    weights = torch.full((size + 1,), -math.log(size), dtype=torch.float64)
    weights[-1] = math.log1p(-mass) if mass < 1 else -math.inf
    return weights
