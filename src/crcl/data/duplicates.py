"""Copies among pairs: images with the same or nearly the same content, and captions that say nothing of one image.

Exact copies are images with equal pixels, by their hashes; where these are not known, images with equal features. Near
copies have similar features: the cosine of all regions of an image in a row, minus the mean image. (Their mean over the
regions would not do: on photos with the pixel grid it exceeds 0.97 for every second image and some unrelated one.)
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crcl.data.cache import cache_folders, kept
from crcl.data.split import Split
from crcl.progress import Advance

NEAR = 0.97
"""Default similarity from which images are near copies. Photos that were compressed again or made smaller are above it,
most that lost two percent at each edge too, and no two different ones of Flickr8k are (docs/audit.md)."""
MOST = 100_000
"""Near copies are searched among so many images at most, as all are compared with all."""
GENERIC = 0.005, 10, 100
"""A caption is generic if this share of all images carries it, but at least 10 images; 100 images are always enough."""
_SAMPLED = 2048  # images that the mean image is measured on
_BYTES = 64 * 2**20  # of features that are held at a time
_DIRECTIONS, _SPANNED = 64, 512  # main directions of sketches, and images that they are measured on
_PROMISING = 8  # images that an image is compared with in full
_ROUNDING = 1e-4
_KEPT = 1000  # images from which on the search takes longer than to read what was found before
_LOOKED_AT = 1000  # images and captions of which it is seen whether all are alike
_FILE_NAME = re.compile(
    r"(?:\S+ ){0,2}\S*\.(?:jpe?g|jfif|png|gif|bmp|webp|tiff?|heic|heif|avif|svg|raw|cr2|nef|psd|mp4|mov)"
    r"|(?:img|dsc[nf]?|pict?|picture|image|photo|foto|scan|screenshot|screen shot|untitled|dji|gopr|pxl|vid|wp)"
    r"[ _#-]*\(?[0-9][0-9_ -]*\)?"
    r"|p?[0-9]{6,}(?:[_-][0-9a-z]+)*|[0-9a-f]{16,}"
)


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies among N pairs over M images."""

    same: np.ndarray
    """(M,) the first image with the same content; an image without copies, or the first of them, is its own"""
    near: np.ndarray
    """(M,) the most similar image that is a near copy, or -1; images that are exact copies of others have none"""
    similarity: np.ndarray
    """(M,) its similarity; NaN without one"""
    text: np.ndarray
    """(N,) the first pair with the same caption, whatever its case and spaces"""
    generic: np.ndarray
    """(N,) bool, whether the caption says nothing of one image: a file name, or a text that many images carry"""
    least: float = NEAR
    """Images above this similarity are near copies."""
    searched: bool = True
    """Whether near copies were searched."""


def find_copies(pairs: Split, *, least: float = NEAR, most: int = MOST, advance: Advance | None = None) -> Copies:
    """Find the copies among pairs.

    Args:
        pairs: The pairs.
        least: Similarity from which images are near copies.
        most: Near copies are searched among so many images at most.
        advance: Receives how many images were compared.
    """
    same = same_images(pairs)
    searched = pairs.images <= most and least < 1
    near, similarity = np.full(pairs.images, -1), np.full(pairs.images, np.nan)
    if searched:
        firsts = np.flatnonzero(same == np.arange(pairs.images))
        near[firsts], similarity[firsts] = _searched_once(pairs, firsts, least, advance)
    text = same_captions(pairs.captions)
    generic = generic_captions(pairs.captions, same[pairs.image_index], images=len(np.unique(same)))
    return Copies(same, near, similarity, text, generic, least, searched)


def content_keys(pairs: Split, *, contents: bool = True) -> list[bytes]:
    """A key of each image's content, which copies share: the hash of its pixels, if known, or that of its features."""
    if contents and pairs.contents is not None:
        return [row.tobytes() for row in pairs.contents]
    keys = []
    for images in _blocks(pairs, np.arange(pairs.images)):
        keys += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in pairs.gather(images)]
    return keys


def same_images(pairs: Split) -> np.ndarray:
    """The first image with the same content as each. (M,)"""
    return _firsts(content_keys(pairs))


def shared_images(pairs: Split, others: Split) -> int:
    """How many images of `others` are exact copies of images of `pairs`."""
    known = pairs.contents is not None and others.contents is not None
    there = set(content_keys(pairs, contents=known))
    return sum(key in there for key in content_keys(others, contents=known))


