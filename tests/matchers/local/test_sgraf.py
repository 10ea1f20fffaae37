"""SAF and SGR: the authors' numbers, and a loop over captions written from the formulas."""

import unittest.mock
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from crcl.matchers import SAF, SGR
from crcl.matchers.base import l2
from crcl.matchers.kernels.distances import _SquaredDistances, reference

Numbers = Callable[[str], dict[str, np.ndarray]]
SIZES = {"features": 6, "vocabulary": 12, "embedding": 8, "word": 5, "regions": 4, "similarity": 6}
each = pytest.mark.parametrize("kind", [SAF, SGR])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def captions(lengths: list[int]) -> tuple[Tensor, Tensor]:
    counts = torch.tensor(lengths)
    tokens = torch.randint(1, SIZES["vocabulary"], (len(lengths), max(lengths)))
    return tokens * (torch.arange(max(lengths)) < counts[:, None]), counts


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, SIZES["regions"], SIZES["features"]), torch.ones(
        count, SIZES["regions"], dtype=torch.bool
    )


def looped_scores(
    matcher: nn.Module, v: Tensor, v_whole: Tensor, words: Tensor, wholes: Tensor, lengths: Tensor
) -> Tensor:
    """Raw scores caption by caption, longest first, as published: BatchNorm is called once per caption."""
    sim = matcher.sim
    columns: dict[int, Tensor] = {}
    for caption in lengths.argsort(descending=True, stable=True).tolist():
        t = words[caption, : lengths[caption]]  # (words, D)
        s = nn.functional.leaky_relu(torch.einsum("ird,wd->irw", v, t), 0.1)
        attention = (9 * s / (s.norm(dim=2, keepdim=True) + 1e-8)).softmax(1)
        context = l2(torch.einsum("irw,ird->iwd", attention, v))
        local = l2(sim.sim_tranloc_w((context - t).square()))
        whole = l2(sim.sim_tranglo_w((v_whole - wholes[caption]).square()))
        nodes = torch.cat([whole[:, None], local], dim=1)  # (images, 1 + words, H)
        if isinstance(matcher, SAF):
            logits = sim.SAF_module.attn_sim_w(nodes).permute(0, 2, 1)  # (images, 1, nodes)
            gates = sim.SAF_module.bn(logits).sigmoid()
            weights = gates / (gates.abs().sum(2, keepdim=True) + 1e-8)
            vector = l2((weights @ nodes).squeeze(1))
        else:
            for step in sim.SGR_module:
                edges = (step.graph_query_w(nodes) @ step.graph_key_w(nodes).mT).softmax(2)
                nodes = torch.relu(step.sim_graph_w(edges @ nodes))
            vector = nodes[:, 0]
        columns[caption] = sim.sim_eval_w(vector).squeeze(1)
    return torch.stack([columns[caption] for caption in range(len(words))], dim=1)


@pytest.mark.parametrize(("name", "kind"), [("saf", SAF), ("sgr", SGR)])
def test_equals_the_authors_implementation(recorded: Numbers, name: str, kind: type) -> None:
    numbers = recorded(name)
    matcher = kind(features=12, vocabulary=23, embedding=16, word=10, regions=36, similarity=8).eval()
    weights = {key: torch.tensor(value) for key, value in numbers.items() if key.startswith(("img.", "txt.", "sim."))}
    matcher.load_state_dict(weights)  # strict: the names are the authors' as well
    with torch.no_grad():
        regions = torch.tensor(numbers["images"])
        seen = matcher.encode_images(regions, torch.ones(regions.shape[:2], dtype=torch.bool))
        read = matcher.encode_texts(torch.tensor(numbers["captions"]), torch.tensor(numbers["lengths"]))
        sims = matcher.similarity(seen, read)
    np.testing.assert_allclose(seen.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(read.features, numbers["text_embeddings"], atol=1e-5)
    np.testing.assert_allclose(sims, numbers["similarities"], atol=1e-5)


@pytest.mark.slow
@each
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), rows=st.integers(1, 200))
def test_batched_captions_equal_one_at_a_time(kind: type, lengths: list[int], rows: int) -> None:
    matcher = kind(**SIZES, tile_rows=rows).eval()
    tokens, counts = captions(lengths)
    with torch.no_grad():
        seen = matcher.encode_images(*images(3))
        together = matcher.similarity(seen, matcher.encode_texts(tokens, counts))
        for column, length in enumerate(lengths):
            alone = matcher.encode_texts(tokens[column : column + 1, :length], counts[column : column + 1])
            torch.testing.assert_close(together[:, column : column + 1], matcher.similarity(seen, alone))


