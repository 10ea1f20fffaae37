"""The review of an audit: its pairs as the page shows them, two queues, filters, and the verdicts on them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from crcl.auditing.reasons import REASONS
from crcl.auditing.reasons import told as told_reason
from crcl.auditing.report.gallery import plain_name, plain_sentence
from crcl.auditing.result import Audit
from crcl.auditing.review.drawing import EACH, draw, strata
from crcl.auditing.review.sample import measure
from crcl.auditing.scores.interval import Interval
from crcl.errors import InputError
from crcl.runs.following import Following
from crcl.runs.verdicts import SAID, Step, Verdict, Verdicts

QUEUES = ("worst", "sample")
LONGEST = 2000
"""Captions are cut to so many characters on the page."""
MOST_SIBLINGS = 20
"""Other captions of an image that are shown."""
_FRESH = 2.0  # seconds after which verdicts of other processes are read
_WORST = 1000  # pairs in the queue of the worst where none is flagged
_measured = lru_cache(16)(measure)  # most verdicts are on pairs outside of the sample


@dataclass(frozen=True)
class Filter:
    """Which pairs the grid shows."""

    queue: str = "worst"
    """`worst`, `sample` or `all`."""
    reason: str = ""
    """In words, as `Audit.reasons` has them."""
    text: str = ""
    """Words that occur in the caption or in the image's name."""
    verdict: str = ""
    """`none`, `right`, `wrong`, `unsure` or `disagreement`."""
    below: float | None = None
    """Only pairs with a lower correspondence; not in the sample, which does not tell it."""


