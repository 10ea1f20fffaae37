"""Commands that show how good a run is: evaluate, plot."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from crcl import plots
from crcl.auditing import result as auditing
from crcl.cli.console import warn_if_unfinished
from crcl.cli.options import Device, Features, Ids, Memory, TextFeatures, located, make_folder, refuse_input
from crcl.cli.screen import out, shown
from crcl.errors import InputError
from crcl.experiments import figures as drawing
from crcl.metrics import Retrieval
from crcl.retrieval.evaluation import check_folds, evaluate_each, mean_similarities
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.similarity_file import check_similarity_file, similarity_file
from crcl.runs.describe import conditions, stored_config
from crcl.runs.folder import Run
from crcl.training import checks, inputs


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are an ensemble: mean of similarities.")],
    data: Annotated[Path | None, typer.Option(help="Other data than the run was trained on.")] = None,
    split: Annotated[str, typer.Option(help="Split to evaluate on.")] = "test",
    folds: Annotated[int, typer.Option(help="Average over so many consecutive parts (COCO 1K: 5).")] = 1,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    save_sims: Annotated[
        Path | None, typer.Option(help="Also write the similarities, (images, captions) float32 (.npy).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file of similarities.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "auto",
    memory: Memory = None,
) -> None:
    """Retrieval scores: R@1, R@5, R@10, median and mean rank in both directions, rSum.

    Example: `crcl evaluate runs/saf runs/sgr --split testall --folds 5`

    Ties count against the model. Of several runs the scores of each alone are told too; each is computed once.
    """
    if save_sims is not None:
        if folds > 1:
            raise InputError("--save-sims writes all images with all captions, which folds do not compare; leave one")
        check_similarity_file(save_sims, overwrite=overwrite)
    opened = [open_scorer(run, device=device, memory=memory) for run in runs]
    for opened_run, stored, _ in opened:
        warn_if_unfinished(opened_run, stored)
    pairs = inputs.open_pairs(located(opened[0][1], data, features, ids, text_features)).split(split)
    for run, _, _ in opened:
        checks.check_features(run, pairs)
    check_folds(pairs, folds)
    if save_sims is not None:
        refuse_input(save_sims, pairs.source, opened[0][1].data.path)
    with similarity_file(save_sims, pairs) if save_sims else nullcontext() as sims, shown.task("scoring") as progress:
        scorers = [scorer for _, _, scorer in opened]
        found = evaluate_each(scorers, pairs, folds=folds, advance=progress, out=sims)
    scores = found.together
    about_runs = [conditions(run, stored) for run, stored, _ in opened]
    members = [(run, scored) for (run, _, _), scored in zip(opened, found.members, strict=True)]
    if as_json:
        alone = [{"run": str(run.path), "rsum": scored.rsum, **asdict(scored)} for run, scored in members]
        about = {"split": split, "folds": folds, "runs": about_runs, "members": alone}
        out.print(json.dumps({"rsum": scores.rsum, **asdict(scores), **about}), soft_wrap=True)
        return
    parts = f", mean of {folds} folds" if folds > 1 else ""
    out.print(_retrieval_table(scores, f"{split}: {pairs.images:,} images, {len(pairs):,} captions{parts}"))
    if len(runs) == 1:
        out.print(about_runs[0], soft_wrap=True)
    else:
        out.print("mean of the similarities of these runs, which alone have:")
        for rsum, line in sorted(zip((scored.rsum for _, scored in members), about_runs, strict=True), reverse=True):
            out.print(f"  rSum {rsum:.1f}  {line}", soft_wrap=True)
    if save_sims is not None:
        out.print(f"similarities written to {save_sims}", soft_wrap=True)


def _retrieval_table(scores: Retrieval, title: str) -> Table:
    table = Table("", "R@1", "R@5", "R@10", "median rank", "mean rank", title=title)
    for name, direction in (("image to text", scores.i2t), ("text to image", scores.t2i)):
        values = (direction.r1, direction.r5, direction.r10, direction.median_rank, direction.mean_rank)
        table.add_row(name, *(f"{value:.1f}" for value in values))
    table.caption = f"rSum {scores.rsum:.1f}"
    return table


def plot(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    folder: Annotated[Path | None, typer.Option("-o", "--out", help="Folder to draw into; RUN/plots.")] = None,
    split: Annotated[str, typer.Option(help="Split to rank; none: no ranks.")] = "dev",
    threshold: Annotated[
        float | None, typer.Option(help="Beliefs below it count as detected; the method's own, or 0.1.")
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Draw SVG instead of PNG.")] = False,
    data: Annotated[Path | None, typer.Option(help="Where the data is now, if it has moved.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    device: Device = "auto",
    memory: Memory = None,
) -> None:
    """Draw a run: loss and scores by epoch, how its beliefs sharpen, its ranks, the mismatches it found by epoch.

    Example: `crcl plot runs/first`

    The last one needs injected mismatches. Truth is compared with beliefs here, long after the training.
    """
    auditing.check_choice(threshold=threshold, precision=None)
    folder = folder or run / "plots"
    opened = Run.open(run)
    figures = dict(drawing.history(opened))
    stored = located(stored_config(opened), data, features, ids, text_features)
    if threshold is None:
        own = stored.own_threshold()
        threshold = auditing.THRESHOLD if own is None else own
    data_of_run = inputs.open_pairs(stored)
    truth = inputs.audited_pairs(opened, stored, data_of_run).truth
    found = None if truth is None else drawing.detected(opened, truth, threshold=threshold)
    if found is not None:
        figures["detected"] = found
    if split != "none":
        _, _, scorer = open_scorer(run, device=device, memory=memory)
        pairs = data_of_run.split(split)
        checks.check_features(opened, pairs)
        with shown.task("scoring") as progress:
            sims = mean_similarities([scorer], pairs, advance=progress)
        figures["ranks"] = drawing.ranks(sims, pairs, split)
    make_folder(folder)
    for name, figure in figures.items():
        path = folder / f"{name}{'.svg' if svg else '.png'}"
        plots.save(figure, path)
        out.print(str(path), soft_wrap=True)
