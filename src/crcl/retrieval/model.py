"""A trained matcher that takes photos and sentences and returns similarities."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crcl.config import Config
from crcl.data.maps.shards import Shards
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.features.encoder import Encoder, divide, encode, mean_vector
from crcl.features.extractor import Extractor
from crcl.features.provenance import image_features, open_encoder, open_extractor
from crcl.features.sentences import check_way
from crcl.matchers.base import reads_vectors
from crcl.retrieval.index.building import run_digest
from crcl.retrieval.index.folder import Searchable, What
from crcl.retrieval.index.hits import Hit
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.vectors import check_one_vector, image_vectors, text_vectors
from crcl.runs.card import model_card
from crcl.runs.folder import Run

Images = Sequence[Any] | np.ndarray
"""Image files, PIL images, or an array of features `(images, regions, size)` or `(images, size)`."""
Texts = Sequence[str] | np.ndarray
"""Sentences, or an array of vectors `(texts, size)` for a matcher that reads vectors."""
_Parts = list[tuple[int, ...]]


class Model:
    """The trained matcher of a run, together with its feature extractor and tokenizer.

    Attributes:
        run: The run folder of the matcher.
        takes_photos: Whether the model can read image files. A run that was trained on given features cannot: it takes
            arrays of such features.
    """

    def __init__(self, run: Run, config: Config, scorer: Scorer, *, device: str = "auto") -> None:
        self.run = run
        self.config = config
        self.scorer = scorer
        self._device = "cpu" if device == "auto" else device

    @classmethod
    def open(
        cls, path: str | Path, *, device: str = "auto", memory: float | None = None, dtype: str | None = None
    ) -> "Model":
        """Open the best matcher of a run folder.

        Args:
            path: A run folder.
            device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
            memory: GiB for intermediate results; what the run was trained with, if not given.
            dtype: Number type of matrix products, `float32` or `bfloat16`; float32, if not given.
        """
        return cls(*open_scorer(path, device=device, memory=memory, dtype=dtype), device=device)

    @property
    def takes_photos(self) -> bool:
        return bool(self.run.made)

    @cached_property
    def extractor(self) -> Extractor:
        """Extractor that computes features in the same way as those of the training."""
        return open_extractor(self.run.made, device=self._device, where=self.run.path)

    @cached_property
    def encoder(self) -> Encoder:
        """Encoder that computes vectors of sentences in the same way as those of the training."""
        return open_encoder(self._texts_made, device=self._device, where=self.run.path)

    @property
    def _texts_made(self) -> dict[str, Any]:
        made = self.run.made.get("text")
        return made if isinstance(made, dict) else {}

    def similarity(self, images: Images, texts: Texts) -> np.ndarray:
        """How well every image fits every text.

        Args:
            images: Image files or PIL images; or an array of features, computed as those of the training.
            texts: Sentences; or an array of vectors, for a matcher that reads vectors of captions. Sentences longer
                than a model of vectors reads are treated as those of the training (`long_captions`).

        Returns:
            `(images, texts)` float32: rows are images. Larger fits better; numbers of two runs cannot be compared.

        Example:
            >>> model = crcl.load("runs/mine")
            >>> model.similarity(["a.jpg", "b.jpg"], ["two dogs", "a red car"])
            array([[0.41, 0.02],
                   [0.03, 0.37]], dtype=float32)
        """
        captions, vectors, parts = self._captions(texts)
        sims = self.scorer.similarities(_split(self._features(images), captions, vectors))
        if parts is None:
            return sims
        return np.stack([sims[:, list(part)].min(axis=1) for part in parts], axis=1)  # the least of a text's sentences

    def encode_images(self, images: Images) -> np.ndarray:
        """A vector for each image; inner products with those of `encode_texts` are the similarities.

        Args:
            images: Image files or PIL images; or an array of features, computed as those of the training.

        Returns:
            `(images, size)` float32. A matcher that compares regions with words has no such vectors.
        """
        check_one_vector(self.config)
        pairs = _split(self._features(images), [], None)
        return image_vectors(self.scorer, pairs, np.arange(pairs.images))

    def encode_texts(self, texts: Texts) -> np.ndarray:
        """A vector for each text; inner products with those of `encode_images` are the similarities.

        Args:
            texts: Sentences; or an array of vectors, for a matcher that reads vectors of captions. A text that the
                model of vectors reads in several parts has the mean of their vectors.

        Returns:
            `(texts, size)` float32. A matcher that compares regions with words has no such vectors.
        """
        check_one_vector(self.config)
        captions, vectors, parts = self._captions(texts)
        shape = (1, self.run.sizes["regions"], self.run.sizes["features"])
        pairs = _split(np.zeros(shape, dtype=np.float32), captions, vectors)
        found = text_vectors(self.scorer, self.scorer.tokens(pairs), np.arange(len(pairs)))
        return found if parts is None else np.stack([found[list(part)].mean(axis=0) for part in parts])

    def search(self, query: str, index: Searchable, *, k: int = 10, what: What = "images") -> list[Hit]:
        """The images, or captions, of an index that fit a sentence best.

        Args:
            query: A sentence.
            index: An index of this run; `crcl.index` makes one.
            k: How many; fewer are returned if there are fewer.
            what: `images` or `captions`.

        Returns:
            What was found, best first, each with `rank`, `key`, `score` and `captions`.

        Example:
            >>> index = crcl.Index.open("photos.index")
            >>> len(crcl.load(index.about.run).search("two dogs", index, k=3))
            3
        """
        if not isinstance(query, str) or not query.strip():
            got = "an empty text" if isinstance(query, str) else repr(query)
            raise InputError(f"expected a sentence, got {got}", where="query")
        self.check_index(index)
        return index.find(self.encode_texts([query])[0], k=k, what=what)

    def check_index(self, index: Searchable) -> None:
        """Raise an error if an index is of another run."""
        if index.about.digest != run_digest(self.run.path):
            what = f"is an index of {index.about.run}, whose weights are not those of {self.run.path}"
            raise InputError(what, where=index.path, hint="index this run, or load the other")

    def _features(self, images: Images) -> np.ndarray:
        """(images, R, F)"""
        if isinstance(images, str | Path) or not len(images):
            raise InputError("expected a list of at least one image", where="images")
        if isinstance(images, np.ndarray):
            features = np.asarray(images, dtype=np.float32)
            features = features[:, None, :] if features.ndim == 2 else features
        else:
            rounded = "float16" if self.run.made.get("dtype") == "float16" else "float32"
            features = image_features(self.extractor, images, dtype=rounded)
        regions = self.run.sizes["regions"]
        if not isinstance(images, np.ndarray) and features.shape[1] != regions:
            raise InputError(
                f"photos give {features.shape[1]} regions, but the run was trained on {regions}", where=self.run.path
            )
        expected = self.run.sizes["features"]
        if features.ndim != 3 or features.shape[2] != expected:
            raise InputError(
                f"features of shape {features.shape}, but the run was trained on {expected} numbers per region",
                where=self.run.path,
                hint="pass an array of shape (images, regions, size) or (images, size)",
            )
        return features

    def _captions(self, texts: Texts) -> tuple[list[str], Shards | None, _Parts | None]:
        """Captions, their vectors if the matcher reads these, and which of them each text consists of, if several."""
        if isinstance(texts, str) or not len(texts):
            raise InputError("expected a list of at least one sentence", where="texts")
        size = self.run.sizes.get("text_features")
        if reads_vectors(self.scorer.matcher):
            if self._texts_made and not isinstance(texts, np.ndarray):
                return self._encode(texts)
            if not isinstance(texts, np.ndarray) or texts.ndim != 2 or texts.shape[1] != size:
                raise InputError(
                    f"its matcher reads vectors of captions, {size} numbers each, and no sentences",
                    where=self.run.path,
                    hint="pass an array of shape (texts, size), computed as those of the training",
                )
            return [""] * len(texts), Shards([texts.astype(np.float32)], ["the texts given"]), None
        return _sentences(texts), None, None

    def _encode(self, texts: Texts) -> tuple[list[str], Shards | None, _Parts | None]:
        """Vectors of sentences, as those of the training were made."""
        captions = [text.strip() for text in _sentences(texts)]
        if not all(captions):
            raise InputError("expected sentences, got an empty text", where="texts")
        way = check_way(str(self._texts_made.get("long_captions", "cut")))
        divided = divide(captions, self.encoder, way)
        vectors = encode(self.encoder, divided.texts)
        if way == "least":
            return list(divided.texts), Shards([vectors], ["the texts given"]), divided.parts
        means = np.stack(
            [vectors[part[0]] if len(part) == 1 else mean_vector(vectors[list(part)]) for part in divided.parts]
        )
        rounded = means.astype(np.float16).astype(np.float32)
        return captions, Shards([rounded], ["the texts given"]), None

    def card(self) -> str:
        """A model card of the run, as Markdown: data, noise, settings, scores, limits."""
        return model_card(self.run.path)

    def __repr__(self) -> str:
        reads = "photos and sentences" if self.takes_photos else "features as it was trained on"
        if reads_vectors(self.scorer.matcher) and not self._texts_made:
            reads = "photos and vectors of texts" if self.takes_photos else "vectors of images and of texts"
        return f"Model({str(self.run.path)!r}: {self.config.matcher.name} by {self.config.method}; reads {reads})"


def _split(features: np.ndarray, captions: list[str], vectors: Shards | None) -> Split:
    return Split(
        captions=captions,
        image_index=np.zeros(len(captions), dtype=np.int64),
        features=features,
        image_ids=[str(number) for number in range(len(features))],
        source="the images given",
        text_features=vectors,
    )


def _sentences(texts: Texts) -> list[str]:
    wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
    if wrong:
        raise InputError(f"expected sentences, got {wrong[0]}", where="texts")
    return [str(text) for text in texts]
