"""Matchers with the weights that were recorded from their authors' implementations, and comparisons with loops."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Numbers = dict[str, np.ndarray]
PARTS = ("img.", "txt.", "sim.")


def with_weights(
    kind: Callable[..., nn.Module],
    numbers: Numbers,
    *,
    unused: tuple[str, ...] = (),
    more: Mapping[str, np.ndarray] | None = None,
    **options: Any,
) -> Any:
    """A matcher in eval mode with the recorded weights, all of them but those that its authors never apply.

    `more` are weights of ours that the authors keep elsewhere.
    """
    named = {name: value for name, value in numbers.items() if name.startswith(PARTS)} | dict(more or {})
    weights = {name: torch.as_tensor(value) for name, value in named.items() if not any(map(name.startswith, unused))}
    vocabulary, word = numbers["txt.embed.weight"].shape
    features, embedding = numbers["images"].shape[2], numbers["txt.rnn.weight_hh_l0"].shape[1]
    matcher = kind(features=features, vocabulary=vocabulary, embedding=embedding, word=word, **options)
    matcher.load_state_dict(weights)  # strict: the names are the authors'
    return matcher.eval()


def encoded(matcher: Any, numbers: Numbers) -> tuple[Any, Any]:
    """The recorded images and captions as the matcher encodes them."""
    regions = torch.from_numpy(numbers["images"])
    lengths = torch.from_numpy(numbers.get("image_lengths", np.full(len(regions), regions.shape[1])))
    with torch.no_grad():
        return (
            matcher.encode_images(regions, torch.arange(regions.shape[1]) < lengths[:, None]),
            matcher.encode_texts(torch.from_numpy(numbers["captions"]), torch.from_numpy(numbers["lengths"])),
        )


def assert_same_gradients(one: Tensor, other: Tensor, weights: Sequence[Tensor]) -> None:
    """Both similarities, and their gradients with respect to the weights, are the same."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    back = torch.linspace(-1, 1, one.numel()).view_as(one)
    ours, theirs = (
        torch.autograd.grad(sims, weights, back, retain_graph=True, allow_unused=True) for sims in (one, other)
    )
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
