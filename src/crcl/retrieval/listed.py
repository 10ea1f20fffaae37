"""Similarities of listed pairs by a trained matcher, at about their share of the cost of the whole matrix.

Listed pairs are grouped by image or by caption, whichever gives fewer groups, and a group is one comparison: an image
with all its captions, or a caption with all its images. What the groups refer to is encoded once and held in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crcl.data.split import Split
from crcl.data.text.vectors import Texts
from crcl.matchers.base import Encoded, eval_mode
from crcl.matchers.kernels.tiles import ROWS, caption_blocks
from crcl.progress import Advance
from crcl.retrieval.scoring import Scorer, in_blocks, require_finite


def listed_similarities(
    scorer: Scorer, pairs: Split, images: np.ndarray, captions: np.ndarray, *, advance: Advance | None = None
) -> np.ndarray:
    """Similarity of each listed image `(P,)` with the listed caption `(P,)`, both by number. (P,) float32"""
    found = np.empty(len(images), dtype=np.float32)
    if not len(images):
        return found
    tokens, done = scorer.tokens(pairs), 0
    by_image = len(np.unique(images)) <= len(np.unique(captions))
    listing = _Listing(scorer, pairs, tokens, images, captions)
    with eval_mode(scorer.matcher) as device:
        for rows, held in listing.held(captions if by_image else images, device, texts=by_image):
            for members, sims in listing.compared(rows, held, device, by_image=by_image):
                require_finite(sims, pairs)
                found[members] = sims.cpu().numpy()
                done += len(members)
                if advance is not None:
                    advance(done, len(images))
    return found


@dataclass(frozen=True)
class _Listing:
    scorer: Scorer
    pairs: Split
    tokens: Texts
    images: np.ndarray
    captions: np.ndarray

    def held(self, numbers: np.ndarray, device: torch.device, *, texts: bool) -> "Iterator[tuple[np.ndarray, _Held]]":
        """The listed captions or images, encoded, in chunks that fit in memory; the listed pairs of each chunk."""
        distinct = np.unique(numbers)
        if texts:  # captions of a chunk are of similar length and need little padding
            distinct = distinct[np.argsort(self.tokens.lengths[distinct], kind="stable")]
        size, first, parts = self.scorer.batch_size, 0, list[Encoded]()
        for start in range(0, len(distinct), size):
            some = distinct[start : start + size]
            parts.append(
                self.scorer.encode_texts(self.tokens, some, device)
                if texts
                else self.scorer.encode_images(self.pairs, some, device)
            )
            last = start + size >= len(distinct)
            widest = max(part.nbytes / len(part) for part in parts) * (start + 2 * size - first)
            if last or 2 * widest > self.scorer.memory * 2**30:  # joining them needs the same again
                chunk = distinct[first : start + size]
                place = np.full(int(distinct.max()) + 1, -1)
                place[chunk] = np.arange(len(chunk))
                yield np.flatnonzero(place[numbers] >= 0), _Held(Encoded.join(parts), place)
                parts.clear()
                first = start + size

    def compared(
        self, rows: np.ndarray, held: "_Held", device: torch.device, *, by_image: bool
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Numbers of listed pairs and their similarities, from blocks of groups that each core compares by itself."""
        keys, others = (self.images, self.captions) if by_image else (self.captions, self.images)
        rows = rows[np.lexsort((held.place[others[rows]], keys[rows]))]  # held captions are ordered by length
        starts = np.flatnonzero(np.diff(keys[rows], prepend=-1))
        groups = np.split(rows, starts[1:])

        def work(numbers: np.ndarray) -> tuple[np.ndarray, Tensor]:
            with torch.inference_mode():  # new threads start without it
                some = [groups[number] for number in numbers]
                sims = self._with_images(some, held, device) if by_image else self._with_captions(some, held, device)
                return np.concatenate(some), torch.cat(sims).float()

        yield from in_blocks(work, np.arange(len(groups)), self.scorer.batch_size, device)

    def _with_images(self, groups: list[np.ndarray], held: "_Held", device: torch.device) -> list[Tensor]:
        """Each group's image with the captions of the group, as many at a time as make a tile of a local matcher."""
        encoded = self.scorer.encode_images(self.pairs, np.array([self.images[group[0]] for group in groups]), device)
        found = []
        for number, group in enumerate(groups):
            image = encoded.take(torch.tensor([number], device=device))
            lengths = self.tokens.lengths[self.captions[group]][::-1]
            ends = len(group) - np.cumsum([0, *caption_blocks(lengths.tolist(), words=ROWS)])
            for start, end in zip(ends[:0:-1], ends[-2::-1], strict=True):
                texts = held.take(self.captions[group[start:end]], device)
                found.append(self.scorer.compare(image, texts)[0])
        return found

    def _with_captions(self, groups: list[np.ndarray], held: "_Held", device: torch.device) -> list[Tensor]:
        """Each group's caption with the images of the group."""
        encoded = self.scorer.encode_texts(self.tokens, np.array([self.captions[group[0]] for group in groups]), device)
        found = []
        for number, group in enumerate(groups):
            text = encoded.take(torch.tensor([number], device=device))
            found.append(self.scorer.compare(held.take(self.images[group], device), text)[:, 0])
        return found


@dataclass(frozen=True)
class _Held:
    encoded: Encoded
    place: np.ndarray
    """Place of each caption or image among those that are held; -1: not held. (numbers,)"""

    def take(self, numbers: np.ndarray, device: torch.device) -> Encoded:
        return self.encoded.take(torch.from_numpy(self.place[numbers]).to(device))
