"""The word vocabulary, in the field's file format, and captions as ragged arrays of token ids."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from crcl.data.files import read_bytes
from crcl.errors import InputError

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(len(SPECIALS))
MASK = "<mask>"
MOST_CHARACTERS = 100_000
"""Characters of a caption that are read; words take a hundred times the memory of the text."""

# Captions to which only NLTK's rules for commas and the final full stop apply: most of them, and quicker without NLTK.
_plain = re.compile(r"(?!.*(?:cannot|gimme|gonna|gotta|lemme|wanna))((?:[a-z0-9 ]|, )+)(\.?)")


def tokenize(caption: str) -> list[str]:
    """Lower-case words of a caption, split by NLTK's word tokenizer class.

    `nltk.word_tokenize`, with which the field's vocabularies were made, first splits sentences with punkt, which needs
    downloaded data. Only captions of several sentences differ: here the inner full stops stay attached to their words.
    """
    caption = caption[:MOST_CHARACTERS].lower()
    if plain := _plain.fullmatch(caption):
        words, stop = plain.groups()
        return [*words.replace(",", " ,").split(), *stop]
    return list(_tokenizer().tokenize(caption))


@cache
def _tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # slow to import

    return NLTKWordTokenizer()


@dataclass(frozen=True)
class Tokens:
    """Token ids of N captions, concatenated, `<start>` and `<end>` included."""

    flat: np.ndarray
    """(sum of lengths,) int32."""
    offsets: np.ndarray
    """(N + 1,) int64; caption i is `flat[offsets[i]:offsets[i + 1]]`."""
    cut: int = 0
    """Number of captions that were truncated."""
    unknown: int = 0
    """Number of captions without any known word."""

    def __len__(self) -> int:
        """N, the number of captions."""
        return len(self.offsets) - 1

    def __getitem__(self, caption: int) -> np.ndarray:
        """The ids of one caption, (length,) int32."""
        caption = range(len(self))[caption]
        return self.flat[self.offsets[caption] : self.offsets[caption + 1]]

    def side_by_side(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of some captions, `(K, W)` int64 padded with 0, and which of them are real, `(K, W)` bool."""
        starts, ends = self.offsets[numbers], self.offsets[np.asarray(numbers) + 1]
        positions = np.arange((ends - starts).max())
        real = positions < (ends - starts)[:, None]
        places = np.minimum(starts[:, None] + positions, len(self.flat) - 1)
        return np.where(real, self.flat[places], PAD).astype(np.int64), real

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64."""
        return np.diff(self.offsets)


class Vocabulary:
    """The known words in order of their ids: `<pad> <start> <end> <unk>`, the words, and `<mask>`."""

    file: ClassVar[str] = "vocab.json"

    def __init__(self, words: Sequence[str]) -> None:
        """Make a vocabulary of words in the order of their ids; `<mask>` is appended if it is missing."""
        self.words = list(words)
        if MASK not in self.words:
            self.words.append(MASK)
        if tuple(self.words[: len(SPECIALS)]) != SPECIALS:
            raise InputError(f"a vocabulary must start with {' '.join(SPECIALS)}, not {' '.join(self.words[:4])}")
        self._number = {word: number for number, word in enumerate(self.words)}
        if len(self._number) < len(self.words):
            twice = [word for word, count in Counter(self.words).items() if count > 1]
            raise InputError(f"duplicate words in the vocabulary: {', '.join(twice[:10])}")

    @classmethod
    def build(cls, captions: Iterable[str], *, minimum: int = 4) -> "Vocabulary":
        """A vocabulary of the words that occur at least `minimum` times, in order of first appearance."""
        counts = Counter(chain.from_iterable(map(tokenize, captions)))
        reserved = {*SPECIALS, MASK}
        return cls([*SPECIALS, *(word for word, n in counts.items() if n >= minimum and word not in reserved)])

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read the field's JSON (`word2idx`, `idx2word` with string keys, `idx`)."""
        path = Path(path)
        try:
            content = json.loads(read_bytes(path).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a JSON file ({error}); expected the field's vocabulary", where=path) from error
        return cls.from_json(content, source=str(path))

    @classmethod
    def from_json(cls, content: Any, *, source: str = "vocabulary") -> "Vocabulary":
        """The vocabulary from the result of `to_json`, or from the content of the field's file."""
        numbers = content.get("word2idx") if isinstance(content, dict) else None
        if not isinstance(numbers, dict):
            there = ", ".join(content) if isinstance(content, dict) else type(content).__name__
            raise InputError(f"no 'word2idx' with an id for each word; found {there}", where=source)
        if sorted(n if type(n) is int else -1 for n in numbers.values()) != list(range(len(numbers))):
            raise InputError(
                f"the {len(numbers)} words of 'word2idx' must have the ids 0 to {len(numbers) - 1}, each once",
                where=source,
            )
        words = sorted(numbers, key=lambda word: int(numbers[word]))
        backwards = content.get("idx2word", {str(number): word for number, word in enumerate(words)})
        if backwards != {str(number): word for number, word in enumerate(words)}:
            raise InputError("'idx2word' is not the inverse of 'word2idx'", where=source)
        try:
            return cls(words)
        except InputError as error:
            raise InputError(error.what, where=source) from error

    def to_json(self) -> dict[str, Any]:
        """The field's layout: `word2idx`, `idx2word` with string keys, `idx` (the next free id)."""
        backwards = {str(number): word for number, word in enumerate(self.words)}
        return {"word2idx": dict(self._number), "idx2word": backwards, "idx": len(self.words)}

    def save(self, path: str | Path) -> None:
        """Write the field's JSON."""
        Path(path).write_text(json.dumps(self.to_json()), encoding="utf-8")

    def __len__(self) -> int:
        """The number of words, special tokens included."""
        return len(self.words)

    @property
    def mask(self) -> int:
        """The id of `<mask>`."""
        return self._number[MASK]

    def cuts(self, captions: Sequence[str], *, max_words: int = 128) -> np.ndarray:
        """Whether each caption has more words than are read. (N,) bool"""
        # a caption of so few letters has no more words
        return np.array([len(text) > max_words and len(tokenize(text)) > max_words for text in captions], dtype=bool)

    def encode(self, captions: Sequence[str], *, max_words: int = 128) -> Tokens:
        """Token ids of the captions, each truncated to `max_words` words, with `<start>` and `<end>` added."""
        if max_words < 1:
            raise InputError(f"max_words must be at least 1, not {max_words}")
        number = self._number
        ids: list[int] = []
        offsets = np.zeros(len(captions) + 1, dtype=np.int64)
        cut = unknown = 0
        for row, caption in enumerate(captions):
            words = tokenize(caption)
            cut += len(words) > max_words
            known = [number.get(word, UNK) for word in words[:max_words]]
            unknown += all(word == UNK for word in known)
            ids.append(START)
            ids.extend(known)
            ids.append(END)
            offsets[row + 1] = len(ids)
        return Tokens(flat=np.array(ids, dtype=np.int32), offsets=offsets, cut=cut, unknown=unknown)