def folded(caption: str) -> str:
    """A caption without differences of case and white space."""
    return " ".join(caption.split()).casefold()


def same_captions(captions: Sequence[str]) -> np.ndarray:
    """The first pair with the same caption as each, whatever its case and spaces. (N,)"""
    return _firsts([folded(caption) for caption in captions])


def all_alike(pairs: Split) -> str:
    """What all pairs share, so that nothing tells the right ones from the wrong; empty where they differ.

    Of features and vectors a sample is looked at.
    """
    shown = np.unique(pairs.image_index)
    images = shown[np.linspace(0, len(shown) - 1, min(len(shown), _LOOKED_AT)).astype(np.int64)]
    if len({folded(caption) for caption in pairs.captions}) == 1:
        return "all captions are the same"
    first = pairs.gather(images[:1])
    if all((pairs.gather(block) == first).all() for block in _blocks(pairs, images)):
        return "all images have the same features"
    captions = np.linspace(0, len(pairs) - 1, min(len(pairs), _LOOKED_AT)).astype(np.int64)
    vectors = None if pairs.text_features is None else pairs.gather_texts(captions)
    return "" if vectors is None or not (vectors == vectors[:1]).all() else "all vectors of captions are the same"


def is_file_name(caption: str) -> bool:
    """Whether a caption is the name or the number of a file, such as `IMG_1234.JPG`, and says nothing of its image."""
    return len(caption) <= 200 and _FILE_NAME.fullmatch(folded(caption)) is not None


def generic_limit(images: int) -> int:
    """The number of images that must carry a caption to make it generic, in data of so many images."""
    share, fewest, enough = GENERIC
    return min(max(round(share * images), fewest), enough)


def generic_captions(captions: Sequence[str], image_index: np.ndarray, *, images: int) -> np.ndarray:
    """Whether each caption says nothing of one image: a file name, or a text that many images carry. (N,)

    Args:
        captions: N captions.
        image_index: (N,) the image of each; copies have one number.
        images: The number of different images.
    """
    first, place = np.unique(same_captions(captions), return_inverse=True)
    couples = np.unique(np.stack([place, image_index], axis=1), axis=0)
    often = np.bincount(couples[:, 0], minlength=len(first)) >= generic_limit(images)
    return np.asarray((often | [is_file_name(captions[number]) for number in first])[place], dtype=bool)


def _firsts(keys: Sequence[object]) -> np.ndarray:
    first: dict[object, int] = {}
    return np.fromiter((first.setdefault(key, place) for place, key in enumerate(keys)), np.int64, len(keys))


