"""Layers that several matchers share: word encoder, two-layer MLP, meta-network."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from crcl.matchers.kernels.recurrent import averaged_directions


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with uniform weights in ±sqrt(6 / (inputs + outputs)) and bias 0, as in published matchers."""
    layer = nn.Linear(inputs, outputs)
    bound = math.sqrt(6 / (inputs + outputs))
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


class WordEncoder(nn.Module):
    """Word embeddings and a bidirectional GRU layer whose directions are averaged. `(B, W)` ids -> `(B, W, D)`"""

    def __init__(self, *, vocabulary: int, word: int, embedding: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.rnn = nn.GRU(word, embedding, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words, which = tokens.unique(return_inverse=True)
        return averaged_directions(self.rnn, self.embed(words), which, lengths)


class TwoLayers(nn.Module):
    """Linear, BatchNorm, ReLU, Linear, on rows `(rows, F)`.

    As in VSE∞, the statistics of a training batch include its padding, rows of zeros. `padding` is their number; they
    are accounted for without being computed.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(hidden)])

    def forward(self, rows: Tensor, *, padding: int = 0) -> Tensor:
        norm = cast(nn.BatchNorm1d, self.bns[0])
        hidden = self.layers[0](rows)
        if self.training and padding:
            hidden = _normalise_padded(hidden.float(), cast(Tensor, self.layers[0].bias), padding, norm)
        else:
            hidden = norm(hidden)
        return self.layers[1](torch.relu(hidden))


def _normalise_padded(x: Tensor, pad: Tensor, padding: int, norm: nn.BatchNorm1d) -> Tensor:
    """BatchNorm in training of the rows x and `padding` further rows that all equal `pad`; returns the rows of x."""
    count = len(x) + padding
    mean = (x.sum(0) + padding * pad) / count
    centred = x - mean
    variance = (centred.square().sum(0) + padding * (pad - mean).square()) / count
    with torch.no_grad():
        momentum = norm.momentum or 0.1
        cast(Tensor, norm.running_mean).lerp_(mean, momentum)
        cast(Tensor, norm.running_var).lerp_(variance * (count / (count - 1)), momentum)
        cast(Tensor, norm.num_batches_tracked).add_(1)
    return centred * (norm.weight * torch.rsqrt(variance + norm.eps)) + norm.bias


class MetaNetwork(nn.Module):
    """MSCN's last layers, from a similarity vector to a score before the sigmoid. `(…, size)` -> `(…, 1)`

    Parameters are named as in the authors' checkpoints.
    """

    def __init__(self, size: int, hidden: int = 64) -> None:
        super().__init__()
        self.first_hidden_layer = nn.ModuleDict({"fc": nn.Linear(size, hidden)})
        self.output_layer = nn.Linear(hidden, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.output_layer(torch.relu(self.first_hidden_layer["fc"](vectors)))

    def score_products(self, images: Tensor, texts: Tensor) -> Tensor:
        """Scores of unit vectors `(images, D)` and `(texts, D)`. (images, texts)

        The similarity vector of a pair is the elementwise product of its two vectors, whose sum is the cosine, times
        √D, so that its norm is about that of SGRAF's similarity vectors. These products are never materialised: the
        first layer is one matrix product of the images with the texts multiplied by its weights.
        """
        with torch.autocast(images.device.type, enabled=False):
            layer = cast(nn.Linear, self.first_hidden_layer["fc"])
            weighted = texts.float()[:, None] * (layer.weight * math.sqrt(layer.in_features))  # (texts, hidden, D)
            hidden = (images.float() @ weighted.flatten(0, 1).T).view(len(images), len(texts), -1) + layer.bias
            return self.output_layer(torch.relu(hidden)).squeeze(2)
