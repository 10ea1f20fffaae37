"""Search with a run on the page: images for a sentence, captions that match an image, and images near it."""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers.base import reads_vectors
from crcl.progress import SILENT, Progress
from crcl.retrieval.index.exact import nearest
from crcl.retrieval.model import Model
from crcl.retrieval.vectors import check_one_vector, image_vectors, text_vectors

MOST_IMAGES = 20_000
"""More images are not encoded at the start."""
_BATCH = 512

Found = list[tuple[int, float]]
"""Numbers of images or pairs, each with how well it fits; best first."""


class Search:
    """Vectors of the images and captions of a run's training pairs. Safe to use from several threads."""

    def __init__(self, model: Model, pairs: Split, *, progress: Progress = SILENT) -> None:
        self.model = model
        self.first = _first_with_text(pairs.captions)
        self._lock = threading.Lock()  # one sentence at a time
        scorer, tokens = model.scorer, model.scorer.tokens(pairs)
        total = pairs.images + len(self.first)
        with progress.task("search") as advance:
            self.images = _encoded(
                lambda numbers: image_vectors(scorer, pairs, numbers),
                np.arange(pairs.images),
                lambda done: advance(done, total),
            )
            self.captions = _encoded(
                lambda numbers: text_vectors(scorer, tokens, numbers),
                self.first,
                lambda done: advance(pairs.images + done, total),
            )
        lengths = np.linalg.norm(self.images.astype(np.float32), axis=1, keepdims=True)
        self.directions = (self.images / np.maximum(lengths, 1e-12)).astype(np.float16)

    def by_text(self, text: str, k: int) -> Found:
        """The images that fit a sentence best, with the run's similarities."""
        with self._lock:
            asked = self.model.encode_texts([text])
        return _listed(*nearest(self.images, asked, k))

    def captions_for(self, image: int, k: int) -> Found:
        """The pairs whose captions fit an image best, with the run's similarities; each text once."""
        found = _listed(*nearest(self.captions, self.images[image, None].astype(np.float32), k))
        return [(int(self.first[place]), fit) for place, fit in found]

    def near_to(self, image: int, k: int) -> Found:
        """The images most like an image, without itself, by the cosine of their vectors."""
        found = _listed(*nearest(self.directions, self.directions[image, None].astype(np.float32), k + 1))
        return [(other, fit) for other, fit in found if other != image][:k]


def why_not(model: Model, pairs: Split) -> str:
    """Why the page cannot search with a run, in a sentence; empty where it can."""
    try:
        check_one_vector(model.config)
    except InputError as error:
        return f"{error.what[:1].upper()}{error.what[1:]}."
    if reads_vectors(model.scorer.matcher) and not isinstance(model.run.made.get("text"), dict):
        return "This run reads vectors of captions, and does not know the model that made them: it cannot read words."
    if reads_vectors(model.scorer.matcher):
        try:
            _ = model.encoder
        except InputError as error:
            return f"The model that reads sentences for this run could not be opened: {error.what}."
    if pairs.images > MOST_IMAGES:
        return f"{pairs.images:,} images are too many to encode at the start (at most {MOST_IMAGES:,})."
    return ""


def _encoded(
    encode: Callable[[np.ndarray], np.ndarray], numbers: np.ndarray, advance: Callable[[int], None]
) -> np.ndarray:
    """Vectors by number, made in batches. (numbers, D) float16"""
    parts = []
    for start in range(0, len(numbers), _BATCH):
        parts.append(encode(numbers[start : start + _BATCH]).astype(np.float16))
        advance(min(start + _BATCH, len(numbers)))
    return np.concatenate(parts)


def _listed(scores: np.ndarray, places: np.ndarray) -> Found:
    """The one row of a result as a list."""
    return [(place, round(score, 4)) for place, score in zip(places[0].tolist(), scores[0].tolist(), strict=True)]


def _first_with_text(captions: Sequence[str]) -> np.ndarray:
    """The first pair with each text."""
    first: dict[str, int] = {}
    for number, caption in enumerate(captions):
        first.setdefault(caption, number)
    return np.array(list(first.values()), dtype=np.int64)
