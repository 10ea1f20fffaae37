"""LEMoN (ICML 2025) in its fixed form: what the neighbours of a pair's image and of its caption say about the pair.

    score_i = -[d(x_i, y_i) + β s_n(i) + γ s_m(i)]
    s_n(i) = mean over the k pairs j whose images are nearest to x_i of d(y_i, y_j) w(x_i, x_j) v_j
    s_m(i) = mean over the k pairs j whose captions are nearest to y_i of d(x_i, x_j) w(y_i, y_j) v_j

with d = 1 - cosine, w(a, b) = exp(τ1 cos(a, b)), v_j = exp(-τ2 d(x_j, y_j)): a neighbour counts less the farther it is
and the worse it fits itself. Pairs of the same image are no neighbours, else siblings would vouch for each other. Where
fewer than k are found, the mean is over those. Decoys are judged, but are nobody's neighbours; and the pair whose
caption a decoy repeats is no neighbour of that decoy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from crcl.auditing.scores.cosine import cosine

Search = Callable[[Tensor, Tensor, int], Tensor]
"""Numbers of the k rows of the second argument nearest to each row of the first, nearest first: `(queries, k)`."""
_CELLS = 2**24  # similarities computed at a time: 64 MB


@dataclass(frozen=True)
class Weights:
    """The settings of LEMoN without validation labels."""

    neighbours: int = 30
    """k."""
    captions: float = 5.0
    """β, of the captions of similar images."""
    images: float = 5.0
    """γ, of the images of similar captions."""
    near: float = 0.1
    """τ1, how much nearer neighbours count more."""
    fitting: float = 5.0
    """τ2, how much neighbours that fit themselves count more."""


FIXED = Weights()


def nearest(queries: Tensor, among: Tensor, count: int) -> Tensor:
    """Exact search by inner product, block by block."""
    size = max(_CELLS // len(among), 1)
    count = min(count, len(among))
    return torch.cat([(block @ among.T).topk(count, dim=1).indices for block in queries.split(size)])


def neighbours(
    images: Tensor,
    texts: Tensor,
    image_index: Tensor,
    *,
    originals: Tensor | None = None,
    weights: Weights = FIXED,
    search: Search = nearest,
) -> Tensor:
    """How well a pair agrees with its neighbours, (N,).

    Args:
        images: Unit vectors of M images, `(M, D)`.
        texts: Unit vectors of N captions, `(N, D)`, of the same space.
        image_index: The image shown with each caption, `(N,)`.
        originals: For data whose last D pairs are decoys, the pair whose caption each repeats, `(D,)`; -1 for none.
        weights: The settings.
        search: Finds nearest rows; exact by default.
    """
    decoys = 0 if originals is None else len(originals)
    repeated = image_index.new_full((len(texts),), -1)
    if originals is not None and decoys:
        repeated[-decoys:] = originals
    own = 1 - cosine(images, texts, image_index)  # d(x_i, y_i)
    by_image = _pairs_of_similar_images(images, image_index, weights.neighbours, search, decoys)
    by_text = _pairs_of_similar_captions(texts, image_index, repeated, weights.neighbours, search, decoys)
    fits = torch.exp(-weights.fitting * own)
    shown = images[image_index] if len(images) != len(texts) else images.index_select(0, image_index)
    apart_captions = _term(texts, shown, by_image, fits, weights.near)
    apart_images = _term(shown, texts, by_text, fits, weights.near)
    return -(own + weights.captions * apart_captions + weights.images * apart_images)


def _term(judged: Tensor, compared: Tensor, found: Tensor, fits: Tensor, near: float) -> Tensor:
    """Mean distance of `judged` to that of neighbours, weighted by their nearness in `compared`. (N,)"""
    parts = []
    for rows in torch.arange(len(judged), device=judged.device).split(max(_CELLS // (8 * judged.shape[1]), 1)):
        others, there = found[rows].clamp_min(0), found[rows] >= 0
        distance = 1 - torch.einsum("nd,nkd->nk", judged[rows], judged[others])
        nearness = torch.exp(near * torch.einsum("nd,nkd->nk", compared[rows], compared[others]))
        value = (distance * nearness * fits[others]).masked_fill(~there, 0)
        parts.append(value.sum(1) / there.sum(1).clamp_min(1))
    return torch.cat(parts)


def _pairs_of_similar_images(images: Tensor, image_index: Tensor, count: int, search: Search, decoys: int) -> Tensor:
    """The pairs that show the images nearest to each pair's image, without its own; -1 where there are not so many."""
    real = image_index[: len(image_index) - decoys]
    order = torch.argsort(real, stable=True)  # pairs, image by image
    sizes = torch.bincount(real, minlength=len(images))
    starts = sizes.cumsum(0) - sizes
    found = search(images, images, count + 1)
    own = torch.arange(len(images), device=images.device)[:, None]
    # an image that is not shown adds no pair; at least `count` others are looked at, as each may show just one
    parts = [
        _expanded(found[rows], found[rows] != own[rows], sizes, starts, order, count)
        for rows in torch.arange(len(images), device=images.device).split(4096)
    ]
    return torch.cat(parts)[image_index]


def _expanded(found: Tensor, others: Tensor, sizes: Tensor, starts: Tensor, order: Tensor, count: int) -> Tensor:
    """The first `count` pairs of the found images, in the order of these. (rows, count)"""
    many = torch.where(others, sizes[found], 0)  # pairs that each found image adds
    ends = many.cumsum(1)
    places = torch.arange(count, device=found.device).expand(len(found), count).contiguous()
    which = torch.searchsorted(ends, places, right=True)  # the found image that the n-th pair belongs to
    there = which < found.shape[1]
    which = which.clamp_max(found.shape[1] - 1)
    within = places - (ends - many).gather(1, which)
    pairs = order[(starts[found.gather(1, which)] + within).clamp(0, len(order) - 1)]
    return torch.where(there, pairs, -1)


def _pairs_of_similar_captions(
    texts: Tensor, image_index: Tensor, repeated: Tensor, count: int, search: Search, decoys: int
) -> Tensor:
    """The pairs whose captions are nearest to each pair's, without those of its own image; -1 where missing."""
    real = len(texts) - decoys
    siblings = int(torch.bincount(image_index[:real]).max())
    found = search(texts, texts[:real], count + siblings + 1)
    other = (image_index[found] != image_index[:, None]) & (found != repeated[:, None])
    # those of other images first, in their order
    rank = torch.argsort(~other, dim=1, stable=True)[:, :count]
    return torch.where(other.gather(1, rank), found.gather(1, rank), -1)