class Review:
    """The pairs of an audit with their verdicts. Safe to use from several threads."""

    def __init__(self, audit: Audit, *, each: int = EACH, seed: int = 0) -> None:
        self.audit = audit
        self.found = audit.findings
        self.pairs = audit.findings.pairs
        self.verdicts = Verdicts.open(audit.run)
        suspects = self.found.suspects
        self.sample = draw(np.isin(np.arange(len(self.pairs)), suspects), each=each, seed=seed)
        worst = suspects if len(suspects) else self.found.rows[:_WORST]
        self.queues = {"worst": worst, "sample": self.sample.pairs}
        self._lock = threading.Lock()
        self._following = Following(self.verdicts)
        self._read_at = -np.inf
        self._judged = np.zeros(len(self.pairs), dtype=bool)

    @cached_property
    def rows(self) -> np.ndarray:
        """(N,) row in the data of each pair."""
        return self.pairs.rows

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Number of the pair by its row in the data."""
        return {row: number for number, row in enumerate(self.rows.tolist())}

    @cached_property
    def _estimated(self) -> dict[str, dict[str, float] | None]:
        """What decoys estimate."""
        audit = self.audit
        each = {"precision": audit.precision, "recall": audit.recall, "rate": audit.rate}
        return {name: _interval(found) for name, found in each.items()}

    @cached_property
    def _sampled(self) -> list[tuple[int, int]]:
        """Number and row of each pair of the sample."""
        return list(zip(self.sample.pairs.tolist(), self.rows[self.sample.pairs].tolist(), strict=True))

    @cached_property
    def _captions_of(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.pairs.image_index, kind="stable")
        return order, np.searchsorted(self.pairs.image_index[order], np.arange(self.pairs.images + 1))

    @cached_property
    def _suggested(self) -> dict[int, int]:
        suggestions = self.found.suggestions
        return {} if suggestions is None else {row: place for place, row in enumerate(suggestions.rows.tolist())}

    @cached_property
    def _lowered(self) -> list[str]:
        images = self.pairs.image_index.tolist()
        names = [str(name).lower() for name in self.pairs.image_ids]
        return [f"{text.lower()} {names[image]}" for text, image in zip(self.pairs.captions, images, strict=True)]

    # ------------------------------------------------------------------ verdicts

    @contextmanager
    def _standing(self) -> Iterator[Following]:
        """The verdicts as they stand, for one thread at a time; what others wrote is read after a moment."""
        with self._lock:
            if time.monotonic() - self._read_at > _FRESH:
                now = time.monotonic()
                for row in self._following.update():
                    if row in self.numbers:
                        self._judged[self.numbers[row]] = row in self._following.current
                self._read_at = now
            yield self._following

    def _forget(self) -> None:
        with self._lock:
            self._read_at = -np.inf

    def judge(self, steps: Sequence[Step]) -> list[int]:
        """Store steps, all of them or none; they are on disk when this returns their numbers."""
        unknown = [verdict.row for step in steps for verdict in step.verdicts if verdict.row not in self.numbers]
        if unknown:
            raise InputError(f"row {unknown[0]} is not among the judged pairs")
        numbers = self.verdicts.add_steps(steps)
        self._forget()
        return numbers

    def undo(self, reviewer: str) -> list[Verdict] | None:
        """Take back the newest step of a reviewer; None where there is none."""
        undone = self.verdicts.undo(reviewer=reviewer)
        self._forget()
        return undone

    # ------------------------------------------------------------------ pairs

    def caption(self, number: int) -> str:
        """A caption as the page shows it."""
        return shown_text(self.pairs.captions[number])

    def brief(self, number: int, *, blind: bool = False) -> dict[str, Any]:
        """A pair as the grid shows it; `blind` leaves out what would sway a reviewer."""
        image, row = int(self.pairs.image_index[number]), int(self.rows[number])
        with self._standing() as standing:
            verdict, differs = standing.current.get(row), row in standing.differing
        belief = self.found.correspondence[number]
        return {
            "number": number,
            "row": row,
            "image": image,
            "name": plain_name(str(self.pairs.image_ids[image])),
            "caption": self.caption(number),
            "blind": blind,
            "correspondence": None if blind else _digits(belief),
            "p_wrong": None if blind or self.found.p_wrong is None else _digits(self.found.p_wrong[number]),
            "suspect": None if blind else bool(belief < self.found.threshold),
            "verdict": None if verdict is None else told(verdict),
            "disagreement": differs,
        }

    def full(self, number: int, *, blind: bool = False) -> dict[str, Any]:
        """A pair as the review shows it: with reasons, the image's other captions and suggestions."""
        why = self.audit.why
        fix = None if blind else why.fix(number, named=plain_name)
        with self._standing() as standing:
            said = {} if blind else standing.differing.get(int(self.rows[number]), {})
        return self.brief(number, blind=blind) | {
            "similarity": None if blind else _digits(self.found.similarity[number]),
            "reasons": [] if blind else [told_reason(*reason) for reason in why.of(number)],
            "fix": None if fix is None else shown_text(fix),
            "words": "" if blind else shown_text(why.of_words(number)),
            "siblings": self.siblings(number),
            "said": [{"reviewer": shown_text(name), **told(verdict)} for name, verdict in said.items()],
            **self._suggestions(None if blind else self._suggested.get(number)),
        }

    def siblings(self, number: int) -> list[dict[str, Any]]:
        """The image's other captions."""
        others = self.of_image(int(self.pairs.image_index[number]), most=MOST_SIBLINGS + 1)
        return [other for other in others if other["number"] != number][:MOST_SIBLINGS]

    def of_image(self, image: int, *, most: int = MOST_SIBLINGS) -> list[dict[str, Any]]:
        """The captions of an image."""
        order, starts = self._captions_of
        numbers = order[starts[image] : min(starts[image + 1], starts[image] + most)].tolist()
        return [{"number": other, "row": int(self.rows[other]), "caption": self.caption(other)} for other in numbers]

    def fitting(self, number: int, fit: float) -> dict[str, Any]:
        """A caption that fits an image, and the image that it is shown with."""
        image = int(self.pairs.image_index[number])
        return {"number": number, "caption": self.caption(number), "image": image, "fit": _digits(fit)}

    def _suggestions(self, place: int | None) -> dict[str, list[dict[str, Any]]]:
        suggestions = self.found.suggestions
        if suggestions is None or place is None:
            return {"captions": [], "images": []}
        captions = zip(suggestions.captions[place].tolist(), suggestions.caption_fit[place], strict=True)
        images = zip(suggestions.images[place].tolist(), suggestions.image_fit[place], strict=True)
        return {
            "captions": [self.fitting(other, fit) for other, fit in captions if other >= 0],
            "images": [
                {"image": other, "name": plain_name(str(self.pairs.image_ids[other])), "fit": _digits(fit)}
                for other, fit in images
                if other >= 0
            ],
        }

    # ------------------------------------------------------------------ queues

    def place(self, queue: str, place: int) -> dict[str, Any]:
        """The pair at a place of a queue."""
        pairs = self.queues[queue]
        following = self.pairs.image_index[pairs[place + 1]] if place + 1 < len(pairs) else None
        return self.full(int(pairs[place]), blind=queue == "sample") | {
            "place": place,
            "queue": queue,
            "total": len(pairs),
            "next_image": None if following is None else int(following),
        }

    def next_place(self, queue: str, after: int) -> int | None:
        """The first place after this one whose pair has no verdict, from the start after the end; None: all done."""
        with self._standing():
            open_places = np.flatnonzero(~self._judged[self.queues[queue]])
        later = open_places[open_places > after]
        return int((later if len(later) else open_places)[0]) if len(open_places) else None

    def place_of(self, queue: str, row: int) -> int | None:
        """The place of a row in a queue."""
        found = np.flatnonzero(self.queues[queue] == self.numbers.get(row, -1))
        return int(found[0]) if len(found) else None

    def progress(self) -> dict[str, Any]:
        """How much of each queue is done, what the sample measures, and what decoys estimate."""
        with self._standing() as standing:
            done = {queue: int(self._judged[pairs].sum()) for queue, pairs in self.queues.items()}
            said = {pair: standing.current[row] for pair, row in self._sampled if row in standing.current}
            counts = Counter(str(verdict.verdict) for verdict in standing.current.values())
            differing = len(standing.differing)
        wrong = {pair: None if one.verdict == "unsure" else one.verdict == "wrong" for pair, one in said.items()}
        places = [at for at, (pair, _) in enumerate(self._sampled) if pair in said and said[pair].queue == "sample"]
        groups = strata(self.sample, wrong, max(places, default=-1))
        measured = _measured(*groups)
        return {
            "queues": {queue: {"total": len(pairs), "done": done[queue]} for queue, pairs in self.queues.items()},
            "verdicts": {word: counts[word] for word in SAID},
            "disagreements": differing,
            "measured": {
                "precision": _interval(measured.precision),
                "recall": _interval(measured.recall),
                "rate": _interval(measured.rate),
                "flagged": groups[0].judged,
                "unflagged": groups[1].judged,
            },
            "estimated": self._estimated,
        }

    # ------------------------------------------------------------------ grid

    def matching(self, chosen: Filter) -> list[int]:
        """Numbers of the pairs that a filter leaves."""
        queue = self.found.rows if chosen.queue == "all" else self.queues[chosen.queue]
        numbers = queue.tolist()
        if chosen.below is not None and chosen.queue != "sample":
            numbers = [number for number in numbers if self.found.correspondence[number] < chosen.below]
        words = chosen.text.lower().split()
        if words:
            numbers = [number for number in numbers if all(word in self._lowered[number] for word in words)]
        if chosen.reason and chosen.queue != "sample":
            why = self.audit.why
            held = [holds for name, holds in why.holds.items() if REASONS[name][0] == chosen.reason]
            having = {number for holds in held for number in why.suspects[holds].tolist()}
            numbers = [number for number in numbers if number in having]
        if chosen.verdict:
            with self._standing() as standing:
                numbers = [number for number in numbers if _has(chosen.verdict, int(self.rows[number]), standing)]
        return numbers

    def disagreements(self) -> list[dict[str, Any]]:
        """Pairs on which reviewers differ, with what each of them said."""
        with self._standing() as standing:
            differing = sorted(standing.differing.items())
        known = [(self.numbers[row], said) for row, said in differing if row in self.numbers]
        return [
            self.brief(number)
            | {"said": [{"reviewer": shown_text(name), **told(verdict)} for name, verdict in said.items()]}
            for number, said in known
        ]


def _has(wanted: str, row: int, standing: Following) -> bool:
    if wanted == "disagreement":
        return row in standing.differing
    return standing.current[row].verdict == wanted if row in standing.current else wanted == "none"


def shown_text(text: str) -> str:
    """A text as the page shows it: of limited length, without control characters."""
    return plain_sentence(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def told(verdict: Verdict) -> dict[str, Any]:
    """A verdict for the page."""
    return {
        "verdict": verdict.verdict,
        "caption": None if verdict.caption is None else shown_text(verdict.caption),
        "image": None if verdict.image is None else plain_name(verdict.image),
    }


def _digits(value: float | np.floating) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _interval(found: Interval | None) -> dict[str, float] | None:
    if found is None or not np.isfinite(found):
        return None
    return {"value": round(float(found), 4), "low": round(found.low, 4), "high": round(found.high, 4)}
