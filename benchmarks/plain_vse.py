"""VSE∞ written straight from its formulas, sample by sample where they are: what `speed.py` compares with."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from crcl.data.batches import Batch, Batches
from crcl.matchers.base import l2
from crcl.matchers.encoders import TwoLayers, xavier_linear
from crcl.matchers.kernels.pooling import position_codes


class PlainGPO(nn.Module):
    """Weights by a small GRU run for each sample, `torch.sort`, weighted sum."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(size, size, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(size, 1, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        x = x[:, :longest]
        mask = torch.arange(longest) < lengths[:, None]
        codes = position_codes(longest, 32).expand(len(x), -1, -1)
        hidden = averaged(self.gru, codes, lengths)
        weights = (self.linear(hidden).squeeze(2).masked_fill(~mask, -10000) / 0.1).softmax(1)
        values = x.masked_fill(~mask[..., None], -10000).sort(dim=1, descending=True).values
        return (values.masked_fill(~mask[..., None], 0) * weights[..., None]).sum(1)


class PlainVSE(nn.Module):
    """Same parameter names as `crcl.matchers.VSE`, so that one's weights load into the other."""

    def __init__(self, *, features: int, vocabulary: int, embedding: int = 1024, word: int = 300) -> None:
        super().__init__()
        self.img = nn.ModuleDict(
            {
                "fc": xavier_linear(features, embedding),
                "mlp": TwoLayers(features, embedding // 2, embedding),
                "gpool": PlainGPO(),
            }
        )
        self.txt = nn.ModuleDict(
            {
                "embed": nn.Embedding(vocabulary, word),
                "rnn": nn.GRU(word, embedding, batch_first=True, bidirectional=True),
                "gpool": PlainGPO(),
            }
        )

    def images(self, regions: Tensor, mask: Tensor) -> Tensor:
        hidden = self.img["mlp"](regions.flatten(0, 1)).view(*mask.shape, -1)
        return l2(self.img["gpool"](self.img["fc"](regions) + hidden, mask.sum(1)))

    def texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return l2(self.txt["gpool"](averaged(self.txt["rnn"], self.txt["embed"](tokens), lengths), lengths))

    def forward(self, batch: Batch) -> Tensor:
        return self.images(batch.regions, batch.region_mask) @ self.texts(batch.tokens, batch.lengths).T


def averaged(rnn: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    both, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    forward, backward = both.chunk(2, dim=2)
    return (forward + backward) / 2


def plain_batch(batches: Batches, numbers: np.ndarray, rng: np.random.Generator) -> Batch:
    """The same augmentation, caption by caption and image by image."""
    regions, tokens = [], []
    for number in numbers:
        image = torch.from_numpy(batches.pairs.gather(batches.pairs.image_index[number : number + 1])[0])
        regions.append(image[torch.from_numpy(rng.random(len(image)) > 0.2)])
        words = []
        for word in batches.tokens[int(number)].tolist():
            u = rng.random()
            if u < 0.10:
                words.append(batches.mask_token)
            elif u < 0.12:
                words.append(int(rng.integers(batches.vocabulary)))
            elif u >= 0.20:
                words.append(word)
        tokens.append(torch.tensor(words or [batches.mask_token]))
    lengths = torch.tensor([len(words) for words in tokens])
    counts = torch.tensor([len(image) for image in regions])
    padded = nn.utils.rnn.pad_sequence(regions, batch_first=True)
    mask = torch.arange(padded.shape[1]) < counts[:, None]
    return Batch(torch.from_numpy(numbers), padded, mask, nn.utils.rnn.pad_sequence(tokens, batch_first=True), lengths)


def plain_recall(sims: np.ndarray, per_image: int) -> float:
    """rSum by sorting every row and column, as published code does."""
    ranks = np.zeros(len(sims))
    for image, row in enumerate(sims):
        order = np.argsort(row)[::-1]
        ranks[image] = min(np.where(order == text)[0][0] for text in range(per_image * image, per_image * (image + 1)))
    text_ranks = np.array(
        [np.where(np.argsort(column)[::-1] == t // per_image)[0][0] for t, column in enumerate(sims.T)]
    )
    return float(sum(100 * (r < k).mean() for r in (ranks, text_ranks) for k in (1, 5, 10)))
