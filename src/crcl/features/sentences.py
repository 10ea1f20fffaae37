"""Dividing captions into sentences, for models that read only the beginning of a long caption."""

import re
from typing import Literal, get_args

from crcl.errors import InputError

LongCaptions = Literal["cut", "mean", "least"]
"""What becomes of a caption that is longer than a model reads. `cut`: its end is not read. `mean`: its vector is the
mean of those of its sentences. `least`: it is the vector of the sentence that fits the image least."""
WAYS: tuple[LongCaptions, ...] = get_args(LongCaptions)
_FEWEST = 3  # words of a sentence; shorter ones, such as "Dr.", stay with the next
_END = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+|\n\s*")


def check_way(name: str) -> LongCaptions:
    """The way to treat long captions of this name."""
    if name not in WAYS:
        raise InputError(f"'{name}': expected {', '.join(WAYS)}", where="long captions", hint="give {long_captions}")
    return name


def sentences(text: str) -> list[str]:
    """The sentences of a text; the text itself if there is only one."""
    found, start = [], 0
    for end in (match.end() for match in _END.finditer(text)):
        if len(text[start:end].split()) >= _FEWEST or text[end - 1] in "。！？":
            found.append(text[start:end].strip())
            start = end
    rest = text[start:].strip()
    return [*found, rest] if rest else found or [text]
