"""Where commands print: results on stdout, all else on stderr. Loads without the rest of the package."""

import shlex
from typing import Any

from rich.console import Console


class Screen(Console):
    """A console that shows control characters instead of obeying them: names and captions come from strangers."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as a Console does."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)


def printable(text: str) -> str:
    """The text with every control character but line breaks in letters."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


out = Screen(highlight=False, markup=False, emoji=False)
err = Screen(stderr=True, highlight=False, markup=False, emoji=False)


def tell_next(*commands: list[str]) -> None:
    """What one may want to call next, as a shell takes it."""
    out.print("\n".join(["next:", *(f"  {shlex.join(['crcl', *words])}" for words in commands)]), soft_wrap=True)


def say(line: str) -> None:
    """How far a long work is."""
    err.print(line, soft_wrap=True)


def note(line: str) -> None:
    """What one may want to know, though all is well."""
    err.print(f"note: {line}", soft_wrap=True)
