"""One split of the data: captions, the image shown with each, and the features of the images."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crcl.data.files import require_whole
from crcl.data.maps.ahead import ask_for
from crcl.data.maps.shards import Shards
from crcl.data.pictures.decoded import Decoded
from crcl.errors import InputError

_DIGESTED = 64 * 2**20  # bytes of features, as float32, that their digest reads


@dataclass(frozen=True)
class Split:
    """N pairs over M images; pair i is (image `image_index[i]`, caption i), and i identifies it everywhere."""

    captions: Sequence[str]
    """N captions."""
    image_index: np.ndarray
    """(N,) int64, the image shown with caption i (after noise, if any)."""
    features: np.ndarray | Shards | Decoded
    """(rows, R, F) float16 or float32, usually a read-only memory map; read it through `gather`."""
    image_ids: Sequence[str]
    """M names of images."""
    truth: np.ndarray | None = None
    """(N,) bool, whether pair i really matches; for measuring only."""
    source: str = ""
    """The features file, for messages."""
    feature_rows: np.ndarray | None = None
    """(M,) int64, the row of image m in `features`; None if image m is row m."""
    caption_rows: np.ndarray | None = None
    """(N,) int64, the row of caption i in the table it was read from; None if it is row i."""
    text_features: Shards | None = None
    """(rows of the table, G), the vectors of the captions, if they have any; read it through `gather_texts`."""
    contents: np.ndarray | None = None
    """(M, 32) uint8, a hash of each image's pixels, which copies share; None where it is not known."""

    def __post_init__(self) -> None:
        """Raise an error if the parts do not fit together."""
        name = self.source or "pairs"
        if self.features.ndim != 3:
            raise InputError(f"features have shape {self.features.shape}, expected (images, regions, size)", where=name)
        rows = len(self.features) if self.feature_rows is None else len(self.feature_rows)
        if rows != self.images:
            raise InputError(f"{rows} images have features, but {self.images} have ids", where=name)
        if self.image_index.shape != (len(self.captions),):
            raise InputError(
                f"{len(self.captions)} captions need an image index of as many entries, "
                f"not of shape {self.image_index.shape}",
                where=name,
            )
        if len(self.image_index) and not (self.image_index.min() >= 0 and self.image_index.max() < self.images):
            raise InputError(f"the image index must be from 0 to {self.images - 1}", where=name)
        if self.truth is not None and self.truth.shape != self.image_index.shape:
            raise InputError(
                f"truth has shape {self.truth.shape}, the image index {self.image_index.shape}", where=name
            )
        if self.text_features is not None and self.caption_rows is None and len(self.text_features) != len(self):
            raise InputError(f"{len(self)} captions, but {len(self.text_features)} caption vectors", where=name)

    def __repr__(self) -> str:
        vectors = (
            "" if self.text_features is None else f", vectors of captions of {self.text_features.shape[1]} numbers"
        )
        _, regions, size = self.features.shape
        return f"Split({len(self):,} pairs, {self.images:,} images of {regions} x {size} numbers{vectors})"

    def __len__(self) -> int:
        """N, the number of pairs."""
        return len(self.captions)

    @property
    def images(self) -> int:
        """M, the number of images."""
        return len(self.image_ids)

    @property
    def rows(self) -> np.ndarray:
        """(N,) the row of each caption in the table it was read from."""
        return np.arange(len(self)) if self.caption_rows is None else self.caption_rows

    def fingerprint(self) -> str:
        """A hash of the captions, the image ids and the image of each caption."""
        digest = hashlib.sha256(np.ascontiguousarray(self.image_index, dtype="<i8").tobytes())
        for text in (*self.image_ids, *self.captions):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()

    def features_digest(self) -> str:
        """A hash of the shape and of an evenly spread sample of the features, and of the caption vectors.

        Reads at most 64 MiB of each, so it can miss a change of single images in larger files.
        """
        digest = hashlib.sha256()
        rows = np.arange(self.images) if self.feature_rows is None else self.feature_rows
        sides = [(self.features, rows)]
        if self.text_features is not None:
            sides.append((self.text_features, self.rows))
        for stored, places in sides:
            size = 4 * math.prod(stored.shape[1:])
            count = min(len(places), max(_DIGESTED // size, 1))
            spread = places[np.linspace(0, len(places) - 1, count).astype(np.int64)]
            digest.update(repr((len(places), *stored.shape[1:])).encode())
            digest.update(np.ascontiguousarray(_rows(stored, spread), dtype="<f4").tobytes())
        return digest.hexdigest()

    def blind(self) -> "Split":
        """The same pairs without truth, for training."""
        return replace(self, truth=None)

    def show(self, image_index: np.ndarray) -> "Split":
        """The same captions with other images (N,); truth is whether the image of a pair stays the same."""
        shown = np.asarray(image_index, dtype=np.int64)
        if shown.shape != self.image_index.shape:
            raise InputError(f"{len(self)} captions need an image index of as many entries, not of shape {shown.shape}")
        return replace(self, image_index=shown, truth=shown == self.image_index)

    def places(self, images: np.ndarray) -> np.ndarray:
        """The rows of the features that have these images."""
        return np.asarray(images) if self.feature_rows is None else self.feature_rows[images]

    def read_ahead(self, images: np.ndarray) -> None:
        """Ask the system to read the features of these images in the background."""
        _ask_for(self.features, self.places(images))

    def read_texts_ahead(self, captions: np.ndarray) -> None:
        """Ask the system to read the vectors of these captions in the background."""
        if self.text_features is not None:
            self.text_features.ask_for(self.rows[captions])

    def gather(self, images: np.ndarray) -> np.ndarray:
        """A fresh float32 copy of these images' features, (len(images), R, F); refuses NaN and infinity."""
        rows = self.places(images)
        # indexing with an array copies, so changes to the result do not reach the file
        regions = np.asarray(_rows(self.features, rows)).astype(np.float32, copy=False)
        bad = not_finite(regions)
        if len(bad):
            shown = [f"{self._place(rows[i])} (image '{self.image_ids[np.asarray(images)[i]]}')" for i in bad[:10]]
            raise InputError(
                f"NaN or infinity in {', '.join(shown)}{_more(bad)}",
                where=(self.source or "features") if isinstance(self.features, np.ndarray) else "",
                hint="compute these features again or leave the images out",
            )
        return regions

    def gather_texts(self, captions: np.ndarray) -> np.ndarray:
        """A fresh float32 copy of these captions' vectors, (len(captions), G); refuses NaN and infinity."""
        if self.text_features is None:
            raise InputError("the captions have no vectors", where=self.source or "pairs", hint="pass {text_features}")
        rows = np.asarray(captions) if self.caption_rows is None else self.caption_rows[captions]
        vectors = self.text_features[rows].astype(np.float32, copy=False)
        bad = not_finite(vectors)
        if len(bad):
            shown = ", ".join(self.text_features.place(rows[i]) for i in bad[:10])
            raise InputError(
                f"NaN or infinity in {shown}{_more(bad)}", hint="compute these vectors again or leave the rows out"
            )
        return vectors

    def _place(self, row: np.integer) -> str:
        return f"row {row}" if isinstance(self.features, np.ndarray) else self.features.place(row)


def _rows(stored: np.ndarray | Shards | Decoded, rows: np.ndarray) -> np.ndarray:
    """A copy of some rows of features; raises an error if their file has become shorter."""
    if isinstance(stored, np.ndarray):
        require_whole(stored)
    return stored[rows]


def _ask_for(stored: np.ndarray | Shards | Decoded, rows: np.ndarray) -> None:
    if isinstance(stored, np.ndarray):
        ask_for(stored, rows)
    else:
        stored.ask_for(rows)


def not_finite(values: np.ndarray) -> np.ndarray:
    """Numbers of the rows that hold NaN or infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(
            values.sum()
        ):  # quick check; a finite sum proves finite values, an infinite one may be an overflow
            return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))


def _more(bad: np.ndarray) -> str:
    return f" and {len(bad) - 10} more" if len(bad) > 10 else ""
