"""Speed of the encoders of MV-VSE, HREM and VSRN at the published sizes, beside straightforward ones.

    python benchmarks/speed_vectors.py [--matchers mvvse hrem vsrn] [--pairs 32] [--rounds 2] [--out FILE]

Images and captions of a batch are encoded; comparing them is a dot product. Both implementations run in turns in one
process on one core, and the processor's time counts, so that other work on the machine matters little. A share is the
floating-point operations that cannot be avoided, divided by the time, divided by the rate of a 2048-square product that
was measured in the same way.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import WORD, D, F, R, V
from plain_vse import PlainGPO, averaged
from speed_words import gemm_rate
from torch import Tensor, nn
from torch.nn.functional import conv1d

from crcl.matchers import HREM, MVVSE, VSRN
from crcl.matchers.base import l2

KINDS = {"mvvse": (MVVSE, D), "hrem": (HREM, D), "vsrn": (VSRN, 2 * D)}
"""Matchers and their published sizes."""
Encoder = Callable[[nn.Module, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matchers", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rate = float(np.median([gemm_rate() for _ in range(5)]))
    lines = [
        f"{options.pairs} images of {R} x {F} regions and as many captions, GEMM {rate / 1e9:.0f} GFLOP/s on one core:",
        "",
        "| matcher | | ours, s | straightforward, s | ratio | share of GEMM rate |",
        "|---|---|---|---|---|---|",
    ]
    shown = 0
    for name in options.matchers:
        lines += measured(name, options.pairs, options.rounds, rate)
        print("\n".join(lines[shown:]), flush=True)
        shown = len(lines)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measured(
    name: str, pairs: int, rounds: int, rate: float, *, features: int = F, size: int | None = None
) -> list[str]:
    """A row for encoding in evaluation and one for a training step, forward and backward."""
    torch.manual_seed(0)
    kind, published = KINDS[name]
    size = size or published
    matcher = kind(features=features, vocabulary=V, embedding=size, word=WORD)
    straightforward = Plain(matcher)
    regions = torch.randn(pairs, R, features)
    lengths = torch.randint(10, 23, (pairs,)).sort(descending=True).values
    tokens = torch.randint(4, V, (pairs, int(lengths.max()))) * (torch.arange(int(lengths.max())) < lengths[:, None])
    rows = []
    for what, run in (("evaluation", evaluate), ("training step", train)):
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(rounds):
            results = []
            for who, encode, module in (("ours", ours, matcher), ("plain", plain, straightforward)):
                started = time.process_time()
                results.append(run(module, encode, regions, tokens, lengths))
                seconds[who].append(time.process_time() - started)
            differ = max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
            if run is evaluate and differ > 1e-4:  # dropout differs in training
                raise SystemExit(f"the two implementations of {name} disagree")
        mine, other = min(seconds["ours"]), min(seconds["plain"])
        work = operations(name, pairs, int(lengths.sum()), features, size, training=run is train)
        rows.append(f"| `{name}` | {what} | {mine:.2f} | {other:.2f} | {other / mine:.2f} | {work / rate / mine:.0%} |")
    return rows


def operations(name: str, images: int, words: int, features: int, size: int, *, training: bool) -> float:
    """Multiplications and additions of encoding; features and word vectors that stand first need no gradient."""
    first = {"mvvse": 3, "hrem": 1.5, "vsrn": 1}[name] * features * size
    within = {"mvvse": 1, "hrem": 6.5, "vsrn": 22}[name] * size**2 + {"vsrn": 8}.get(name, 2) * (
        name != "mvvse"
    ) * R * size
    text = {"mvvse": 2, "hrem": 2, "vsrn": 1}[name] * 3 * size * (WORD + size) + (6 * size**2 if name == "hrem" else 0)
    once = images * R * (first * (2 if training else 1) + within * (3 if training else 1))
    return 2.0 * (once + words * text * (3 if training else 1))


def evaluate(module: nn.Module, encode: Encoder, *given: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        return tuple(vectors.clone() for vectors in encode(module.eval(), *given))


def train(module: nn.Module, encode: Encoder, *given: Tensor) -> tuple[Tensor, ...]:
    module.train().zero_grad(set_to_none=True)
    vectors = encode(module, *given)
    torch.stack([some.square().sum() * 0.5 + some.sum() for some in vectors]).sum().backward()
    return tuple(some.detach() for some in vectors)


def ours(matcher: nn.Module, regions: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.ones(regions.shape[:2], dtype=torch.bool)
    return matcher.encode_images(regions, mask).features, matcher.encode_texts(tokens, lengths).features


def plain(module: nn.Module, regions: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    return module(regions, tokens, lengths)


class Plain(nn.Module):
    """The same encoders with torch's own layers; all regions are real. It has the matcher's weights."""

    def __init__(self, matcher: MVVSE | HREM | VSRN) -> None:
        super().__init__()
        self.img, self.txt, self.kind = matcher.img, matcher.txt, type(matcher)
        pools = [*(view.gpool for view in matcher.img), matcher.txt.gpool] if isinstance(matcher, MVVSE) else []
        self.pools = nn.ModuleList([PlainGPO() for _ in pools])
        for own, other in zip(self.pools, pools, strict=True):
            own.load_state_dict(other.state_dict())

    def forward(self, regions: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        words, counts = self.txt.embed(tokens), torch.full((len(regions),), regions.shape[1])
        if self.kind is VSRN:
            return self.reasoned(regions), l2(last(self.txt.rnn, words, lengths))
        words = averaged(self.txt.rnn, words, lengths)
        if self.kind is HREM:
            image = self.img.fc["fc"](regions) + mlp(self.img.fc["mlp"], regions)
            return aggregated(self.img.aggr, image, counts), aggregated(self.txt.aggr, words, lengths)
        views = zip(self.img, self.pools, strict=False)
        images = [l2(pool(view.fc(regions) + mlp(view.mlp, regions), counts)) for view, pool in views]
        return torch.stack(images, dim=1), l2(self.pools[-1](words, lengths))

    def reasoned(self, regions: Tensor) -> Tensor:
        x = l2(self.img.fc(regions)).mT  # (B, D, R)
        for number in range(1, 5):
            step = self.img.get_submodule(f"Rs_GCN_{number}")
            g, theta, phi = (conv1d(x, layer.weight, layer.bias) for layer in (step.g, step.theta, step.phi))
            affinity = theta.mT @ phi / x.shape[2]
            message = (affinity @ g.mT).mT
            x = x + nn.BatchNorm1d.forward(step.W[1], conv1d(message, step.W[0].weight, step.W[0].bias))
        return l2(self.img.img_rnn(l2(x.mT))[1][0])


def mlp(layers: nn.Module, regions: Tensor) -> Tensor:
    return layers(regions.flatten(0, 1)).view(*regions.shape[:2], -1)


def aggregated(layer: nn.Module, parts: Tensor, lengths: Tensor) -> Tensor:
    """HREM's pooling with `topk` and torch's own Transformer layer."""
    real = torch.arange(parts.shape[1]) < lengths[:, None]
    two = parts.masked_fill(~real[..., None], -10000).topk(2, dim=1).values.mean(1)
    attended = nn.TransformerEncoderLayer.forward(layer.layers[0], parts, src_key_padding_mask=~real)
    mean = attended.masked_fill(~real[..., None], 0).sum(1) / lengths[:, None]
    return l2(0.8 * two + 0.2 * mean)


def last(rnn: nn.GRU, words: Tensor, lengths: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    return rnn(packed)[1][0]


if __name__ == "__main__":
    main()
