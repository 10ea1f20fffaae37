"""Public functions that use runs: evaluate, load, plot."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from crcl import distributed, plots
from crcl.api.common import AnyRun, Shown, how_many_candidates, open_model, path_of, receiver, run_data
from crcl.auditing.findings import THRESHOLD
from crcl.auditing.thresholds import Choice
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.experiments import figures
from crcl.metrics import Retrieval
from crcl.progress import Advance
from crcl.retrieval.evaluation import Evaluated, check_folds, evaluate_each, mean_similarities
from crcl.retrieval.model import Model
from crcl.retrieval.similarity_file import check_similarity_file, similarity_file
from crcl.retrieval.two_stages import EvaluatedInStages, evaluate_in_stages
from crcl.runs.describe import conditions, report_unfinished, stored_config
from crcl.runs.folder import Run
from crcl.storage import make_folder, refuse_input
from crcl.training.inputs import audited_pairs, check_features


@distributed.processes()
def evaluate(
    run: AnyRun | Sequence[AnyRun],
    *,
    data: Any = None,
    split: str = "test",
    folds: int = 1,
    rerank: AnyRun | Sequence[AnyRun] | None = None,
    candidates: int | None = None,
    similarities: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    memory: float | None = None,
    dtype: str | None = None,
    progress: Shown = False,
) -> Retrieval:
    """Retrieval scores of a run: R@1, R@5, R@10, median and mean rank in both directions, rSum.

    Args:
        run: A run, or several runs: an ensemble by the mean of their similarities.
        data: Other data, or the run's data if it has moved: a path or pairs.
        split: The split to evaluate on.
        folds: Average over so many consecutive parts of the images (COCO 1K: 5).
        rerank: A second run, or several, which ranks the best candidates of the first again: two stages, for a matcher
            too slow to compare everything with.
        candidates: How many images of each caption, and captions of each image, the second run ranks again; 100, if
            not given. Only with `rerank`.
        similarities: Also write the similarities, `(images, captions)`, to this `.npy` file.
        overwrite: Replace an existing file of similarities.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        dtype: Number type of matrix products, `float32` or `bfloat16`; float32, if not given.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The scores, with `.rsum`, `.i2t`, `.t2i`; for several runs `.members` has the scores of each alone. Ties count
        against the matcher. In two stages, `.first` has the scores of the first alone, and `.i2t_found` and
        `.t2i_found` how many queries have a right answer among their candidates.

    Example:
        >>> crcl.evaluate("runs/mine", split="test").rsum
        476.1
    """
    shown = receiver(progress)
    runs, again = _listed(run), [] if rerank is None else _listed(rerank)
    count = how_many_candidates(candidates, again)
    if not runs:
        raise InputError("no run to evaluate", hint="name at least one run folder")
    if similarities is not None:
        if again:
            raise InputError("two stages do not compare all images with all captions", hint="leave {similarities} out")
        if folds > 1:
            raise InputError("folds do not compare all images with all captions", hint="give {folds} or {similarities}")
        check_similarity_file(Path(similarities), overwrite=overwrite)
    opened = [open_model(each, device=device, memory=memory, dtype=dtype, progress=shown) for each in [*runs, *again]]
    models, second = opened[: len(runs)], opened[len(runs) :]
    for model in opened:
        report_unfinished(model.run, model.config, shown)
    pairs = run_data(models[0].config, data).split(split)
    for model in opened:
        check_features(model.run, pairs)
    check_folds(pairs, folds)
    if second:
        with shown.task("scoring") as advance:
            return _in_stages(models, second, pairs, split=split, candidates=count, folds=folds, advance=advance)
    if not distributed.is_first():
        similarities = None  # one process writes the file
    if similarities is not None:
        refuse_input(Path(similarities), pairs.source, models[0].config.data.path)
    with (
        similarity_file(similarities, pairs) if similarities is not None else nullcontext() as out,
        shown.task("scoring") as advance,
    ):
        found = evaluate_each([model.scorer for model in models], pairs, folds=folds, advance=advance, out=out)
    return Evaluated(
        found.together.i2t,
        found.together.t2i,
        split=split,
        folds=folds,
        images=pairs.images,
        captions=len(pairs),
        runs=tuple(str(model.run.path) for model in models),
        conditions=tuple(conditions(model.run, model.config) for model in models),
        members=tuple(found.members),
    )


def _listed(run: AnyRun | Sequence[AnyRun]) -> list[AnyRun]:
    return [run] if isinstance(run, Run | Model | str | Path) else list(run)


def _in_stages(
    models: list[Model], second: list[Model], pairs: Split, *, split: str, candidates: int, folds: int, advance: Advance
) -> EvaluatedInStages:
    first, again = ([model.scorer for model in stage] for stage in (models, second))
    found = evaluate_in_stages(first, again, pairs, candidates=candidates, folds=folds, advance=advance)
    return EvaluatedInStages(
        found.scores.i2t,
        found.scores.t2i,
        split=split,
        folds=folds,
        images=pairs.images,
        captions=len(pairs),
        runs=tuple(str(model.run.path) for model in models),
        conditions=tuple(conditions(model.run, model.config) for model in [*models, *second]),
        first=found.first,
        reranked_by=tuple(str(model.run.path) for model in second),
        candidates=candidates,
        i2t_found=found.i2t_found,
        t2i_found=found.t2i_found,
        compared=found.compared,
    )


def load(run: AnyRun, *, device: str = "auto", memory: float | None = None, dtype: str | None = None) -> Model:
    """Load the trained matcher of a run, to score photos and sentences.

    Args:
        run: A run.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        dtype: Number type of matrix products, `float32` or `bfloat16`; float32, if not given.

    Returns:
        The model. It takes photos if the run records how its features were made, and arrays of features otherwise.

    Example:
        >>> model = crcl.load("runs/mine")
        >>> model.similarity(["a.jpg", "b.jpg"], ["two dogs", "a red car"]).shape
        (2, 2)
    """
    return open_model(run, device=device, memory=memory, dtype=dtype)


def plot(
    run: AnyRun,
    folder: str | Path | None = None,
    *,
    split: str | None = "dev",
    threshold: float | None = None,
    svg: bool = False,
    data: Any = None,
    device: str = "auto",
    memory: float | None = None,
    progress: Shown = False,
) -> list[Path]:
    """Draw a run: loss, scores and correspondences by epoch, ranks on a split, and mismatches found by epoch.

    Args:
        run: A run.
        folder: Where the pictures go; `plots` in the run folder, if not given.
        split: The split to rank; None draws no ranks.
        threshold: Pairs with a lower correspondence count as detected; the method's own or 0.1, if not given.
        svg: Draw SVG instead of PNG.
        data: The run's data, if it has moved: a path or pairs.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The pictures. That of the mismatches found by epoch needs injected noise.

    Example:
        >>> [path.name for path in crcl.plot("runs/mine")]
        ['curves.png', 'ridge.png', 'detected.png', 'ranks.png']
    """
    Choice(threshold)
    opened = Run.open(path_of(run))
    drawn = dict(figures.history(opened))
    config = stored_config(opened)
    pairs = run_data(config, data)
    if threshold is None:
        own = config.own_threshold()
        threshold = THRESHOLD if own is None else own
    truth = audited_pairs(opened, config, pairs).truth
    found = None if truth is None else figures.detected(opened, truth, threshold=threshold)
    if found is not None:
        drawn["detected"] = found
    if split is not None:
        model = Model.open(opened.path, device=device, memory=memory)
        ranked = pairs.split(split)
        check_features(opened, ranked)
        with receiver(progress).task("scoring") as advance:
            sims = mean_similarities([model.scorer], ranked, advance=advance)
        drawn["ranks"] = figures.ranks(sims, ranked, split)
    into = Path(folder or opened.path / "plots")
    make_folder(into)
    written = [into / f"{name}{'.svg' if svg else '.png'}" for name in drawn]
    for path, figure in zip(written, drawn.values(), strict=True):
        plots.save(figure, path)
    return written
