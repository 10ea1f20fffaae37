"""Scoring with a trained matcher: encode once, similarities block by block, retrieval scores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from crcl import metrics
from crcl.data.batches import Standardize, pad
from crcl.data.pairs import Pairs
from crcl.data.vocab import Tokens, Vocabulary
from crcl.errors import InputError, TrainingError
from crcl.matchers.base import Encoded, Matcher, as_module

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


@dataclass(frozen=True)
class Scorer:
    """A matcher with what it needs to read pairs: its words and its features' scale."""

    matcher: Matcher
    vocabulary: Vocabulary
    standardize: Standardize | None = None
    max_words: int = 128
    batch_size: int = 128

    def tokens(self, pairs: Pairs) -> Tokens:
        """The captions in this matcher's words."""
        return self.vocabulary.encode(pairs.captions, max_words=self.max_words)

    def similarities(
        self, pairs: Pairs, *, tokens: Tokens | None = None, progress: Progress | None = None
    ) -> np.ndarray:
        """Every image with every caption. (images, captions) float32"""
        tokens = self.tokens(pairs) if tokens is None else tokens
        sims = np.empty((pairs.images, len(pairs)), dtype=np.float32)
        with scoring(self.matcher) as device:
            images = self._encode_images(pairs, np.arange(pairs.images), device)
            by_length = np.argsort(tokens.lengths, kind="stable")  # neighbours of one length need no padding
            for start in range(0, len(pairs), self.batch_size):
                columns = by_length[start : start + self.batch_size]
                texts = self._encode_texts(tokens, columns, device)
                sims[:, columns] = self.matcher.similarity(images, texts).float().cpu().numpy()
                if progress is not None:
                    progress(min(start + self.batch_size, len(pairs)), len(pairs))
        return sims

    def pair_similarities(self, pairs: Pairs, *, progress: Progress | None = None) -> np.ndarray:
        """Each caption with the image that it is shown with. (pairs,) float32"""
        tokens = self.tokens(pairs)
        own = np.empty(len(pairs), dtype=np.float32)
        by_image = np.argsort(pairs.image_index, kind="stable")  # captions of one image meet it in one block
        block = min(self.batch_size, 32)  # all images of a block meet all its texts
        with scoring(self.matcher) as device:
            for start in range(0, len(pairs), block):
                numbers = by_image[start : start + block]
                distinct, which = np.unique(pairs.image_index[numbers], return_inverse=True)
                images = self._encode_images(pairs, distinct, device)
                sims = self.matcher.similarity(images, self._encode_texts(tokens, numbers, device))
                own[numbers] = sims.float().cpu().numpy()[which, np.arange(len(numbers))]
                if progress is not None:
                    progress(min(start + block, len(pairs)), len(pairs))
        return own

    def _encode_images(self, pairs: Pairs, images: np.ndarray, device: torch.device) -> Encoded:
        parts = []
        for start in range(0, len(images), self.batch_size):
            regions = pairs.gather(images[start : start + self.batch_size])
            if self.standardize is not None:
                regions = self.standardize(regions)
            mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=device)
            parts.append(self.matcher.encode_images(torch.from_numpy(regions).to(device), mask))
        return Encoded.join(parts)

    def _encode_texts(self, tokens: Tokens, numbers: np.ndarray, device: torch.device) -> Encoded:
        ids, real = pad(tokens, numbers)
        return self.matcher.encode_texts(torch.from_numpy(ids).to(device), torch.from_numpy(real.sum(1)).to(device))


def evaluate(
    scorers: Sequence[Scorer],
    pairs: Pairs,
    *,
    folds: int = 1,
    tokens: Tokens | None = None,
    progress: Progress | None = None,
) -> metrics.Retrieval:
    """Retrieval scores of one matcher, or of several by the mean of their similarities.

    `folds` cuts the images into so many consecutive parts of one size and averages their scores (COCO 1K: 5 folds).
    `tokens` are the captions in the words of the only scorer, where they are known already.
    """
    if not len(pairs):
        raise InputError(f"{pairs.source}: no pairs to evaluate on")
    if folds < 1 or pairs.images % folds:
        raise InputError(f"{pairs.images} images cannot be cut into {folds} folds of one size")
    results = []
    for fold in range(folds):
        part = pairs if folds == 1 else _fold(pairs, fold, pairs.images // folds)
        sims = mean_similarities(scorers, part, tokens=tokens if folds == 1 else None, progress=progress)
        if not np.isfinite(sims).all():
            raise TrainingError(
                f"{pairs.source}: the matcher's similarities are NaN or infinite, its weights have grown beyond all "
                "bounds; a smaller learning rate (train.lr) usually helps"
            )
        results.append(metrics.retrieval(sims, part.image_index))
    return metrics.mean(results)


def mean_similarities(
    scorers: Sequence[Scorer], pairs: Pairs, *, tokens: Tokens | None = None, progress: Progress | None = None
) -> np.ndarray:
    """Mean of the matchers' similarities, each computed once. (images, captions)"""
    total = scorers[0].similarities(pairs, tokens=tokens, progress=progress)
    for scorer in scorers[1:]:
        total += scorer.similarities(pairs, progress=progress)
    return total / len(scorers) if len(scorers) > 1 else total


@contextmanager
def scoring(matcher: Matcher) -> Iterator[torch.device]:
    """Eval mode without gradients; afterwards the matcher is in the mode it was in. Gives the matcher's device."""
    module = as_module(matcher)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            yield device_of(module)
    finally:
        for part, training in modes:
            part.training = training


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are."""
    parameter: Tensor | None = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _fold(pairs: Pairs, fold: int, size: int) -> Pairs:
    images = np.arange(fold * size, (fold + 1) * size)
    members = np.flatnonzero((pairs.image_index >= images[0]) & (pairs.image_index <= images[-1]))
    if not len(members):
        raise InputError(f"{pairs.source}: no captions for images {images[0]} to {images[-1]}, fold {fold + 1}")
    return replace(
        pairs,
        captions=[pairs.captions[int(row)] for row in members],
        image_index=pairs.image_index[members] - images[0],
        image_ids=pairs.image_ids[images[0] : images[-1] + 1],
        truth=None,
        feature_rows=images if pairs.feature_rows is None else pairs.feature_rows[images],
    )
