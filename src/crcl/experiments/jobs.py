"""Trainings to be done: where they are kept, doing them here, beside each other, or on a cluster, and scoring them.

    OUT/runs/KEY/          one training each; the key is a hash of all that determines it, so tables share runs. An
                           empty file `finished` marks those that were seen to be
    OUT/scores/KEY.json    what a run, or several together, reached on a split; KEY.npz: what it says of its pairs
    OUT/logs/KEY.log       what a training said that ran beside others
    OUT/jobs.txt, jobs.sh  the trainings that are left to do, one command a line, and a Slurm job array that has them

A job is done by `crcl train ... --resume`, here or anywhere else, so a killed one goes on where it was.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from crcl.errors import InputError, TrainingError
from crcl.experiments import SCORES
from crcl.experiments.planning import Job, Trial
from crcl.metrics import Retrieval
from crcl.progress import Progress, duration
from crcl.retrieval.evaluation import evaluate_each
from crcl.retrieval.opening import open_scorer
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run
from crcl.storage import is_locked, write_arrays, write_bytes, write_json
from crcl.training import importing as adopt
from crcl.training import inputs, session

Say = Callable[[str], None]
LOOK = 0.1  # seconds between two looks at trainings of other processes


class Store:
    """The folder that holds runs, scores and what is written of them."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def run(self, job: Job) -> Path:
        return self.out / "runs" / job.key

    @property
    def scored(self) -> Path:
        return self.out / "scores"

    def finished(self, job: Job) -> bool:
        """Whether a training has come to its end: its state says so, and is asked once, since it is large.

        A damaged run has not: going on with it tells what is wrong.
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

    def blame(self, job: Job, error: str) -> str:
        """What went wrong with a run; one that is damaged must go, which no option of ours does."""
        folder, told = self.run(job), error.removeprefix("crcl: ")
        if is_locked(folder):
            return f"{job.about}: another process is training it"
        if not told.startswith((str(folder), str(folder.absolute()))):
            return f"{job.about}: {told}"
        return f"{job.about}: {told.partition(';')[0]}; delete {folder}, and the same command trains it anew"

    def scores(self, trial: Trial) -> np.ndarray | None:
        """What was measured, if it was. (scores,)"""
        try:
            content = json.loads((self.scored / f"{trial.key}.json").read_text("utf-8"))
            found = np.array([content["scores"][name] for name in SCORES], dtype=np.float64)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if np.isfinite(found).all() else None

    def measure(self, trial: Trial) -> np.ndarray:
        """Score the runs of a trial together and each alone; every similarity is computed once. (scores,)"""
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
            raise TrainingError(f"{self.scored}: what was written there cannot be read")
        return scores

    def _write(self, trial: Trial, scores: Retrieval) -> None:
        recalls = [value for part in (scores.i2t, scores.t2i) for value in (part.r1, part.r5, part.r10)]
        numbers = dict(zip(SCORES, [*recalls, scores.rsum], strict=True))
        about = {"runs": [job.about for job in trial.jobs], "split": trial.split, "folds": trial.folds}
        self.scored.mkdir(parents=True, exist_ok=True)
        write_json(self.scored / f"{trial.key}.json", {"scores": numbers, **about})

    def pairs(self, job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Similarity, belief and truth of each training pair of a run. (N,) each"""
        path = self.scored / f"{job.key}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return arrays["similarity"], arrays["belief"], arrays["truth"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # not there, or damaged
            run, config, scorer = open_scorer(self.run(job), device=job.config.train.device)
            pairs = inputs.audited_pairs(run, config)
            truth = np.ones(len(pairs), bool) if pairs.truth is None else pairs.truth
            similarity, belief = scorer.pair_similarities(pairs), run.load_ledger()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(path, similarity=similarity, belief=belief, truth=truth)
            return similarity, belief, truth


def missing(store: Store, jobs: Iterable[Job]) -> list[Job]:
    """The jobs that are not done."""
    return [job for job in jobs if not store.finished(job)]


def train_here(store: Store, jobs: Sequence[Job], *, progress: Progress) -> list[str]:
    """Train one after the other in this process; gives what went wrong. One that is trained elsewhere is waited for."""
    failed, pace = [], _Pace(len(jobs))
    for number, job in enumerate(sorted(jobs, key=lambda job: is_locked(store.run(job)))):
        progress.status(f"run {number + 1} of {len(jobs)}{pace.left(number)}: {job.about}")
        try:
            if _wait(store, job, progress):
                continue
            if job.model is None:
                session.train(job.config, store.run(job), resume=True, progress=progress)
            else:
                data = job.config.data
                adopt.adopt_model(job.model, data.path, store.run(job), features=data.features, ids=data.ids)
        except (InputError, TrainingError) as error:
            failed.append(store.blame(job, str(error)))
    return failed


