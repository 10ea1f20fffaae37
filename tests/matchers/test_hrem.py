"""HREM: the authors' numbers, and dimensions one at a time."""

from collections.abc import Callable

import numpy as np
import torch
from published_weights import assert_same_gradients, encoded, with_weights
from torch.nn.functional import linear

from crcl.distributed import Part, dividing
from crcl.matchers import HREM
from crcl.matchers.base import l2
from crcl.matchers.hrem import Aggregation

Numbers = Callable[[str], dict[str, np.ndarray]]


def test_equals_the_authors_encoders_and_pooling(recorded: Numbers) -> None:
    numbers = recorded("zoo/hrem_bigru")
    matcher = with_weights(HREM, numbers, unused=("img.fc.mlp.bns.1.",))
    images, texts = encoded(matcher, numbers)
    np.testing.assert_allclose(images.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    np.testing.assert_allclose(matcher.similarity(images, texts), numbers["similarities"], atol=1e-5)


def test_pools_the_tokens_of_a_text_model_as_the_authors_do(recorded: Numbers) -> None:
    numbers = {name: torch.from_numpy(value) for name, value in recorded("zoo/hrem").items()}
    pooling = Aggregation(32).eval()
    prefix = "txt.aggr."
    pooling.load_state_dict({k.removeprefix(prefix): v for k, v in numbers.items() if k.startswith(prefix)})
    words = linear(numbers["tokens"], numbers["txt.linear.weight"], numbers["txt.linear.bias"])
    mask = torch.arange(words.shape[1]) < numbers["lengths"][:, None]
    with torch.no_grad():
        torch.testing.assert_close(pooling(words, mask), numbers["text_embeddings"], rtol=0, atol=1e-5)


def test_gradients_equal_those_of_a_loop_over_images_and_dimensions() -> None:
    torch.manual_seed(0)
    pooling, counts = Aggregation(8).eval(), [4, 2, 1]
    parts, mask = torch.randn(3, 4, 8, requires_grad=True), torch.arange(4) < torch.tensor(counts)[:, None]
    vectors = []
    for some, count in zip(parts, counts, strict=True):
        real = some[:count]
        largest = torch.stack([real[:, d].sort(descending=True).values[:2].mean() for d in range(8)])
        vectors.append(l2(0.8 * largest + 0.2 * pooling.layers[0](real[None])[0].mean(0)))
    assert_same_gradients(pooling(parts, mask), torch.stack(vectors), [parts, *pooling.parameters()])


def test_a_part_of_a_batch_has_the_dropout_that_it_has_in_the_whole_batch() -> None:
    pooling, parts = Aggregation(8).train(), torch.randn(5, 4, 8)
    mask = torch.arange(4) < torch.tensor([4, 2, 1, 3, 4])[:, None]
    torch.manual_seed(1)
    whole = pooling(parts, mask)
    for part in (Part(0, 2, 5), Part(2, 5, 5)):
        torch.manual_seed(1)
        with dividing(part):
            torch.testing.assert_close(pooling(parts[part.own], mask[part.own]), whole[part.own])
