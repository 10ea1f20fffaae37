"""What verdicts say of pairs, as arrays: which are right and which are wrong, and what would be right instead."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from crcl.data.split import Split
from crcl.errors import InputError
from crcl.runs.exchange.matching import Pairing
from crcl.runs.files import damaged, read_json
from crcl.runs.verdicts import Verdict

FILE = "trained_verdicts.json"
"""What a training knew of its pairs, in the run folder: later verdicts do not change a training that is resumed."""


@dataclass(frozen=True)
class Known:
    """What people said of N pairs. A verdict "unsure" says nothing."""

    beliefs: np.ndarray
    """(N,) float32: 1 for a pair that is right, 0 for one that is wrong, NaN where that is not known"""
    images: np.ndarray
    """(N,) int64, the image that the caption of a wrong pair belongs to, or -1"""
    captions: Mapping[int, str] = field(default_factory=dict)
    """The right captions of images in wrong pairs, by the number of the pair."""

    @classmethod
    def of(cls, verdicts: Mapping[int, Verdict], pairs: Split, where: str | Path) -> "Known":
        """What verdicts by row say of these pairs; refuses one on another row, or with an image that there is not.

        `where` names the verdicts in messages.
        """
        known = Pairing(pairs)
        numbers = {name: number for number, name in reversed(list(enumerate(known.names)))}
        beliefs = np.full(len(pairs), np.nan, dtype=np.float32)
        images = np.full(len(pairs), -1, dtype=np.int64)
        captions: dict[int, str] = {}
        for row, verdict in verdicts.items():
            if row not in known.number:
                raise InputError(f"has a verdict on row {row}, which is no training pair of the data", where=where)
            if verdict.image is not None and verdict.image not in numbers:
                raise InputError(f"moves row {row} to '{verdict.image}', no image of the training pairs", where=where)
            if verdict.verdict == "unsure":
                continue
            number = known.number[row]
            beliefs[number] = verdict.verdict == "right"
            if verdict.image is not None:
                images[number] = numbers[verdict.image]
            if verdict.caption is not None:
                captions[number] = verdict.caption
        return cls(beliefs, images, captions)

    def to_json(self) -> dict[str, list[Any]]:
        """The pairs that something is known of, as a run keeps them."""
        pairs = np.flatnonzero(~np.isnan(self.beliefs)).tolist()
        return {
            "pairs": pairs,
            "right": [bool(self.beliefs[pair]) for pair in pairs],
            "images": [int(self.images[pair]) for pair in pairs],
            "captions": [self.captions.get(pair) for pair in pairs],
        }

    @classmethod
    def read(cls, folder: Path, *, pairs: int, images: int) -> "Known | None":
        """What the training of a run knew; None if it knew nothing."""
        path = folder / FILE
        if not path.is_file():
            return None
        found = read_json(path)
        try:
            beliefs, shown = np.full(pairs, np.nan, dtype=np.float32), np.full(pairs, -1, dtype=np.int64)
            captions: dict[int, str] = {}
            lines = zip(*(found[name] for name in ("pairs", "right", "images", "captions")), strict=True)
            for pair, right, image, caption in lines:
                fits = type(pair) is int and 0 <= pair < pairs and type(right) is bool and type(image) is int
                if not fits or not -1 <= image < images or not isinstance(caption, str | None):
                    raise ValueError(pair)
                beliefs[pair], shown[pair] = right, image
                captions |= {} if caption is None else {pair: caption}
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, f"not verdicts on {pairs} pairs") from error
        return cls(beliefs, shown, captions)

    def equals(self, other: "Known | None") -> bool:
        """Whether the same is known."""
        return other is not None and self.to_json() == other.to_json()

    @property
    def right(self) -> np.ndarray:
        """(N,) bool, pairs that match."""
        return self.beliefs == 1

    @property
    def wrong(self) -> np.ndarray:
        """(N,) bool, pairs that do not match as they are shown."""
        return self.beliefs == 0

    @property
    def repaired(self) -> np.ndarray:
        """(N,) bool, wrong pairs of which it is known what would be right."""
        found = self.images >= 0
        found[list(self.captions)] = True
        return found

    def unrepaired(self) -> "Known":
        """The same without what would be right instead."""
        return Known(self.beliefs, np.full(len(self.beliefs), -1, dtype=np.int64))

    def without_captions(self) -> "Known":
        """The same without right captions: pairs that had one are wrong, and no more is known of them."""
        return Known(self.beliefs, self.images)

    def taught(self) -> np.ndarray:
        """(N,) beliefs that a training keeps: as `beliefs`, but 1 for repaired pairs, which it sees as repaired."""
        return np.where(self.repaired, np.float32(1), self.beliefs).astype(np.float32)

    def repair(self, pairs: Split) -> Split:
        """The pairs as they should be: with the right images and captions where these are known."""
        if not self.repaired.any():
            return pairs
        captions = [self.captions.get(number, caption) for number, caption in enumerate(pairs.captions)]
        shown = np.where(self.images >= 0, self.images, pairs.image_index)
        return replace(pairs, captions=captions, image_index=shown)

    def over(self, correspondence: np.ndarray) -> np.ndarray:
        """Correspondences `(N,)` with what is known in the place of what is believed."""
        return np.where(np.isnan(self.beliefs), correspondence, self.beliefs).astype(correspondence.dtype)
