"""A user's own table: a TOML file, of which everything is checked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crcl.config import all_keys, keys_of, read_toml
from crcl.data.noise import LEVELS
from crcl.errors import InputError, did_you_mean
from crcl.experiments.declared import (
    ANY_DATA,
    NAMES,
    PROFILES,
    SCORES,
    ZERO_SHOT,
    of_the_paper,
    own,
    profile,
    swept_name,
)
from crcl.matchers import MATCHERS
from crcl.methods import METHODS

Rates = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1)]
Runs = list[Annotated[str, Field(pattern="^[^/]+/[^/]+$")]]
PaperNumbers = list[Annotated[list[float], Field(min_length=len(SCORES), max_length=len(SCORES))]]


class _Table(BaseModel):
    """A part of a user's file: unknown keys are refused, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _UsersRow(_Table):
    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, PaperNumbers]
    name: Annotated[str, Field(min_length=1)]
    noise: Rates | None = None
    runs: Runs = []
    set: list[str] = []
    model: str | None = None


class _UsersSweep(_Table):
    name: Annotated[str, Field(min_length=1)]
    key: str
    values: Annotated[list[float], Field(min_length=1)]
    runs: Annotated[Runs, Field(min_length=1)]


class _RowsOf(_Table):
    table: Literal[NAMES]  # type: ignore[valid-type]
    names: list[str] | None = None


class _UsersTable(_Table):
    title: str = ""
    figure: Literal["robustness", "bars", "sweeps", "epochs"] = "bars"
    notes: list[str] = []
    notes_of_matchers: list[str] = []
    columns: Annotated[list[str], Field(min_length=1)] = list(ANY_DATA)
    noise: Rates | None = None
    level: Literal[LEVELS] = LEVELS[0]  # type: ignore[valid-type]
    rows: list[_UsersRow] = []
    rows_of: _RowsOf | None = None
    sweeps: list[_UsersSweep] = []
    distributions: list[_UsersRow] = []


def read(path: Path) -> dict[str, Any]:
    """The content of a user's file; reports all problems at once."""
    problems: list[InputError] = []
    content = read_toml(path, problems)
    if path.stem in NAMES:
        what = f"{path.stem} is a table of the paper"
        problems.append(InputError(what, where=path, hint="give the file another name"))
    if not problems:
        try:
            lines = list(_contradictions(_UsersTable.model_validate(content)))
        except ValidationError as error:
            lines = [_in_words(details) for details in error.errors()]
        problems = [InputError(line, where=path) for line in lines]
    if problems:
        raise InputError.several(problems)
    return content


def _in_words(details: Any) -> str:
    """The message of one pydantic error, as `rows[2].runs[0]: problem, given value`."""
    where = details["loc"]
    place = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in where)[1:]
    parts: dict[Any, type[BaseModel]] = {"sweeps": _UsersSweep, "rows_of": _RowsOf}
    known = parts.get(where[0], _UsersTable).model_fields
    if details["type"] == "extra_forbidden":
        return f"{place}: unknown key{did_you_mean(where[-1], known)}; there are {', '.join(known)}"
    if details["type"] == "string_pattern_mismatch":
        return f"{place}: must be recipe/matcher, as in crcl/vse, got {details['input']!r}"
    if details["type"] == "missing":
        return f"{place}: is missing"
    problem = details["msg"].replace("Input should be", "must be").replace("List should", "must")
    strange = where[0] in ("rows", "distributions") and len(where) > 2 and where[2] not in _UsersRow.model_fields
    near = did_you_mean(where[2], _UsersRow.model_fields) if strange else ""
    return f"{place}: {problem}, got {details['input']!r}{near}"


def _contradictions(table: _UsersTable) -> Iterator[str]:
    """Problems with combinations of valid entries, and with names that do not exist."""
    if not (table.rows or table.rows_of or table.sweeps):
        yield "has no rows: give [[rows]], [rows_of] or [[sweeps]]"
    if table.figure == "sweeps" and not table.sweeps:
        yield "figure: sweeps draws [[sweeps]], and there are none"
    sources = profile(PROFILES[0]).sources
    for column in table.columns:
        if column not in sources:
            yield f"columns: no data set '{column}'{did_you_mean(column, sources)}; there are {', '.join(sources)}"
    taken = {row.name for row in of_the_paper(table.rows_of.table).rows} if table.rows_of else set()
    for name in (table.rows_of.names if table.rows_of else None) or ():
        if name not in taken:
            yield f"rows_of.names: no row '{name}'{did_you_mean(name, taken)}; there are {', '.join(sorted(taken))}"
    wanted = taken & set((table.rows_of.names if table.rows_of else None) or taken)
    swept = [swept_name(sweep.name, value) for sweep in table.sweeps for value in sweep.values]
    names = [*wanted, *(row.name for row in table.rows), *swept]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"rows: two are called '{name}'"
    for kind, rows in (("rows", table.rows), ("distributions", table.distributions)):
        for number, row in enumerate(rows, 1):
            for line in _wrong_row(row, table, numbers=kind == "rows"):
                yield f"{kind}[{number}] ({row.name}): {line}"
    for number, sweep in enumerate(table.sweeps, 1):
        if table.noise is None:
            yield f"sweeps[{number}] ({sweep.name}): the table does not say noise, the rates of mismatches"
        for line in (*_wrong_runs(sweep.runs, None), *_wrong_settings([f"{sweep.key}=0"])):
            yield f"sweeps[{number}] ({sweep.name}): {line}"


def _wrong_row(row: _UsersRow, table: _UsersTable, *, numbers: bool) -> Iterator[str]:
    noise = row.noise or table.noise
    if noise is None:
        yield "neither it nor the table says noise, the rates of mismatches"
    for column, lines in (row.__pydantic_extra__ or {}).items():
        if column not in table.columns:
            known = [*_UsersRow.model_fields, *table.columns]
            yield f"{column}: unknown key{did_you_mean(column, known)}; there are {', '.join(known)}"
        elif noise is not None and len(lines) != len(noise):
            yield f"{column}: {len(lines)} lines of numbers for {len(noise)} rates"
    if not numbers and len(row.runs) != 1:
        yield f"runs: one is drawn, not {len(row.runs)}"
    yield from _wrong_runs(row.runs, row.model)
    yield from _wrong_settings(row.set)


def _wrong_runs(runs: Sequence[str], model: str | None) -> Iterator[str]:
    known = dict.fromkeys([*(name for one in PROFILES for name in profile(one).recipes), *METHODS])
    for run in runs:
        recipe, _, matcher = run.partition("/")
        if recipe not in known and recipe != ZERO_SHOT:
            yield f"runs: no recipe or method '{recipe}'{did_you_mean(recipe, known)}; there are {', '.join(known)}"
        if matcher not in MATCHERS:
            yield f"runs: no matcher '{matcher}'{did_you_mean(matcher, MATCHERS)}; there are {', '.join(MATCHERS)}"
        begun = [name for name, record in MATCHERS.items() if record.pretrained]
        if (matcher in begun) != (model is not None):
            yield f"runs: {' or '.join(begun)}, and no other matcher, needs a model (its name on the hub)"


def _wrong_settings(settings: Sequence[str]) -> Iterator[str]:
    known = all_keys()
    for key in keys_of(settings):
        if key not in known:
            yield f"{key}: unknown key{did_you_mean(key, known)}"
    for key, _ in own(settings):
        yield f"{key}: what a row is about cannot be set; runs, noise and model say it"