class Likeness:
    """How similar images are by their features: the cosine of all regions in a row, minus the mean image."""

    def __init__(self, pairs: Split) -> None:
        """Measure the mean image of the pairs, on a sample that is spread evenly."""
        self.pairs = pairs
        count = min(pairs.images, _SAMPLED, _rows_at_a_time(pairs))
        self.sample = np.unique(np.linspace(0, pairs.images - 1, count).astype(np.int64))
        self.mean = pairs.gather(self.sample).reshape(len(self.sample), -1).mean(0, dtype=np.float64).astype(np.float32)

    def vectors(self, images: np.ndarray) -> np.ndarray:
        """The features of images in a row, minus the mean. (images, R * F)"""
        return self.pairs.gather(images).reshape(len(images), -1) - self.mean

    def similarity(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The similarity of each image to the other at the same place; 1 if their features are equal. (images,)"""
        found = []
        for block in _blocks(self.pairs, np.arange(len(images))):
            one, other = (self.vectors(numbers[block]).astype(np.float64) for numbers in (images, others))
            size = np.sqrt(np.einsum("id,id->i", one, one) * np.einsum("id,id->i", other, other))
            cosine = np.einsum("id,id->i", one, other) / np.maximum(size, 1e-30)
            found.append(np.where((one == other).all(axis=1), 1.0, np.minimum(cosine, 1.0)))
        return np.concatenate(found) if found else np.empty(0)

    def sketches(self, images: np.ndarray) -> np.ndarray:
        """Short vectors of images, whose products are never below the similarities. (images, directions + 1)

        A unit vector is its part along the main directions and a rest. The product of two rests is at most that of
        their lengths, so the length of the rest is one more number of the sketch.
        """
        sample = self.vectors(self.sample[:: -(-len(self.sample) // _SPANNED)])
        values, vectors = np.linalg.eigh(sample @ sample.T)
        used = values > 1e-6 * max(values[-1], 1e-30)
        directions = sample.T @ (vectors[:, used][:, -_DIRECTIONS:] / np.sqrt(values[used][-_DIRECTIONS:]))
        directions = np.linalg.qr(directions)[0].astype(np.float32)
        parts = []
        for block in _blocks(self.pairs, images):
            whole = self.vectors(block)
            size = np.linalg.norm(whole, axis=1, keepdims=True)
            along = whole @ directions
            rest = np.sqrt(np.maximum(size**2 - np.square(along).sum(axis=1, keepdims=True), 0))
            parts.append(np.concatenate([along, rest], axis=1) / np.maximum(size, 1e-30))
        return np.concatenate(parts)


def nearest(
    pairs: Split, images: np.ndarray, least: float = NEAR, advance: Advance | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The most similar of these images to each, and the similarity; -1 and NaN where it is below `least`.

    All images are compared with all by sketches, which rule out nearly all of them, and then in full with the eight
    that remain the most promising.
    """
    near, similarity = np.full(len(images), -1), np.full(len(images), np.nan)
    if len(images) < 3:  # two images are opposite to each other around their mean
        return near, similarity
    likeness = Likeness(pairs)
    sketches = likeness.sketches(images)
    rows = max(_BYTES // (4 * len(images)), 1)
    for start in range(0, len(images), rows):
        bounds = sketches[start : start + rows] @ sketches.T
        own = np.arange(start, start + len(bounds))
        bounds[np.arange(len(bounds)), own] = -1
        hopeful = np.flatnonzero(bounds.max(axis=1) >= least - _ROUNDING)
        if len(hopeful):
            chosen = bounds[hopeful]
            best = np.argpartition(-chosen, min(_PROMISING, len(images)) - 1, axis=1)[:, :_PROMISING]
            asked = np.repeat(own[hopeful], best.shape[1])
            exact = likeness.similarity(images[asked], images[best.ravel()])
            exact = np.where(asked == best.ravel(), -1, exact).reshape(best.shape)
            place = exact.argmax(axis=1)
            top = exact[np.arange(len(hopeful)), place]
            fine = top >= least
            near[own[hopeful[fine]]] = images[best[np.arange(len(hopeful)), place][fine]]
            similarity[own[hopeful[fine]]] = top[fine]
        if advance is not None:
            advance(min(start + rows, len(images)), len(images))
    return near, similarity


def _searched_once(
    pairs: Split, images: np.ndarray, least: float, advance: Advance | None
) -> tuple[np.ndarray, np.ndarray]:
    """What `nearest` finds; of many images it is kept in the user's cache folder, by the content of all features."""
    if len(images) < _KEPT:
        return nearest(pairs, images, least, advance)
    constants = (_SAMPLED, _BYTES, _DIRECTIONS, _SPANNED, _PROMISING, _ROUNDING)
    digest = hashlib.sha256(repr((constants, least, pairs.features.shape[1:], len(images))).encode())
    digest.update(np.ascontiguousarray(images, dtype="<i8").tobytes())
    digest.update(b"".join(content_keys(pairs, contents=False)))
    folder, name = cache_folders("copies")[0], f"{digest.hexdigest()}.npy"
    known = _read_kept(folder / name, images)
    if known is not None:
        return known
    near, similarity = nearest(pairs, images, least, advance)
    places = np.flatnonzero(near >= 0)

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, np.stack([places, near[places], similarity[places]]), allow_pickle=False)

    kept(folder, name, write)
    return near, similarity


def _read_kept(path: Path, images: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """What was found among images before; None if that is not known, or was changed since."""
    try:
        places, others, values = np.nan_to_num(np.load(path, allow_pickle=False), nan=-1)
        numbers = places.astype(np.int64)
        near, similarity = np.full(len(images), -1), np.full(len(images), np.nan)
        near[numbers], similarity[numbers] = others, values
    except (OSError, ValueError, IndexError, EOFError):
        return None
    whole = (numbers >= 0).all() and np.isin(near[numbers], images).all()
    return (near, similarity) if whole else None


def _rows_at_a_time(pairs: Split) -> int:
    return int(max(_BYTES // (4 * pairs.features.shape[1] * pairs.features.shape[2]), 1))


def _blocks(pairs: Split, numbers: np.ndarray) -> list[np.ndarray]:
    """Numbers in blocks, whose images are few enough to be held."""
    size = _rows_at_a_time(pairs)
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
