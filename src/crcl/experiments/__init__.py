"""The paper's tables and figures as declared data, and the profiles that say how large a run is.

A table is a TOML file, here or of the user: rows with the runs that they need and the paper's numbers. A run is
`recipe/matcher`, where a recipe is one of the profile's (a compared method with its schedule) or a method as
`crcl train --method` takes it.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crcl.config import KEYS, MATCHER_NAMES, METHOD_NAMES, keys_of, read_toml
from crcl.errors import InputError, did_you_mean

SCORES = ("i2t R@1", "i2t R@5", "i2t R@10", "t2i R@1", "t2i R@5", "t2i R@10", "rSum")
"""What the numbers of a row are, ours and the paper's."""
NAMES = (
    *("table1", "table2", "table3", "table4", "supp-table2", "supp-table3"),
    *("fig2", "supp-fig-c", "supp-fig-params", "supp-fig-losses"),
)
PROFILES = ("cpu", "paper")
ZERO_SHOT = "zero-shot"
"""A recipe that trains nothing: a published model as it comes."""
OWN = {
    "method": "the rows of a table say it",
    "matcher.name": "give --matcher",
    "matcher.model": "give --model",
    "noise": "give --noise, and --seeds",
    "train.seed": "give --seeds",
    "train.start": "no row begins from another run",
    "data.path": "give --data",
}
"""Keys, or sections, that say what a row is about, so that no setting may; and what to do instead."""

ANY_DATA = ("f30k",)
"""The column of a table that names none: that of a profile for any data."""

Numbers = tuple[float, ...]
"""One value for each of SCORES."""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    noise: tuple[float, ...]
    """Rates of mismatched pairs."""
    runs: tuple[tuple[str, str], ...] = ()
    """Recipe and matcher; several are an ensemble, none: the paper's numbers are all there is."""
    settings: tuple[str, ...] = ()
    model: str | None = None
    """The published model that the row is about, by its name on the hub."""
    paper: dict[str, tuple[Numbers, ...]] | None = None
    """The paper's numbers by column, one for each rate."""
    sweep: tuple[str, float] | None = None
    """The parameter that this row varies, and its value."""

    def published(self, column: str, rate: float) -> Numbers | None:
        """The paper's numbers, where it has some."""
        there = (self.paper or {}).get(column)
        return None if there is None else there[self.noise.index(rate)]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    figure: str
    file: str = ""
    """The user's file that declares it; none: it is of the paper."""
    notes: tuple[str, ...] = ()
    notes_of_matchers: tuple[str, ...] = ()
    """Those that hold only where each row has its own matchers."""
    columns: tuple[str, ...] = ()
    """The paper's data sets."""
    rows: tuple[Row, ...] = ()
    distributions: tuple[Row, ...] = ()
    """Runs whose similarities and beliefs of the training pairs are drawn."""
    bound: dict[str, float] | None = None

    @property
    def rates(self) -> list[float]:
        return sorted({rate for row in self.rows for rate in row.noise})


@dataclass(frozen=True)
class Source:
    """Data of a profile, how they are evaluated on, and the presets of their trainings."""

    name: str
    folder: str
    split: str
    folds: int
    preset: str
    presets: dict[str, str]
    """By matcher; others take `preset`."""


@dataclass(frozen=True)
class Recipe:
    """A method with its schedule; `when` has further settings for a matcher, a folder, or from a noise rate on."""

    method: str
    settings: tuple[str, ...] = ()
    when: tuple[dict[str, Any], ...] = ()

    def settings_for(self, *, matcher: str, folder: str, noise: float) -> tuple[str, ...]:
        """All settings that hold there, in the order of the file."""
        found = list(self.settings)
        for case in self.when:
            same = case.get("matcher", matcher) == matcher and case.get("folder", folder) == folder
            if same and noise >= case.get("noise", 0.0):
                found += case["set"]
        return tuple(found)


