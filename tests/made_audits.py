"""Audits made up for tests of the report: ordinary ones, and one full of hostile text."""

from dataclasses import replace
from typing import Any

import numpy as np

from crcl.auditing.estimate import Estimate
from crcl.auditing.findings import Findings, find
from crcl.auditing.reasons import Reasons
from crcl.auditing.suggestions import Suggestions
from crcl.data.split import Split
from crcl.retrieval.words import Told

NAMES = [
    "../../etc/passwd",
    '"><script>window.hacked=1</script>.jpg',
    "a\nb.jpg",
    "' onerror='window.hacked=1'.png",
    "{{7*7}}.jpg",
    "\u202egpj.exe",
    "plain.jpg",
    "javascript:alert(1)",
    "C:\\x.jpg",
    "</script>.jpg",
    "%2e%2e/x.jpg",
    "x" * 3000,
]


HOSTILE = [
    "<script>window.hacked=1</script>",
    '<img src=x onerror="window.hacked=1">',
    "</script><script>window.hacked=1</script>",
    "<!--<script>",
    "{{7*7}} {% raw %} ${window.hacked=1}",
    "]]> & &lt;script&gt; &amp;",
    "'\" onmouseover=window.hacked=1 x='",
    "line\nbreak\r\nand \x00\x1b[31m control \u2028\u2029",
    "\u202eright to left",
    "\ud800 alone",
    "javascript:window.hacked=1",
    "a" * 5000,
]


def made_audit(
    correspondence: np.ndarray, *, images: int | None = None, truth: np.ndarray | None = None, **changed: Any
) -> Findings:
    """An audit of pairs 'caption 0', 'caption 1', ... of images '0.jpg', ..., the n-th with similarity -n / N."""
    count = len(correspondence)
    images = images or count
    pairs = Split(
        captions=[f"caption {row}" for row in range(count)],
        image_index=np.arange(count) % images,
        features=np.zeros((images, 1, 1), dtype=np.float32),
        image_ids=[f"{image}.jpg" for image in range(images)],
        truth=truth,
    )
    similarity = (-np.arange(count) / count).astype(np.float32)
    return find(replace(pairs, **changed), correspondence.astype(np.float32), similarity)


def hostile_audit() -> Findings:
    return made_audit(np.linspace(0, 0.09, len(HOSTILE)), captions=HOSTILE, image_ids=NAMES)


def suggestions_of(found: Findings, most: int = 3) -> Suggestions:
    """The next captions and images for each suspect; the last one is missing."""
    rows = found.suspects
    captions = (rows[:, None] + np.arange(1, most + 1)) % len(found.pairs)
    images = captions % found.pairs.images
    captions[:, -1] = images[:, -1] = -1
    fit = np.tile(np.linspace(0.9, 0.5, most), (len(rows), 1))
    return Suggestions(rows, captions, fit, images, fit - 0.1)


def made_estimate(rate: float = 0.172, decoys: int = 50) -> Estimate:
    thresholds = np.linspace(0, 1, 101)
    precision = np.linspace(1, rate, 101)
    precision[0] = np.nan
    recall = np.linspace(0, 1, 101) ** 0.1
    rng = np.random.default_rng(0)
    correspondence, decoyed = rng.beta(6, 2, 300), rng.beta(1, 20, decoys)
    flagged = np.searchsorted(np.sort(correspondence), thresholds)
    return Estimate(rate, 0.159, 0.186, correspondence, decoyed, thresholds, flagged, precision, recall)


def made_reasons(found: Findings) -> Reasons:
    """Every third suspect has another reason, another fix, and words that find nothing: its whole caption."""
    turn = np.arange(len(found.suspects)) % 3
    following = (found.suspects + 1) % len(found.pairs)
    texts = [found.pairs.captions[row] if one == 0 else "" for row, one in zip(found.suspects, turn, strict=True)]
    return Reasons(
        found.pairs,
        found.suspects,
        {"neighbours": turn == 0, "elsewhere": turn == 0, "copy": turn == 1},
        {"elsewhere": following, "copy": following},
        np.where(turn == 0, found.pairs.image_index[following], -1),
        np.where(turn == 1, following, -1),
        (Told("lacking", texts, [text and f"The words “{text}” fit nothing in the picture." for text in texts]),),
    )
