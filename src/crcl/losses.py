"""Losses of the paper and of related methods, as functions of one similarity matrix.

`sims[i, j]` is the similarity of image i and text j, `(K, K)`, with the pairs of the batch on the diagonal. Every loss
returns one value per pair, `(K,)`; the caller takes the mean (Eq. 9) or the sum. Half-precision similarities are
converted to float32 first, because `exp(s / tau)` overflows in half precision. A process that has only some of a
batch's pairs passes `PartSims` instead of the matrix, and gets the values of its own pairs.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Negatives = Literal["hardest", "sum", "mean"]
Curve = Literal["linear", "exponential", "sine"]
Family = Literal["log", "tan", "abs", "exp", "gce"]
Terms = Literal["both", "active", "complementary"]


class PartSims(NamedTuple):
    """Similarities of k of the K pairs of a batch, which come first: they are on the diagonals of both matrices."""

    rows: Tensor
    """(k, K): their images with all texts."""
    columns: Tensor
    """(K, k): all images with their texts."""

    @property
    def device(self) -> torch.device:
        """The device of both matrices."""
        return self.rows.device


Sims = Tensor | PartSims
"""Similarities of a batch, `(K, K)`, or the part of them that concerns some of its pairs."""

_LEAST = 1e-7  # lower bound of L2RM's labels, so that they have a logarithm


def matching_log_probs(sims: Sims, tau: float) -> tuple[Tensor, Tensor]:
    """Log matching probabilities, Eq. 3: image to text (over rows) and text to image (over columns). (K, K) each

    Of `PartSims`, `(k, K)` and `(K, k)`.
    """
    if not tau > 0:
        raise ValueError(f"tau must be greater than 0, got {tau}")
    with torch.autocast(sims.device.type, enabled=False):
        rows, columns = _both(sims, lambda part: part / tau)
        return rows.log_softmax(1), columns.log_softmax(0)  # both (images, texts)


def pair_probability(i2t: Tensor, t2i: Tensor, *, negatives: int = 0) -> Tensor:
    """p̂, the average matching probability of each pair, from Eq. 3's logarithms; without gradient. (K,)

    With `negatives`, as if against so many of the strength that those of the batch have on average: p̂ then hardly
    depends on the size of the batch.
    """
    rows, columns = i2t.detach().diagonal().exp(), t2i.detach().diagonal().exp()
    if negatives and len(t2i) > 1:
        rows, columns = (p / (p + (1 - p) * (negatives / (len(t2i) - 1))) for p in (rows, columns))
    return (rows + columns) / 2


def active(i2t: Tensor, t2i: Tensor, labels: Tensor | float = 1.0) -> Tensor:
    """Weighted active loss L_d, from Eq. 3's logarithms. (K,)"""
    return -labels * (i2t.diagonal() + t2i.diagonal())


def complementary(i2t: Tensor, t2i: Tensor, q: Tensor | float) -> Tensor:
    """Robust complementary loss L_r, Eq. 6, from Eq. 3's logarithms; q may differ from pair to pair. (K,)"""
    return _complementary_rows(i2t, q) + _complementary_rows(t2i.T, q)


def active_complementary(
    sims: Sims, labels: Tensor, *, tau: float = 0.05, scale: float = 5.0, terms: Terms = "both"
) -> Tensor:
    """Active complementary loss, Eq. 8, with q = 1 - label; `scale` is the paper's lambda. Its mean is Eq. 9. (K,)

    For the paper's ablation, `terms` selects L_d alone, or L_r alone without its scale. No gradient flows through the
    labels.
    """
    if terms not in ("both", "active", "complementary"):
        raise ValueError(f"terms must be both, active or complementary, got {terms!r}")
    i2t, t2i = matching_log_probs(sims, tau)
    labels = labels.detach().to(i2t)
    if terms == "active":
        return active(i2t, t2i, labels)
    robust = complementary(i2t, t2i, 1 - labels)
    return robust if terms == "complementary" else active(i2t, t2i, labels) + scale * robust


def info_nce(sims: Sims, *, tau: float = 0.05) -> Tensor:
    """InfoNCE in both directions: L_d with all labels 1. (K,)"""
    return active(*matching_log_probs(sims, tau))


def reverse_cross_entropy(sims: Sims, *, tau: float = 0.05) -> Tensor:
    """L2RM's warm-up loss: cross-entropy of the pairs' labels under the matching probabilities, both directions. (K,)

    A label 0 counts as 1e-7, so the loss is log(1e7) times the probability of all other candidates, and bounded.
    """
    i2t, t2i = matching_log_probs(sims, tau)
    others = 2 - i2t.diagonal().exp() - t2i.diagonal().exp()
    return -math.log(_LEAST) * others


