"""The cosine of pairs, in blocks as at once."""

import pytest
import torch
from torch.nn.functional import normalize

from crcl.auditing.scores import cosine as module
from crcl.auditing.scores.cosine import cosine


def test_the_cosine_of_each_pair_is_that_of_its_two_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (normalize(torch.randn(count, 6, generator=generator)) for count in (7, 20))
    shown = torch.randint(7, (20,), generator=generator)
    expected = torch.stack([torch.dot(images[image], text) for image, text in zip(shown, texts, strict=True)])
    torch.testing.assert_close(cosine(images, texts, shown), expected)
    monkeypatch.setattr(module, "_BLOCK", 3)
    torch.testing.assert_close(cosine(images, texts, shown), expected)
