"""Errors that users meet, each with what is wrong, where, and what to do instead."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

Spell = Callable[[str], str]
"""Turns the name of a parameter (`overwrite`) or function (`train()`) into what the caller would write."""

_READ = frozenset(
    {"captions", "image_column", "caption_column", "image_index", "features", "text_features", "ids"} | {"layout"}
)
_NAMED = re.compile(r"\{([a-z_]+(?:\(\))?)\}")  # other braces are those of the user's file names
_NO_MEMORY = re.compile(r"can't allocate memory|out of memory|not enough memory", re.IGNORECASE)
_FLAGS = frozenset({"overwrite", "resume", "mark", "whole", "pixels", "gather", "print_jobs", "onnx", "rewrite", "add"})


def python_spelling(name: str) -> str:
    """A parameter or a function as Python users write it: `overwrite=True`, `features=...`, `crcl.train(...)`."""
    if name.endswith("()"):
        return f"crcl.{name[:-2]}(...)"
    if name in _FLAGS:
        return f"{name}=True"
    return f"{name}=... to crcl.read" if name in _READ else f"{name}=..."


def spelled(text: str, spell: Spell = python_spelling) -> str:
    """A text whose names in braces, such as `{overwrite}`, are written as the caller writes them."""
    return _NAMED.sub(lambda name: spell(name[1]), text)


def nth_row(row: int) -> str:
    """A row of a table or file as messages name it, by its number from 0: `row 3 (the first is 1)` for row 2.

    The column `row` of audits and verdicts counts from 0, so that messages that count as people do say so.
    """
    return f"row {row + 1} (the first is 1)"


class InputError(ValueError):
    """Something the user gave is wrong. The command line prints the message and exits with 2.

    A hint may name parameters in braces, as in `"pass {overwrite} to replace it"`, and functions as in `"{train()}
    makes one"`. `str(error)` spells them for Python; the command line passes its own spelling to `message`.

    Args:
        what: What is wrong.
        where: The file, the row or the setting it is wrong in.
        hint: What to do instead.

    Example:
        >>> error = InputError("exists already", where="runs/mine", hint="pass {overwrite} to replace it")
        >>> print(error)
        runs/mine: exists already; pass overwrite=True to replace it
        >>> error.where, error.what
        ('runs/mine', 'exists already')
    """

    def __init__(self, what: str, *, where: str | Path = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = str(where)
        self.hint = hint
        self.problems: tuple[InputError, ...] = (self,)

    @classmethod
    def several(cls, problems: "Sequence[InputError]", *, what: str = "", where: str | Path = "") -> "InputError":
        """One error that reports several problems, each on its own line; `what` introduces them, if given."""
        each = [part for problem in problems for part in problem.problems]
        error = cls(what or "; ".join(part.what for part in each), where=where)
        error._introduction = bool(what)
        error.problems = tuple(each)
        return error

    _introduction = False

    def message(self, spell: Spell = python_spelling) -> str:
        """The complete message, with parameters spelled as the caller writes them."""
        lines = [] if not self._introduction else [self._line(spell)]
        if self.problems != (self,):
            return "\n".join([*lines, *(problem._line(spell) for problem in self.problems)])
        return self._line(spell)

    def _line(self, spell: Spell) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {spelled(self.hint, spell)}" if self.hint else ""
        return f"{place}{self.what}{advice}"

    def __str__(self) -> str:
        return self.message()


class TrainingError(RuntimeError):
    """A training cannot continue (NaN, full disk). The command line prints the message and exits with 1."""


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """The work was interrupted by Ctrl-C or by another signal; what was saved can be resumed."""

    def __init__(self, signal: int = 2) -> None:
        super().__init__()
        self.signal = signal
        """The number of the signal; 2 is Ctrl-C. The command line exits with 128 more, as shells expect it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory, as Python or torch say it."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error))))


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that is spelled most like a word; None where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return near[0] if near else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest choice, or an empty text if none is near."""
    near = nearest(word, choices)
    return f" (did you mean '{near}'?)" if near else ""
