"""Layers that several matchers share: word encoder, two-layer MLP, meta-network."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from crcl.matchers.base import Encoded, l2
from crcl.matchers.kernels.recurrent import averaged_directions
from crcl.matchers.statistics import BatchNorm, as_wide_as_the_batch, beyond_the_rows, normalise


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
        return as_wide_as_the_batch(averaged_directions(self.rnn, self.embed(words), which, lengths), tokens)


def unit_words(encoder: WordEncoder, tokens: Tensor, lengths: Tensor) -> Encoded:
    """Words as vectors of length 1, `(B, W, D)`, 0 for padding, with their mask."""
    words = l2(encoder(tokens, lengths))
    return Encoded(words, torch.arange(words.shape[1], device=words.device) < lengths[:, None])


def unit_regions(x: Tensor, mask: Tensor) -> Encoded:
    """Regions `(B, R, D)` scaled to length 1, 0 for padding, with their mask."""
    return Encoded(l2(x) * mask[..., None], mask)


def last_state(rnn: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """Last state of a batch-first GRU in one direction, in float32. `(B, L, E)`, `(B,)` -> `(B, D)`"""
    with torch.autocast(x.device.type, enabled=False):
        packed = pack_padded_sequence(x.float(), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return rnn(packed)[1][0]


class TwoLayers(nn.Module):
    """Linear, BatchNorm, ReLU, Linear, on rows `(rows, F)`.

    As in VSE∞, the statistics of a training batch include its padding, rows of zeros. `padding` is their number; they
    are accounted for without being computed.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)])
        self.bns = nn.ModuleList([BatchNorm(hidden)])

    def forward(self, rows: Tensor, *, padding: int = 0) -> Tensor:
        norm = cast(BatchNorm, self.bns[0])
        hidden = self.layers[0](rows)
        if self.training and (padding or beyond_the_rows()):
            hidden = normalise(hidden.float(), norm, pad=cast(Tensor, self.layers[0].bias), padding=padding)
        else:
            hidden = norm(hidden)
        return self.layers[1](torch.relu(hidden))


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
