"""Similarities by a trained matcher: encodes images and texts once and compares them block by block."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crcl import distributed
from crcl.data.batches import Standardize
from crcl.data.split import Split
from crcl.data.text.subwords import Words
from crcl.data.text.vectors import Texts, TextVectors
from crcl.distributed import Part
from crcl.errors import TrainingError
from crcl.matchers.base import Encoded, Matcher, as_module, device_of, eval_mode, reads_vectors
from crcl.matchers.kernels.products import computing_in, imitated
from crcl.progress import Advance

_IMAGES = 2**16  # most images compared with a block of texts at a time: their similarities take 32 MB
_WINDOW = 2**26  # numbers of a matrix on disk that are filled in any order: 256 MB stay in memory


@dataclass(frozen=True)
class Scorer:
    """A matcher with its vocabulary and its features' scale, which scores pairs."""

    matcher: Matcher
    vocabulary: Words
    standardize: Standardize | None = None
    max_words: int = 128
    batch_size: int = 128
    memory: float = 4.0
    """GiB that encoded images may take; more images are scored in several chunks."""
    dtype: torch.dtype = torch.float32
    """Number type of the matcher's matrix products; similarities are float32."""

    @property
    def slower(self) -> str:
        """Why the number type makes scoring slower here; empty if it does not."""
        return imitated(device_of(as_module(self.matcher)), self.dtype)

    def tokens(self, pairs: Split) -> Texts:
        """The captions as this matcher reads them: token ids, or vectors."""
        if reads_vectors(self.matcher):
            return TextVectors(pairs)
        return self.vocabulary.encode(pairs.captions, max_words=self.max_words)

    def cuts(self, captions: Sequence[str]) -> np.ndarray:
        """Whether each caption is longer than this matcher reads, if it reads words. (N,) bool"""
        return self.vocabulary.cuts(captions, max_words=self.max_words)

    def similarities(
        self,
        pairs: Split,
        *,
        tokens: Texts | None = None,
        advance: Advance | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Similarity of every image with every caption. (images, captions) float32

        Written to `out`, if given, which may be a memory map larger than memory. Progress counts to `scoring_work`.
        """
        tokens = self.tokens(pairs) if tokens is None else tokens
        part = Part.of(len(pairs), distributed.rank(), distributed.count())
        own = np.arange(len(pairs)) if part is None else np.arange(part.start, part.stop)
        sims = np.empty((pairs.images, len(pairs)), dtype=np.float32) if out is None else out

        def keep(rows: slice, columns: np.ndarray, block: Tensor) -> None:
            sims[rows, own[columns]] = block.cpu().numpy()

        self.score(pairs, tokens, np.arange(pairs.images), own, keep, advance=advance)
        if part is not None:  # each process compared the images with its own part of the captions
            distributed.meet()
            sims[:] = distributed.gather(torch.from_numpy(sims[:, part.own].T.copy()), part).numpy().T
        return sims

    def score(
        self,
        pairs: Split,
        tokens: Texts,
        images: np.ndarray,
        captions: np.ndarray,
        consume: Callable[[slice, np.ndarray, Tensor], None],
        *,
        advance: Advance | None = None,
    ) -> None:
        """Compare the given images with the given captions, both by number, block by block.

        Calls `consume` with the positions of a block in `images` and in `captions`, and the block's similarities.
        Progress counts to `scoring_work`.
        """
        encoded, scored, cells_total = 0, 0, max(len(images) * len(captions), 1)
        comparing, total = max(len(images), len(captions)), scoring_work(len(images), len(captions))

        def report(*, images: int = 0, cells: int = 0) -> None:
            nonlocal encoded, scored
            encoded, scored = encoded + images, scored + cells
            if advance is not None:
                advance(encoded + comparing * scored // cells_total, total)

        with eval_mode(self.matcher) as device:
            order = _by_length(tokens.lengths[captions], max(_WINDOW // max(len(images), 1), 1024))
            for rows, chunk in self._image_chunks(pairs, images, device, report):

                def compare(columns: np.ndarray, images: Encoded = chunk) -> tuple[np.ndarray, Tensor]:
                    with torch.inference_mode():  # new threads start without it
                        texts = self.encode_texts(tokens, captions[columns], device)
                        return columns, self.compare(images, texts)

                for columns, block in in_blocks(compare, order, self.batch_size, device):
                    require_finite(block, pairs)
                    consume(rows, columns, block)
                    report(cells=block.numel())

    def _image_chunks(
        self, pairs: Split, images: np.ndarray, device: torch.device, report: Callable[..., None]
    ) -> Iterator[tuple[slice, Encoded]]:
        """Chunks of encoded images, limited by `_IMAGES` and memory; the texts are encoded again for each chunk."""
        parts: list[Encoded] = []
        first, held = 0, 0
        for start in range(0, len(images), self.batch_size):
            end = min(start + self.batch_size, len(images))
            parts.append(self.encode_images(pairs, images[start:end], device))
            held += parts[-1].nbytes
            report(images=end - start)
            too_large = 2 * (held + parts[-1].nbytes) > self.memory * 2**30  # joining them needs the same again
            if end == len(images) or too_large or end - first + self.batch_size > _IMAGES:
                chunk = Encoded.join(parts)
                parts.clear()
                yield slice(first, end), chunk
                first, held = end, 0

    def pair_similarities(self, pairs: Split, *, advance: Advance | None = None) -> np.ndarray:
        """Similarity of each caption with its own image. (pairs,) float32

        Several processes share the blocks, and each returns all similarities.
        """
        tokens = self.tokens(pairs)
        own = np.zeros(len(pairs), dtype=np.float32)
        by_image = np.argsort(pairs.image_index, kind="stable")  # captions of an image are in one block with it
        # every image of a block is compared with every text of it, which is cheap if both are one vector each
        block = self.batch_size if reads_vectors(self.matcher) else min(self.batch_size, 32)
        starts = range(0, len(pairs), block)
        with eval_mode(self.matcher) as device:
            for start in starts[distributed.own_share(len(starts))]:
                numbers = by_image[start : start + block]
                distinct, which = np.unique(pairs.image_index[numbers], return_inverse=True)
                images = self.encode_images(pairs, distinct, device)
                sims = self.compare(images, self.encode_texts(tokens, numbers, device))
                own[numbers] = sims.cpu().numpy()[which, np.arange(len(numbers))]
                if advance is not None:
                    advance(min(start + block, len(pairs)), len(pairs))
        return distributed.summed(own)

    def encode_images(self, pairs: Split, images: np.ndarray, device: torch.device) -> Encoded:
        """Images by number, encoded. In `eval_mode`, as all encoding."""
        parts = []
        for start in range(0, len(images), self.batch_size):
            regions = pairs.gather(images[start : start + self.batch_size])
            if self.standardize is not None:
                regions = self.standardize(regions)
            mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=device)
            with computing_in(device, self.dtype):
                parts.append(self.matcher.encode_images(torch.from_numpy(regions).to(device), mask))
        return Encoded.join(parts)

    def encode_texts(self, tokens: Texts, numbers: np.ndarray, device: torch.device) -> Encoded:
        """Captions by number, encoded and padded to the longest of them."""
        ids, real = tokens.side_by_side(numbers)
        with computing_in(device, self.dtype):
            return self.matcher.encode_texts(torch.from_numpy(ids).to(device), torch.from_numpy(real.sum(1)).to(device))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        """Similarities of encoded images and texts. (images, texts) float32"""
        with computing_in(images.features.device, self.dtype):
            return self.matcher.similarity(images, texts).float()


def in_blocks(
    work: Callable[[np.ndarray], tuple[np.ndarray, Tensor]], numbers: np.ndarray, most: int, device: torch.device
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Results of `work` for blocks of at most `most` numbers, in order; on a CPU each core computes its own blocks.

    This is faster than sharing every small operation among the cores, which would wait for each other each time. The
    number of blocks is a multiple of the number of cores, so that all cores are busy to the end.
    """
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    count = threads * math.ceil(len(numbers) / most / threads)
    blocks = np.array_split(numbers, min(count, len(numbers))) if len(numbers) else []
    if threads == 1 or len(blocks) <= 1:
        yield from map(work, blocks)
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            ahead = deque(pool.submit(work, block) for block in blocks[: 2 * threads])
            for block in [*blocks[2 * threads :], *[None] * len(ahead)]:
                yield ahead.popleft().result()
                if block is not None:
                    ahead.append(pool.submit(work, block))
    finally:
        torch.set_num_threads(threads)


def require_finite(sims: Tensor, pairs: Split) -> None:
    """Refuse similarities that are NaN or infinite."""
    if not sims.sum().isfinite():  # NaN in any cell makes the sum NaN
        raise TrainingError(
            f"{pairs.source}: the matcher's similarities are NaN or infinite: its weights have "
            "diverged; a smaller learning rate (train.lr) usually helps"
        )


def scoring_work(images: int, captions: int) -> int:
    """Total that the progress of `Scorer.score` counts to: the images, and the larger of images and captions."""
    return images + max(images, captions)


def subtask(advance: Advance | None, before: int, total: int) -> Advance | None:
    """Progress of a part of a task of size `total`, of which `before` was done earlier."""
    return None if advance is None else lambda done, _: advance(before + done, total)


def _by_length(lengths: np.ndarray, width: int) -> np.ndarray:
    """Order of the captions by length within windows of `width`, so that batches need little padding. (captions,)

    Windows keep their order, so that a matrix on disk is filled from left to right.
    """
    return np.lexsort((lengths, np.arange(len(lengths)) // width))
