"""Products in bfloat16 on the CPU: what they change, what stays float32, and what a processor without them is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from crcl.matchers.base import Matcher
from crcl.matchers.bow import Bow
from crcl.matchers.dual import Dual
from crcl.matchers.kernels import products
from crcl.matchers.kernels.distances import squared_distances
from crcl.matchers.kernels.pooling import GPO
from crcl.matchers.kernels.products import cpu_product_type, imitated, product_type
from crcl.matchers.kernels.recurrent import averaged_directions
from crcl.matchers.local.gsmn import GSMN
from crcl.matchers.local.scan import SCAN
from crcl.matchers.local.sgraf import SAF, SGR
from crcl.matchers.vse import VSE

CPU = torch.device("cpu")
SIZES = {"features": 48, "vocabulary": 30, "embedding": 64, "word": 20}
LOCAL = SIZES | {"regions": 9}
MATCHERS: dict[str, Callable[[], Any]] = {
    "vse": lambda: VSE(**SIZES),
    "bow": lambda: Bow(**SIZES),
    "dual": lambda: Dual(features=48, text_features=40, embedding=32),
    "saf": lambda: SAF(**LOCAL, similarity=32, dropout=0.0),
    "sgr": lambda: SGR(**LOCAL, similarity=32, dropout=0.0),
    "scan": lambda: SCAN(**SIZES),
    "gsmn": lambda: GSMN(**SIZES),
}


def in_bfloat16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def compare(matcher: Matcher, name: str) -> Tensor:
    torch.manual_seed(1)
    regions, lengths = torch.randn(6, 9, 48), torch.tensor([7, 5, 5, 3, 1, 9])
    texts = torch.randn(6, 1, 40) if name == "dual" else torch.randint(1, 30, (6, 9))
    images = matcher.encode_images(regions, torch.ones(6, 9, dtype=torch.bool))
    return matcher.similarity(images, matcher.encode_texts(texts, lengths if name != "dual" else torch.ones(6)))


@pytest.mark.parametrize("name", MATCHERS)
def test_similarities_and_gradients_are_near_those_of_float32(name: str) -> None:
    torch.manual_seed(0)
    matcher = MATCHERS[name]()

    def both() -> tuple[Tensor, Tensor]:
        matcher.zero_grad()
        sims = compare(matcher, name)
        with torch.autocast("cpu", enabled=False):
            (sims.diag() - sims.mean()).square().sum().backward()
        learnt = [weight for weight in matcher.parameters() if weight.grad is not None]
        assert all(weight.grad.dtype == torch.float32 for weight in learnt)
        return sims.detach(), torch.cat([weight.grad.flatten() for weight in learnt])

    exact, gradient = both()
    with in_bfloat16():
        rough, near = both()
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.02)
    assert nn.functional.cosine_similarity(near, gradient, dim=0) > 0.99


def test_states_and_gates_of_a_gru_are_float32() -> None:
    torch.manual_seed(0)
    rnn = nn.GRU(20, 64, batch_first=True, bidirectional=True)
    words, which, lengths = torch.randn(12, 20), torch.randint(0, 12, (5, 9)), torch.tensor([9, 7, 7, 2, 1])

    def gradients() -> list[Tensor]:
        states = averaged_directions(rnn, words, which, lengths)
        assert states.dtype == torch.float32
        assert not torch.equal(states, states.bfloat16().float())
        return [states.detach(), *torch.autograd.grad(states.square().sum(), list(rnn.parameters()))]

    exact = gradients()
    with in_bfloat16():
        rough = gradients()
    for one, other in zip(rough, exact, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("transposed", [False, True])
def test_squared_distances_are_near_those_of_float32_with_their_derivatives(transposed: bool) -> None:
    """SAF's attention comes transposed in memory."""
    torch.manual_seed(0)
    attention = torch.rand(5, 9, 40).softmax(1).mT if transposed else torch.rand(5, 40, 9).softmax(2)
    given = [attention, torch.randn(5, 9, 64), torch.randn(40, 64)]
    layer = nn.Linear(64, 16)
    given = [part.detach().requires_grad_() for part in given]

    def found(out: Tensor) -> list[Tensor]:
        wanted = [*given, layer.weight, layer.bias]
        gradients = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
        second = torch.autograd.grad(gradients[0].square().sum(), wanted[:4])
        return [part.detach() for part in (out, *gradients, *second)]

    exact = found(squared_distances(given[0], given[1], given[2], layer))
    with in_bfloat16():
        rough = squared_distances(given[0], given[1], given[2], layer)
    for one, other in zip(found(rough), exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def test_the_kernels_of_the_cpu_are_used_in_bfloat16_too(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    apply = Function.apply.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Function, "apply", classmethod(lambda kind, *a: used.append(kind.__name__) or apply(kind, *a)))
    with in_bfloat16():
        compare(MATCHERS["vse"](), "vse")
        compare(MATCHERS["saf"](), "saf")
    assert {"_TwoGRUs", "_SortedSum", "_SquaredDistances"} <= set(used)


def test_the_weights_of_pooling_are_those_of_float32() -> None:
    torch.manual_seed(0)
    pool, lengths = GPO(), torch.tensor([7, 3, 1])
    with in_bfloat16():
        pooled = pool(torch.randn(3, 7, 5).bfloat16(), lengths)
    assert pooled.dtype == torch.float32
    with in_bfloat16():
        assert cpu_product_type() == torch.bfloat16
    assert cpu_product_type() == torch.float32


@pytest.mark.parametrize("name", ["vse", "sgr"])
def test_the_same_training_step_gives_the_same_gradients_every_time_with_two_threads(name: str) -> None:
    torch.manual_seed(0)
    matcher = MATCHERS[name]()

    def gradients() -> list[Tensor]:
        matcher.zero_grad()
        with in_bfloat16():
            sims = compare(matcher, name)
        sims.square().sum().backward()
        return [weight.grad.clone() for weight in matcher.parameters() if weight.grad is not None]

    torch.set_num_threads(2)
    try:
        first, again = gradients(), [gradients() for _ in range(3)]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for found in again for one, other in zip(first, found, strict=True))


def test_the_cpu_computes_in_float32_unless_told_otherwise() -> None:
    assert product_type(CPU, "auto") == torch.float32
    assert product_type(CPU, "bfloat16") == torch.bfloat16


def test_a_processor_without_bfloat16_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "cpu_has_bfloat16", lambda: True)
    assert imitated(CPU, torch.bfloat16) == imitated(CPU, torch.float32) == ""
    assert "float16 is slower" in imitated(CPU, torch.float16)
    monkeypatch.setattr(products, "cpu_has_bfloat16", lambda: False)
    assert "no bfloat16 products" in imitated(CPU, torch.bfloat16)
    assert imitated(torch.device("cuda"), torch.bfloat16) == ""
