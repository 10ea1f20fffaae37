"""What several commands say of the runs they are given."""

from crcl import config
from crcl.cli.screen import note
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run


def warn_if_unfinished(run: Run, stored: config.Config) -> None:
    """A run that was stopped is judged as it is, and that is told."""
    done, planned = epochs_done(run, stored)
    if done < planned:
        note(
            f"{run.path} stopped after {done} of {planned} epochs; the command that began it finishes it "
            "(`crcl train ... --resume`, or the same `crcl audit`)"
        )
