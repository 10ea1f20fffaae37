"""What people said of pairs in review: an append-only store in the run folder, safe for several writers at once.

    verdicts.sqlite       steps of reviewers, each with one or more verdicts; an undo is a step that names another one

A step is on disk when `add` returns. The store holds the digest of the run's pairs, so that verdicts on other data are
never taken for verdicts on these.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa

from crcl.errors import InputError
from crcl.runs.about import read_about
from crcl.runs.database import FILE, reading, writing
from crcl.runs.folder import Run

Said = Literal["right", "wrong", "unsure"]
SAID: tuple[str, ...] = get_args(Said)
_LONGEST_NAME = 200
_LONGEST_TEXT = 100_000
_EVENTS = """
SELECT verdicts.step, verdicts.row, verdicts.verdict, verdicts.caption, verdicts.image, steps.reviewer, steps.at,
       verdicts.queue, undo.step IS NOT NULL AS undone
FROM verdicts JOIN steps ON steps.step = verdicts.step LEFT JOIN steps AS undo ON undo.undoes = steps.step
"""
_SCHEMA = pa.schema(
    [("step", pa.int64()), ("row", pa.int64())]
    + [(name, pa.string()) for name in ("verdict", "caption", "image", "reviewer", "at", "queue")]
    + [("undone", pa.bool_())]
)


@dataclass(frozen=True)
class Verdict:
    """What a person said of a pair."""

    row: int
    """Row of the data: the pair's identity."""
    verdict: Said
    caption: str | None = None
    """A corrected caption for the image; the pair as it is shown is wrong."""
    image: str | None = None
    """The id of the image that the caption belongs to instead; the pair as it is shown is wrong."""
    queue: str = ""
    """Where it was given: "worst", "sample", "grid" or "import"."""

    def same(self, other: "Verdict | None") -> bool:
        """Whether two verdicts on a row say the same, wherever they were given."""
        return other is not None and self.content == other.content

    @property
    def content(self) -> tuple[Any, ...]:
        """What it says, without where it was given."""
        return (self.row, self.verdict, self.caption, self.image)


class Step(NamedTuple):
    """Verdicts that a reviewer gave at once, and that an undo takes back at once."""

    reviewer: str
    verdicts: tuple[Verdict, ...]
    at: str | None = None
    """When, if not now: UTC in the form of `now`."""


@dataclass(frozen=True)
class Added:
    """What reviewers did after a step."""

    store: str
    """Tells a store from one that took its place: the time of its first step."""
    newest: int
    """The newest step of the store."""
    said: list[tuple[int, str, str, Verdict]]
    """Step, reviewer, time and verdict, from the oldest to the newest."""
    undone: list[int]
    """Steps that were undone."""


