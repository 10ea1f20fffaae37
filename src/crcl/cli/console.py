"""What several commands say while they work, and of the runs they are given."""

from crcl import config
from crcl.cli.screen import err, note
from crcl.cli.terminal import Terminal, Work
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run
from crcl.training import assembly
from crcl.training import build as recipe


def watch(what: str) -> Work:
    """Percentage and time left of a long work."""
    return Work(what, err)


def terminal(chosen: config.Config) -> Terminal:
    """Epochs of a training as they pass."""
    return Terminal(recipe.schedule(chosen), err, networks=assembly.NETWORKS.get(chosen.method, 1))


def warn_if_unfinished(run: Run, stored: config.Config) -> None:
    """A run that was stopped is judged as it is, and that is told."""
    done, planned = epochs_done(run, stored)
    if done < planned:
        note(
            f"{run.path} stopped after {done} of {planned} epochs; the command that began it finishes it "
            "(`crcl train ... --resume`, or the same `crcl audit`)"
        )
