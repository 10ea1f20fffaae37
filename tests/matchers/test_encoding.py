"""Batches encoded in chunks: the same gradients as at once, and less memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from crcl.data.batches import Batch
from crcl.losses import active_complementary
from crcl.matchers.base import as_module
from crcl.matchers.bow import Bow
from crcl.matchers.dual import Dual
from crcl.matchers.vse import VSE
from crcl.methods.base import Learner


def batch_of(pairs: int, *, vectors: bool = False, seed: int = 0) -> Batch:
    made = torch.Generator().manual_seed(seed)
    counts = torch.randint(2, 6, (pairs,), generator=made)
    lengths = torch.ones(pairs, dtype=torch.int64) if vectors else torch.randint(1, 8, (pairs,), generator=made)
    mask = torch.arange(5) < counts[:, None]
    regions = torch.randn(pairs, 5, 6, generator=made) * mask[..., None]
    tokens = torch.randint(1, 20, (pairs, 7), generator=made) * (torch.arange(7) < lengths[:, None])
    texts = torch.randn(pairs, 1, 6, generator=made) if vectors else tokens
    return Batch(torch.arange(pairs), regions, mask, texts, lengths)


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "bow": lambda: Bow(features=6, vocabulary=20, embedding=8, word=6),
    "vse": lambda: VSE(features=6, vocabulary=20, embedding=8, word=6),
    "dual": lambda: Dual(features=6, text_features=6, embedding=8, aligned=False),
}


def gradients(name: str, chunk: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of CRCL's loss for all weights, and the buffers after the step."""
    torch.manual_seed(0)
    learner = Learner(MAKERS[name], chunk=chunk)
    learner.reset()
    batch = batch_of(11, vectors=name == "dual")
    active_complementary(learner.similarities(batch), torch.full((11,), 0.5), tau=0.5, scale=1.0).mean().backward()
    module = as_module(learner.matcher)
    found = [weight.grad.flatten() for weight in module.parameters() if weight.grad is not None]
    return torch.cat(found), dict(module.named_buffers())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("chunk", [1, 4, 11])
def test_chunks_have_the_gradients_and_statistics_of_the_whole_batch(name: str, chunk: int) -> None:
    expected, buffers = gradients(name, 0)
    found, tracked = gradients(name, chunk)
    assert (found - expected).abs().max() < 1e-6
    for key, buffer in buffers.items():
        torch.testing.assert_close(tracked[key], buffer, atol=1e-6, rtol=1e-6)


def kept_bytes(pairs: int, chunk: int) -> int:
    """Bytes that the forward pass of VSE keeps for the backward pass."""
    torch.manual_seed(0)
    learner = Learner(MAKERS["vse"], chunk=chunk)
    learner.reset()
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    batch = batch_of(pairs)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        learner.encode(batch)
    return sum(kept.values())


def test_what_is_kept_for_the_backward_pass_hardly_grows_with_the_batch_in_chunks() -> None:
    small, large = (kept_bytes(pairs, 8) for pairs in (16, 256))
    assert large - small < (256 - 16) * 4 * 8 * 20
    assert kept_bytes(256, 0) > 5 * large
