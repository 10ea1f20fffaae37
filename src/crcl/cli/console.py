"""Printing of commands: results on stdout, everything else on stderr. Imports little, so that `--help` is quick."""

import shlex

from crcl.progress import SILENT, Progress
from crcl.terminal import Screen, Terminal, is_follower, standard_error

out = Screen(highlight=False, markup=False, emoji=False, quiet=is_follower())
err = standard_error()
shown: Progress = SILENT if is_follower() else Terminal(err)
"""Progress of long work and messages, on stderr."""


def say(line: str) -> None:
    """Print a line of the result."""
    out.print(line, soft_wrap=True)


def show_next(*commands: list[str]) -> None:
    """Print commands to run next, ready to paste into a shell."""
    say("\n".join(["next:", *(f"  {shlex.join(['crcl', *words])}" for words in commands)]))


def spell(name: str) -> str:
    """A parameter or a function of the Python API as the command line writes it: `--overwrite`, `crcl train`."""
    if name.endswith("()"):
        return f"`crcl {_COMMANDS.get(name[:-2], name[:-2])}`"
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


_COMMANDS = {
    "extract_features": "features",
    "extract_text_features": "features --texts",
    "export_verdicts": "verdicts export",
    "import_checkpoint": "import",
    "index_to": "index --to",
    "import_verdicts": "verdicts import",
    "inject_noise": "noise",
}
_OPTIONS = {
    "whole": "--global",
    "similarities": "--save-sims",
    "settings": "--set",
    "run": "-o",
    "path": "-o",
    "k": "-k",
}
