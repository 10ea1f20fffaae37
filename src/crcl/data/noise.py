"""Noise injection by the field's two protocols, with a seed, and the field's noise index files."""

from pathlib import Path

import numpy as np

from crcl.data.files import SHOWN, open_array
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean
from crcl.storage import replacing

LEVELS = ("caption", "image")


def mismatch(
    image_index: np.ndarray,
    rate: float,
    seed: int,
    *,
    level: str = "caption",
    images: int | None = None,
) -> np.ndarray:
    """A noise index: images permuted among a random share of the captions or of the images (Definition 1).

    Fixed points of the permutation stay matched, as in the field's files.

    Args:
        image_index: (N,), the image of each caption.
        rate: Share of the captions or images to permute.
        seed: Seed of the permutation.
        level: "caption" permutes int(rate * N) captions, "image" permutes int(rate * M) images with all their captions.
        images: M, the number of images; by default the highest row plus one.

    Returns:
        (N,) the image to show with each caption, or (M,) the image to show with the captions of each image.
    """
    if not 0 <= rate <= 1:
        raise InputError(f"noise rate is {rate}, expected a number from 0 to 1 (0.4 mismatches 40 % of the pairs)")
    if level not in LEVELS:
        raise InputError(f"unknown noise level '{level}'{did_you_mean(level, LEVELS)}; expected {' or '.join(LEVELS)}")
    if seed < 0:
        raise InputError(f"noise seed is {seed}, expected a whole number, 0 or more")
    captioned = np.asarray(image_index, dtype=np.int64)
    if level == "caption":
        index = captioned.copy()
    else:
        index = np.arange(images if images is not None else captioned.max(initial=-1) + 1, dtype=np.int64)
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(index))[: int(rate * len(index))]
    index[chosen] = generator.permutation(index[chosen])
    return index


def apply(pairs: Split, index: np.ndarray) -> Split:
    """The pairs with the images of a noise index, which has one entry per caption or per image; sets their truth."""
    index = _checked(np.asarray(index), name="noise index")
    if pairs.truth is not None and not pairs.truth.all():
        raise InputError("these pairs have injected noise already", hint="apply the noise index to the original pairs")
    if len(index) not in (len(pairs), pairs.images):
        raise InputError(
            f"noise index has {len(index)} entries; {pairs.source or 'the data'} needs {len(pairs)} (one per caption) "
            f"or {pairs.images} (one per image)"
        )
    outside = np.flatnonzero((index < 0) | (index >= pairs.images))
    if len(outside):
        where = ", ".join(f"entry {i} is {index[i]}" for i in outside[:SHOWN])
        raise InputError(
            f"noise index has {len(outside)} entries outside the image rows 0 to {pairs.images - 1}: {where}"
            f"{', ...' if len(outside) > SHOWN else ''}"
        )
    return pairs.show(index if len(index) == len(pairs) else index[pairs.image_index])


def read_index(path: str | Path) -> np.ndarray:
    """Read the field's index file, (captions,) or (images,) int64."""
    purpose = "a 1-D array of whole numbers, the image row for each caption or image"
    return _checked(open_array(Path(path), purpose=purpose), name=str(path))


def write_index(path: str | Path, index: np.ndarray) -> None:
    """Write the field's index file, 1-D int64."""
    checked, path = _checked(np.asarray(index), name="noise index"), Path(path)
    try:
        with replacing(path) as temporary, temporary.open("wb") as stream:  # numpy appends .npy to a file name
            np.save(stream, checked, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=path) from error


def _checked(index: np.ndarray, *, name: str) -> np.ndarray:
    if index.ndim != 1:
        raise InputError(f"shape {index.shape}, expected a 1-D array: an image row per caption or image", where=name)
    if index.dtype.kind not in "iu":
        raise InputError(f"numbers are {index.dtype}, expected int64: rows of images", where=name)
    return np.array(index, dtype=np.int64)
