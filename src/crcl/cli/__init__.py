"""The command line: one function per command, by topic. What is wrong with the input ends with exit code 2."""

import shlex
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from crcl import __version__
from crcl.cli.console import err, out
from crcl.cli.experimenting import demo, reproduce
from crcl.cli.judging import audit, clean
from crcl.cli.preparing import features, info, noise
from crcl.cli.scoring import evaluate, plot
from crcl.cli.training import export, import_, train
from crcl.errors import InputError, TrainingError
from crcl.train import Interrupted

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "import": import_,
    "evaluate": evaluate,
    "audit": audit,
    "clean": clean,
    "export": export,
    "noise": noise,
    "features": features,
    "info": info,
    "plot": plot,
    "reproduce": reproduce,
    "demo": demo,
}
"""In the order of `crcl --help`."""

app = typer.Typer(
    help="Learn from image-caption pairs that are partly wrong: train a robust matcher, audit the pairs.",
    epilog="First look, no data needed:  crcl demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    try:
        app()
    except (InputError, TrainingError) as error:
        err.print(f"crcl: {error!s}", soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except Interrupted:
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        _say_how_to_go_on([*words, "--resume"] if words[:1] == ["train"] else words)  # others go on by themselves
        sys.exit(130)
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
