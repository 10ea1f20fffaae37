"""Public functions for verdicts: export_verdicts, import_verdicts."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from crcl.api.common import AnyRun, path_of, run_data
from crcl.data.split import Split
from crcl.runs.describe import stored_config
from crcl.runs.exchange.files import COLUMNS, check_ending, given_lines, read_table, write_verdicts
from crcl.runs.exchange.matching import IMPORTED, Imported, add_lines, records_of, to_lines
from crcl.runs.folder import Run
from crcl.runs.verdicts import Verdicts
from crcl.training.inputs import audited_pairs

_SCHEMA = pa.schema([(name, pa.int64() if name == "row" else pa.string()) for name in COLUMNS])


def export_verdicts(
    run: AnyRun, path: str | Path | None = None, *, data: Any = None, overwrite: bool = False
) -> pa.Table:
    """The verdicts of a run as a table, for other tools, another run or a backup.

    Every reviewer's newest verdict on each pair is a row, with the pair's row, image and caption; what was undone is
    left out. In CSV a text that a spreadsheet would take for a formula (it begins with = + - @) has an apostrophe
    before it, which `import_verdicts` takes off again; JSONL has every text as it is.

    Args:
        run: A run, or the folder of an audit.
        path: A `.csv` or `.jsonl` file to write; none, if not given.
        data: The run's data, if it has moved: a path or pairs.
        overwrite: Replace an existing file.

    Returns:
        The table: row, image, caption, verdict, new_caption, new_image, reviewer, at, queue.

    Example:
        >>> crcl.export_verdicts("pairs-audit", "verdicts.csv").num_rows
        1
    """
    if path is not None:
        check_ending(Path(path))
    opened, pairs = _opened(run, data)
    lines = to_lines(Verdicts.open(opened), pairs)
    if path is not None:
        write_verdicts(Path(path), lines, overwrite=overwrite)
    return pa.Table.from_pylist(lines, schema=_SCHEMA)


def import_verdicts(run: AnyRun, source: Any, *, reviewer: str = IMPORTED, data: Any = None) -> Imported:
    """Add verdicts from a table to those of a run: a file that `export_verdicts` or another tool wrote.

    A table needs the columns image, caption and verdict (right, wrong or unsure). It may have new_caption or new_image,
    what would be right instead of what is wrong; row, which must show that image and caption; reviewer, at, queue.
    Without row, a verdict is on every pair with that image and caption. Importing a file twice changes nothing; a file
    with errors is refused as a whole, and all of them are told.

    Args:
        run: A run, or the folder of an audit.
        source: A `.csv` or `.jsonl` file; or a DataFrame, an Arrow table or a list of mappings.
        reviewer: Who gave verdicts whose line does not say.
        data: The run's data, if it has moved: a path or pairs.

    Returns:
        How many verdicts were added, and how many were there already.

    Example:
        >>> pair = ["row", "image", "caption"]
        >>> worst = crcl.audit("pairs-audit/run").table.select(pair).slice(0, 2).to_pylist()
        >>> crcl.import_verdicts("pairs-audit", [{**one, "verdict": "wrong"} for one in worst], reviewer="Ana")
        Imported(added=2, known=0)
    """
    lines = read_table(Path(source)) if isinstance(source, str | Path) else given_lines(records_of(source))
    opened, pairs = _opened(run, data)
    return add_lines(lines, Verdicts.open(opened), pairs, reviewer=reviewer)


def _opened(run: AnyRun, data: Any) -> tuple[Run, Split]:
    """A run, and its pairs as they are shown."""
    opened = Run.open(path_of(run))
    config = stored_config(opened)
    return opened, audited_pairs(opened, config, run_data(config, data))
