"""Parts that several matchers are made of."""

import math

import torch
from torch import Tensor, nn

from crcl.matchers.recurrent import averaged_directions


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with uniform weights in ±sqrt(6 / (inputs + outputs)) and bias 0, as the field starts them."""
    layer = nn.Linear(inputs, outputs)
    bound = math.sqrt(6 / (inputs + outputs))
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


class WordEncoder(nn.Module):
    """Word vectors and one bidirectional GRU layer whose directions are averaged, `(B, W)` ids -> `(B, W, D)`."""

    def __init__(self, *, vocabulary: int, word: int, embedding: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.rnn = nn.GRU(word, embedding, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words, which = tokens.unique(return_inverse=True)
        return averaged_directions(self.rnn, self.embed(words), which, lengths)


class TwoLayers(nn.Module):
    """Linear, BatchNorm, ReLU, Linear. The statistics are taken over all rows, padded ones included, as in VSE∞."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(hidden)])

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        hidden = torch.relu(self.bns[0](self.layers[0](rows)))
        return self.layers[1](hidden).view(*x.shape[:-1], -1)
