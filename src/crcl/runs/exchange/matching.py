"""Lines of a table as verdicts on the pairs of a run, and verdicts as lines; image and caption identify a pair."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, get_args

from crcl.data.files import refuse
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.runs.exchange.files import Line
from crcl.runs.verdicts import Said, Step, Verdict, Verdicts, as_utc, check, checked_name

IMPORTED = "import"
"""Where verdicts were given, if their table does not say."""


@dataclass(frozen=True)
class Imported:
    """How many verdicts of a table are new, and how many the run had already."""

    added: int
    known: int


class _Spoken:
    """A line that means something: a verdict, who gave it, and when."""

    def __init__(self, line: Line, verdict: Verdict, reviewer: str, at: str | None) -> None:
        self.place, self.verdict, self.reviewer, self.at = line.place, verdict, reviewer, at


class Pairing:
    """The pairs of a run, to be found by what lines say of them."""

    def __init__(self, pairs: Split) -> None:
        self.pairs = pairs
        self.rows: list[int] = pairs.rows.tolist()
        self.number = {row: number for number, row in enumerate(self.rows)}
        self.names = [str(name) for name in pairs.image_ids]
        self.images = {name.strip(): name for name in reversed(self.names)}

    def shown(self, row: int) -> tuple[str, str]:
        """Image and caption of a row."""
        number = self.number[row]
        return self.names[self.pairs.image_index[number]], self.pairs.captions[number]

    @cached_property
    def _by_content(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in self.rows:
            image, caption = self.shown(row)
            found[image.strip(), caption.strip()].append(row)
        return found

    def find(self, row: int | None, image: str, caption: str) -> list[int]:
        """The rows that a line means: the named one, if it shows this pair, or all that show it."""
        pair = image.strip(), caption.strip()
        if row is None:
            if pair not in self._by_content:
                raise InputError(f"no training pair has image '{image}' and caption '{_short(caption)}'")
            return self._by_content[pair]
        if row not in self.number:
            raise InputError(f"row {row} is no training pair of the data")
        there = self.shown(row)
        if pair != (there[0].strip(), there[1].strip()):
            raise InputError(
                f"row {row} of the data shows '{there[0]}' with '{_short(there[1])}', not '{image}' with "
                f"'{_short(caption)}'",
                hint="where rows have moved, leave the column 'row' out: pairs are then found by image and caption",
            )
        return [row]


def to_lines(verdicts: Verdicts, pairs: Split) -> list[dict[str, Any]]:
    """The newest verdict of each reviewer on each row, the oldest first, as lines of a table."""
    known = Pairing(pairs)
    found = [
        (at, verdict.row, reviewer, verdict)
        for reviewer, rows in verdicts.dated().items()
        for verdict, at in rows.values()
    ]
    lost = sorted({row for _, row, _, _ in found if row not in known.number})
    if lost:
        raise InputError(f"has a verdict on row {lost[0]}, which is no training pair", where=verdicts.path)
    lines = []
    for at, row, reviewer, verdict in sorted(found, key=lambda one: one[:3]):
        image, caption = known.shown(row)
        lines.append(
            {
                "row": row,
                "image": image,
                "caption": caption,
                "verdict": verdict.verdict,
                "new_caption": verdict.caption,
                "new_image": verdict.image,
                "reviewer": reviewer,
                "at": at,
                "queue": verdict.queue,
            }
        )
    return lines


def given_steps(verdicts: Verdicts) -> list[Step]:
    """The newest verdict of each reviewer on each row, as steps."""
    steps: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for reviewer, rows in verdicts.dated().items():
        for verdict, at in rows.values():
            steps[reviewer, at].append(verdict)
    return [Step(reviewer, tuple(given), at) for (reviewer, at), given in steps.items()]


def to_steps(lines: Sequence[Line], pairs: Split, *, reviewer: str = IMPORTED) -> list[Step]:
    """Lines as steps, one for each reviewer and time; reports every line that means nothing at once.

    Args:
        lines: What `files.read_table` returns.
        pairs: The pairs of the run, as they are shown.
        reviewer: Who gave verdicts whose line does not say.
    """
    known, problems = Pairing(pairs), []
    spoken: list[_Spoken] = []
    for line in lines:
        try:
            spoken += _read(line, known, reviewer)
        except InputError as error:
            problems.append(InputError(error.what, where=line.place, hint=error.hint))
    refuse([*problems, *_contradictions(spoken)])
    steps: dict[tuple[str, str | None], list[Verdict]] = defaultdict(list)
    for one in spoken:
        steps[one.reviewer, one.at].append(one.verdict)
    return [Step(name, tuple(verdicts), at) for (name, at), verdicts in steps.items()]


def new_steps(steps: Sequence[Step], verdicts: Verdicts) -> list[Step]:
    """The steps without verdicts that are there already, so that a second import of a file changes nothing.

    A verdict with a time is there if the same reviewer said the same of the row at that time; one without, if that is
    what the reviewer says of the row now.
    """
    table = verdicts.history().to_pylist()
    events = {
        (one["reviewer"], one["at"], one["row"], one["verdict"], one["caption"], one["image"])
        for one in table
        if not one["undone"]
    }
    newest = verdicts.by_reviewer()

    def there(step: Step, verdict: Verdict) -> bool:
        if step.at is not None:
            return (step.reviewer, step.at, *verdict.content) in events
        return verdict.same(newest.get(step.reviewer, {}).get(verdict.row))

    left = [step._replace(verdicts=tuple(one for one in step.verdicts if not there(step, one))) for step in steps]
    return [step for step in left if step.verdicts]


def add_lines(lines: Sequence[Line], verdicts: Verdicts, pairs: Split, *, reviewer: str = IMPORTED) -> Imported:
    """Add what lines of a table say, all of it or nothing."""
    steps = to_steps(lines, pairs, reviewer=reviewer)
    fresh = new_steps(steps, verdicts)
    if fresh:
        verdicts.add_steps(fresh)
    added = sum(len(step.verdicts) for step in fresh)
    return Imported(added, sum(len(step.verdicts) for step in steps) - added)


def newest(steps: Sequence[Step]) -> dict[int, Verdict]:
    """The verdict that counts on each row: the newest, and of those without a time the last."""
    dated = sorted(steps, key=lambda step: step.at or "9999")
    return {verdict.row: verdict for step in dated for verdict in step.verdicts}


def _read(line: Line, known: Pairing, reviewer: str) -> Iterator[_Spoken]:
    texts = {name: _text(name, line.values.get(name)) for name in ("image", "caption", "new_caption", "new_image")}
    image, caption = texts["image"], texts["caption"]
    if image is None or caption is None:
        raise InputError(f"no {'image' if image is None else 'caption'}")
    said = (_text("verdict", line.values.get("verdict")) or "").strip().lower()
    if said not in get_args(Said):
        raise InputError(f"'{_short(said)}' is no verdict: {', '.join(get_args(Said))}")
    target = texts["new_image"]
    if target is not None:
        if target.strip() not in known.images:
            raise InputError(f"'{_short(target)}' is no image of the training pairs")
        target = known.images[target.strip()]
    name = checked_name(_text("reviewer", line.values.get("reviewer")) or reviewer)
    at, queue = _time(line.values.get("at")), _text("queue", line.values.get("queue")) or IMPORTED
    for row in known.find(_row(line.values.get("row")), image, caption):
        verdict = Verdict(row, said, texts["new_caption"], target, queue)  # type: ignore[arg-type]
        check(verdict)
        yield _Spoken(line, verdict, name, at)


def _text(name: str, value: Any) -> str | None:
    """A cell as text; None where it is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str):
        raise InputError(f"'{name}' is no text")
    return value if value.strip() else None


