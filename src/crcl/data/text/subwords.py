"""Parts of words and their numbers, as a published model cuts captions: its `tokenizer.json`, read by `tokenizers`."""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from crcl.data.files import read_bytes
from crcl.data.text.vocabulary import Tokens, Vocabulary
from crcl.errors import InputError

SHORTEST, LONGEST = 4, 2**16
"""Tokens that the longest caption may have; a start, an end and something between them have to fit."""
_BLOCK = 4096  # captions that are cut at a time: what comes of one takes kilobytes until only its numbers are kept


class Subwords:
    """A model's tokens in the place of a `Vocabulary`; how long a caption may be and whether it is padded is in it."""

    file: ClassVar[str] = "tokenizer.json"
    mask: ClassVar[None] = None
    """No token stands for a masked word, so words are not augmented."""

    def __init__(self, content: Any, *, source: str = "tokenizer") -> None:
        """Take the JSON of a tokenizer that cuts long captions, and pads all of them to one length or none."""
        self.content, self.source = content, source
        self._tokenizer = _tokenizer(content, source)
        truncation, padding = self._tokenizer.truncation or {}, self._tokenizer.padding
        self.longest = int(truncation.get("max_length", 0))
        if not SHORTEST <= self.longest <= LONGEST or (padding or {"length": self.longest})["length"] != self.longest:
            raise InputError("does not say how long captions may be, or pads them to another length", where=source)
        self._size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not 0 < self._size < 2**31 or not self.encode([""]).lengths[0]:
            raise InputError("puts no token at the end of a caption, which a model would need", where=source)

    @classmethod
    def of_model(cls, content: Any, *, longest: int, pad: str | None = None, source: str = "tokenizer") -> "Subwords":
        """The tokenizer of a model that reads so many tokens; `pad` fills up short captions, where it wants that."""
        if not SHORTEST <= longest <= LONGEST:
            raise InputError(f"captions of {longest} tokens, expected {SHORTEST} to {LONGEST}", where=source)
        tokenizer = _tokenizer(content, source)
        tokenizer.enable_truncation(max_length=longest)
        if pad is None:
            tokenizer.no_padding()
        else:
            number = tokenizer.token_to_id(pad)
            if number is None:
                raise InputError(f"has no token {pad[:60]!r} to fill up short captions with", where=source)
            tokenizer.enable_padding(length=longest, pad_id=number, pad_token=pad)
        return cls(json.loads(tokenizer.to_str()), source=source)

    @classmethod
    def load(cls, path: str | Path) -> "Subwords":
        """Read the tokenizer of a run."""
        return cls(read_tokenizer(path), source=str(path))

    def to_json(self) -> Any:
        return self.content

    def __len__(self) -> int:
        """One more than the largest number of a token."""
        return self._size

    def encode(self, captions: Sequence[str], *, max_words: int = 0) -> Tokens:
        """Token ids of the captions with the model's own tokens around them; `max_words` is not needed here."""
        lengths: list[int] = []
        blocks: list[np.ndarray] = []
        cut = 0
        for block in _blocks(captions):
            found = self._tokenizer.encode_batch_fast(block)
            cut += sum(bool(caption.overflowing) for caption in found)
            lengths += [len(caption.ids) for caption in found]
            blocks.append(np.fromiter(chain.from_iterable(caption.ids for caption in found), dtype=np.int64))
            largest = int(blocks[-1].max(initial=0))
            if largest >= len(self):  # what is put around a caption need not be among the tokens
                raise InputError(f"gives token {largest}, but has {len(self)} tokens", where=self.source)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        return Tokens(flat=np.concatenate(blocks).astype(np.int32), offsets=offsets, cut=cut)


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
        # half a character, which JSON can hold, is none to the library
        yield [text.encode("utf-8", "replace").decode() for text in captions[start : start + _BLOCK]]


def _tokenizer(content: Any, source: str) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads and the fork of workers do not go together
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            "a published model needs the package transformers", hint="pip install 'crcl[transformers]'"
        ) from error
    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing more special
        raise InputError(f"not a tokenizer ({' '.join(str(error).split())[:200]})", where=source) from error
