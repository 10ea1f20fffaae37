"""GSMN: the authors' numbers in both directions, and captions one at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from published_weights import assert_same_gradients, encoded, with_weights
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu

from crcl.matchers import GSMN, Encoded

Numbers = Callable[[str], dict[str, np.ndarray]]
SIZES = {"features": 6, "vocabulary": 12, "embedding": 32, "word": 5}
WITHOUT_EFFECT = "sim.t2i.graph_convolution_3.params"


def test_equals_the_authors_implementation(recorded: Numbers) -> None:
    numbers = recorded("zoo/gsmn")
    matcher = with_weights(GSMN, numbers, unused=(WITHOUT_EFFECT,))
    images, texts = encoded(matcher, numbers)
    np.testing.assert_allclose(images.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(matcher.direction(images, texts, "t2i"), numbers["similarities_t2i"], atol=1e-5)
        np.testing.assert_allclose(matcher.direction(texts, images, "i2t").T, numbers["similarities_i2t"], atol=1e-5)
        np.testing.assert_allclose(matcher.similarity(images, texts), numbers["similarities"], atol=1e-5)


def looped(matcher: GSMN, images: Encoded, texts: Encoded) -> Tensor:
    """Pair by pair, with contexts formed and cut into blocks one by one."""
    rows = []
    for v, seen in zip(images.features, images.mask, strict=True):
        for t, read in zip(texts.features, texts.mask, strict=True):
            total = torch.zeros(())
            for way, asking, asked in (("t2i", t[read], v[seen]), ("i2t", v[seen], t[read])):
                s = leaky_relu(asking @ asked.T, 0.1)
                context = (20 * s / (s.norm(dim=0, keepdim=True) + 1e-8)).softmax(1) @ asked
                blocks = zip(asking.chunk(16, dim=1), context.chunk(16, dim=1), strict=True)
                cosines = torch.stack([cosine_similarity(one, other, eps=1e-8) for one, other in blocks], dim=1)
                real = torch.ones(1, len(asking), dtype=torch.bool)
                total = total + matcher.sim[way](cosines[None, None], real).mean()
            rows.append(total)
    return torch.stack(rows).view(len(images), len(texts))


@pytest.mark.parametrize("memory", [4.0, 1e-9], ids=["kept", "computed again"])
def test_gradients_equal_those_of_a_loop_over_pairs_and_blocks(memory: float) -> None:
    torch.manual_seed(0)
    matcher = GSMN(**SIZES, memory=memory)
    mask, lengths = torch.arange(4) < torch.tensor([4, 2, 1])[:, None], torch.tensor([4, 7, 1, 3])
    images = matcher.encode_images(torch.randn(3, 4, 6), mask)
    texts = matcher.encode_texts(torch.randint(1, 12, (4, 7)), lengths)
    assert_same_gradients(matcher.similarity(images, texts), looped(matcher, images, texts), list(matcher.parameters()))
