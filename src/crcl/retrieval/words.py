"""The words of captions that find nothing in their images, for matchers that judge words one by one."""

from collections.abc import Callable
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from crcl.data.split import Split
from crcl.data.text.vocabulary import tokenize
from crcl.matchers.base import Encoded, eval_mode
from crcl.retrieval.scoring import Scorer

_BLOCK = 32  # pairs at a time: every image of a block is compared with every text of it


def lacking_words(scorer: Scorer, pairs: Split, numbers: np.ndarray) -> list[list[str]] | None:
    """For each of these pairs the words of its caption that find nothing in its image, by the matcher's `lacking`.

    None if the matcher does not judge words.
    """
    judge: Callable[[Encoded, Encoded], Tensor] | None = getattr(scorer.matcher, "lacking", None)
    if judge is None:
        return None
    tokens = scorer.tokens(pairs)
    found: list[list[str]] = []
    with eval_mode(scorer.matcher) as device:
        for start in range(0, len(numbers), _BLOCK):
            some = numbers[start : start + _BLOCK]
            images = scorer.encode_images(pairs, pairs.image_index[some], device)
            own = torch.arange(len(some), device=device)
            lacking = judge(images, scorer.encode_texts(tokens, some, device))[own, own].tolist()
            found += [_named(pairs.captions[row], flags) for row, flags in zip(some, lacking, strict=True)]
    return found


def _named(caption: str, flags: list[bool]) -> list[str]:
    """The flagged words without punctuation; the first flag is that of `<start>`."""
    words = [*tokenize(caption)]
    return [word for word in compress(words, flags[1:]) if any(map(str.isalnum, word))]
