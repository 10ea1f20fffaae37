"""What is declared: tables with their rows, and profiles with data and recipes."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from crcl.config import keys_of
from crcl.data.noise import LEVELS
from crcl.errors import InputError, did_you_mean

SCORES = ("i2t R@1", "i2t R@5", "i2t R@10", "t2i R@1", "t2i R@5", "t2i R@10", "rSum")
"""The scores in each row, both ours and the paper's."""
NAMES = (
    *("table1", "table2", "table3", "table4", "supp-table2", "supp-table3"),
    *("fig2", "supp-fig-c", "supp-fig-params", "supp-fig-losses"),
)
PROFILES = ("cpu", "paper")
ZERO_SHOT = "zero-shot"
"""The recipe of a published model that is evaluated without training."""
OWN = {
    "method": "the rows of a table say it",
    "matcher.name": "give {matcher}",
    "matcher.model": "give {model}",
    "noise": "give {noise}, and {seeds}",
    "noise.level": "give {noise_level}",
    "train.seed": "give {seeds}",
    "train.start": "no row begins from another run",
    "data.path": "give {data}",
}
"""Keys and sections that rows set themselves, so that settings must not; each with the advice to give."""

ANY_DATA = ("f30k",)
"""The column of a table without data sets; profiles for any data have this one."""

Numbers = tuple[float, ...]
"""One value for each of SCORES."""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    noise: tuple[float, ...]
    """Rates of mismatched pairs."""
    runs: tuple[tuple[str, str], ...] = ()
    """Recipe and matcher of each run; several form an ensemble; without any, the row has the paper's numbers only."""
    settings: tuple[str, ...] = ()
    model: str | None = None
    """The hub name of the row's published model."""
    paper: dict[str, tuple[Numbers, ...]] | None = None
    """The paper's numbers by column, one for each rate."""
    sweep: tuple[str, float] | None = None
    """The parameter that this row varies, and its value."""
    level: str = LEVELS[0]
    """Whether single captions are mismatched, or whole images with all their captions; the same in all rows."""

    def published(self, column: str, rate: float) -> Numbers | None:
        """The paper's numbers for a column and rate; None if it has none."""
        there = (self.paper or {}).get(column)
        return None if there is None else there[self.noise.index(rate)]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    figure: str
    file: str = ""
    """The user's file that declares it; None for those of the paper."""
    notes: tuple[str, ...] = ()
    notes_of_matchers: tuple[str, ...] = ()
    """Notes that apply only if each row has its own matchers."""
    columns: tuple[str, ...] = ()
    """The paper's data sets."""
    rows: tuple[Row, ...] = ()
    distributions: tuple[Row, ...] = ()
    """Runs whose similarities and correspondences of the training pairs are plotted."""
    bound: dict[str, float] | None = None

    @property
    def rates(self) -> list[float]:
        return sorted({rate for row in self.rows for rate in row.noise})


@dataclass(frozen=True)
class Source:
    """A data set of a profile: its folder, its test split and the presets for training on it."""

    name: str
    folder: str
    split: str
    folds: int
    preset: str
    presets: dict[str, str]
    """Presets by matcher; other matchers use `preset`."""


@dataclass(frozen=True)
class Recipe:
    """A method with its schedule; `when` adds settings for a matcher, for a folder, or from a noise rate upwards."""

    method: str
    settings: tuple[str, ...] = ()
    when: tuple[dict[str, Any], ...] = ()

    def settings_for(self, *, matcher: str, folder: str, noise: float) -> tuple[str, ...]:
        """All settings that apply to a matcher, folder and noise rate, in the order of the file."""
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
    """Notes for tables whose rows use different matchers."""

    def recipe(self, name: str) -> Recipe:
        """The recipe of this name, or the method of this name with its preset's schedule."""
        return self.recipes.get(name, Recipe(name))


def of_the_paper(name: str) -> Experiment:
    """A table or figure of the paper."""
    return built(name, _read(f"{name}.toml"))


def built(name: str, content: dict[str, Any], *, file: str = "") -> Experiment:
    """The experiment that a valid file declares."""
    columns, noise = tuple(content.get("columns", ANY_DATA)), content.get("noise", ())
    level = content.get("level", LEVELS[0])
    rows = [_row(entry, columns, noise) for entry in content.get("rows", ())]
    if taken := content.get("rows_of"):
        there = {row.name: row for row in of_the_paper(taken["table"]).rows}
        rows += [there[wanted] for wanted in taken.get("names", there)]
    for sweep in content.get("sweeps", ()):
        rows += _swept(sweep, noise)
    plotted = [_row(entry, columns, noise) for entry in content.get("distributions", ())]
    several = len({rate for row in rows for rate in row.noise}) > 1
    return Experiment(
        name=name,
        title=content.get("title", name),
        figure=content.get("figure", "robustness" if several else "bars"),
        file=file,
        notes=tuple(content.get("notes", ())),
        notes_of_matchers=tuple(content.get("notes_of_matchers", ())),
        columns=columns if rows else (),
        rows=tuple(replace(row, level=level) for row in rows),
        distributions=tuple(replace(row, level=level) for row in plotted),
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


def own(settings: Sequence[str]) -> list[tuple[str, str]]:
    """Settings that rows set themselves, each with the advice to give."""
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
            name=swept_name(entry["name"], value),
            noise=tuple(noise),
            runs=_runs(entry["runs"]),
            settings=(f"{entry['key']}={value}",),
            sweep=(entry["name"], value),
        )
        for value in entry["values"]
    ]


def swept_name(name: str, value: float) -> str:
    """The name of the row for one value of a parameter."""
    return f"{name} = {value:g}"


def _runs(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = [name.split("/") for name in names]
    return tuple((recipe, matcher) for recipe, matcher in pairs)
