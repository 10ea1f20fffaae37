"""What a table is made of: trainings, measurements of them, and rows in blocks."""

from dataclasses import dataclass
from pathlib import Path

from crcl.config import Config
from crcl.data.noise import LEVELS
from crcl.experiments.declared import Row
from crcl.experiments.keys import hashed


@dataclass(frozen=True)
class Job:
    """One training, or a published model that is evaluated without training."""

    key: str
    about: str
    seed: int
    config: Config
    words: tuple[str, ...]
    """Arguments of `crcl train` or `crcl import`, without the run folder."""
    model: str | None = None
    """The model to import; None for a training."""

    def command(self, folder: Path) -> list[str]:
        """The command that starts or resumes the training on any machine."""
        if self.model is not None:
            return ["crcl", "import", *self.words, "-o", str(folder), "--overwrite"]
        return ["crcl", "train", *self.words, "-o", str(folder), "--resume"]


@dataclass(frozen=True)
class Trial:
    """One measurement: a run, or the mean similarities of several, on a split."""

    jobs: tuple[Job, ...]
    split: str
    folds: int
    fingerprint: str
    """The digest of the split."""

    @property
    def key(self) -> str:
        return hashed([[job.key for job in self.jobs], self.split, self.folds, self.fingerprint])

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
    """The paper's data sets that this data stands for, and their names."""
    noise: float
    entries: tuple[Entry, ...]
    level: str = LEVELS[0]
    """Whether captions or images are mismatched."""

    @property
    def title(self) -> str:
        if not self.noise:
            return f"{self.label}, no mismatches put in"
        what = "images mismatched, with all their captions" if self.level == "image" else "pairs mismatched"
        return f"{self.label}, {100 * self.noise:g} % of the training {what}"

    @property
    def place(self) -> str:
        """The data set, and the level of the mismatches if it is not the caption, for figures with several rates."""
        return self.label if self.level == LEVELS[0] else f"{self.label}, mismatches at {self.level} level"
