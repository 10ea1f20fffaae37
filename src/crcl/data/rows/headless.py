"""Lists of addresses and captions without a header, separated by a tab: CC3M (caption first), CC12M (address first)."""

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from crcl.data.files import refuse, require, undecodable
from crcl.data.rows.tables import tidied
from crcl.errors import InputError

EXPECTED = "lines of caption<TAB>address or address<TAB>caption"
_LOOKED_AT = 2**16  # bytes at the beginning of a file by which it is recognised
_CHUNK = 100_000  # rows that are gathered before they become part of the table


class Order(NamedTuple):
    """The places of address and caption in a line."""

    image: int
    caption: int


def is_address(name: str) -> bool:
    """Whether the name of an image is an address on the web."""
    return name.lstrip().lower().startswith(("http://", "https://"))


def values_of(line: str) -> list[str] | None:
    """The two values of a line, and its correspondence if it is marked; None for other lines, which are no rows."""
    values = line.rstrip("\r\n").split("\t")
    if len(values) == 2 or (len(values) == 3 and _is_correspondence(values[2])):
        return values
    return None


def _is_correspondence(text: str) -> bool:
    try:
        return not text or 0 <= float(text) <= 1
    except ValueError:
        return False


def order_of(path: Path) -> Order | None:
    """Which of the two values is the address, by the first lines; None if the file is no such list."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LOOKED_AT)
    except OSError:
        return None
    lines = raw.decode("utf-8-sig", "replace").split("\n")
    found = [values_of(line) for line in (lines if len(raw) < _LOOKED_AT else lines[:-1]) if line.strip()]
    rows = [values for values in found if values is not None]
    if not rows or found[0] is None:
        return None
    shares = [sum(is_address(values[place]) for values in rows) / len(rows) for place in (0, 1)]
    if max(shares) <= 0.5 or shares[0] == shares[1] or not any(map(is_address, rows[0])):
        return None  # the first line may be a header
    return Order(0, 1) if shares[0] > shares[1] else Order(1, 0)


def read_headless(path: Path) -> tuple[pa.Table, int]:
    """The rows of such a list, and how many lines are no rows."""
    require(path, purpose=EXPECTED)
    order = order_of(path)
    if order is None:
        raise InputError(f"expected {EXPECTED}, without a header", where=path)
    chunks: list[pa.Table] = []
    rows: list[list[str]] = []
    others = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                values = values_of(line)
                if values is not None:
                    rows.append(values)
                elif line.strip():
                    others += 1
                if len(rows) == _CHUNK:
                    chunks.append(_table(rows, order))
                    rows = []
    except UnicodeDecodeError:
        with path.open("rb") as bad:
            refuse(undecodable(path, list(bad)))
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path) from error
    return tidied(str(path), pa.concat_tables([*chunks, _table(rows, order)])), others


def _table(rows: list[list[str]], order: Order) -> pa.Table:
    columns = {name: [values[place] for values in rows] for name, place in zip(Order._fields, order, strict=True)}
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
