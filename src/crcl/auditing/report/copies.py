"""The copies that an audit found, as the report shows them: a sentence for each kind, and its first examples."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from crcl.auditing.copies import Duplicates, counted
from crcl.auditing.report.gallery import plain_caption, plain_name

EXAMPLES = 10
"""Examples of each kind."""


class Kind(NamedTuple):
    """A sentence on one kind of copies, with examples in words, and how many more there are."""

    sentence: str
    examples: list[str]
    more: int


def kinds_of_copies(found: Duplicates | None) -> list[Kind]:
    """The kinds of copies that there are; none without an audit's list of copies."""
    if found is None:
        return []
    shown: dict[str, Callable[[], tuple[list[str], int]]] = {
        "images": lambda: _groups(found.images),
        "near": lambda: _lines(found.near, _near),
        "captions": lambda: _lines(found.captions, _caption),
        "generic": lambda: _lines(found.generic, _caption),
    }
    return [Kind(sentence, *(shown[kind]() if kind in shown else ([], 0))) for kind, sentence in found.told().items()]


def _lines(table: pa.Table, told: Callable[[dict[str, Any]], str]) -> tuple[list[str], int]:
    lines = [told(row) for row in table.slice(0, EXAMPLES).to_pylist()]
    return lines, len(table) - len(lines)


def _near(row: dict[str, Any]) -> str:
    names = [f"{plain_name(row[name])} (row {row[at]})" for name, at in (("image", "row"), ("near_image", "near_row"))]
    return f"{' and '.join(names)}: {row['similarity']:.3f}"


def _caption(row: dict[str, Any]) -> str:
    counts = (counted(row[name], name.removesuffix("s"), name) for name in ("pairs", "images"))
    return f"{plain_caption(row['caption'])} – {', '.join(counts)}"


def _groups(table: pa.Table) -> tuple[list[str], int]:
    """Exact copies, one line for each group."""
    groups: dict[int, list[str]] = {}
    for row in table.to_pylist():
        groups.setdefault(row["group"], []).append(f"{plain_name(row['image'])} (row {row['row']})")
    lines = []
    for names in list(groups.values())[:EXAMPLES]:
        rest = len(names) - EXAMPLES
        lines.append(", ".join(names[:EXAMPLES]) + (f" and {rest:,} more" if rest > 0 else ""))
    return lines, len(groups) - len(lines)
