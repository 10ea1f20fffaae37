"""`crcl demo`: InfoNCE, CRCL and relink on built-in data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import crcl
from crcl.cli.console import out, say, shown
from crcl.cli.options import Settings
from crcl.experiments.demo import LEFT_BEHIND


def demo(
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder for data, runs and pictures.")] = Path("demo"),
    images: Annotated[int, typer.Option(min=20, help="Training images to draw.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of scenes, mismatches, weights and batches.")] = 0,
    settings: Settings = None,
) -> None:
    """Draw scenes, mismatch 40 % of pairs, train by InfoNCE, CRCL and relink, compare; minutes, no network.

    Example: `crcl demo -o demo`
    """
    outcomes = crcl.demo(folder, images=images, seed=seed, settings=settings, progress=shown)
    table = Table("method", "rSum", "text R@1", "image R@1", "detection AUROC", "AP", title="Test scores on the scenes")
    for outcome in outcomes:
        scores, found = outcome.retrieval, outcome.detection
        detected = (f"{found.auroc:.3f}", f"{found.average_precision:.3f}") if found else ("", "")
        table.add_row(outcome.name, f"{scores.rsum:.1f}", f"{scores.i2t.r1:.1f}", f"{scores.t2i.r1:.1f}", *detected)
    out.print(table)
    for name, what in LEFT_BEHIND.items():
        say(f"{folder / name}  {what}")
