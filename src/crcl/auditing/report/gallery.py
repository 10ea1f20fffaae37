"""The worst pairs as the report shows them: the first as cards in HTML, all of them as JSON for its script."""

import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from markupsafe import Markup

from crcl.auditing.findings import Findings, first_shown
from crcl.auditing.reasons import REASONS, Reasons, told
from crcl.auditing.report.thumbnails import Thumbnail, Thumbnails
from crcl.progress import Advance

SIDE, SUGGESTED_SIDE = 320, 128
"""Longest side, in pixels, of the thumbnails of pairs, and of images that are only suggested."""
LONGEST = 500
"""Captions and names are cut to so many characters."""
TRUTHS = ("really a mismatch", "really a match")
FLAGGED_AT, REASONS_AT = 5, 9
"""Places in the list of a pair."""
_NAMES = list(REASONS)
_CODES = {name: code for code, name in enumerate(_NAMES)}
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


class Gallery:
    """The worst pairs with their suggestions; each image and caption is stored once and referred to by number."""

    def __init__(self, audit: Findings, rows: np.ndarray, reasons: Reasons | None = None) -> None:
        self.audit = audit
        self.reasons = reasons
        self.images: dict[int, int] = {}
        """Number of an image in the page, by its number in the data."""
        self.captions: dict[str, int] = {}
        self.fixes: dict[str, int] = {}
        self.pictures: list[Thumbnail | None] = []
        pairs = audit.pairs
        self.first_shown, self.rows = first_shown(pairs), pairs.rows
        own = [self._image(int(pairs.image_index[row])) for row in rows]
        self.suspected = len(self.images)
        """The first so many images belong to pairs; the others are only suggested."""
        suggested = () if audit.suggestions is None else audit.suggestions.rows
        place = {int(row): place for place, row in enumerate(suggested)}
        table_rows = self.rows[rows]
        self.pairs: list[list[Any]] = [
            [
                int(table_row),
                image,
                self._caption(pairs.captions[row]),
                _significant(audit.correspondence[row]),
                _number(audit.similarity[row]),
                bool(audit.correspondence[row] < audit.threshold),
                None if pairs.truth is None else bool(pairs.truth[row]),
                *self._suggested(place.get(int(row))),
                *self._why(int(row)),
                "" if reasons is None else plain_caption(reasons.of_words(int(row))),
            ]
            for row, table_row, image in zip(rows, table_rows, own, strict=True)
        ]
        self.names = [plain_name(str(pairs.image_ids[image])) for image in self.images]

    def _image(self, image: int) -> int:
        return self.images.setdefault(image, len(self.images))

    def _caption(self, caption: str) -> int:
        return self.captions.setdefault(plain_caption(caption), len(self.captions))

    def _suggested(self, place: int | None) -> tuple[list[Any], list[Any]]:
        suggestions = self.audit.suggestions
        if suggestions is None or place is None:
            return [], []
        captions = zip(suggestions.captions[place], suggestions.caption_fit[place], strict=True)
        images = zip(suggestions.images[place], suggestions.image_fit[place], strict=True)
        texts = self.audit.pairs.captions
        return (
            [[self._caption(texts[row]), _number(fit)] for row, fit in captions if row >= 0],
            [
                [self._image(int(image)), _number(fit), *self._shown_in(int(image))]
                for image, fit in images
                if image >= 0
            ],
        )

    def _why(self, row: int) -> tuple[list[list[int | None]], int | None]:
        """The numbers of a pair's reasons, each with the row that it points to, and the number of its fix as a text."""
        if self.reasons is None:
            return [], None
        fix = self.reasons.fix(row, named=plain_name)
        found = [[_CODES[name], other] for name, other in self.reasons.of(row)]
        return found, None if fix is None else self.fixes.setdefault(plain_caption(fix), len(self.fixes))

    def counts(self) -> list[tuple[int, str, int]]:
        """Number, words and count of each reason that pairs of the page have; the last is that of none, -1."""
        if self.reasons is None:
            return []
        found = Counter(code for pair in self.pairs for code, _ in pair[REASONS_AT])
        without = sum(pair[FLAGGED_AT] and not pair[REASONS_AT] for pair in self.pairs)
        named = [(code, REASONS[name][0], found[code]) for name, code in _CODES.items() if found[code]]
        return [*named, *([(-1, "none of these", without)] if named and without else [])]

    def _shown_in(self, image: int | np.integer) -> list[str]:
        """A row that shows an image, where suggestions are beliefs that a caption belongs to it."""
        believed = self.audit.suggestions is not None and self.audit.suggestions.fit == "belief"
        return [f"row {self.rows[self.first_shown[image]]}"] if believed else []

    def add_pictures(self, thumbnails: Thumbnails | None, advance: Advance | None) -> None:
        """Make a thumbnail of each image."""
        if thumbnails is None:
            self.pictures = [None] * len(self.images)
            return
        ids = self.audit.pairs.image_ids
        for number, image in enumerate(self.images):
            side = SIDE if number < self.suspected else SUGGESTED_SIDE
            self.pictures.append(thumbnails.make(str(ids[image]), side=side))
            if advance is not None:
                advance(number + 1, len(self.images))

    def data(self) -> Markup:
        """All pairs for the page's script: JSON in ASCII, without characters that have a meaning in HTML."""
        images = [[name, *(picture or (None, 0, 0))] for name, picture in zip(self.names, self.pictures, strict=True)]
        content = {
            "hasCorrespondence": self.audit.has_correspondence,
            "truths": TRUTHS,
            "reasons": list(REASONS.values()),
            "images": images,
            "captions": list(self.captions),
            "fixes": list(self.fixes),
            "pairs": self.pairs,
        }
        return Markup(json.dumps(content, separators=(",", ":"), allow_nan=False).translate(_UNSAFE))

    def cards(self, count: int) -> list[dict[str, Any]]:
        """The first pairs as the template reads them."""
        captions, fixes, cards = list(self.captions), list(self.fixes), []
        for pair in self.pairs[:count]:
            row, image, caption, correspondence, similarity, flagged, truth, others, images, reasons, fix, words = pair
            picture = self.pictures[image] or Thumbnail("", 0, 0)
            cards.append(
                blank_card()
                | {
                    **{"row": row, "name": self.names[image], "caption": captions[caption], "flagged": flagged},
                    **{"thumb": picture.file, "width": picture.width, "height": picture.height},
                    **{"correspondence": _digits(correspondence), "similarity": _decimals(similarity)},
                    "percent": round(100 * (correspondence or 0), 2),
                    "tag": "" if truth is None else TRUTHS[truth],
                    "captions": [(captions[other], _decimals(fit)) for other, fit in others],
                    "images": [
                        (self.names[other], *(self.pictures[other] or ("", 0, 0)), _decimals(fit), "".join(shown_in))
                        for other, fit, *shown_in in images
                    ],
                    "reasons": [told(_NAMES[code], other) for code, other in reasons],
                    "fix": "" if fix is None else fixes[fix],
                    "words": words,
                }
            )
        return cards


