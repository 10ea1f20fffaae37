"""Verdicts that a training takes into account: read from a run or a file, and carried over to the new run."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crcl.config import Config
from crcl.data import noise
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.progress import Progress
from crcl.runs.exchange.files import ENDINGS, Line, read_table
from crcl.runs.exchange.known import Known
from crcl.runs.exchange.matching import given_steps, new_steps, newest, to_steps
from crcl.runs.folder import Run
from crcl.runs.verdicts import Step, Verdicts


@dataclass(frozen=True)
class Given:
    """Verdicts as they were given, and what they say of the training pairs."""

    steps: list[Step]
    known: Known


def check_given(config: Config) -> Run | list[Line] | None:
    """The run, or the lines of the file, whose verdicts a config names; refuses unusable ones before long work."""
    path = config.data.verdicts
    if path is None:
        return None
    if not config.record.takes_verdicts:
        able = ", ".join(name for name, record in METHODS.items() if record.takes_verdicts)
        raise InputError(
            f"method {config.method} forms its beliefs from losses and has no place for verdicts",
            where="data.verdicts",
            hint=f"methods that take them: {able}",
        )
    if Path(path).suffix.lower() in ENDINGS and not Path(path).is_dir():
        return read_table(Path(path))
    return Run.open(path)


def read_given(config: Config, clean: Split, shown: Split) -> Given | None:
    """The verdicts that a config names, on the pairs as they are shown; None if it names none.

    Args:
        config: The config of the training.
        clean: The training pairs as they were read.
        shown: The same with injected mismatches, if any.
    """
    path = config.data.verdicts
    if path is None:
        return None
    source = check_given(config)
    steps = _steps_of(source, clean, shown) if isinstance(source, Run) else to_steps(source or [], shown)
    known = Known.of(newest(steps), shown, path)
    if not (known.right | known.wrong).any():
        raise InputError("no verdicts right or wrong in it", where=path)
    if known.captions and MATCHERS[config.matcher.name].reads_vectors:  # no vectors of the new captions
        known = known.without_captions()
    return Given(steps, known)


def _steps_of(run: Run, clean: Split, shown: Split) -> list[Step]:
    """The verdicts of a run, which must be on the same pairs, shown with the same images."""
    same = run.fingerprint == clean.fingerprint()
    if same:
        index = run.noise()
        there = clean if index is None else noise.apply(clean, index)
        same = np.array_equal(there.image_index, shown.image_index)
    if not same:
        raise InputError(
            "its verdicts are on other pairs",
            where=run.path,
            hint="{export_verdicts()} writes them to a file; verdicts of a file are found by image and caption",
        )
    return given_steps(Verdicts.open(run))


def carry_over(given: Given, run: Run) -> None:
    """Add the verdicts to those of the new run, so that its review and its cleaning know them."""
    stored = Verdicts.open(run)
    fresh = new_steps(given.steps, stored)
    if fresh:
        stored.add_steps(fresh)


def report_newer(config: Config, trained: Known | None, clean: Split, shown: Split, progress: Progress) -> None:
    """Say so if verdicts have changed since a training began, which keeps those that it began with."""
    try:
        given = read_given(config, clean, shown)
    except InputError:  # they are gone; the run has its own copy
        return
    if given is not None and not given.known.equals(trained):
        progress.note(
            f"verdicts in {config.data.verdicts} have changed since this training began, which keeps those that it "
            "began with; train again to use the new ones"
        )