@each
def test_training_equals_a_loop_over_captions_with_gradients_and_running_statistics(kind: type) -> None:
    matcher, looped = (kind(**SIZES, dropout=0.0, tile_rows=40).train() for _ in range(2))
    looped.load_state_dict(matcher.state_dict())
    regions, mask = images(5)
    tokens, counts = captions([4, 7, 2, 7, 1])
    scores = matcher.scores(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, counts))
    seen, read = looped.encode_images(regions, mask), looped.encode_texts(tokens, counts)
    expected = looped_scores(looped, seen.features, seen.pooled, read.features, read.pooled, counts)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    back = torch.randn_like(scores)
    scores.backward(back)
    expected.backward(back)
    for (name, ours), theirs in zip(matcher.named_parameters(), looped.parameters(), strict=True):
        if not name.endswith("graph_key_w.bias"):  # it has no effect: what it gets is rounding
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=name)
    for name, value in looped.state_dict().items():
        torch.testing.assert_close(matcher.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


@each
def test_too_little_memory_computes_twice_and_gives_the_same(kind: type) -> None:
    roomy, tight = (kind(**SIZES, dropout=0.0, memory=memory).train() for memory in (4.0, 1e-5))
    tight.load_state_dict(roomy.state_dict())
    seen, read = images(5), captions([4, 7, 2, 7, 1])
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert tight.most_rows(cpu) < 5 * 21 <= roomy.most_rows(cpu)
    assert roomy.most_rows(gpu) < roomy.most_rows(cpu)
    for matcher in (roomy, tight):
        matcher.similarity(matcher.encode_images(*seen), matcher.encode_texts(*read)).square().sum().backward()
    for (name, one), other in zip(roomy.named_parameters(), tight.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)
    for name, value in roomy.state_dict().items():
        torch.testing.assert_close(tight.state_dict()[name], value, msg=name)


def test_squared_distances_and_their_first_and_second_derivatives() -> None:
    sizes = (3, 5, 4), (3, 4, 6), (5, 6), (2, 6), (2,)
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    with unittest.mock.patch("crcl.matchers.kernels.distances.ROWS", 11):  # two images, then one
        assert torch.equal(_SquaredDistances.apply(*inputs), reference(*inputs))
        assert torch.autograd.gradcheck(_SquaredDistances.apply, inputs)
        assert torch.autograd.gradgradcheck(_SquaredDistances.apply, inputs)


@each
def test_another_number_of_regions_is_refused(kind: type) -> None:
    matcher = kind(**SIZES)
    with pytest.raises(ValueError, match="built for 4 regions per image, got 5"):
        matcher.encode_images(torch.randn(2, 5, 6), torch.ones(2, 5, dtype=torch.bool))


@each
def test_similarity_is_the_sigmoid_of_the_raw_score(kind: type) -> None:
    matcher = kind(**SIZES).eval()
    seen, read = matcher.encode_images(*images(3)), matcher.encode_texts(*captions([2, 5]))
    torch.testing.assert_close(matcher.similarity(seen, read), matcher.scores(seen, read).sigmoid())


@each
def test_an_image_of_zeros_has_a_finite_gradient(kind: type) -> None:
    matcher = kind(**SIZES).train()
    nn.init.zeros_(matcher.img["fc"].bias)
    regions, mask = images(3)
    regions[0] = 0
    matcher.similarity(
        matcher.encode_images(regions, mask), matcher.encode_texts(*captions([3, 2, 4]))
    ).sum().backward()
    gradients = [parameter.grad for parameter in matcher.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
