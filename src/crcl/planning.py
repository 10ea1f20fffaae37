"""From declared experiments to what has to be trained and measured, each with a hash of what determines it."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crcl import inputs, recipe
from crcl.config import MATCHERS_OF, METHOD_NAMES, Config, to_dict
from crcl.errors import InputError
from crcl.experiments import Experiment, Profile, Row, Source
from crcl.matchers import MATCHERS

FILES = ("data.vocab", "data.features", "data.text_features", "data.ids", "noise.file", "mscn.trusted")
"""Settings that name a file: a run is determined by its content, wherever it is."""
SAMPLED = 32  # images whose features tell one data set from another


@dataclass(frozen=True)
class Job:
    """One training."""

    key: str
    about: str
    seed: int
    config: Config
    words: tuple[str, ...]
    """Of `crcl train`, but for the run folder."""

    def command(self, folder: Path) -> list[str]:
        """The words that train it, or go on with it, anywhere."""
        return ["crcl", "train", *self.words, "-o", str(folder), "--resume"]


@dataclass(frozen=True)
class Trial:
    """One measurement: a run, or the mean similarities of several, on a split."""

    jobs: tuple[Job, ...]
    split: str
    folds: int
    fingerprint: str
    """Of the split."""

    @property
    def key(self) -> str:
        return _hash([[job.key for job in self.jobs], self.split, self.folds, self.fingerprint])

    def alone(self, job: Job) -> "Trial":
        return Trial((job,), self.split, self.folds, self.fingerprint)


@dataclass(frozen=True)
class Entry:
    """A row of a table at one rate of mismatches, with a trial for each seed."""

    row: Row
    trials: tuple[Trial, ...]
    trained: str


@dataclass(frozen=True)
class Block:
    """The rows of a table on one data set at one rate."""

    label: str
    columns: dict[str, str]
    """The paper's data sets that these data stand for, and their names."""
    noise: float
    entries: tuple[Entry, ...]

    @property
    def title(self) -> str:
        rate = f"{100 * self.noise:g} % of the training pairs mismatched" if self.noise else "no mismatches put in"
        return f"{self.label}, {rate}"


