"""Writing a list of addresses and captions without a header again, line by line as it is."""

from pathlib import Path

from crcl.data.cleaning.judged import Judged, written
from crcl.data.rows.headless import Order, values_of


def clean_headless(path: Path, order: Order, judged: Judged, output: Path) -> int:
    """Write a list again; returns the number of its rows. Lines that are no rows stay."""
    return written(output, lambda temporary: _write(path, order, judged, temporary))


def _write(path: Path, order: Order, judged: Judged, output: Path) -> int:
    row = 0
    with (
        path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as source,
        output.open("w", encoding="utf-8", errors="surrogateescape", newline="") as target,
    ):
        for line in source:
            values = values_of(line)
            if values is None:
                target.write(line)
                continue
            judged.check(row, values[order.image], values[order.caption])
            if judged.mark and len(values) > 2:
                raise judged.has_column()
            if row in judged.moved:
                values[order.image] = judged.moved[row]
            if row in judged.corrected:
                values[order.caption] = judged.one_line(row)
            if judged.mark:
                belief = judged.correspondence.get(row)
                values.append("" if belief is None else str(belief))
            if judged.keeps(row):
                target.write("\t".join(values) + line[len(line.rstrip("\r\n")) :])
            row += 1
    judged.check_count(row)
    return row