def blank_card() -> dict[str, Any]:
    """An empty card with one suggestion of each kind: the template that the page's script fills."""
    texts = dict.fromkeys(("row", "name", "caption", "thumb", "correspondence", "similarity", "tag"), "")
    numbers = dict.fromkeys(("width", "height", "percent"), 0)
    others = {"captions": [("", "")], "images": [("", "", 0, 0, "", "")], "reasons": [""], "fix": "", "words": ""}
    return texts | numbers | {"flagged": True} | others


def _number(value: float | np.floating) -> float | None:
    """A number for JSON: four decimals, None for NaN."""
    return round(float(value), 4) if np.isfinite(value) else None


def _significant(value: float | np.floating) -> float | None:
    """A number for JSON: four significant digits, since correspondences may be very small; None for NaN."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _digits(value: float | None) -> str:
    """Three significant digits, formatted as report.js does."""
    if value is None:
        return "–"
    if value < 1e-6:
        return "<0.000001" if value else "0"
    return f"{value:.{max(2 - int(f'{value:.2e}'[-3:]), 0)}f}"


def _decimals(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def plain_caption(text: str) -> str:
    """A caption cut to `LONGEST`, with control and text-direction characters escaped; line breaks stay."""
    return _plain(text, _shown_in_captions)


def _shown_in_captions(letter: str) -> bool:
    directional = "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069"
    return letter in "\t\n\r" or (unicodedata.category(letter) not in ("Cc", "Cs") and not directional)


def plain_name(text: str) -> str:
    """A name cut to `LONGEST`, with every invisible character escaped: in file names these mislead."""
    return _plain(text, str.isprintable)


def plain_sentence(text: str) -> str:
    """A sentence of the audit, which may name something of the data, with control characters escaped."""
    return _escaped(text, _shown_in_captions)


def _plain(text: str, shown: Callable[[str], bool]) -> str:
    return _escaped(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", shown)


def _escaped(text: str, shown: Callable[[str], bool]) -> str:
    return "".join(c if shown(c) else c.encode("unicode_escape").decode() for c in text)
