"""What commands say: results on stdout, all else on stderr."""

from typing import Any

from rich.console import Console

from crcl import assembly, config, recipe
from crcl.checkpoint import Run
from crcl.progress import Terminal, Work


class Screen(Console):
    """A console that shows control characters instead of obeying them: names and captions come from strangers."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as a Console does."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)


def printable(text: str) -> str:
    """The text with every control character but line breaks in letters."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


out = Screen(highlight=False, markup=False)
err = Screen(stderr=True, highlight=False, markup=False)


def say(line: str) -> None:
    """How far a long work is."""
    err.print(line, soft_wrap=True)


def note(line: str) -> None:
    """What one may want to know, though all is well."""
    err.print(f"note: {line}", soft_wrap=True)


def watch(what: str) -> Work:
    """Percentage and time left of a long work."""
    return Work(what, err)


def terminal(chosen: config.Config) -> Terminal:
    """Epochs of a training as they pass."""
    return Terminal(recipe.schedule(chosen), err, networks=assembly.NETWORKS.get(chosen.method, 1))


def warn_if_unfinished(run: Run, stored: config.Config) -> None:
    """A run that was stopped is judged as it is, and that is told."""
    done, planned = recipe.epochs_done(run, stored)
    if done < planned:
        note(
            f"{run.path} stopped after {done} of {planned} epochs; the command that began it finishes it "
            "(`crcl train ... --resume`, or the same `crcl audit`)"
        )
