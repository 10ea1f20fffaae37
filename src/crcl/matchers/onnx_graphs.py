"""ONNX graphs of matchers with one vector per image and text, which run without torch and without this package.

The graphs are written node by node: what torch's exporters make of a GRU over captions of different lengths depends on
torch's version, while ONNX's own GRU takes the lengths and starts its backward direction at each caption's last word.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from crcl.matchers.bow import Bow
from crcl.matchers.encoders import TwoLayers
from crcl.matchers.kernels.pooling import GPO, PADDING_VALUE
from crcl.matchers.linear import Linear
from crcl.matchers.vse import VSE

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 17, 8  # of 2022: read by every onnxruntime since 1.12
_FLOAT, _INT32, _INT64 = 1, 6, 7  # from onnx.TensorProto; onnx may not be installed
_SMALLEST = float(np.finfo(np.float32).min)

Value = str | Tensor | np.ndarray
"""An input of a node: another node's output by name, or a constant."""


class Graph:
    """Builder of an ONNX graph; nodes are added in the order of the computation."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, operator: str, *values: Value | None, **attributes: Any) -> str:
        """Add a node and return the name of its first output; None omits an optional input."""
        from onnx import helper

        inputs = [
            "" if value is None else value if isinstance(value, str) else self.constant(value) for value in values
        ]
        result = f"{operator}_{len(self.nodes)}"
        results = [result, f"{result}_indices"] if operator == "TopK" else [result]
        self.nodes.append(helper.make_node(operator, inputs, results, name=result, **attributes))
        return result

    def constant(self, value: Tensor | np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def model(self, inputs: "Sequence[onnx.ValueInfoProto]", result: str, size: int) -> "onnx.ModelProto":
        """The checked model, from `inputs` to `vectors` (batch, size)."""
        import onnx
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node("Identity", [result], ["vectors"]))
        vectors = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", size])
        graph = helper.make_graph(self.nodes, "crcl", inputs, [vectors], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model


def images_graph(
    matchers: Sequence[nn.Module],
    *,
    shares: Sequence[float],
    features: int,
    longest: int,
    scale: tuple[np.ndarray, float] | None = None,
) -> "onnx.ModelProto":
    """Graph from regions (batch, regions, features) and mask (batch, regions) to vectors, for up to `longest` regions.

    `scale` is the mean and deviation to standardise the features with. The vectors of several matchers are
    concatenated, so that an inner product is the mean of their similarities, weighted by `shares`.
    """
    from onnx import TensorProto, helper

    add = Graph()
    regions = "regions"
    if scale is not None:
        regions = add("Div", add("Sub", regions, scale[0]), _numbers(scale[1]))
    parts = [GRAPHS[type(matcher)].images(add, matcher, regions, longest) for matcher in matchers]
    inputs = [
        helper.make_tensor_value_info("regions", TensorProto.FLOAT, ["batch", "regions", features]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "regions"]),
    ]
    return add.model(inputs, _joined(add, parts, shares), vector_size(matchers))


def texts_graph(matchers: Sequence[nn.Module], *, shares: Sequence[float], longest: int) -> "onnx.ModelProto":
    """Graph from tokens (batch, words) and lengths (batch,) to vectors, for up to `longest` tokens."""
    from onnx import TensorProto, helper

    add = Graph()
    real = add("Less", _positions(add, "tokens"), add("Unsqueeze", "lengths", _axes(1)))  # (batch, words)
    parts = [GRAPHS[type(matcher)].texts(add, matcher, real, longest) for matcher in matchers]
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "words"]),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
    ]
    return add.model(inputs, _joined(add, parts, shares), vector_size(matchers))


def vector_size(matchers: Sequence[nn.Module]) -> int:
    """Numbers of a vector: those of all matchers together."""
    return sum(GRAPHS[type(matcher)].size(matcher) for matcher in matchers)


def _vse_images(add: Graph, matcher: nn.Module, regions: str, longest: int) -> str:
    images = cast(VSE, matcher).img
    x = add("Add", _linear(add, regions, images.fc), _two_layers(add, regions, images.mlp))
    lengths = add("ReduceSum", add("Cast", "mask", to=_INT64), _axes(1), keepdims=0)
    return _l2(add, _gpo(add, images.gpool, x, "mask", lengths, longest))


def _vse_texts(add: Graph, matcher: nn.Module, real: str, longest: int) -> str:
    texts = cast(VSE, matcher).txt
    x = add("Transpose", add("Gather", texts.embed.weight, "tokens"), perm=[1, 0, 2])  # (words, batch, E)
    both = _gru(add, texts.rnn, x)  # (words, 2, batch, D)
    x = add("Transpose", add("ReduceMean", both, axes=[1], keepdims=0), perm=[1, 0, 2])
    return _l2(add, _gpo(add, texts.gpool, x, real, "lengths", longest))


def _bow_images(add: Graph, matcher: nn.Module, regions: str, longest: int) -> str:
    bow = cast(Bow, matcher)
    x = add("Concat", _mean(add, regions), _largest(add, regions), axis=1)
    first, norm, _, last = bow.image_mlp
    hidden = add("Relu", _linear(add, x, cast(nn.Linear, first), cast(nn.BatchNorm1d, norm)))
    both = add("Add", _linear(add, x, bow.image_linear), _linear(add, hidden, cast(nn.Linear, last)))
    return _l2(add, both)


def _bow_texts(add: Graph, matcher: nn.Module, real: str, longest: int) -> str:
    bow = cast(Bow, matcher)
    weights = add("Mul", add("Gather", bow.word_weights, "tokens"), add("Cast", real, to=_FLOAT))
    weights = add("Div", weights, add("ReduceSum", weights, _axes(1), keepdims=1))
    words = add("Gather", bow.embed.weight, "tokens")  # (batch, words, E)
    return _l2(add, _linear(add, _weighted_sum(add, weights, words), bow.text_linear))


def _linear_images(add: Graph, matcher: nn.Module, regions: str, longest: int) -> str:
    images = cast(Linear, matcher).image
    mean = _mean(add, regions)
    x = add("Concat", mean, _largest(add, regions), axis=1) if images.pooled else _l2(add, mean)
    return _l2(add, _linear(add, x, images.linear))


def _linear_texts(add: Graph, matcher: nn.Module, real: str, longest: int) -> str:
    linear = cast(Linear, matcher)
    weights = add("Mul", add("Gather", linear.word_weights, "tokens"), add("Cast", real, to=_FLOAT))
    same = add("Equal", add("Unsqueeze", "tokens", _axes(2)), add("Unsqueeze", "tokens", _axes(1)))
    in_bag = _weighted_sum(add, weights, add("Cast", same, to=_FLOAT))  # a word that occurs twice has twice the weight
    square = add("ReduceSum", add("Mul", in_bag, weights), _axes(1), keepdims=1)
    length = add("Sqrt", add("Max", square, _numbers(1e-12)))
    bag = _weighted_sum(add, weights, add("Gather", linear.text.weight.T, "tokens"))
    return _l2(add, add("Add", add("Div", bag, length), linear.text.bias))


class _Graphs(NamedTuple):
    """How to make the graphs of a matcher."""

    images: Callable[[Graph, nn.Module, str, int], str]
    texts: Callable[[Graph, nn.Module, str, int], str]
    size: Callable[[nn.Module], int]
    """Returns the size of its vectors."""


GRAPHS: dict[type[nn.Module], _Graphs] = {
    VSE: _Graphs(_vse_images, _vse_texts, lambda matcher: cast(VSE, matcher).img.fc.out_features),
    Bow: _Graphs(_bow_images, _bow_texts, lambda matcher: cast(Bow, matcher).text_linear.out_features),
    Linear: _Graphs(_linear_images, _linear_texts, lambda matcher: cast(Linear, matcher).text.out_features),
}
"""Builders of the image and the text graph of each supported matcher."""


def _axes(axis: int) -> np.ndarray:
    return np.array([axis], dtype=np.int64)


def _numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def _positions(add: Graph, x: str) -> str:
    """Positions 0, 1, … along the second axis of x."""
    zero, one = np.array(0), np.array(1)
    return add("Range", zero, add("Gather", add("Shape", x), one), one)


def _mean(add: Graph, regions: str) -> str:
    """Mean of the real regions. (batch, regions, F) -> (batch, F)"""
    real = add("Unsqueeze", "mask", _axes(2))
    total = add("ReduceSum", add("Where", real, regions, _numbers(0)), _axes(1), keepdims=0)
    return add("Div", total, add("ReduceSum", add("Cast", real, to=_FLOAT), _axes(1), keepdims=0))


def _largest(add: Graph, regions: str) -> str:
    """Maximum of the real regions. (batch, regions, F) -> (batch, F)"""
    masked = add("Where", add("Unsqueeze", "mask", _axes(2)), regions, _numbers(_SMALLEST))
    return add("ReduceMax", masked, axes=[1], keepdims=0)


def _linear(add: Graph, x: str, layer: nn.Linear, norm: nn.BatchNorm1d | None = None) -> str:
    """A linear layer, merged with the BatchNorm after it, which is linear in eval mode."""
    weight: Tensor = layer.weight
    bias: Tensor = layer.bias
    if norm is not None:
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        scale = norm.weight / torch.sqrt(variance + norm.eps)
        weight, bias = weight * scale[:, None], (bias - mean) * scale + norm.bias
    return add("Add", add("MatMul", x, weight.T), bias)


def _two_layers(add: Graph, x: str, mlp: TwoLayers) -> str:
    first, last = (cast(nn.Linear, layer) for layer in mlp.layers)
    return _linear(add, add("Relu", _linear(add, x, first, cast(nn.BatchNorm1d, mlp.bns[0]))), last)


def _gru(add: Graph, rnn: nn.GRU, x: str) -> str:
    """Both directions of a GRU over `lengths` steps. The order of the gates is r, z, n in torch and z, r, h in ONNX."""

    def both(name: str) -> Tensor:
        gates = [getattr(rnn, f"{name}_l0{direction}").chunk(3) for direction in ("", "_reverse")]
        return torch.stack([torch.cat([z, r, n]) for r, z, n in gates])

    biases = torch.cat([both("bias_ih"), both("bias_hh")], dim=1)
    return add(
        "GRU",
        x,
        both("weight_ih"),
        both("weight_hh"),
        biases,
        add("Cast", "lengths", to=_INT32),
        direction="bidirectional",
        hidden_size=rnn.hidden_size,
        linear_before_reset=1,
    )


def _gpo(add: Graph, pooling: GPO, x: str, real: str, lengths: str, longest: int) -> str:
    """Generalised pooling with a table of the weights for each length; an input longer than `longest` is an error."""
    masked = add("Where", add("Unsqueeze", real, _axes(2)), x, _numbers(PADDING_VALUE))
    ordered = add("TopK", masked, add("Gather", add("Shape", x), _axes(1)), axis=1)  # sorts all, largest first
    table = add("Gather", pooling_table(pooling, longest), _positions(add, x), axis=1)
    return _weighted_sum(add, add("Gather", table, lengths), ordered)


def pooling_table(pooling: GPO, longest: int) -> Tensor:
    """GPO's weights of the sorted positions, one row for each length from 0 to `longest`. (longest + 1, longest)"""
    table = torch.zeros(longest + 1, longest)
    for lengths in torch.arange(1, longest + 1).split(64):
        table[lengths, : int(lengths[-1])] = pooling.weights(lengths)
    return table


def _weighted_sum(add: Graph, weights: str, x: str) -> str:
    """Weighted sum over L. (batch, L), (batch, L, D) -> (batch, D)"""
    return add("Squeeze", add("MatMul", add("Unsqueeze", weights, _axes(1)), x), _axes(1))


def _l2(add: Graph, x: str) -> str:
    return add("Div", x, add("Add", add("ReduceL2", x, axes=[1], keepdims=1), _numbers(1e-8)))


def _joined(add: Graph, parts: Sequence[str], shares: Sequence[float]) -> str:
    """Concatenate vectors, scaled so that an inner product is the weighted mean of the parts' inner products."""
    if len(parts) == 1:
        return parts[0]
    scaled = [add("Mul", part, _numbers(share**0.5)) for part, share in zip(parts, shares, strict=True)]
    return add("Concat", *scaled, axis=1)
