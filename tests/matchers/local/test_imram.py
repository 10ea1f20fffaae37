"""IMRAM: the authors' numbers in one and in both directions, and captions one at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from published_weights import assert_same_gradients, encoded, with_weights
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu

from crcl.matchers import IMRAM, Encoded

Numbers = Callable[[str], dict[str, np.ndarray]]
SIZES = {"features": 6, "vocabulary": 12, "embedding": 8, "word": 5}


@pytest.mark.parametrize(
    ("name", "queries", "ways"),
    [("text", "words", ["t2i"]), ("image", "regions", ["i2t"]), ("full", "both", ["t2i", "i2t"])],
)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_equals_the_authors_implementation(
    recorded: Numbers, name: str, queries: str, ways: list[str], steps: int
) -> None:
    """Theirs are sums over steps and directions, ours means."""
    numbers = recorded(f"zoo/imram_{name}")
    matcher = with_weights(IMRAM, numbers, queries=queries, steps=steps)
    images, texts = encoded(matcher, numbers)
    np.testing.assert_allclose(images.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    summed = sum(numbers[f"similarities_by_step_{way}"][:steps].sum(0) for way in ways)
    with torch.no_grad():
        ours = matcher.similarity(images, texts) * steps * len(ways)
    np.testing.assert_allclose(ours, summed, atol=1e-5)
    if steps == 2:
        np.testing.assert_allclose(ours, numbers["similarities"], atol=1e-5)


def looped(matcher: IMRAM, images: Encoded, texts: Encoded) -> Tensor:
    """Pair by pair in both directions, with contexts and queries formed."""
    rows = []
    for v, seen in zip(images.features, images.mask, strict=True):
        for t, read in zip(texts.features, texts.mask, strict=True):
            parts = []
            for way, asking, asked in (("t2i", t[read], v[seen]), ("i2t", v[seen], t[read])):
                query = asking
                for _ in range(matcher.steps):
                    s = leaky_relu(query @ asked.T, 0.1)
                    context = (9 * s / (s.norm(dim=0, keepdim=True) + 1e-8)).softmax(1) @ asked
                    parts.append(cosine_similarity(asking, context).mean())
                    both = torch.cat([query, context], dim=1)
                    gate = matcher.sim[f"gate_{way}"](both).sigmoid()
                    query = gate * query + (1 - gate) * matcher.sim[f"linear_{way}"](both).tanh()
            rows.append(torch.stack(parts).mean())
    return torch.stack(rows).view(len(images), len(texts))


@pytest.mark.parametrize(("steps", "memory"), [(1, 4.0), (2, 4.0), (2, 1e-9), (3, 4.0)])
def test_gradients_equal_those_of_a_loop_over_pairs(steps: int, memory: float) -> None:
    torch.manual_seed(0)
    matcher = IMRAM(**SIZES, steps=steps, memory=memory)
    mask, lengths = torch.arange(4) < torch.tensor([4, 2, 1])[:, None], torch.tensor([4, 7, 1, 3])
    images = matcher.encode_images(torch.randn(3, 4, 6), mask)
    texts = matcher.encode_texts(torch.randint(1, 12, (4, 7)), lengths)
    weights = [weight for name, weight in matcher.named_parameters() if steps > 1 or not name.startswith("sim.")]
    assert_same_gradients(matcher.similarity(images, texts), looped(matcher, images, texts), weights)
