"""MV-VSE: the authors' similarities of their vectors, and VSE∞ for each view."""

from collections.abc import Callable

import numpy as np
import torch
from published_weights import assert_same_gradients

from crcl.matchers import MVVSE, VSE, Encoded

Numbers = Callable[[str], dict[str, np.ndarray]]
SIZES = {"features": 6, "vocabulary": 12, "embedding": 8, "word": 5}


def test_similarities_are_the_authors_largest_of_all_views(recorded: Numbers) -> None:
    numbers = recorded("zoo/mvvse")
    images, texts = (Encoded(torch.from_numpy(numbers[f"{side}_embeddings"])) for side in ("image", "text"))
    np.testing.assert_allclose(MVVSE(**SIZES).similarity(images, texts), numbers["similarities"], atol=1e-5)


def test_each_view_is_a_vse_of_its_own_and_the_winning_one_learns() -> None:
    torch.manual_seed(0)
    matcher = MVVSE(**SIZES, views=3).eval()
    regions, mask = torch.randn(4, 7, 6), torch.arange(7) < torch.tensor([7, 2, 1, 5])[:, None]
    tokens, lengths = torch.randint(1, 12, (3, 6)), torch.tensor([6, 2, 4])
    images, texts = matcher.encode_images(regions, mask), matcher.encode_texts(tokens, lengths)
    assert images.features.shape == (4, 3, 8)
    views = []
    for view in matcher.img:
        single = VSE(**SIZES).eval()
        single.img, single.txt = view, matcher.txt
        views.append(single.similarity(single.encode_images(regions, mask), single.encode_texts(tokens, lengths)))
    assert len(torch.stack(views).argmax(0).unique()) > 1
    assert_same_gradients(matcher.similarity(images, texts), torch.stack(views).amax(0), list(matcher.parameters()))
