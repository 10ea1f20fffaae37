"""VSRN: the authors' numbers, and the graph written out with its matrix of relations."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from published_weights import assert_same_gradients, encoded, with_weights
from torch import Tensor, nn

from crcl.matchers import VSRN
from crcl.matchers.base import l2

Numbers = Callable[[str], dict[str, np.ndarray]]


@pytest.mark.parametrize("form", ["f30k", "coco"])
def test_equals_the_authors_implementation(recorded: Numbers, form: str) -> None:
    numbers = recorded(f"zoo/vsrn_{form}")
    matcher = with_weights(VSRN, numbers, form=form)
    images, texts = encoded(matcher, numbers)
    regions = torch.from_numpy(numbers["images"])
    reasoned = matcher.img.reason(regions, torch.ones(regions.shape[:2], dtype=torch.bool))
    np.testing.assert_allclose(reasoned.detach(), numbers["regions"], atol=1e-5)
    np.testing.assert_allclose(images.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    np.testing.assert_allclose(matcher.similarity(images, texts), numbers["similarities"], atol=1e-5)


def small() -> VSRN:
    torch.manual_seed(0)
    matcher = VSRN(features=6, vocabulary=12, embedding=8, word=5)
    for module in matcher.modules():
        if isinstance(module, nn.BatchNorm1d):  # else the graph has no effect at first
            nn.init.uniform_(module.weight, 0.5, 1)
    return matcher


def looped(matcher: VSRN, regions: Tensor, counts: list[int]) -> Tensor:
    """Image by image in eval mode, with the matrix A of each step."""
    vectors = []
    for image, count in zip(regions, counts, strict=True):
        x = l2(matcher.img.fc(image[:count]))
        for number in range(1, 5):
            step = matcher.img.get_submodule(f"Rs_GCN_{number}")
            relations = step.theta(x) @ step.phi(x).T / count
            x = x + step.W[1](step.W[0](relations @ step.g(x)))
        vectors.append(l2(matcher.img.img_rnn(l2(x)[None])[1][0, 0]))
    return torch.stack(vectors)


def test_gradients_equal_those_of_a_loop_over_images() -> None:
    matcher, counts = small().eval(), [4, 2, 1, 3]
    regions, mask = torch.randn(4, 4, 6), torch.arange(4) < torch.tensor(counts)[:, None]
    ours, theirs = matcher.encode_images(regions, mask).features, looped(matcher, regions, counts)
    assert_same_gradients(ours, theirs, list(matcher.img.parameters()))


def test_in_training_padding_is_no_part_of_the_statistics() -> None:
    padded, cut = small().train(), small().train()
    regions = torch.randn(3, 4, 6)
    mask = torch.arange(4).expand(3, 4) < 2
    one = padded.encode_images(regions, mask).features
    other = cut.encode_images(regions[:, :2], mask[:, :2]).features
    torch.testing.assert_close(one, other)
    for name, value in cut.state_dict().items():
        torch.testing.assert_close(padded.state_dict()[name], value, msg=name)


def test_the_order_of_regions_matters() -> None:
    matcher, regions = small().eval(), torch.randn(1, 4, 6)
    mask = torch.ones(1, 4, dtype=torch.bool)
    one, other = (matcher.encode_images(x, mask).features for x in (regions, regions.flip(1)))
    assert not torch.allclose(one, other, atol=1e-4)
