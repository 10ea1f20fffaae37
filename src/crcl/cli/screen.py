"""Where commands print: results on stdout, all else on stderr. Loads without the rest of the package."""

import shlex

from crcl.terminal import Screen, Terminal, standard_error

out = Screen(highlight=False, markup=False, emoji=False)
err = standard_error()
shown = Terminal(err)
"""Progress of long work and messages, on stderr."""


_COMMANDS = {"extract_features": "features", "import_checkpoint": "import", "inject_noise": "noise"}


def spelled(name: str) -> str:
    """A parameter or a function of the library as the command line has it: `--features`, `crcl train`."""
    if name.endswith("()"):
        return f"`crcl {_COMMANDS.get(name[:-2], name[:-2])}`"
    return f"--{name.replace('_', '-')}"


def tell_next(*commands: list[str]) -> None:
    """What one may want to call next, as a shell takes it."""
    out.print("\n".join(["next:", *(f"  {shlex.join(['crcl', *words])}" for words in commands)]), soft_wrap=True)


def note(line: str) -> None:
    """What one may want to know, though all is well."""
    err.print(f"note: {line}", soft_wrap=True)
