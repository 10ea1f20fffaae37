"""Where commands print: results on stdout, all else on stderr. Loads without the rest of the package."""

import shlex

from crcl.terminal import Screen, Terminal, standard_error

out = Screen(highlight=False, markup=False, emoji=False)
err = standard_error()
shown = Terminal(err)
"""Progress of long work and messages, on stderr."""


def tell_next(*commands: list[str]) -> None:
    """What one may want to call next, as a shell takes it."""
    out.print("\n".join(["next:", *(f"  {shlex.join(['crcl', *words])}" for words in commands)]), soft_wrap=True)


def note(line: str) -> None:
    """What one may want to know, though all is well."""
    err.print(f"note: {line}", soft_wrap=True)