@dataclass(frozen=True)
class Profile:
    """How large the runs are, and on what data."""

    name: str
    sources: dict[str, Source]
    recipes: dict[str, Recipe]
    between_matchers: str = ""
    """What to know where rows on different matchers stand beside each other."""

    def recipe(self, name: str) -> Recipe:
        """A compared method with its schedule, or a method with that of its preset."""
        return self.recipes.get(name, Recipe(name))


def experiment(name: str) -> Experiment:
    """A declared table or figure of the paper, or a user's (`FILE.toml`)."""
    if name.endswith(".toml"):
        return _experiment(Path(name).stem, _read_users(Path(name)), file=Path(name).name)
    if name not in NAMES:
        there = f"there are {', '.join(NAMES)}, and tables of your own (FILE.toml)"
        raise InputError(f"no experiment '{name}'{did_you_mean(name, NAMES)}; {there}")
    return _experiment(name, _read(f"{name}.toml"))


def _experiment(name: str, content: dict[str, Any], *, file: str = "") -> Experiment:
    columns, noise = tuple(content.get("columns", ANY_DATA)), content.get("noise", ())
    rows = [_row(entry, columns, noise) for entry in content.get("rows", ())]
    if taken := content.get("rows_of"):
        there = {row.name: row for row in experiment(taken["table"]).rows}
        rows += [there[wanted] for wanted in taken.get("names", there)]
    for sweep in content.get("sweeps", ()):
        rows += _swept(sweep, noise)
    several = len({rate for row in rows for rate in row.noise}) > 1
    return Experiment(
        name=name,
        title=content.get("title", name),
        figure=content.get("figure", "robustness" if several else "bars"),
        file=file,
        notes=tuple(content.get("notes", ())),
        notes_of_matchers=tuple(content.get("notes_of_matchers", ())),
        columns=columns if rows else (),
        rows=tuple(rows),
        distributions=tuple(_row(entry, columns, noise) for entry in content.get("distributions", ())),
        bound=content.get("bound"),
    )


def profile(name: str) -> Profile:
    """A shipped profile."""
    if name not in PROFILES:
        raise InputError(f"no profile '{name}'{did_you_mean(name, PROFILES)}; there are {', '.join(PROFILES)}")
    content = _read("profiles", f"{name}.toml")
    sources: dict[str, Source] = {}
    for key, entry in content["data"].items():
        same = entry.get("same_as")
        sources[key] = replace(sources[same], name=entry["name"]) if same else Source(**entry)
    recipes = {
        key: Recipe(entry["method"], tuple(entry.get("set", ())), tuple(entry.get("when", ())))
        for key, entry in content["recipes"].items()
    }
    return Profile(name, sources, recipes, content.get("between_matchers", ""))


def _read(*path: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("crcl").joinpath("experiments", *path).read_text(encoding="utf-8"))


Rates = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1)]
Runs = list[Annotated[str, Field(pattern="^[^/]+/[^/]+$")]]
PaperNumbers = list[Annotated[list[float], Field(min_length=len(SCORES), max_length=len(SCORES))]]


class _Table(BaseModel):
    """A part of a user's file: what is not known is refused, and nothing converted."""

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
    rows: list[_UsersRow] = []
    rows_of: _RowsOf | None = None
    sweeps: list[_UsersSweep] = []
    distributions: list[_UsersRow] = []


def _read_users(path: Path) -> dict[str, Any]:
    """A user's file, all that is wrong with it reported at once."""
    errors: list[str] = []
    content = read_toml(path, errors)
    if path.stem in NAMES:
        errors.append(f"{path}: {path.stem} is a table of the paper; give the file another name")
    if not errors:
        try:
            errors = [f"{path}: {line}" for line in _contradictions(_UsersTable.model_validate(content))]
        except ValidationError as error:
            errors = [f"{path}: {_in_words(details)}" for details in error.errors()]
    if errors:
        raise InputError("\n".join(errors))
    return content