@dataclass
class Planner:
    """From declared experiments to jobs; what cannot be trained is said before anything is."""

    profile: Profile
    data: Path
    seeds: int = 3
    settings: tuple[str, ...] = ()
    matcher: str | None = None
    """Train every row on this one instead of on its own."""
    rates: tuple[float, ...] = ()
    """Only these rates of mismatches; none: all."""
    _fingerprints: dict[tuple[str, ...], str] = field(default_factory=dict)

    def blocks(self, experiment: Experiment) -> list[Block]:
        """What to measure for a table, by data set and rate."""
        rates = [rate for rate in experiment.rates if not self.rates or rate in self.rates]
        if experiment.rows and not rates:
            there = ", ".join(f"{rate:g}" for rate in experiment.rates)
            raise InputError(f"{experiment.name}: has the rates {there}, not {', '.join(f'{r:g}' for r in self.rates)}")
        return [
            Block(self.label(source), columns, rate, self._entries(experiment, source, rate))
            for source, columns in self.sources(experiment)
            for rate in rates
        ]

    def distributions(self, experiment: Experiment) -> list[tuple[str, Job]]:
        """Runs whose training pairs are looked at, with the first seed on the first data set."""
        rows = [row for row in experiment.distributions if not self.rates or row.noise[0] in self.rates]
        if not rows:
            return []
        source, _ = self.sources(experiment)[0]
        return [(row.name, self._jobs(row, source, row.noise[0], 0)[0]) for row in rows]

    def sources(self, experiment: Experiment) -> list[tuple[Source, dict[str, str]]]:
        """The data sets of a table that are there, each with the columns of the paper that it stands for."""
        found: dict[tuple[Path, str, int], tuple[Source, dict[str, str]]] = {}
        for column in experiment.columns:
            source = self.profile.sources[column]
            if self.folder(source).exists():
                where = (self.folder(source), source.split, source.folds)
                found.setdefault(where, (source, {}))[1][column] = source.name
        if not found and experiment.columns:
            folders = ", ".join(sorted({str(self.folder(self.profile.sources[name])) for name in experiment.columns}))
            raise InputError(f"{experiment.name}: none of its data is there: {folders}; say with --data where they are")
        return list(found.values())

    def left_out(self, experiment: Experiment) -> list[str]:
        """The data sets of a table that are not there, in words."""
        wanted = [self.profile.sources[column] for column in experiment.columns]
        absent = [source for source in wanted if not self.folder(source).exists()]
        return [f"{source.name} ({source.folder} is not in {self.data.name})" for source in absent]

    def folder(self, source: Source) -> Path:
        return self.data / source.folder

    def label(self, source: Source) -> str:
        """What the data are called: in a profile of any data, as their folder."""
        return self.data.resolve().name if source.folder == "." else source.name

    def _entries(self, experiment: Experiment, source: Source, rate: float) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        trained: dict[Any, str] = {}
        rows = [row for row in experiment.rows if rate in row.noise]
        own = sorted(rows, key=lambda row: self.matcher not in {matcher for _, matcher in row.runs})
        for row in own:  # where one matcher is asked for, rows that it makes equal are trained as the one that has it
            runs = self._runs(row)
            same = trained.setdefault((runs, row.settings), row.name) if self.matcher and runs else row.name
            if same != row.name or not runs:
                entries.append(Entry(row, (), f"as {same}" if same != row.name else self._why_not(row)))
                continue
            fingerprint = self.fingerprint(source, source.split)
            trials = tuple(
                Trial(self._jobs(row, source, rate, seed), source.split, source.folds, fingerprint)
                for seed in range(self.seeds)
            )
            entries.append(Entry(row, trials, " + ".join(f"{name} on {matcher}" for name, matcher in runs)))
        return tuple(sorted(entries, key=lambda entry: rows.index(entry.row)))

    def _why_not(self, row: Row) -> str:
        return f"does not go with {self.matcher}" if row.runs else "not implemented"

    def _runs(self, row: Row) -> tuple[tuple[str, str], ...]:
        """What is trained for a row; nothing where its method does not go with the matcher that is asked for."""
        if self.matcher is None:
            return row.runs
        names = dict.fromkeys(name for name, _ in row.runs)
        methods = {name: self.profile.recipe(name).method for name in names}
        return tuple(
            (name, self.matcher)
            for name in names
            if self.matcher in MATCHERS_OF.get(methods[name], ((self.matcher,), ""))[0]
        )

    def _jobs(self, row: Row, source: Source, rate: float, seed: int) -> tuple[Job, ...]:
        return tuple(self._job(row, name, matcher, source, rate, seed) for name, matcher in self._runs(row))

    def _job(self, row: Row, name: str, matcher: str, source: Source, rate: float, seed: int) -> Job:
        chosen = self.profile.recipe(name)
        for what, wanted, there in (("matcher", matcher, MATCHERS), ("method", chosen.method, METHOD_NAMES)):
            if wanted not in there:
                raise InputError(f"{row.name}: needs the {what} {wanted}, which this version of crcl does not have")
        folder = self.folder(source)
        preset = source.presets.get(matcher, source.preset)
        settings = (
            *chosen.settings_for(matcher=matcher, folder=source.folder, noise=rate),
            *self.settings,
            *row.settings,
        )
        base: dict[str, Any] = {"method": chosen.method, "matcher.name": matcher, "data.path": str(folder.absolute())}
        base |= {"noise.rate": rate, "noise.seed": seed, "train.seed": seed}
        config = recipe.asked_config(preset=preset, base=base, settings=settings)
        words = [str(folder.absolute()), "--preset", preset, "--method", chosen.method, "--matcher", matcher]
        words += ["--noise", str(rate), "--noise-seed", str(seed), "--seed", str(seed)]
        words += [word for setting in settings for word in ("--set", setting)]
        about = ", ".join([f"{name} on {matcher}", *row.settings, self.label(source), f"{100 * rate:g} % mismatched"])
        key = job_key(config, self.fingerprint(source, "train", "dev"))
        return Job(key, f"{about}, seed {seed}", seed, config, tuple(words))

    def fingerprint(self, source: Source, *splits: str) -> str:
        """What splits are known by: captions, images, and features of some images."""
        known = (str(self.folder(source)), *splits)
        if known not in self._fingerprints:
            self._fingerprints[known] = _hash([self._fingerprint(known[0], split) for split in splits])
        return self._fingerprints[known]

    def _fingerprint(self, folder: str, split: str) -> list[str]:
        # a table's files are settings, and are read with them
        config = recipe.asked_config(base={"data.path": folder}, settings=self.settings)
        pairs = inputs.read_split(config, split)
        sample = pairs.gather(np.unique(np.linspace(0, pairs.images - 1, SAMPLED).astype(int)))
        shape = f"{pairs.images} x {pairs.features.shape[1:]}"
        return [pairs.fingerprint(), shape, hashlib.sha256(sample.tobytes()).hexdigest()]


def job_key(config: Config, fingerprint: str) -> str:
    """A hash of what determines a run: its settings, the content of its data and files, not where they are."""
    sections = to_dict(config)
    settings = {"method": sections.pop("method")}
    settings |= {f"{section}.{leaf}": value for section, part in sections.items() for leaf, value in part.items()}
    files = {key: settings[key] for key in FILES if settings[key] is not None}
    contents = {key: hashlib.sha256(Path(path).read_bytes()).hexdigest() for key, path in files.items()}
    told = {key: value for key, value in settings.items() if key not in recipe.FREE_TO_CHANGE}
    return _hash([told, contents, fingerprint])


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
