"""The folder that keeps runs and their scores.

OUT/runs/KEY/          one training each; the key is a hash of all that determines it, so tables share runs. An
                       empty file `finished` marks those that were seen to be
OUT/scores/KEY.json    what a run, or several together, reached on a split; KEY.npz: similarities and beliefs of its
                       training pairs
OUT/logs/KEY.log       messages of a training that ran beside others
OUT/jobs.txt, jobs.sh  the trainings that are left to do, one command a line, and a Slurm job array that has them
"""

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from crcl.errors import InputError, TrainingError
from crcl.experiments.blocks import Job, Trial
from crcl.experiments.declared import SCORES
from crcl.metrics import Retrieval
from crcl.retrieval.evaluation import evaluate_each
from crcl.retrieval.opening import open_scorer
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run
from crcl.storage import is_locked, write_arrays, write_json
from crcl.training import inputs


class Store:
    """The folder of runs, scores, tables and figures."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def run(self, job: Job) -> Path:
        return self.out / "runs" / job.key

    @property
    def scored(self) -> Path:
        return self.out / "scores"

    def finished(self, job: Job) -> bool:
        """Whether a training has finished, according to its saved state, which is large and read once.

        A damaged run has not: resuming it says what is wrong.
        """
        folder = self.run(job)
        if not (folder / "config.json").is_file():
            return False
        if (folder / "finished").is_file():
            return True
        try:
            finished = self._at_its_end(job)
        except InputError:
            return False
        if finished:
            (folder / "finished").touch()
        return finished

    def _at_its_end(self, job: Job) -> bool:
        run = Run.open(self.run(job))
        if run.imported:
            return True
        done, planned = epochs_done(run, job.config)
        state = run.load_state() if done >= planned else None
        return state is not None and bool(state.get("progress", {}).get("finished"))

    def blame(self, job: Job, error: InputError | TrainingError) -> str:
        """A message about a failed run, with what to do: a damaged run must be deleted."""
        folder = self.run(job)
        if is_locked(folder):
            return f"{job.about}: another process is training it"
        if isinstance(error, InputError) and Path(error.where).absolute().is_relative_to(folder.absolute()):
            return f"{job.about}: {error.where}: {error.what}; delete {folder}, and the same command trains it again"
        return f"{job.about}: {error}"

    def damage(self, job: Job) -> InputError | None:
        """The problem with a run's files that keeps it from being resumed; None if there is no problem or no run."""
        if not self.run(job).exists():
            return None
        try:
            Run.open(self.run(job)).load_state()
        except InputError as error:
            return error
        return None

    def scores(self, trial: Trial) -> np.ndarray | None:
        """The stored scores of a trial; None if it was not measured. (scores,)"""
        try:
            content = json.loads((self.scored / f"{trial.key}.json").read_text("utf-8"))
            found = np.array([content["scores"][name] for name in SCORES], dtype=np.float64)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if np.isfinite(found).all() else None

    def measure(self, trial: Trial) -> np.ndarray:
        """Score the runs of a trial together and each alone, computing every similarity once. (scores,)"""
        config = trial.jobs[0].config
        device = config.train.device
        scorers = [open_scorer(self.run(job), device=device)[2] for job in trial.jobs]
        found = evaluate_each(scorers, inputs.open_pairs(config).split(trial.split), folds=trial.folds)
        for job, alone in zip(trial.jobs, found.members, strict=True):
            self._write(trial.alone(job), alone)
        if len(trial.jobs) > 1:
            self._write(trial, found.together)
        scores = self.scores(trial)
        if scores is None:
            raise TrainingError(f"{self.scored}: the scores written there cannot be read")
        return scores

    def _write(self, trial: Trial, scores: Retrieval) -> None:
        recalls = [value for part in (scores.i2t, scores.t2i) for value in (part.r1, part.r5, part.r10)]
        numbers = dict(zip(SCORES, [*recalls, scores.rsum], strict=True))
        about = {"runs": [job.about for job in trial.jobs], "split": trial.split, "folds": trial.folds}
        self.scored.mkdir(parents=True, exist_ok=True)
        write_json(self.scored / f"{trial.key}.json", {"scores": numbers, **about})

    def pairs(self, job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Similarity, correspondence and truth of a run's training pairs. (N,) each"""
        path = self.scored / f"{job.key}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return arrays["similarity"], arrays["belief"], arrays["truth"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # missing or damaged
            run, config, scorer = open_scorer(self.run(job), device=job.config.train.device)
            pairs = inputs.audited_pairs(run, config)
            truth = np.ones(len(pairs), bool) if pairs.truth is None else pairs.truth
            similarity, belief = scorer.pair_similarities(pairs), run.load_ledger()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(path, similarity=similarity, belief=belief, truth=truth)
            return similarity, belief, truth


def missing(store: Store, jobs: Iterable[Job]) -> list[Job]:
    """The jobs that are not finished."""
    return [job for job in jobs if not store.finished(job)]