def _in_words(details: Any) -> str:
    """`rows[2].runs[0]: what is wrong, and what was given` of one pydantic error."""
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
    told = details["msg"].replace("Input should be", "must be").replace("List should", "must")
    strange = where[0] in ("rows", "distributions") and len(where) > 2 and where[2] not in _UsersRow.model_fields
    near = did_you_mean(where[2], _UsersRow.model_fields) if strange else ""
    return f"{place}: {told}, got {details['input']!r}{near}"


def _contradictions(table: _UsersTable) -> Iterator[str]:
    """What is right by itself, but not together, or names what is not there."""
    if not (table.rows or table.rows_of or table.sweeps):
        yield "has no rows: give [[rows]], [rows_of] or [[sweeps]]"
    if table.figure == "sweeps" and not table.sweeps:
        yield "figure: sweeps draws [[sweeps]], and there are none"
    sources = profile(PROFILES[0]).sources
    for column in table.columns:
        if column not in sources:
            yield f"columns: no data set '{column}'{did_you_mean(column, sources)}; there are {', '.join(sources)}"
    taken = {row.name for row in experiment(table.rows_of.table).rows} if table.rows_of else set()
    for name in (table.rows_of.names if table.rows_of else None) or ():
        if name not in taken:
            yield f"rows_of.names: no row '{name}'{did_you_mean(name, taken)}; there are {', '.join(sorted(taken))}"
    wanted = taken & set((table.rows_of.names if table.rows_of else None) or taken)
    names = [*wanted, *(row.name for row in table.rows)]
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
    known = dict.fromkeys([*(name for one in PROFILES for name in profile(one).recipes), *METHOD_NAMES])
    for run in runs:
        recipe, _, matcher = run.partition("/")
        if recipe not in known and recipe != ZERO_SHOT:
            yield f"runs: no recipe or method '{recipe}'{did_you_mean(recipe, known)}; there are {', '.join(known)}"
        if matcher not in MATCHER_NAMES:
            near = did_you_mean(matcher, MATCHER_NAMES)
            yield f"runs: no matcher '{matcher}'{near}; there are {', '.join(MATCHER_NAMES)}"
        if (matcher == "clip") != (model is not None):
            yield "runs: clip, and no other matcher, needs a model (its name on the hub)"


def _wrong_settings(settings: Sequence[str]) -> Iterator[str]:
    for key in keys_of(settings):
        if key not in KEYS:
            yield f"{key}: unknown key{did_you_mean(key, KEYS)}"
    for key, _ in own(settings):
        yield f"{key}: what a row is about cannot be set; runs, noise and model say it"


def own(settings: Sequence[str]) -> list[tuple[str, str]]:
    """The keys among settings that say what a row is about, and what to do instead."""
    found = {key: OWN.get(key) or OWN.get(key.partition(".")[0]) for key in keys_of(settings)}
    return [(key, instead) for key, instead in found.items() if instead]


def _row(entry: dict[str, Any], columns: Sequence[str], noise: Sequence[float]) -> Row:
    return Row(
        name=entry["name"],
        noise=tuple(entry.get("noise", noise)),
        runs=_runs(entry.get("runs", ())),
        settings=tuple(entry.get("set", ())),
        model=entry.get("model"),
        paper={column: tuple(map(tuple, entry[column])) for column in columns if column in entry},
    )


def _swept(entry: dict[str, Any], noise: Sequence[float]) -> list[Row]:
    """A row for each value of a parameter."""
    return [
        Row(
            name=f"{entry['name']} = {value:g}",
            noise=tuple(noise),
            runs=_runs(entry["runs"]),
            settings=(f"{entry['key']}={value}",),
            sweep=(entry["name"], value),
        )
        for value in entry["values"]
    ]


def _runs(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = [name.split("/") for name in names]
    return tuple((recipe, matcher) for recipe, matcher in pairs)