def _row(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is int:
        return value
    text = _text("row", value)
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 19):
        raise InputError(f"'{_short(text)}' is no row, a number from 0")
    return int(text)


def _time(value: Any) -> str | None:
    """A time as verdicts hold it; one without a zone is UTC."""
    if value is None or value != value:  # NaN and pandas' NaT
        return None
    if isinstance(value, datetime):
        found = value
    else:
        text = _text("at", value)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InputError(f"'{_short(text)}' is no time such as 2026-11-18T17:30:00+00:00") from None
    try:
        return as_utc(found if found.tzinfo is not None else found.replace(tzinfo=UTC))
    except (OverflowError, ValueError):
        raise InputError(f"'{value}' is no time") from None


def _contradictions(spoken: Sequence[_Spoken]) -> list[InputError]:
    """An error for each line that says otherwise of a pair than one of the same reviewer and time before it."""
    first: dict[tuple[str, str | None, int], _Spoken] = {}
    problems = []
    for one in spoken:
        before = first.setdefault((one.reviewer, one.at, one.verdict.row), one)
        if not one.verdict.same(before.verdict):
            what = f"says otherwise of the same pair than {before.place}"
            problems.append(InputError(what, where=one.place, hint="keep one of them, or give them times (at)"))
    return problems


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 60 else f"{plain[:59]}…"


def records_of(given: Any) -> list[Mapping[str, Any]]:
    """The lines of a table in memory: a DataFrame, an Arrow table, or a list of mappings."""
    if hasattr(given, "to_pylist"):
        given = given.to_pylist()
    elif hasattr(given, "to_dict"):
        given = given.to_dict("records")
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise InputError(
            "not a table of verdicts", hint="give a .csv or .jsonl file, a DataFrame, or a list of mappings"
        )
    return [{str(key): value for key, value in one.items()} for one in given]
