"""The command line: one function per command, by topic. What is wrong with the input ends with exit code 2.

A command's module is loaded when it is called: torch and matplotlib take seconds, which `--help` need not wait for.
"""

import shlex
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from crcl import __version__
from crcl.cli.screen import err, out, spelled
from crcl.errors import InputError, Interrupted, TrainingError


class Command(NamedTuple):
    """Where a command is written, and what `crcl --help` says of it: its function's first paragraph."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "train": Command("training", "train", "Train a matcher on pairs that are partly wrong, and learn which."),
    "import": Command(
        "training",
        "import_",
        "Make a run of a published checkpoint: CRCL, SGRAF, SCAN, DECL, RCL, NCR, BiCro, L2RM, GSC; CLIP, SigLIP.",
    ),
    "evaluate": Command(
        "scoring",
        "evaluate",
        "Retrieval scores: R@1, R@5, R@10, median and mean rank in both directions, rSum.",
    ),
    "audit": Command(
        "judging",
        "audit",
        "Which pairs are wrong, how sure is that, what would match instead, and how many are wrong in all.",
    ),
    "clean": Command(
        "judging",
        "clean",
        "Write the run's table again without the suspects; all columns, values and the order stay as they are.",
    ),
    "export": Command(
        "training",
        "export",
        "Write the trained matcher for use elsewhere: its weights in one file, or as ONNX graphs.",
    ),
    "noise": Command(
        "preparing",
        "noise",
        "Write a noise index in the field's layout, to share mismatches between tools and runs.",
    ),
    "features": Command(
        "preparing",
        "features",
        "Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.",
    ),
    "info": Command(
        "preparing",
        "info",
        "Say what is there: counts and shapes of data, config and progress of a run; without a path, every setting.",
    ),
    "plot": Command(
        "scoring",
        "plot",
        "Draw a run: loss and scores by epoch, how its beliefs sharpen, its ranks, the mismatches it found by epoch.",
    ),
    "reproduce": Command(
        "experimenting",
        "reproduce",
        "Make the paper's tables and figures anew: train what they need, and show ours beside the paper's.",
    ),
    "demo": Command(
        "experimenting",
        "demo",
        "Draw 2,000 scenes, mismatch 40 % of the pairs, train plainly and by CRCL, compare. A few minutes, no network.",
    ),
}
"""In the order of `crcl --help`."""


class _Commands(TyperGroup):
    """The commands as `crcl --help` lists them; the one that is called is loaded."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=command.summary) for name, command in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _load(str(name)), rest


_LOOKS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
}
app = typer.Typer(
    cls=_Commands,
    help="Learn from image-caption pairs that are partly wrong: train a robust matcher, audit the pairs.",
    epilog="First look, no data needed:  crcl demo",
    no_args_is_help=True,
    **_LOOKS,
)


def _load(name: str) -> Any:
    """The command with its options, as typer makes it of the function."""
    module, function, _ = COMMANDS[name]
    alone = typer.Typer(**_LOOKS)
    alone.command(name)(getattr(import_module(f"crcl.cli.{module}"), function))
    return typer.main.get_command(alone)


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    try:
        app()
    except InputError as error:
        err.print(f"crcl: {error.message(spelled)}", soft_wrap=True)
        sys.exit(2)
    except TrainingError as error:
        err.print(f"crcl: {error!s}", soft_wrap=True)
        sys.exit(1)
    except Interrupted:
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        _say_how_to_go_on([*words, "--resume"] if words[:1] == ["train"] else words)  # others go on by themselves
        sys.exit(130)
    except OSError as error:  # a place that may not be read or written, or a name that is none
        if error.filename is None:
            raise
        err.print(f"crcl: {error.filename}: {error.strerror}", soft_wrap=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # typer's answer to Ctrl-C
            _say_how_to_go_on(sys.argv[1:])
        raise


def _say_how_to_go_on(words: list[str]) -> None:
    err.print(f"stopped; what was saved is kept. Go on with:\n  {shlex.join(['crcl', *words])}", soft_wrap=True)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"crcl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
