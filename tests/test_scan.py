"""SCAN: the authors' numbers, and captions one at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from crcl.matchers import SCAN, Encoded

Numbers = Callable[[str], dict[str, np.ndarray]]
each = pytest.mark.parametrize("direction", ["t2i", "i2t"])
pooled = pytest.mark.parametrize(("pooling", "recorded_name"), [("lse", "LogSumExp"), ("mean", "Mean")])


@each
@pooled
def test_equals_the_authors_implementation(recorded: Numbers, direction: str, pooling: str, recorded_name: str) -> None:
    numbers = recorded("peer_losses")
    words, lengths = torch.tensor(numbers["scan_words"]), torch.tensor(numbers["scan_lengths"])
    real = torch.arange(words.shape[1]) < lengths[:, None]
    matcher = SCAN(features=3, vocabulary=5, embedding=10, direction=direction, pooling=pooling)
    with torch.no_grad():
        regions = Encoded(torch.tensor(numbers["scan_regions"]))
        sims = matcher.similarity(regions, Encoded(words * real[..., None], real))
    np.testing.assert_allclose(sims, numbers[f"scan_{direction}_{recorded_name}"], atol=1e-5)


@each
@pytest.mark.parametrize(("pooling", "own"), [("max", lambda r: r.max()), ("sum", lambda r: r.sum())])
def test_maximum_and_sum_are_over_real_words_and_all_regions(
    recorded: Numbers, direction: str, pooling: str, own: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Against cosines computed pair by pair, with the context vectors formed."""
    numbers = recorded("peer_losses")
    words, lengths = torch.tensor(numbers["scan_words"]), torch.tensor(numbers["scan_lengths"])
    regions = torch.tensor(numbers["scan_regions"])
    real = torch.arange(words.shape[1]) < lengths[:, None]
    matcher = SCAN(features=3, vocabulary=5, embedding=10, direction=direction, pooling=pooling)
    with torch.no_grad():
        sims = matcher.similarity(Encoded(regions), Encoded(words * real[..., None], real))
    for i, v in enumerate(regions):
        for j, length in enumerate(lengths.tolist()):
            t = words[j, :length]
            asking, asked, smooth = (t, v, 9) if direction == "t2i" else (v, t, 4)
            s = torch.nn.functional.leaky_relu(asking @ asked.T, 0.1)
            attention = (smooth * s / (s.norm(dim=0, keepdim=True) + 1e-8)).softmax(1)
            cosines = torch.nn.functional.cosine_similarity(asking, attention @ asked)
            torch.testing.assert_close(sims[i, j], own(cosines), atol=1e-5, rtol=0)


@each
@pooled
def test_batched_captions_equal_one_at_a_time(direction: str, pooling: str, recorded_name: str) -> None:
    torch.manual_seed(0)
    matcher = SCAN(features=6, vocabulary=12, embedding=8, word=5, direction=direction, pooling=pooling).eval()
    lengths = torch.tensor([3, 6, 1])
    tokens = torch.randint(1, 12, (3, 6)) * (torch.arange(6) < lengths[:, None])
    with torch.no_grad():
        seen = matcher.encode_images(torch.randn(4, 5, 6), torch.ones(4, 5, dtype=torch.bool))
        together = matcher.similarity(seen, matcher.encode_texts(tokens, lengths))
        for column in range(3):
            alone = matcher.encode_texts(tokens[column : column + 1, : lengths[column]], lengths[column : column + 1])
            torch.testing.assert_close(together[:, column : column + 1], matcher.similarity(seen, alone))
