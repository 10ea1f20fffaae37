"""The data of a training, completely read."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from crcl.data.batches import Standardize
from crcl.data.decoys import Decoys
from crcl.data.split import Split
from crcl.data.text.subwords import Words
from crcl.data.text.vectors import Texts, TextVectors
from crcl.runs.exchange.known import Known
from crcl.training.verdicts import Given


@dataclass(frozen=True)
class TrainingData:
    """Training pairs with injected mismatches and their truth (for measuring only), dev pairs, vocabulary and scale."""

    train: Split
    clean: Split
    """The training pairs as they were read, before any noise; never used for training."""
    dev: Split
    vocabulary: Words
    tokens: Texts
    dev_tokens: Texts
    noise: np.ndarray | None
    standardize: Standardize | None
    trusted: np.ndarray | None
    """Rows of training pairs known to match, if the user gave some."""
    drawn: Decoys | None = None
    """The decoys, which are at the end of `train`."""
    known: Known | None = None
    """What verdicts say of the pairs; `train` has repaired pairs as they should be."""
    given: Given | None = None
    """The verdicts that it comes from; None when a run is resumed."""
    model: dict[str, Any] | None = None
    """Description of the published model that the matcher starts from, if any."""

    @property
    def decoys(self) -> np.ndarray | None:
        """(decoys, 2): caption and image of each decoy."""
        return None if self.drawn is None else self.drawn.drawn

    @property
    def fixed(self) -> np.ndarray | None:
        """Beliefs that the training keeps, NaN where it forms them itself, (pairs and decoys,); None: no verdicts."""
        if self.known is None:
            return None
        return np.pad(self.known.taught(), (0, len(self.train) - len(self.clean)), constant_values=np.nan)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the training pairs as they were read, before any noise."""
        return self.clean.fingerprint()

    @property
    def held_out(self) -> np.ndarray:
        """Rows of trusted training pairs and, as in MSCN's experiments on COCO, of all pairs with the same images."""
        if self.trusted is None:
            return np.empty(0, dtype=np.int64)
        shown = np.isin(self.train.image_index, self.clean.image_index[self.trusted])
        return np.union1d(np.flatnonzero(shown), self.trusted)

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of pairs, images, regions, features and words, as a run records them."""
        _, regions, features = self.train.features.shape
        texts = self.train.text_features
        return {
            "pairs": len(self.clean),
            "images": self.train.images,
            "regions": regions,
            "features": features,
            "vocabulary": len(self.vocabulary),
            **({"text_features": texts.shape[1]} if isinstance(self.tokens, TextVectors) and texts is not None else {}),
        }
