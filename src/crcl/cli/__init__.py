"""The command line: one file per command. Wrong input ends with a message and exit code 2.

A command's module is loaded when it is called: torch and matplotlib take seconds, which `--help` need not wait for.
"""

import errno
import shlex
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from crcl import __version__
from crcl.cli.console import err, out, shown, spell
from crcl.errors import InputError, Interrupted, TrainingError, is_out_of_memory
from crcl.progress import reading_shown_by
from crcl.terminal import discard, is_launched

_NOT_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)
_LESS_MEMORY = (
    "finished work is saved. Smaller batches (--set train.batch_size=64), a smaller matcher "
    "(--set matcher.embedding=512) and fewer workers need less"
)
GROUPS = {
    "Audit": {
        "audit": "Which pairs are wrong, how sure is that, what would match instead, and how many are wrong in all.",
        "serve": (
            "Review an audit, and search with its run, on a page in the browser; verdicts are kept in the run folder."
        ),
        "verdicts": "Write the verdicts of a run to a table, or add those of a table to a run.",
        "clean": "Write a copy of the run's data without the suspects; all columns, values and the order stay.",
    },
    "Train": {
        "train": "Train a matcher on pairs that are partly wrong, and learn which ones are.",
        "evaluate": "Retrieval scores: R@1, R@5, R@10, median and mean rank in both directions, rSum.",
        "plot": "Draw a run: loss, scores and correspondences by epoch, ranks on a split, mismatches found by epoch.",
        "import": (
            "Make a run of a published checkpoint: CRCL, SGRAF, SCAN, DECL, RCL, NCR, BiCro, L2RM, GSC and more; "
            "CLIP, SigLIP."
        ),
        "export": "Write the trained matcher for use outside of crcl: its weights in one file, or as ONNX graphs.",
    },
    "Search": {
        "index": "Write the vectors of a run's images and captions to a folder, to search in.",
        "search": "Find the images or captions of an index that fit a sentence, a photo, or one of its images best.",
    },
    "Data": {
        "features": (
            "Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests."
        ),
        "noise": "Write a noise index in the field's layout, to share mismatches between tools and runs.",
        "info": (
            "Facts about data, a run or an index: counts, shapes, settings, progress; without a path, every setting."
        ),
    },
    "Compare": {
        "reproduce": (
            "Reproduce the paper's tables and figures: train the runs they need, show ours beside the paper's."
        ),
        "demo": "Draw scenes, mismatch 40 % of pairs, train by InfoNCE, CRCL and relink, compare; minutes, no network.",
    },
}
"""The commands in the order of `crcl --help`, each with the first paragraph of its function's docstring."""
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class _Commands(TyperGroup):
    """Lists all commands, and loads only the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {
            name: TyperCommand(name, help=summary, rich_help_panel=group)
            for group, commands in GROUPS.items()
            for name, summary in commands.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _load(str(name)), rest


_APPEARANCE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
}
app = typer.Typer(
    cls=_Commands,
    help="Image-caption pairs that are partly wrong: audit and clean them, train on them all the same, and search.",
    epilog="Try it without data:  crcl demo",
    no_args_is_help=True,
    **_APPEARANCE,
)


def _load(name: str) -> Any:
    """The command with its options, built by typer from the function of its module."""
    module = "import_" if name == "import" else name  # a keyword of Python
    alone = typer.Typer(**_APPEARANCE)
    found = import_module(f"crcl.cli.{module}")
    alone.command(name, epilog=getattr(found, "EPILOG", None))(getattr(found, module))
    return typer.main.get_command(alone)


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    try:
        with reading_shown_by(shown):
            app()
    except InputError as error:
        err.print(f"crcl: {error.message(spell)}", soft_wrap=True)
        sys.exit(2)
    except TrainingError as error:
        err.print(f"crcl: {error!s}", soft_wrap=True)
        sys.exit(1)
    except Interrupted as stop:
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        _say_how_to_continue([*words, "--resume"] if words[:1] == ["train"] else words)  # others resume without it
        sys.exit(128 + stop.signal)
    except OSError as error:  # no permission, or an invalid file name
        if error.filename is None:
            if error.errno not in _NOT_WRITTEN:
                raise
            _end_unprinted(error)  # help is not printed by our own console
        err.print(f"crcl: {error.filename}: {error.strerror}", soft_wrap=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        err.print(f"crcl: not enough memory; {_LESS_MEMORY}", soft_wrap=True)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == 130:  # typer's answer to Ctrl-C
            _say_how_to_continue(sys.argv[1:])
        if not stop.code and out.lost is not None and not isinstance(out.lost, BrokenPipeError):
            _end_unprinted(out.lost)
        raise


def _end_unprinted(error: OSError) -> NoReturn:
    """Exit because the output is lost. A reader who has seen enough, as `head`, is no error."""
    discard(sys.stdout)
    err.print(f"crcl: the output could not be written ({error.strerror}); files that it names are complete")
    sys.exit(1)


def _say_how_to_continue(words: list[str]) -> None:
    why, command = "stopped", shlex.join(["crcl", *words])
    if is_launched():
        why, command = "stopped by torchrun, because a process ended or it was told to", f"torchrun ... -m {command}"
    err.print(f"{why}; finished work is saved. Continue with:\n  {command}", soft_wrap=True)


def _version(requested: bool) -> None:
    if requested:
        out.print(f"crcl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
