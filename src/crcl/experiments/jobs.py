"""Doing trainings: here one after the other, beside each other in processes, or on a cluster.

A job is done by `crcl train ... --resume`, here or on any machine, so a killed one continues where it was.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from crcl.errors import InputError, TrainingError
from crcl.experiments.blocks import Job
from crcl.experiments.store import Store
from crcl.progress import Progress, duration
from crcl.storage import is_locked, write_bytes
from crcl.training import importing, inputs, session

LOOK = 0.1  # seconds between two checks of other processes


def train_here(store: Store, jobs: Sequence[Job], *, progress: Progress) -> list[str]:
    """Train one job after another in this process and return the failures; waits for jobs of other processes."""
    failed, pace = [], _Pace(len(jobs))
    for number, job in enumerate(sorted(jobs, key=lambda job: is_locked(store.run(job)))):
        progress.status(f"run {number + 1} of {len(jobs)}{pace.left(number)}: {job.about}")
        try:
            if _wait(store, job, progress):
                continue
            if job.model is None:
                session.train(job.config, store.run(job), resume=True, progress=progress)
            else:
                importing.import_model(job.model, inputs.open_pairs(job.config), store.run(job))
        except (InputError, TrainingError) as error:
            failed.append(store.blame(job, error))
    return failed


def _wait(store: Store, job: Job, progress: Progress) -> bool:
    """Wait while another process trains a run; return whether it finished."""
    if not is_locked(store.run(job)):
        return False
    progress.status(f"another process is training it: waiting for {store.run(job)}")
    while is_locked(store.run(job)):
        time.sleep(LOOK)
    return store.finished(job)


def train_apart(store: Store, jobs: Sequence[Job], processes: int, *, progress: Progress) -> list[str]:
    """Train several jobs at a time, each in its own process with a log, and return the failures.

    Ctrl-C is passed on: they save and end. Trainings of a killed process continue to their end; the next call counts
    them among its own and takes their results.
    """
    waiting, failed, ended = list(reversed(jobs)), [], 0
    running: dict[str, tuple[Job, _Process | None]] = {}  # None: another process started it
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
                    failed.append(store.blame(job, store.damage(job) or TrainingError(process.last_words())))
                outcome = "failed" if wrong else "done"
                progress.status(f"{ended} of {len(jobs)} runs{pace.left(ended)}; {outcome}: {job.about}")
            time.sleep(0 if len(running) < busy else LOOK)
    except BaseException:
        own = [process for _, process in running.values() if process is not None]
        for process in own:
            process.send_signal(signal.SIGINT)  # they save and exit
        for process in own:
            process.wait()
        raise
    return failed


class _Process(subprocess.Popen[bytes]):
    """A training process with a log, in its own session, so that Ctrl-C reaches it only through this process."""

    def __init__(self, words: list[str], log: Path, environment: dict[str, str]) -> None:
        with log.open("ab") as file:
            self.log, self.begin = log, file.tell()
            super().__init__(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
            )

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_bytes()[self.begin :].decode("utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
        return last.removeprefix("crcl: ")


class _Pace:
    """The time left, estimated from the finished jobs."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.begun = time.monotonic()

    def left(self, done: int) -> str:
        if not 0 < done < self.total:
            return ""
        seconds = (time.monotonic() - self.begun) * (self.total - done) / done
        return f", about {duration(seconds)} left"


def write_jobs(store: Store, jobs: Sequence[Job], name: str) -> Path:
    """Write `jobs.txt`, one command per line, and a Slurm job array that runs them; return the script.

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
        "# Add what your cluster needs: --partition, --gres=gpu:1, --time. A job that was stopped continues when it is",
        "# submitted again. When all are done, `crcl reproduce` as before, without --print-jobs, makes the tables.",
        "set -euo pipefail",
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{number}) {line} ;;" for number, line in enumerate(commands, 1)),
        f'*) echo "job $SLURM_ARRAY_TASK_ID: there are {len(jobs)}" >&2; exit 1 ;;',
        "esac",
    ]
    write_bytes(script, "\n".join([*lines, ""]).encode())
    return script
