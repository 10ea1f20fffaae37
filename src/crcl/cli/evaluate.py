"""`crcl evaluate`: retrieval scores."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import crcl
from crcl.cli.console import out, say, shown
from crcl.cli.options import Candidates, Device, Dtype, Features, Ids, Memory, Overwrite, TextFeatures, moved
from crcl.retrieval.evaluation import Evaluated
from crcl.retrieval.two_stages import EvaluatedInStages


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Runs or audits; several are an ensemble: mean of similarities.")],
    split: Annotated[str, typer.Option(help="Split to evaluate on.")] = "test",
    folds: Annotated[int, typer.Option(help="Average over so many consecutive parts of the images (COCO 1K: 5).")] = 1,
    rerank: Annotated[
        list[Path] | None,
        typer.Option(help="A second run, which ranks the best candidates again; repeat it for an ensemble."),
    ] = None,
    candidates: Candidates = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    save_sims: Annotated[
        Path | None, typer.Option(help="Also write the similarities, (images, captions) float32 (.npy).")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    memory: Memory = None,
    dtype: Dtype = None,
    data: Annotated[Path | None, typer.Option(help="Other data, or the run's data if it has moved.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Retrieval scores: R@1, R@5, R@10, median and mean rank in both directions, rSum.

    Example: `crcl evaluate runs/saf runs/sgr --split testall --folds 5`

    Ties count against the matcher. For several runs the scores of each alone are shown too. With `--rerank RUN` the
    scores are those of two stages: the first runs find candidates, and the second ranks them again.
    """
    scores = crcl.evaluate(
        runs,
        data=moved(runs[0], data, features, ids, text_features),
        split=split,
        folds=folds,
        rerank=rerank,
        candidates=candidates,
        similarities=save_sims,
        overwrite=overwrite,
        device=device,
        memory=memory,
        dtype=dtype,
        progress=shown,
    )
    assert isinstance(scores, Evaluated)
    if as_json:
        say(json.dumps(_record(scores)))
        return
    out.print(_table(scores))
    if isinstance(scores, EvaluatedInStages):
        for line in _stages(scores):
            say(line)
    elif len(runs) == 1:
        say(scores.conditions[0])
    else:
        out.print("ensemble of these runs by the mean of their similarities; scores of each alone:")
        alone = ((member.rsum, line) for member, line in zip(scores.members, scores.conditions, strict=True))
        for rsum, line in sorted(alone, reverse=True):
            say(f"  rSum {rsum:.1f}  {line}")
    if save_sims is not None:
        say(f"similarities written to {save_sims}")


def _stages(scores: EvaluatedInStages) -> list[str]:
    assert scores.first is not None
    count = len(scores.reranked_by)
    return [
        f"two stages, {scores.candidates} candidates; rSum {scores.first.rsum:.1f} by the first stage alone",
        f"a right answer is among the candidates of {scores.i2t_found:.1f} % of the images and {scores.t2i_found:.1f} "
        f"% of the captions; {scores.compared:.1f} % of all pairs were compared by the second stage",
        *(f"first stage: {line}" for line in scores.conditions[:-count]),
        *(f"second stage: {line}" for line in scores.conditions[-count:]),
    ]


def _record(scores: Evaluated) -> dict[str, object]:
    if isinstance(scores, EvaluatedInStages):
        assert scores.first is not None
        kept = (
            "i2t",
            "t2i",
            "split",
            "folds",
            "runs",
            "reranked_by",
            "candidates",
            "i2t_found",
            "t2i_found",
            "compared",
        )
        whole = asdict(scores)
        first = {"rsum": scores.first.rsum, **asdict(scores.first)}
        return {"rsum": scores.rsum, **{name: whole[name] for name in kept}, "first": first}
    members = zip(scores.runs, scores.members, strict=True)
    return {
        "rsum": scores.rsum,
        "i2t": asdict(scores.i2t),
        "t2i": asdict(scores.t2i),
        "split": scores.split,
        "folds": scores.folds,
        "runs": list(scores.conditions),
        "members": [{"run": run, "rsum": member.rsum, **asdict(member)} for run, member in members],
    }


def _table(scores: Evaluated) -> Table:
    parts = f", mean of {scores.folds} folds" if scores.folds > 1 else ""
    title = f"{scores.split}: {scores.images:,} images, {scores.captions:,} captions{parts}"
    table = Table("", "R@1", "R@5", "R@10", "median rank", "mean rank", title=title)
    for name, direction in (("image to text", scores.i2t), ("text to image", scores.t2i)):
        values = (direction.r1, direction.r5, direction.r10, direction.median_rank, direction.mean_rank)
        table.add_row(name, *(f"{value:.1f}" for value in values))
    table.caption = f"rSum {scores.rsum:.1f}"
    return table
