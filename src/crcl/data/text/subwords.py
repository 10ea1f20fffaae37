"""The subword tokenizer of a published model: its `tokenizer.json`, read by the library `tokenizers`."""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from crcl.data.files import read_bytes
from crcl.data.text.vocabulary import MOST_CHARACTERS, Tokens, Vocabulary
from crcl.errors import InputError

MOST_TOKENS = 2**24
SHORTEST, LONGEST = 4, 2**16
"""Limits of a tokenizer's maximum length; start, end and at least one token between them must fit."""
_BLOCK = 4096  # captions per call: the library's result for each takes kilobytes


class Subwords:
    """A model's tokenizer, used in place of a `Vocabulary`; it sets the maximum length and padding of captions."""

    file: ClassVar[str] = "tokenizer.json"
    mask: ClassVar[None] = None
    """There is no mask token, so words are not augmented."""

    def __init__(self, content: Any, *, source: str = "tokenizer") -> None:
        """Load the JSON of a tokenizer that truncates captions, and either pads all to the same length or none."""
        self.content, self.source = content, source
        self._tokenizer = _tokenizer(content, source)
        truncation, padding = self._tokenizer.truncation or {}, self._tokenizer.padding
        self.longest = int(truncation.get("max_length", 0))
        if not SHORTEST <= self.longest <= LONGEST or (padding or {"length": self.longest})["length"] != self.longest:
            raise InputError("has no valid maximum length, or pads captions to another length", where=source)
        self._size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self._size or not self.encode([""]).lengths[0]:
            raise InputError("adds no end token to a caption, which a model needs", where=source)

    @classmethod
    def of_model(cls, content: Any, *, longest: int, pad: str | None = None, source: str = "tokenizer") -> "Subwords":
        """The tokenizer of a model that reads at most `longest` tokens; `pad` is its padding token, if any."""
        if not SHORTEST <= longest <= LONGEST:
            raise InputError(f"maximum length of {longest} tokens, expected {SHORTEST} to {LONGEST}", where=source)
        tokenizer = _tokenizer(content, source)
        tokenizer.enable_truncation(max_length=longest)
        if pad is None:
            tokenizer.no_padding()
        else:
            number = tokenizer.token_to_id(pad)
            if number is None:
                raise InputError(f"has no token {pad[:60]!r} for padding", where=source)
            tokenizer.enable_padding(length=longest, pad_id=number, pad_token=pad)
        return cls(json.loads(tokenizer.to_str()), source=source)

    @classmethod
    def load(cls, path: str | Path) -> "Subwords":
        """Read the tokenizer of a run."""
        return cls(read_tokenizer(path), source=str(path))

    def to_json(self) -> Any:
        return self.content

    def __len__(self) -> int:
        """The size of the vocabulary: the largest token id plus one."""
        return self._size

    def encode(self, captions: Sequence[str], *, max_words: int = 0) -> Tokens:
        """Token ids of the captions with the model's special tokens; `max_words` is ignored."""
        lengths: list[int] = []
        blocks: list[np.ndarray] = []
        cut = 0
        for block in _blocks(captions):
            found = self._tokenizer.encode_batch_fast(block)
            cut += sum(bool(caption.overflowing) for caption in found)
            lengths += [len(caption.ids) for caption in found]
            blocks.append(np.fromiter(chain.from_iterable(caption.ids for caption in found), dtype=np.int64))
            largest = int(blocks[-1].max(initial=0))
            if largest >= len(self):  # special tokens need not be in the vocabulary
                raise InputError(f"produced token id {largest}, but has {len(self)} tokens", where=self.source)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        return Tokens(flat=np.concatenate(blocks).astype(np.int32), offsets=offsets, cut=cut)

    def cuts(self, captions: Sequence[str], *, max_words: int = 0) -> np.ndarray:
        """Whether each caption has more tokens than the model reads, (N,) bool; `max_words` is ignored."""
        return np.array([cut for _, cut in self.encode_each(captions)], dtype=bool)

    def encode_each(self, captions: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        """For each caption, its token ids and whether it was cut."""
        for block in _blocks(captions):
            for caption in self._tokenizer.encode_batch_fast(block):
                yield caption.ids, bool(caption.overflowing)


Words = Vocabulary | Subwords


def read_tokenizer(path: str | Path) -> Any:
    """The content of a `tokenizer.json`."""
    path = Path(path)
    try:
        return json.loads(read_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not a JSON file ({error}); expected a tokenizer", where=path) from error


def _blocks(captions: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(captions), _BLOCK):
        # the library refuses lone surrogates, which JSON allows
        yield [text[:MOST_CHARACTERS].encode("utf-8", "replace").decode() for text in captions[start : start + _BLOCK]]


def _tokenizer(content: Any, source: str) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive the fork of workers
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            "a published model needs the package transformers", hint="pip install 'crcl[transformers]'"
        ) from error
    _refuse_large_numbers(content, source)
    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises no more specific type
        raise InputError(f"not a tokenizer ({' '.join(str(error).split())[:200]})", where=source) from error


def _refuse_large_numbers(content: Any, source: str) -> None:
    """Raise an error for token numbers that no model has: the library counts up to the largest one."""
    parts = content if isinstance(content, dict) else {}
    model, added = parts.get("model"), parts.get("added_tokens")
    words = model.get("vocab") if isinstance(model, dict) else None
    numbers = [*words.values()] if isinstance(words, dict) else []
    numbers += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    largest = max((number for number in numbers if isinstance(number, int)), default=0)
    if largest >= MOST_TOKENS:
        raise InputError(f"has a token of number {largest}, expected less than {MOST_TOKENS:,}", where=source)