def symmetric_divergence(i2t: Tensor, t2i: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """L2RM: mean of the two Kullback-Leibler divergences between Eq. 3's probabilities and targets. (K,)

    Sums both directions: `rows` are the targets of the images, each sums to 1, and `columns` those of the texts. 1e-7
    is added to every target to keep the divergence finite. No gradient flows through the targets.
    """
    return _divergence_rows(i2t, rows) + _divergence_rows(t2i.T, columns.T)


def contrastive_complementary(sims: Sims, *, tau: float = 0.05, kind: Family = "log", q: float = 0.2) -> Tensor:
    """RCL's complementary contrastive family: sums `kind` of every negative's probability; `q` is gce's exponent. (K,)

    `tan` is Eq. 6 at q = 0. Computed in float64, since 1 - p loses all digits in float32 if p is close to 1.
    """
    if kind not in _FAMILY:
        raise ValueError(f"kind must be one of {', '.join(_FAMILY)}, got {kind!r}")
    penalty = _FAMILY[kind]
    i2t, t2i = matching_log_probs(_exact(sims), tau)
    rows, columns = penalty(i2t.exp(), q), penalty(t2i.exp(), q)
    total = _without_diagonal(rows).sum(1) + _without_diagonal(columns).sum(0)
    return total.to(_result_type(sims))


def robust_complementary(sims: Sims, *, tau: float = 0.05, q: float = 1.0) -> Tensor:
    """L_r, Eq. 6, with one q for all pairs, as in the paper's ablation; at q = 0 it is RCL's `tan`. (K,)"""
    return complementary(*matching_log_probs(sims, tau), q)


def triplet(sims: Sims, margin: Tensor | float = 0.2, *, negatives: Negatives | int = "hardest") -> Tensor:
    """Triplet ranking loss, Eq. 2: the hinges of each pair as image anchor plus as text anchor. (K,)

    `margin` is one number, or one per pair: the anchor's own margin in both directions. `mean` divides by K; a number
    n takes the mean of the n largest hinges in each direction.
    """
    with torch.autocast(sims.device.type, enabled=False):
        rows, columns = _both(sims)
        own = rows.diagonal() - margin
        image_anchor = _without_diagonal((rows - own[:, None]).clamp(min=0))  # (images, texts)
        text_anchor = _without_diagonal((columns - own[None, :]).clamp(min=0))
    if negatives == "hardest":
        return image_anchor.amax(1) + text_anchor.amax(0)
    if negatives in ("sum", "mean"):
        total = image_anchor.sum(1) + text_anchor.sum(0)
        return total / len(columns) if negatives == "mean" else total
    if isinstance(negatives, int) and negatives >= 1:
        count = max(min(negatives, len(columns) - 1), 1)
        return image_anchor.topk(count, 1).values.mean(1) + text_anchor.topk(count, 0).values.mean(0)
    raise ValueError(f"negatives must be hardest, sum or mean, or a number of 1 or more, got {negatives!r}")


def soft_margin(labels: Tensor, margin: float = 0.2, *, curve: Curve = "exponential", base: float = 10.0) -> Tensor:
    """Margins for Eq. 2 that grow with the pairs' labels; `base` is the m of the exponential curve. (K,)"""
    if curve == "linear":
        return margin * labels
    if curve == "exponential":
        return margin * (base**labels - 1) / (base - 1)
    if curve == "sine":
        return margin * torch.sin(math.pi / 2 * labels) ** 2
    raise ValueError(f"curve must be linear, exponential or sine, got {curve!r}")


def dynamic_hinge(scores: Sims, negatives: int, *, margin: float = 0.2) -> Tensor:
    """DECL's robust dynamic hinge: mean of the `negatives` hardest hinges of tanh(scores), both directions. (K,)"""
    if isinstance(scores, PartSims):
        return triplet(PartSims(*_both(scores, Tensor.tanh)), margin, negatives=negatives)
    return triplet(scores.to(_result_type(scores)).tanh(), margin, negatives=negatives)


def evidence(scores: Sims, tau: float = 0.1) -> tuple[Tensor, Tensor]:
    """DECL's evidence that image and text match, exp(tanh(score) / tau), from scores before a sigmoid. (K, K) twice

    The rows and the columns of `scores`, which are one matrix unless these are `PartSims`. In float64, since the
    divergence in `evidential` is a small difference of large log-gammas.
    """
    if not tau > 0:
        raise ValueError(f"tau must be greater than 0, got {tau}")
    with torch.autocast(scores.device.type, enabled=False):
        return _both(_exact(scores), lambda part: (part.tanh() / tau).exp())


def evidential(scores: Sims, matched: Tensor, *, tau: float = 0.1, scale: float = 0.1) -> Tensor:
    """DECL's evidential loss, both directions: expected square error plus `scale` times the divergence. (K,)

    Each query's evidence for the K candidates defines a Dirichlet distribution. `matched` `(K,)` tells which pairs
    match; the other pairs have labels of 0 for all candidates.
    """
    rows, columns = evidence(scores, tau)
    labels = torch.zeros_like(rows)
    labels.diagonal().copy_(matched.detach())
    total = _evidential_rows(rows, labels, scale) + _evidential_rows(columns.T, labels, scale)
    return total.to(_result_type(scores))


def evidence_share(scores: Sims, tau: float = 0.1) -> Tensor:
    """Share of a pair's own evidence, (E + Eᵀ)[i, i], in the sum with its strongest rival, max (E + Eᵀ)[i, k]. (K,)

    In [0, 1], without gradient. From 0.5 on no rival has more evidence, and DECL's division judges the pair matched.
    """
    with torch.no_grad():
        rows, columns = evidence(scores, tau)
    own, rivals = 2 * rows.diagonal(), _without_diagonal(rows + columns.T).amax(1)
    return (own / (own + rivals)).to(_result_type(scores))


def _evidential_rows(found: Tensor, labels: Tensor, scale: float) -> Tensor:
    alpha = found + 1
    strength = alpha.sum(1, keepdim=True)
    mean = alpha / strength
    error = (labels - mean).square() + mean * (1 - mean) / (strength + 1)
    wrong = 1 + found * (1 - labels)  # alpha without the evidence for the right candidate
    total = wrong.sum(1, keepdim=True)
    divergence = torch.lgamma(total[:, 0]) - math.lgamma(found.shape[1]) - torch.lgamma(wrong).sum(1)
    divergence = divergence + ((wrong - 1) * (torch.digamma(wrong) - torch.digamma(total))).sum(1)
    return error.sum(1) + scale * divergence


def smallest(values: Tensor, share: float) -> Tensor:
    """BiCro's warm-up: the given share of a batch's losses that is smallest, the others set to 0. (K,)

    int(share K) losses are kept, but at least one.
    """
    kept = torch.zeros_like(values, dtype=torch.bool)
    kept[values.detach().argsort(stable=True)[: max(int(share * len(values)), 1)]] = True
    return values.masked_fill(~kept, 0)


def _divergence_rows(log_probs: Tensor, targets: Tensor) -> Tensor:
    targets = targets.detach().to(log_probs) + _LEAST
    targets = targets / targets.sum(1, keepdim=True)
    return ((log_probs.exp() - targets) * (log_probs - targets.log())).sum(1) / 2


def _complementary_rows(log_probs: Tensor, q: Tensor | float) -> Tensor:
    tangents = log_probs.exp().tan()
    return _without_diagonal(tangents).sum(1) / tangents.sum(1) ** q


def _without_diagonal(matrix: Tensor) -> Tensor:
    return matrix.masked_fill(torch.eye(*matrix.shape, dtype=torch.bool, device=matrix.device), 0)


def _both(sims: Sims, function: Callable[[Tensor], Tensor] = lambda part: part) -> tuple[Tensor, Tensor]:
    """A function of the rows and of the columns in float32 or more, computed once where these are one matrix."""
    if isinstance(sims, PartSims):
        rows, columns = sims
        if rows.ndim != 2 or rows.shape != columns.shape[::-1] or len(rows) > len(columns):
            raise ValueError(
                f"expected (k, K) rows and (K, k) columns; got {tuple(rows.shape)}, {tuple(columns.shape)}"
            )
        kind = _result_type(sims)
        return function(rows.to(kind)), function(columns.to(kind))
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"similarities must be a square (K, K) matrix, pairs on its diagonal; got {tuple(sims.shape)}")
    found = function(sims.to(_result_type(sims)))
    return found, found


def _exact(sims: Sims) -> Sims:
    """Similarities in float64, where the device has it."""
    if sims.device.type == "mps":
        return sims
    return PartSims(sims.rows.double(), sims.columns.double()) if isinstance(sims, PartSims) else sims.double()


def _result_type(sims: Sims) -> torch.dtype:
    kind = sims.rows.dtype if isinstance(sims, PartSims) else sims.dtype
    return torch.promote_types(kind, torch.float32)


_FAMILY: dict[str, Callable[[Tensor, float], Tensor]] = {
    "log": lambda p, q: -torch.log(1 - p + 1e-10),
    "tan": lambda p, q: torch.tan(p),
    "abs": lambda p, q: p,
    "exp": lambda p, q: torch.exp(p - 1),
    "gce": lambda p, q: (1 - (1 - p + 1e-10) ** q) / q,
}
