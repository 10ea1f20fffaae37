"""What can go wrong, by whose doing: the command line turns these into messages and exit codes."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What the user gave is wrong. The command line prints the message and exits with 2."""


class TrainingError(RuntimeError):
    """A training could not go on (NaN, full disk). The command line prints the message and exits with 1."""


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """The user asked to stop; there is a state to go on from, or the beginning."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest choice, or nothing where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""