def _wait(store: Store, job: Job, progress: Progress) -> bool:
    """Wait while another process trains a run; whether it has finished it."""
    if not is_locked(store.run(job)):
        return False
    progress.status(f"another process is training it: waiting for {store.run(job)}")
    while is_locked(store.run(job)):
        time.sleep(LOOK)
    return store.finished(job)


def train_apart(store: Store, jobs: Sequence[Job], processes: int, *, progress: Progress) -> list[str]:
    """Train so many at a time, each in a process of its own with a log; gives what went wrong.

    Ctrl-C is passed on: they save and end. Those of a process that was killed outright go on to their end; the next
    call counts them among its own and takes what they leave.
    """
    waiting, failed, ended = list(reversed(jobs)), [], 0
    running: dict[str, tuple[Job, _Process | None]] = {}  # None: another call began it
    pace = _Pace(len(jobs))
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    environment = {"OMP_NUM_THREADS": threads} | os.environ
    (store.out / "logs").mkdir(parents=True, exist_ok=True)
    for job in [job for job in waiting if is_locked(store.run(job))]:
        progress.status(f"another process is training it already: {job.about}")
        waiting.remove(job)
        running[job.key] = job, None
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                job = waiting.pop()
                words = [sys.executable, "-m", "crcl", *job.command(store.run(job))[1:]]
                running[job.key] = job, _Process(words, store.out / "logs" / f"{job.key}.log", environment)
            busy = len(running)
            for job, process in list(running.values()):
                if (process is not None and process.poll() is None) or is_locked(store.run(job)):
                    continue
                del running[job.key]
                if process is None and not store.finished(job):  # it was stopped, too
                    waiting.append(job)
                    continue
                ended += 1
                wrong = process is not None and process.poll() != 0 and not store.finished(job)
                if process is not None and wrong:
                    failed.append(store.blame(job, process.last_words()))
                outcome = "failed" if wrong else "done"
                progress.status(f"{ended} of {len(jobs)} runs{pace.left(ended)}; {outcome}: {job.about}")
            time.sleep(0 if len(running) < busy else LOOK)
    except BaseException:
        own = [process for _, process in running.values() if process is not None]
        for process in own:
            process.send_signal(signal.SIGINT)  # they save and end
        for process in own:
            process.wait()
        raise
    return failed


class _Process(subprocess.Popen[bytes]):
    """A training with a log, in a session of its own, so that Ctrl-C comes to it once: from us."""

    def __init__(self, words: list[str], log: Path, environment: dict[str, str]) -> None:
        with log.open("ab") as file:
            self.log, self.begin = log, file.tell()
            super().__init__(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
            )

    def last_words(self) -> str:
        """The last line of what it said, not of what was said before it."""
        lines = self.log.read_bytes()[self.begin :].decode("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


class _Pace:
    """Time left, from how long the jobs that are done took."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.begun = time.monotonic()

    def left(self, done: int) -> str:
        if not 0 < done < self.total:
            return ""
        seconds = (time.monotonic() - self.begun) * (self.total - done) / done
        return f", about {duration(seconds)} left"


def write_jobs(store: Store, jobs: Sequence[Job], name: str) -> Path:
    """`jobs.txt`, one command a line, and a Slurm job array that runs them; gives the script.

    The script has the commands in it: Slurm keeps a copy, and what is written here later changes nothing for it.
    """
    store.out.mkdir(parents=True, exist_ok=True)
    listed, script = store.out / "jobs.txt", store.out / "jobs.sh"
    commands = [shlex.join(job.command(store.run(job).absolute())) for job in jobs]
    write_bytes(listed, "".join(f"{line}\n" for line in commands).encode())
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=crcl-{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)}",
        f"#SBATCH --array=1-{max(len(jobs), 1)}",
        "# Add what your cluster needs: --partition, --gres=gpu:1, --time. A job that was stopped goes on when it is",
        "# submitted again. When all are done, `crcl reproduce` as before, without --print-jobs, makes the tables.",
        "set -euo pipefail",
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{number}) {line} ;;" for number, line in enumerate(commands, 1)),
        f'*) echo "job $SLURM_ARRAY_TASK_ID: there are {len(jobs)}" >&2; exit 1 ;;',
        "esac",
    ]
    write_bytes(script, "\n".join([*lines, ""]).encode())
    return script
