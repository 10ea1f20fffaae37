"""A caption unlike its siblings is told; one without siblings is not judged."""

import torch
from torch.nn.functional import normalize

from crcl.auditing.scores.consistency import consistency


def test_it_is_the_mean_cosine_with_the_siblings() -> None:
    generator = torch.Generator().manual_seed(0)
    texts = normalize(torch.randn(12, 5, generator=generator).double())
    shown = torch.tensor([0, 0, 0, 2, 2, 3, 1, 1, 1, 1, 0, 3])
    found = consistency(texts, shown)
    for row in range(12):
        others = [other for other in range(12) if other != row and shown[other] == shown[row]]
        torch.testing.assert_close(found[row], torch.stack([texts[row] @ texts[other] for other in others]).mean())


def test_a_caption_without_siblings_has_no_score() -> None:
    found = consistency(normalize(torch.ones(3, 4)), torch.tensor([0, 2, 2]))
    assert torch.isnan(found).tolist() == [True, False, False]
