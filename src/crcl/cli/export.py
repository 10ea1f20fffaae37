"""`crcl export`: the trained matcher for use outside of crcl."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, shown
from crcl.cli.options import Overwrite


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of an audit (NAME-audit).")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="File to write (.safetensors), or a folder with --onnx and for clip; beside the run if not given.",
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write ONNX graphs, which run without torch; for vse and bow.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the trained matcher for use outside of crcl: its weights in one file, or as ONNX graphs.

    Example: `crcl export runs/first -o first.safetensors`, or `crcl export runs/first --onnx -o first-onnx`

    ONNX graphs are compared with torch on random inputs before they are kept.
    """
    written = crcl.export(run, output, onnx=onnx, overwrite=overwrite, progress=shown)
    if onnx:
        say(f"graphs written to {written}; {written / 'about.json'} says how to use them")
    elif written.is_dir():
        say(f"written to {written} for transformers; preprocessor_config.json is copied from the published model")
    else:
        say(f"weights written to {written}, with the vocabulary beside it")
