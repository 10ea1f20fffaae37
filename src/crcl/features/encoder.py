"""The interface of encoders, which turn captions into vectors, and the vectors of captions with those of long ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crcl.features.sentences import LongCaptions, sentences

_BLOCK = 4096  # texts per call of a tokenizer


class Encoder(Protocol):
    """Turns captions into vectors of length 1."""

    @property
    def title(self) -> str:
        """The name of the model."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything besides the caption that its vector depends on."""

    @property
    def longest(self) -> int:
        """Tokens that it reads of a caption."""

    def tokenize(self, texts: Sequence[str]) -> list[tuple[list[int], bool]]:
        """For each text, its token ids and whether it is longer than the model reads."""

    def compute(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors of a batch of texts, (K, D)."""


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    """Name, settings and library versions of an encoder, for `about.json`."""
    return {
        "extractor": encoder.title,
        "settings": encoder.settings,
        "versions": {name: version(name) for name in ("transformers", "tokenizers")},
    }


@dataclass(frozen=True)
class Division:
    """Captions as the texts that a model reads: long ones may be several."""

    texts: list[str]
    """The texts, each once."""
    lengths: NDArray[np.int32]
    """(texts,) how many tokens each has."""
    parts: list[tuple[int, ...]]
    """The texts that each caption consists of, by number; none for an empty caption."""
    long: NDArray[np.bool_]
    """(captions,) whether a caption is longer than the model reads."""
    cut: NDArray[np.bool_]
    """(captions,) whether some of it is not read."""


def divide(captions: Sequence[str], encoder: Encoder, way: LongCaptions) -> Division:
    """Divide the captions that are longer than the model reads into sentences; with `cut` none is divided."""
    distinct = [caption for caption in dict.fromkeys(captions) if caption]
    read = _read(distinct, encoder)
    pieces = {text: sentences(text) for text in distinct if read[text][1]} if way != "cut" else {}
    number: dict[str, int] = {}
    for caption in distinct:
        for text in pieces.get(caption, (caption,)):
            number.setdefault(text, len(number))
    known = read | _read([text for text in number if text not in read], encoder)
    parts = {caption: tuple(number[text] for text in pieces.get(caption, (caption,))) for caption in distinct}
    unread = {caption: any(known[text][1] for text in pieces.get(caption, (caption,))) for caption in distinct}
    return Division(
        texts=list(number),
        lengths=np.array([known[text][0] for text in number], dtype=np.int32),
        parts=[parts.get(caption, ()) for caption in captions],
        long=np.array([caption != "" and read[caption][1] for caption in captions], dtype=bool),
        cut=np.array([unread.get(caption, False) for caption in captions], dtype=bool),
    )


def _read(texts: list[str], encoder: Encoder) -> dict[str, tuple[int, bool]]:
    """For each text, how many tokens it has and whether it is longer than the model reads."""
    return {
        text: (len(ids), cut)
        for start in range(0, len(texts), _BLOCK)
        for text, (ids, cut) in zip(
            texts[start : start + _BLOCK], encoder.tokenize(texts[start : start + _BLOCK]), strict=True
        )
    }


def mean_vector(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of vectors, (parts, D), at length 1."""
    mean = vectors.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def encode(encoder: Encoder, texts: Sequence[str], *, batch_size: int = 64) -> NDArray[np.float32]:
    """Vectors of texts, rounded like those on disk, (texts, D)."""
    tokens = [ids for ids, _ in encoder.tokenize(texts)]
    parts = [encoder.compute(tokens[start : start + batch_size]) for start in range(0, len(tokens), batch_size)]
    return np.concatenate(parts).astype(np.float16).astype(np.float32)
