"""From declared experiments to the trainings and measurements that they need."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crcl.config import Config, DataConfig, keys_of
from crcl.data.noise import LEVELS
from crcl.data.rows.stored import default_features
from crcl.errors import InputError, did_you_mean
from crcl.experiments.blocks import Block, Entry, Job, Trial
from crcl.experiments.declared import ZERO_SHOT, Experiment, Profile, Row, Source, own
from crcl.experiments.keys import absolute_setting, hashed, is_read, job_key, key_of, split_digests
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.training import checks, inputs, session

OF_REGIONS = ("data.features", "data.ids", "data.text_features", "data.vocab", "data.standardize")
"""Settings of features and words, which do not apply to published models."""
PIXELS = ("features.npy", "ids.txt")
"""The files in a folder of pixels."""
NO_MODEL = "none"
"""Given instead of a model's folder to leave out its rows."""


@dataclass
class Planner:
    """Plans the trainings of experiments; raises an error before anything is trained if some of them cannot be."""

    profile: Profile
    data: Path
    seeds: int = 3
    settings: tuple[str, ...] = ()
    matcher: str | None = None
    """Train every row on this matcher instead of its own."""
    rates: tuple[float, ...] = ()
    """Only these rates of mismatches; empty for all."""
    level: str | None = None
    """Mismatch captions or images; None: as the tables say."""
    pixels: Path | None = None
    """Folder with the pixels of a table's images, for published models."""
    models: dict[str, str] = field(default_factory=dict)
    """Folders, or other hub names, of published models by their hub names."""
    _fingerprints: dict[tuple[str, ...], str] = field(default_factory=dict)
    _with_vectors: list[DataConfig] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse settings that contradict the rows; make paths absolute."""
        if self.matcher in MATCHERS and MATCHERS[self.matcher].pretrained:
            raise InputError(
                f"{self.matcher} begins as a published model, which rows that read regions do not have",
                where="matcher",
                hint="table3 has rows of such models",
            )
        if self.level is not None and self.level not in LEVELS:
            expected = f"expected {' or '.join(LEVELS)}"
            raise InputError(f"'{self.level}', {expected}{did_you_mean(self.level, LEVELS)}", where="noise level")
        self.settings = tuple(absolute_setting(setting) for setting in self.settings)
        wrong = [
            InputError("what a row is about cannot be set", where=key, hint=instead)
            for key, instead in own(self.settings)
        ]
        if wrong:
            raise InputError.several(wrong)

    def of_rates(self, wanted: Sequence[Experiment]) -> tuple[list[Experiment], list[str]]:
        """The experiments that have a requested rate, and a sentence about each of the others; an error if none has."""
        none = [experiment for experiment in wanted if experiment.rows and not self._rates(experiment)]
        others = [
            f"{experiment.name} (has the rates {_listed(experiment.rates)}, not {_listed(self.rates)})"
            for experiment in none
        ]
        if none and len(none) == len(wanted):
            raise InputError(f"leaves nothing of {'; '.join(others)}", where="noise")
        rates = {rate for experiment in wanted for rate in self._rates(experiment)}
        if self.level is not None and rates == {0.0}:
            raise InputError(f"no {self.level} is mismatched at the rate 0, the only one here", where="noise level")
        return [experiment for experiment in wanted if experiment not in none], others

    def _rates(self, experiment: Experiment) -> list[float]:
        return [rate for rate in experiment.rates if not self.rates or rate in self.rates]

    def blocks(self, experiment: Experiment) -> list[Block]:
        """The blocks of a table, one per data set and rate."""
        return [
            Block(
                self.label(source),
                columns,
                rate,
                self._entries(experiment, source, rate),
                self.level or experiment.rows[0].level,
            )
            for source, columns in self.sources(experiment)
            for rate in self._rates(experiment)
        ]

    def distributions(self, experiment: Experiment) -> list[tuple[str, Job]]:
        """Runs whose training pairs are plotted: first seed, first data set."""
        rows = [row for row in experiment.distributions if not self._not_drawn(row)]
        if not rows:
            return []
        source, _ = self.sources(experiment)[0]
        return [(row.name, self._jobs(row, source, row.noise[0], 0)[0]) for row in rows]

    def _not_drawn(self, row: Row) -> str:
        """Why a distribution is not plotted; empty if it is."""
        if self.rates and row.noise[0] not in self.rates:
            return f"it is of the rate {row.noise[0]:g}"
        return "" if self._runs(row) else self._why_not(row)

    def sources(self, experiment: Experiment) -> list[tuple[Source, dict[str, str]]]:
        """The existing data sets of a table, each with the paper's columns that it stands for."""
        found: dict[tuple[Path, str, int], tuple[Source, dict[str, str]]] = {}
        for column in experiment.columns:
            source = self._source(experiment, column)
            if self.folder(source).exists():
                where = (self.folder(source), source.split, source.folds)
                found.setdefault(where, (source, {}))[1][column] = source.name
        if not found and experiment.columns:
            folders = ", ".join(sorted({str(self.folder(self.profile.sources[name])) for name in experiment.columns}))
            raise InputError(
                f"none of its data is there: {folders}", where=experiment.name, hint="say with {data} where they are"
            )
        return list(found.values())

    def left_out(self, experiment: Experiment) -> list[str]:
        """Sentences about missing data sets and other parts of a table that are left out."""
        wanted = [self._source(experiment, column) for column in experiment.columns]
        absent = [source for source in wanted if not self.folder(source).exists()]
        lines = [f"{source.name} ({source.folder} is not in {self.data.resolve().name})" for source in absent]
        lacking = [rate for rate in self.rates if experiment.rows and rate not in experiment.rates]
        if lacking:
            there = _listed(experiment.rates)
            lines.append(f"{experiment.name} at the rates {_listed(lacking)} (it has {there})")
        why = {row.name: self._not_drawn(row) for row in experiment.distributions}
        return lines + [f"the distributions {name} ({reason})" for name, reason in why.items() if reason]

    def _source(self, experiment: Experiment, column: str) -> Source:
        """A data set of the profile; a file of pairs may replace the only data set of a table."""
        source = self.profile.sources[column]
        alone = self.data.is_file() and len(experiment.columns) == 1
        return replace(source, folder=".", split="test") if alone else source

    def folder(self, source: Source) -> Path:
        return self.data / source.folder

    def label(self, source: Source) -> str:
        """The name of a data set; in a profile for any data, the name of its folder."""
        return self.data.resolve().name if source.folder == "." else source.name

    def _entries(self, experiment: Experiment, source: Source, rate: float) -> tuple[Entry, ...]:
        rows = [row for row in experiment.rows if rate in row.noise]
        entries: list[Entry] = []
        for row in rows:
            runs = self._runs(row)
            if not runs:
                entries.append(Entry(row, (), self._why_not(row)))
                continue
            alike = [other for other in rows if self._makes_equal(row, other)]
            shown = self._shown_of(alike)
            if row is alike[0] and shown not in alike:
                entries.append(self._entry(shown, source, rate))
            entries.append(self._entry(row, source, rate) if row is shown else Entry(row, (), f"as {shown.name}"))
        return tuple(entries)

    def _makes_equal(self, row: Row, other: Row) -> bool:
        """Whether two rows are equal once the requested matcher replaces their own."""
        if row is other or self.matcher is None:
            return row is other
        what = [(self._runs(one), one.settings, one.model) for one in (row, other)]
        return what[0] == what[1]

    def _shown_of(self, alike: Sequence[Row]) -> Row:
        """The row to show for equal rows: the one with this matcher, or one named after what is trained."""
        if len(alike) == 1:
            return alike[0]
        first = alike[0]
        named = ", ".join([" + ".join(name for name, _ in self._runs(first)), *first.settings])
        having = (row for row in alike if self.matcher in {matcher for _, matcher in row.runs})
        return next(having, replace(first, name=named, paper=None))

    def _entry(self, row: Row, source: Source, rate: float) -> Entry:
        runs, fingerprint = self._runs(row), self.fingerprint(row, source, source.split)
        seeds = 1 if all(name == ZERO_SHOT for name, _ in runs) else self.seeds
        trials = tuple(
            Trial(self._jobs(row, source, rate, seed), source.split, source.folds, fingerprint) for seed in range(seeds)
        )
        return Entry(row, trials, " + ".join(f"{name} on {matcher}" for name, matcher in runs))

    def _why_not(self, row: Row) -> str:
        if not row.runs:
            return "not implemented"
        if row.model is not None:
            return "its model is left out"
        return f"does not go with {self.matcher}" if self._has_regions() else "no features of regions are given"

    def _runs(self, row: Row) -> tuple[tuple[str, str], ...]:
        """The runs of a row; empty if its method does not work with the requested matcher.

        A row about a published model keeps it, and so does one that is fitted in closed form.
        """
        if row.model is not None:
            return () if self.models.get(row.model) == NO_MODEL else row.runs
        if not self._has_regions():
            return ()
        if self.matcher is None:
            return row.runs
        wanted = dict.fromkeys((name, self._instead_of(matcher, name, self.matcher)) for name, matcher in row.runs)
        return tuple((name, one) for name, one in wanted if _work_together(self.profile.recipe(name).method, one))

    def _instead_of(self, matcher: str, name: str, requested: str) -> str:
        """The matcher that a run is trained on instead of its own: the requested one.

        A run that is fitted in closed form stays so, by the matcher that reads captions as the requested one does.
        """
        if requested not in MATCHERS or not is_fitted(self.profile.recipe(name).method, matcher):
            return requested
        vectors = MATCHERS[requested].reads_vectors
        alike = [one for one, record in MATCHERS.items() if record.closed_form and record.reads_vectors == vectors]
        return matcher if matcher in alike else alike[0]

    def _jobs(self, row: Row, source: Source, rate: float, seed: int) -> tuple[Job, ...]:
        return tuple(self._job(row, name, matcher, source, rate, seed) for name, matcher in self._runs(row))

    def _job(self, row: Row, name: str, matcher: str, source: Source, rate: float, seed: int) -> Job:
        if name == ZERO_SHOT:
            return self._untrained(row, matcher, source)
        chosen = self.profile.recipe(name)
        for what, wanted, there in (("matcher", matcher, MATCHERS), ("method", chosen.method, METHODS)):
            if wanted not in there:
                raise InputError(f"needs the {what} {wanted}, which this version of crcl does not have", where=row.name)
        folder = self.folder(source)
        preset = source.presets.get(matcher, source.preset)
        settings = (
            *chosen.settings_for(matcher=matcher, folder=source.folder, noise=rate),
            *self._asked(row),
            *(absolute_setting(setting) for setting in row.settings),
            *([f"matcher.model={self._model(row.model)}"] if row.model is not None else []),
        )
        base: dict[str, Any] = {"method": chosen.method, "matcher.name": matcher, "data.path": str(folder.absolute())}
        level = (self.level or row.level) if rate else LEVELS[0]  # without mismatches both are the same run
        base |= {"noise.rate": rate, "noise.level": level, "noise.seed": seed, "train.seed": seed}
        session.new_config(preset=preset, base=base, settings=settings)  # refuses invalid settings
        # a run is not given what it does not read, so that the same run is started and resumed by the same command
        settings = tuple(one for one in settings if any(is_read(key, chosen.method, matcher) for key in keys_of([one])))
        config = session.new_config(preset=preset, base=base, settings=settings)
        if MATCHERS[matcher].reads_vectors:
            self._require_vectors(config)
        words = [str(folder.absolute()), "--preset", preset, "--method", chosen.method, "--matcher", matcher]
        words += ["--noise", str(rate), *(["--noise-level", level] if level != LEVELS[0] else [])]
        words += ["--noise-seed", str(seed), "--seed", str(seed)]
        words += [word for setting in settings for word in ("--set", setting)]
        trained = f"{name} on {matcher}" if row.model is None else f"{name} on {row.model}"
        mismatched = f"{100 * rate:g} % {'mismatched' if level == LEVELS[0] else f'of the {level}s mismatched'}"
        about = ", ".join([trained, *row.settings, self.label(source), mismatched])
        key = job_key(config, self.fingerprint(row, source, "train", "dev"))
        return Job(key, f"{about}, seed {seed}", seed, config, tuple(words))

    def _require_vectors(self, config: Config) -> None:
        """Refuse data without text features, once for all its runs."""
        if config.data not in self._with_vectors:
            checks.require_vectors(config, inputs.open_pairs(config).split("train"))
            self._with_vectors.append(config.data)

    def _untrained(self, row: Row, matcher: str, source: Source) -> Job:
        """A published model without training, to which no setting applies."""
        if row.model is None:
            raise InputError("names no model", where=row.name)
        model, data = self._model(row.model), str(self.folder(source).absolute())
        settings = [setting for setting in self._asked(row) if key_of(setting) in session.changeable_keys()]
        base = {"matcher.name": matcher, "matcher.model": model, "data.path": data}
        config = session.new_config(base=base, settings=settings)
        words = (model, "--data", data, "--features", str(config.data.features), "--ids", str(config.data.ids))
        key = job_key(config, self.fingerprint(row, source, source.split))
        return Job(key, f"{ZERO_SHOT} {row.model}, {self.label(source)}", 0, config, words, model)

    def _model(self, name: str) -> str:
        """The folder of a published model, or its hub name."""
        given = self.models.get(name, name)
        return str(Path(given).absolute()) if Path(given).is_dir() else given

    def _asked(self, row: Row) -> tuple[str, ...]:
        """The settings of a row; a published model reads pixels instead of features."""
        if row.model is None:
            return self.settings
        if self.pixels is None or not self.data.is_file():
            absent = "none are given" if self.pixels is None else f"{self.data} is no table that has some"
            raise InputError(
                f"reads the pixels of images for {self._model(row.model)}, but {absent}",
                where=row.name,
                hint="give the pairs as a table ({data}) and, as {pixels}, the folder of pixels that "
                f"{{extract_features()}} with {{pixels}} makes for the model; or leave its rows out: {{model}} "
                f"{row.model}={NO_MODEL}",
            )
        kept = [setting for setting in self.settings if key_of(setting) not in OF_REGIONS]
        features, ids = (self.pixels.absolute() / name for name in PIXELS)
        return (*kept, f"data.features={features}", f"data.ids={ids}")

    def _has_regions(self) -> bool:
        """Whether features of regions are given besides pixels."""
        if self.pixels is None or not self.data.is_file():
            return True
        config = session.new_config(base={"data.path": str(self.data)}, settings=self.settings)
        near = [path for path in default_features(self.data) if path.is_file()]
        given = [Path(config.data.features)] if config.data.features else near
        return any(path.resolve() != (self.pixels / PIXELS[0]).resolve() for path in given)

    def fingerprint(self, row: Row, source: Source, *splits: str) -> str:
        """Digests of splits: captions, images and the features that a row reads."""
        folder, settings = str(self.folder(source)), self._asked(row)
        known = (folder, *splits, *settings)
        if known not in self._fingerprints:
            # the files of a table are settings
            pairs = inputs.open_pairs(session.new_config(base={"data.path": folder}, settings=settings))
            if not pairs.has_features:
                hint = (
                    "make them with {extract_features()}, and name the files by {settings}: data.features and data.ids"
                )
                raise InputError("no features of its images", where=folder, hint=hint)
            self._fingerprints[known] = hashed([split_digests(pairs.split(split)) for split in splits])
        return self._fingerprints[known]


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def is_fitted(method: str, matcher: str) -> bool:
    """Whether a method fits a matcher in closed form, without a schedule; unknown names are refused elsewhere."""
    known = method in METHODS and matcher in MATCHERS
    return known and METHODS[method].fits_closed_form and MATCHERS[matcher].closed_form


def _work_together(method: str, matcher: str) -> bool:
    """Whether a method works with a matcher; unknown names are refused elsewhere."""
    return method not in METHODS or matcher not in MATCHERS or matcher in METHODS[method].matchers