class Verdicts:
    """The verdicts on the pairs of a run. The file is created by the first write."""

    def __init__(self, folder: Path, pairs: str) -> None:
        self.folder = folder
        self._pairs = pairs

    @classmethod
    def open(cls, run: Run | str | Path) -> "Verdicts":
        """The verdicts of a run; raises an error if the file is damaged or has verdicts on other pairs."""
        if isinstance(run, Run):
            found = cls(run.path, run.fingerprint)
        else:
            found = cls(Path(run), str(read_about(Path(run))["fingerprint"]))
        with reading(found.folder, found._pairs):
            return found

    @property
    def path(self) -> Path:
        """The file, which need not exist."""
        return self.folder / FILE

    def add(self, verdicts: Sequence[Verdict], *, reviewer: str, at: str | None = None) -> int:
        """Add verdicts as one step, which is on disk when this returns; returns the number of the step.

        Args:
            verdicts: One or more. Of several on one row the last counts.
            reviewer: Who gave them.
            at: When they were given, if not now: UTC in the form of `now`.
        """
        return self.add_steps([Step(reviewer, tuple(verdicts), at)])[0]

    def add_steps(self, steps: "Sequence[Step]") -> list[int]:
        """Add several steps, all of them or none; they are on disk when this returns their numbers."""
        names = [checked_name(step.reviewer) for step in steps]
        for step in steps:
            if not step.verdicts:
                raise InputError("no verdicts to add")
            for verdict in step.verdicts:
                check(verdict)
        numbers = []
        with writing(self.folder, self._pairs) as connection:
            for name, step in zip(names, steps, strict=True):
                numbers.append(_add_step(connection, name, at=step.at))
                connection.executemany(
                    "INSERT INTO verdicts (step, row, verdict, caption, image, queue) VALUES (?, ?, ?, ?, ?, ?)",
                    [(numbers[-1], one.row, one.verdict, one.caption, one.image, one.queue) for one in step.verdicts],
                )
        return numbers

    def undo(self, *, reviewer: str) -> list[Verdict] | None:
        """Take back the newest step of a reviewer that is not yet undone; None where there is none.

        Nothing is deleted: the undo is an event of its own. Returns the verdicts of the step.
        """
        name = checked_name(reviewer)
        with writing(self.folder, self._pairs) as connection:
            newest = connection.execute(
                "SELECT max(step) FROM steps WHERE reviewer = ? AND undoes IS NULL"
                " AND step NOT IN (SELECT undoes FROM steps WHERE undoes IS NOT NULL)",
                (name,),
            ).fetchone()[0]
            if newest is None:
                return None
            _add_step(connection, name, undoes=newest)
            events = connection.execute(f"{_EVENTS} WHERE verdicts.step = ? ORDER BY verdicts.id", (newest,))
            return [self._verdict(event) for event in events]

    def current(self) -> dict[int, Verdict]:
        """The newest verdict on each row that is not undone, over all reviewers."""
        return {verdict.row: verdict for _, _, verdict in self._valid()}

    def by_reviewer(self) -> dict[str, dict[int, Verdict]]:
        """The newest verdict on each row that is not undone, of each reviewer."""
        return {name: {row: verdict for row, (verdict, _) in rows.items()} for name, rows in self.dated().items()}

    def dated(self) -> dict[str, dict[int, tuple[Verdict, str]]]:
        """As `by_reviewer`, each verdict with its time."""
        found: dict[str, dict[int, tuple[Verdict, str]]] = {}
        for reviewer, at, verdict in self._valid():
            found.setdefault(reviewer, {})[verdict.row] = (verdict, at)
        return found

    def disagreements(self) -> dict[int, dict[str, Verdict]]:
        """Rows on which the newest verdicts of reviewers differ, with the verdict of each reviewer."""
        rows: dict[int, dict[str, Verdict]] = {}
        for reviewer, verdicts in self.by_reviewer().items():
            for row, verdict in verdicts.items():
                rows.setdefault(row, {})[reviewer] = verdict
        return {row: of for row, of in sorted(rows.items()) if len({one.content for one in of.values()}) > 1}

    def history(self) -> pa.Table:
        """Every verdict that was ever added, the oldest step first, and whether it was undone."""
        with reading(self.folder, self._pairs) as connection:
            events = [] if connection is None else connection.execute(f"{_EVENTS} ORDER BY verdicts.id").fetchall()
        for event in events:
            self._verdict(event)
        columns = list(zip(*events, strict=True)) or [()] * len(_SCHEMA)
        columns[-1] = tuple(map(bool, columns[-1]))
        return pa.table([pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)], _SCHEMA)

    def added(self, after: int) -> Added:
        """What was added after a step, so that who has read up to there need not read it all again; 0: everything."""
        with reading(self.folder, self._pairs) as connection:
            if connection is None:
                return Added("", 0, [], [])
            newest = connection.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0]
            first = connection.execute("SELECT at FROM steps ORDER BY step LIMIT 1").fetchone()
            events = connection.execute(f"{_EVENTS} WHERE verdicts.step > ? ORDER BY verdicts.id", (after,))
            said = [(int(event[0]), str(event[5]), str(event[6]), self._verdict(event)) for event in events]
            undone = connection.execute("SELECT undoes FROM steps WHERE step > ? AND undoes IS NOT NULL", (after,))
            return Added(first[0] if first else "", newest, said, [int(step) for (step,) in undone])

    def _valid(self) -> list[tuple[str, str, Verdict]]:
        """Reviewer, time and verdict of what is not undone, from the oldest to the newest."""
        with reading(self.folder, self._pairs) as connection:
            if connection is None:
                return []
            events = connection.execute(
                f"{_EVENTS} WHERE undo.step IS NULL ORDER BY steps.at, verdicts.step, verdicts.id"
            )
            return [(str(event[5]), str(event[6]), self._verdict(event)) for event in events]

    def _verdict(self, event: tuple[Any, ...]) -> Verdict:
        verdict = Verdict(event[1], event[2], event[3], event[4], event[7])
        try:
            check(verdict)
        except InputError as error:
            raise InputError(f"damaged (step {event[0]}: {error.what})", where=self.path) from error
        return verdict


def now() -> str:
    """The time in UTC, as verdicts hold it."""
    return as_utc(datetime.now(UTC))


def as_utc(time: datetime) -> str:
    """A time as text whose alphabetical order is that of time."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def _add_step(
    connection: sqlite3.Connection, reviewer: str, *, at: str | None = None, undoes: int | None = None
) -> int:
    newest = connection.execute("SELECT max(at) FROM steps").fetchone()[0]
    time = at or max(now(), newest or "")  # what is said later is newer, even if a clock was set back
    added = connection.execute(
        "INSERT INTO steps (reviewer, at, undoes) VALUES (?, ?, ?)", (reviewer, time, undoes)
    ).lastrowid
    assert added is not None
    return added


def checked_name(reviewer: Any) -> str:
    """The name of a reviewer; refuses what is none."""
    name = reviewer.strip() if isinstance(reviewer, str) else ""
    if not name or len(name) > _LONGEST_NAME or not _is_text(name):
        raise InputError(f"a reviewer needs a name of at most {_LONGEST_NAME} letters", hint="give {reviewer}")
    return name


def check(verdict: Verdict) -> None:
    """Raise an error unless a verdict can be stored and means one thing."""
    where = f"verdict on row {verdict.row}"
    if type(verdict.row) is not int or not 0 <= verdict.row < 2**63:
        raise InputError(f"a row is a number from 0, got {verdict.row!r}")
    if verdict.verdict not in SAID:
        raise InputError(f"{verdict.verdict!r} is no verdict: {', '.join(SAID)}", where=where)
    for name, text in (("caption", verdict.caption), ("image", verdict.image)):
        if text is None:
            continue
        if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_TEXT or not _is_text(text):
            raise InputError(f"the {name} is empty, too long or no text", where=where)
        if verdict.verdict != "wrong":
            raise InputError(f"another {name} is given, so the verdict must be wrong", where=where)
    if verdict.caption is not None and verdict.image is not None:
        raise InputError("both another caption and another image; give one of them", where=where)
    if not isinstance(verdict.queue, str) or not _is_text(verdict.queue):
        raise InputError("the queue is no text", where=where)


def _is_text(text: str) -> bool:
    try:
        return "\0" not in text and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False
