"""The command line: one small function per command. What is wrong with the input ends with exit code 2."""

import json
import shlex
import signal
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from crcl import __version__, assembly, config, decoys, drawing, experiments, inputs, jobs, pipeline, plots, recipe
from crcl import adopt as adopting
from crcl import audit as auditing
from crcl import clean as cleaning
from crcl import demo as demonstration
from crcl import export as exporting
from crcl import info as describing
from crcl import report as reporting
from crcl import reproduce as reproducing
from crcl import suggest as suggesting
from crcl.checkpoint import Run, locked
from crcl.data import noise as mismatching
from crcl.data import tables
from crcl.data.formats import read, splits
from crcl.data.images import MOST_PIXELS, wanted_images
from crcl.errors import InputError, TrainingError
from crcl.extract import Extracted, Extractor, extract
from crcl.features import PixelGrid
from crcl.matchers import MATCHERS
from crcl.metrics import Retrieval
from crcl.planning import Planner
from crcl.progress import TensorBoard, Terminal, Work
from crcl.score import check_folds, check_similarity_file, evaluate_each, mean_similarities, similarity_file
from crcl.thumbnails import FindImage, images_below
from crcl.train import Interrupted, Listener
from crcl.vision import Pixels, VisionModel

app = typer.Typer(
    help="Learn from image-caption pairs that are partly wrong: train a robust matcher, audit the pairs.",
    epilog="First look, no data needed:  crcl demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

SUGGESTED = 10_000
"""Suspects that get suggestions, unless told otherwise."""
ORDER_SCORES = ("auroc", "average_precision")
"""Scores of an audit that need no threshold."""

Data = Annotated[
    Path, typer.Argument(help="Folder in the field's layout or of embeddings, or a table (.csv .tsv .jsonl .parquet).")
]
Features = Annotated[Path | None, typer.Option(help="A table's features file (.npy).")]
TextFeatures = Annotated[Path | None, typer.Option(help="Vectors of a table's captions (.npy), one per row.")]
Ids = Annotated[Path | None, typer.Option(help="A table's image ids, one per row of the features.")]
ImageColumn = Annotated[
    str | None, typer.Option(help="What the table calls its column of images; image, if not given.")
]
CaptionColumn = Annotated[str | None, typer.Option(help="What it calls its column of captions; caption, if not given.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any key, e.g. loss.tau=0.03; `crcl info` lists all.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Memory = Annotated[float | None, typer.Option(help="GiB for intermediate results; the run's train.memory, mostly 4.")]


def main() -> None:
    """Run the command line and turn errors into messages and exit codes."""
    try:
        app()
    except (InputError, TrainingError) as error:
        err.print(f"crcl: {_printable(str(error))}", soft_wrap=True)
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


def _printable(text: str) -> str:
    """Names and captions come from strangers: control characters would reach the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


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


@app.command()
def train(
    data: Data,
    run: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
    preset: Annotated[str | None, typer.Option(help=f"One of: {', '.join(config.presets())}.")] = None,
    file: Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")] = None,
    method: Annotated[str | None, typer.Option(help=f"One of: {', '.join(config.METHOD_NAMES)}.")] = None,
    matcher: Annotated[str | None, typer.Option(help=f"One of: {', '.join(MATCHERS)}.")] = None,
    noise: Annotated[float | None, typer.Option(help="Mismatch this share of the training pairs, to measure.")] = None,
    noise_level: Annotated[str | None, typer.Option(help="caption or image.")] = None,
    noise_seed: Annotated[int | None, typer.Option(help="Seed of the mismatches.")] = None,
    noise_file: Annotated[Path | None, typer.Option(help="Take the mismatches from the field's .npy index.")] = None,
    vocab: Annotated[Path | None, typer.Option(help="Vocabulary in the field's JSON; otherwise built.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    share: Annotated[
        float | None,
        typer.Option("--decoys", help="Add known mismatches, e.g. 0.05: an audit then says how sure it is."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, batches and augmentation.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that prepare batches.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    start: Annotated[
        Path | None, typer.Option(help="Train this run further: begin from its matcher, words and beliefs.")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="GiB for intermediate results of saf and sgr.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run, to the same end.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train a matcher on pairs that are partly wrong, and learn which.

    Example: `crcl train data/f30k_precomp -o runs/first --preset f30k-vse --noise 0.4`

    Ctrl-C saves; the same command with --resume goes on and ends as if it had never been stopped.
    """
    given = {
        "data.path": str(data.absolute()),  # the run is found from any folder
        "data.features": _text(features and features.absolute()),
        "data.text_features": _text(text_features and text_features.absolute()),
        "data.ids": _text(ids and ids.absolute()),
        "data.vocab": _text(vocab),
        "data.image_column": image_column,
        "data.caption_column": caption_column,
        "data.decoys": share,
        "method": method,
        "matcher.name": matcher,
        "noise.rate": noise,
        "noise.level": noise_level,
        "noise.seed": noise_seed,
        "noise.file": _text(noise_file),
        "train.seed": seed,
        "train.workers": workers,
        "train.device": device,
        "train.memory": memory,
        "train.start": _text(start and start.absolute()),
    }
    asked: dict[str, Any] = {
        "preset": preset,
        "file": file,
        "base": {key: value for key, value in given.items() if value is not None},
        "settings": settings or (),
    }
    go_on = resume and run.is_dir()
    chosen = recipe.resumed_config(run, **asked) if go_on else recipe.asked_config(**asked)
    if go_on:
        _say_if_finished(run, chosen)
    listeners: list[Listener] = [_terminal(chosen)]
    if tensorboard:
        listeners.append(TensorBoard(run / "tensorboard"))
    recipe.train(chosen, run, resume=resume, overwrite=overwrite, listeners=listeners, say=_note)
    split = "" if "test" in splits(data, inputs.columns(chosen)) else " --split dev"
    out.print(f"the run is in {run}; next:\n  crcl evaluate {run}{split}\n  crcl audit {run}", soft_wrap=True)


@app.command("import")
def import_(
    checkpoint: Annotated[
        Path, typer.Argument(help="The authors' file, e.g. model_best.pth.tar; or a CLIP's folder or hub name.")
    ],
    data: Annotated[Path, typer.Option(help="The data that it was trained on: a folder, or a table. A CLIP: any.")],
    run: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
    vocab: Annotated[
        Path | None, typer.Option(help="Its vocabulary in the field's JSON, if not near the data.")
    ] = None,
    noise_file: Annotated[Path | None, typer.Option(help="The mismatches that it was trained with (.npy).")] = None,
    method: Annotated[str | None, typer.Option(help="How it was trained, where the file does not tell.")] = None,
    features: Features = None,
    ids: Ids = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run folder.")] = False,
) -> None:
    """Make a run folder of a published checkpoint: CRCL, SGRAF, SCAN, DECL, RCL, NCR, BiCro, L2RM, GSC; CLIP, SigLIP.

    Example: `crcl import model_best.pth.tar --data data/f30k_precomp -o runs/published`

    Nothing in the file is executed: what is not weights, arrays or plain values is refused.
    """
    places: dict[str, Any] = {"features": features and features.absolute(), "ids": ids and ids.absolute()}
    if adopting.is_model(checkpoint):
        if vocab is not None or noise_file is not None:
            raise InputError(f"{checkpoint}: a model brings its own tokens and no mismatches; leave them out")
        made = adopting.adopt_model(str(checkpoint), data.absolute(), run, method=method, overwrite=overwrite, **places)
    else:
        made = adopting.adopt(
            checkpoint,
            data.absolute(),
            run,
            vocab=vocab,
            noise_file=noise_file and noise_file.absolute(),
            method=method,
            overwrite=overwrite,
            say=_note,
            **places,
        )
    out.print(f"{made.config['matcher']['name']} imported from {made.imported}", soft_wrap=True)
    split = "" if "test" in splits(data) else " --split dev"
    out.print(f"the run is in {run}; next:\n  crcl evaluate {run}{split}\n  crcl audit {run}", soft_wrap=True)
    if fitting := assembly.methods_of(made.networks):
        out.print(f"  crcl train {data} -o NEW --start {run} --method {fitting[0]}", soft_wrap=True)


@app.command()
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
    opened = [recipe.open_scorer(run, device=device, memory=memory) for run in runs]
    for opened_run, stored, _ in opened:
        _warn_if_unfinished(opened_run, stored)
    pairs = inputs.read_split(_located(opened[0][1], data, features, ids, text_features), split)
    for run, _, _ in opened:
        inputs.check_features(run, pairs)
    check_folds(pairs, folds)
    if save_sims is not None:
        _refuse_input(save_sims, pairs.source, opened[0][1].data.path)
    with similarity_file(save_sims, pairs) if save_sims else nullcontext() as sims, _watch("scoring") as progress:
        scorers = [scorer for _, _, scorer in opened]
        found = evaluate_each(scorers, pairs, folds=folds, progress=progress, out=sims)
    scores = found.together
    conditions = [recipe.conditions(run, stored) for run, stored, _ in opened]
    members = [(run, scored) for (run, _, _), scored in zip(opened, found.members, strict=True)]
    if as_json:
        alone = [{"run": str(run.path), "rsum": scored.rsum, **asdict(scored)} for run, scored in members]
        about = {"split": split, "folds": folds, "runs": conditions, "members": alone}
        out.print(json.dumps({"rsum": scores.rsum, **asdict(scores), **about}), soft_wrap=True)
        return
    parts = f", mean of {folds} folds" if folds > 1 else ""
    out.print(_retrieval_table(scores, f"{split}: {pairs.images:,} images, {len(pairs):,} captions{parts}"))
    if len(runs) == 1:
        out.print(conditions[0], soft_wrap=True)
    else:
        out.print("mean of the similarities of these runs, which alone have:")
        for rsum, line in sorted(zip((scored.rsum for _, scored in members), conditions, strict=True), reverse=True):
            out.print(f"  rSum {rsum:.1f}  {line}", soft_wrap=True)
    if save_sims is not None:
        out.print(f"similarities written to {save_sims}", soft_wrap=True)


@app.command()
def audit(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_DATA", help="A run folder; or data to train on first: a table, embeddings, ..."),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--out", help="Table to write (.csv or .parquet).")] = None,
    threshold: Annotated[float | None, typer.Option(help="Pairs believed in by less are suspects.")] = None,
    precision: Annotated[
        float | None, typer.Option(help="Instead: flag as many as can be, so large a share of them rightly.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for a page to look at the suspects.")] = None,
    suggest: Annotated[
        int, typer.Option(min=0, help="Suspects for which is said what would match instead, the worst first.")
    ] = SUGGESTED,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the table's images; where the table is, if not.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Of data: vision model for its images, a saved model's folder or a hub name.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Of data: where features, run, table and report go; NAME-audit, if not given.")
    ] = None,
    share: Annotated[
        float, typer.Option("--decoys", help="Of data: known mismatches that are added, as a share of the pairs.")
    ] = decoys.SHARE,
    preset: Annotated[str | None, typer.Option(help="Of data: how to train; cpu or embeddings, if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of data: seed of weights, batches and decoys.")] = None,
    settings: Settings = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Of data: train anew, in place of what is there.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Of a run: where the training data is now, if it has moved.")
    ] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    device: Device = "auto",
    memory: Memory = None,
) -> None:
    """Which pairs are wrong, how sure is that, what would match instead, and how many are wrong in all.

    Example: `crcl audit pairs.csv --images photos --model openai/clip-vit-base-patch32`, or `crcl audit runs/first`

    Given data, features are made and CRCL is trained first, with decoys: known mismatches that tell how right the
    suspicions are. Every step is gone on with after Ctrl-C, and kept: given again with another --precision it is quick.

    Columns: row (in the data, from 0), image, caption, correspondence (0 suspect, 1 match), suspect, similarity; truth
    where known; suggestions for suspects. A table's held-out rows are not trained on, and so not judged.
    """
    run = source
    if is_data := pipeline.is_data(source):
        folder = folder or Path(f"{source.absolute().stem}-audit")
        report, output, run = report or folder / "report", output or folder / "audit.csv", folder / "run"
    output = output or run / "audit.csv"
    auditing.check_ending(output)
    if report is not None:
        reporting.refuse_foreign(report)
    if is_data and folder is not None:
        if pipeline.needs_features(source, features):
            made = pipeline.make_features(
                source,
                folder,
                _extractor(model, device=device),
                images=images,
                columns=tables.Columns(image_column or "image", caption_column or "caption"),
                overwrite=overwrite,
                watch=_watch,
            )
            _note_skipped(made, folder / "features")
            features, ids = folder / "features" / "features.npy", folder / "features" / "ids.txt"
        asked = {
            "data.decoys": share,
            "data.features": features,
            "data.text_features": text_features,
            "data.ids": ids,
            "data.image_column": image_column,
            "data.caption_column": caption_column,
            "train.seed": seed,
            "train.device": device,
        }
        chosen = pipeline.plan(source, preset=preset, asked=asked, settings=settings or ())
        recipe.train(chosen, run, resume=not overwrite, overwrite=overwrite, listeners=[_terminal(chosen)], say=_note)
        data = features = text_features = ids = None  # as the run has them
    opened, stored, scorer = recipe.open_scorer(run, device=device, memory=memory)
    _warn_if_unfinished(opened, stored)
    stored = _located(stored, data, features, ids, text_features)
    beliefs, estimate = _beliefs(opened)
    at = auditing.choose_threshold(estimate, threshold=threshold, precision=precision)
    pairs = inputs.audited_pairs(opened, stored)
    _refuse_input(output, pairs.source, stored.data.path)
    with _watch("similarities") as progress:
        similarity = scorer.pair_similarities(pairs, progress=progress)
    found = auditing.audit(pairs, beliefs, similarity, threshold=at)
    suspects = found.suspects[:suggest]
    if len(suspects):
        with _watch("suggestions") as progress:
            found = replace(found, suggestions=suggesting.suggest(scorer, pairs, suspects, progress=progress))
    auditing.write(found, output)
    _tell(run, found, estimate)
    out.print(f"written to {output}", soft_wrap=True)
    if report is not None:
        with _watch("report") as progress:
            page = reporting.write_report(
                report,
                found,
                title=f"Audit of {Path(stored.data.path).name}",
                estimate=estimate,
                suggestions=found.suggestions,
                find_image=_image_finder(stored, images),
                about=[("run", recipe.conditions(opened, stored))],
                progress=progress,
            )
        out.print(f"report: {page}", soft_wrap=True)
    if is_data:
        out.print(f"next:\n  crcl clean {run} -o CLEANED{source.suffix}", soft_wrap=True)


def _extractor(
    model: str | None, *, grid: int = 6, whole: bool = False, pixels: bool = False, device: str = "auto"
) -> Extractor:
    """The vision model that is asked for, or else the pixel grid, with a word of warning."""
    if model is None:
        _note("the built-in pixel grid knows colours and edges only, for drawings and tests; photos need a --model")
        return PixelGrid(grid=grid)
    if pixels:
        return Pixels(model)
    return VisionModel(model, grid=grid, whole=whole, device=assembly.choose_device(device))


def _note_skipped(made: Extracted, folder: Path) -> None:
    if made.skipped:
        _note(
            f"{len(made.skipped):,} images were skipped, and training leaves their pairs out: {folder / 'skipped.csv'}"
        )


def _beliefs(run: Run) -> tuple[np.ndarray | None, decoys.Estimate | None]:
    """What a run believes of its pairs, and what its decoys say of that."""
    if not run.has_beliefs:
        return None, None
    beliefs, of_decoys = run.load_ledger(), run.load_decoy_ledger()
    if len(of_decoys) < decoys.FEWEST:
        if len(of_decoys):
            _note(f"{len(of_decoys)} decoys are too few to estimate anything from; {decoys.FEWEST} would do")
        return beliefs, None
    return beliefs, decoys.estimate(beliefs, of_decoys)


def _tell(run: Path, found: auditing.Audit, estimate: decoys.Estimate | None) -> None:
    """What the audit found, in sentences."""
    if estimate is not None:
        for sentence in reporting.summary(found, estimate):
            out.print(sentence, soft_wrap=True)
    elif found.believes:
        flagged, pairs = len(found.suspects), len(found.pairs)
        out.print(
            f"{flagged:,} of {pairs:,} pairs ({flagged / pairs:.1%}) are suspect at threshold {found.threshold:g}"
        )
    else:
        _note(
            f"{run} was imported without beliefs: the pairs are in the order of their similarity, and none is suspect"
        )
    if estimate is None and found.correspondence.mean() < auditing.LOW_BELIEF:
        _note(
            f"the mean belief is {found.correspondence.mean():.3f}: with few pairs, few epochs or many captions that "
            "say the same, beliefs stay low. Trust their order; choose --threshold by looking at the pairs around it"
        )
    scores = found.detection()
    if scores is not None:
        known = {name: value for name, value in asdict(scores).items() if found.believes or name in ORDER_SCORES}
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items())
        out.print(f"against the injected noise: {numbers}", soft_wrap=True)


def _image_finder(stored: config.Config, images: Path | None) -> FindImage | None:
    """Where the report finds image files: in the folder given, or next to the table."""
    table = Path(stored.data.path)
    if images is not None and not images.is_dir():
        raise InputError(f"{images}: no such folder; it must hold the images")
    if images is None and (table.suffix not in tables.SUFFIXES or table.is_dir()):
        return None
    return images_below(images or table.parent)


@app.command()
def clean(
    run: Annotated[Path, typer.Argument(help="Run folder, trained on a table.")],
    output: Annotated[Path, typer.Option("-o", "--out", help="Table to write, in the format of the run's table.")],
    threshold: Annotated[float | None, typer.Option(help="Pairs believed in by less are left out.")] = None,
    precision: Annotated[
        float | None, typer.Option(help="Instead: leave out as many as can be, so large a share of them rightly.")
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Keep all rows, with a column 'correspondence' added instead.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Where the table is now, if it has moved.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write the run's table again without the suspects; all columns, values and the order stay as they are.

    Example: `crcl clean runs/first -o cleaned.csv`

    Rows that were not trained on (held out, or without a usable image) are not judged, and stay. The table itself is
    never touched.
    """
    opened = Run.open(run)
    stored = _located(recipe.stored_config(opened), data, features, ids, text_features)
    table = Path(stored.data.path)
    cleaning.refuse_output(table, output, overwrite=overwrite)
    _warn_if_unfinished(opened, stored)
    beliefs, estimate = opened.load_ledger(), _beliefs(opened)[1]
    at = auditing.choose_threshold(estimate, threshold=threshold, precision=precision)
    pairs = inputs.audited_pairs(opened, stored)
    columns = inputs.columns(stored)
    done = cleaning.clean(table, output, pairs, beliefs, threshold=at, mark=mark, overwrite=overwrite, columns=columns)
    left = f" at threshold {at:g}" if not mark else f": all have a column '{cleaning.COLUMN}' now"
    out.print(f"{done.removed:,} rows removed, {done.kept:,} kept{left}", soft_wrap=True)
    if done.unjudged:
        what = "their belief is left empty" if mark else "they are kept"
        out.print(f"{done.unjudged:,} rows were not judged (held out, or without a usable image); {what}")
    out.print(f"written to {output}", soft_wrap=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    output: Annotated[
        Path, typer.Option("-o", "--out", help="File to write (.safetensors); a folder with --onnx, and for clip.")
    ],
    onnx: Annotated[bool, typer.Option("--onnx", help="Graphs that run without torch, of vse and bow.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
) -> None:
    """Write the trained matcher for use elsewhere: its weights in one file, or as ONNX graphs.

    Example: `crcl export runs/first -o first.safetensors`, or `crcl export runs/first --onnx -o first-onnx`

    ONNX graphs are compared with torch on random inputs before they are kept.
    """
    if not onnx and Run.open(run).model() is not None:
        exporting.save_model(run, output, overwrite=overwrite)
        out.print(f"written to {output}, which transformers reads; the images' preprocessor_config.json is the old one")
        return
    if not onnx:
        words = exporting.save_weights(run, output, overwrite=overwrite)
        out.print(f"weights written to {output}, words to {words}", soft_wrap=True)
        return
    difference = exporting.save_onnx(run, output, overwrite=overwrite)
    if difference is None:
        _note("onnxruntime is not installed, so the graphs were not compared with torch: pip install 'crcl[onnx]'")
    else:
        out.print(f"compared with torch on random inputs: the vectors differ by {difference:.1e} at most")
    out.print(f"graphs written to {output}; {output / 'about.json'} says how to use them", soft_wrap=True)


@app.command()
def noise(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--out", help="Index file to write (.npy).")],
    rate: Annotated[float, typer.Option(help="Share to mismatch, 0 to 1.")],
    level: Annotated[str, typer.Option(help="caption: single captions; image: all captions of an image.")] = "caption",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Write a noise index in the field's layout, to share mismatches between tools and runs.

    Example: `crcl noise data/f30k_precomp --rate 0.4 -o noise_0.4.npy`
    """
    pairs = read(data, "train", features=features, ids=ids, text_features=text_features)
    index = mismatching.mismatch(pairs.image_index, rate, seed, level=level, images=pairs.images)
    truth = mismatching.apply(pairs, index).truth
    _refuse_input(output, pairs.source, str(data))
    mismatching.write_index(output, index)
    wrong = 0 if truth is None else int((~truth).sum())
    out.print(f"{wrong:,} of {len(pairs):,} training pairs are mismatched; written to {output}", soft_wrap=True)


@app.command("features")
def features_(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES_OR_TABLE", help="A table (image, caption), a folder, or image files."),
    ],
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder to write features.npy and ids.txt to.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the table's images; where the table is, if not given.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="CLIP, SigLIP or DINOv2: a saved model's folder, or its name on the hub.")
    ] = None,
    grid: Annotated[int, typer.Option(min=1, max=32, help="N x N regions at most; 6 gives 36.")] = 6,
    whole: Annotated[bool, typer.Option("--global", help="One vector per image instead of regions.")] = False,
    pixels: Annotated[
        bool, typer.Option("--pixels", help="The pixels that --model reads, to fine-tune it (--matcher clip).")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model sees at once.")] = 32,
    cache: Annotated[
        Path | None, typer.Option(help="Where features are kept by content; FOLDER/cache, if not given.")
    ] = None,
    megapixels: Annotated[
        float, typer.Option(min=0.001, max=178, help="Larger images are skipped, before they are decoded.")
    ] = MOST_PIXELS / 1e6,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace features made in another way.")] = False,
) -> None:
    """Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.

    Example: `crcl features pairs.csv --images photos -o features --model openai/clip-vit-base-patch32`

    What cannot be used is listed in skipped.csv with the reason. Ctrl-C is safe: the same command goes on.
    """
    columns = tables.Columns(image_column or "image", caption_column or "caption")
    wanted = wanted_images(sources, folder=images, columns=columns)
    if pixels and (model is None or whole):
        raise InputError("--pixels are those that a model reads; give its --model with it, and no --global")
    if whole and model is None:
        raise InputError("--global is a model's vector of the whole image; give a --model with it")
    found = extract(
        wanted,
        _extractor(model, grid=grid, whole=whole, pixels=pixels, device=device),
        folder,
        cache=cache,
        batch_size=batch_size,
        most_pixels=round(megapixels * 1e6),
        overwrite=overwrite,
        watch=_watch,
    )
    shape = " x ".join(str(side) for side in found.shape)
    out.print(f"{found.images:,} images, {shape} each ({found.computed:,} computed now), in {folder}", soft_wrap=True)
    _note_skipped(found, folder)
    if sources[0].suffix in tables.SUFFIXES:
        paths = f"--features {folder / 'features.npy'} --ids {folder / 'ids.txt'}"
        if pixels:
            paths += f" --preset clip --set matcher.model={model}"
        out.print(f"next:\n  crcl train {sources[0]} -o RUN {paths}", soft_wrap=True)


@app.command()
def info(
    path: Annotated[Path | None, typer.Argument(help="Data or run folder; nothing: all settings.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Say what is there: counts and shapes of data, config and progress of a run; without a path, every setting.

    Example: `crcl info runs/first`
    """
    if path is None:
        table = Table("key", "type", "default", "meaning", box=None, pad_edge=False)
        for key in config.describe_keys():
            table.add_row(*key)
        out.print(table)
        return
    for name, fact in describing.describe(
        path, features=_text(features), ids=_text(ids), text_features=_text(text_features)
    ):
        out.print(f"{name:<12}{fact}", soft_wrap=True)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    folder: Annotated[Path | None, typer.Option("-o", "--out", help="Folder to draw into; RUN/plots.")] = None,
    split: Annotated[str, typer.Option(help="Split to rank; none: no ranks.")] = "dev",
    threshold: Annotated[float, typer.Option(help="Beliefs below it count as detected.")] = auditing.THRESHOLD,
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
    folder = folder or run / "plots"
    opened = Run.open(run)
    figures = dict(drawing.history(opened))
    stored = _located(recipe.stored_config(opened), data, features, ids, text_features)
    truth = inputs.audited_pairs(opened, stored).truth
    found = None if truth is None else drawing.detected(opened, truth, threshold=threshold)
    if found is not None:
        figures["detected"] = found
    if split != "none":
        _, _, scorer = recipe.open_scorer(run, device=device, memory=memory)
        pairs = inputs.read_split(stored, split)
        inputs.check_features(opened, pairs)
        with _watch("scoring") as progress:
            sims = mean_similarities([scorer], pairs, progress=progress)
        figures["ranks"] = drawing.ranks(sims, pairs, split)
    _make_folder(folder)
    for name, figure in figures.items():
        path = folder / f"{name}{'.svg' if svg else '.png'}"
        plots.save(figure, path)
        out.print(str(path), soft_wrap=True)


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(help=f"list, or some of: {', '.join(experiments.NAMES)}.")],
    data: Annotated[
        Path | None,
        typer.Option(help="A precomp folder; for the profile paper the folder that holds f30k_precomp etc."),
    ] = None,
    profile: Annotated[str, typer.Option(help="cpu: two cores' size, any data. paper: the paper's sizes.")] = "cpu",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of weights, batches and mismatches.")] = 3,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path(
        "reproduce"
    ),
    matcher: Annotated[str | None, typer.Option(help="Train every row on this matcher instead of on its own.")] = None,
    noise: Annotated[list[float] | None, typer.Option(help="Only these rates of mismatches, e.g. 0.4.")] = None,
    settings: Settings = None,
    processes: Annotated[int, typer.Option("--jobs", min=1, help="Trainings at a time.")] = 1,
    print_jobs: Annotated[
        bool, typer.Option("--print-jobs", help="Train nothing; print the commands that are left, for a cluster.")
    ] = False,
    only_gather: Annotated[bool, typer.Option("--gather", help="Train nothing; write what there is so far.")] = False,
) -> None:
    """Make the paper's tables and figures anew: train what they need, and show ours beside the paper's.

    Example: `crcl reproduce table4 --data data/flickr8k --matcher vse`

    Runs are kept in OUT/runs and shared between tables. Stop it at any time: the same command goes on, and with nothing
    left to train it only writes the tables. After --print-jobs the same command without it gathers the results.
    """
    if [name.lower() for name in names] == ["list"]:
        for name in experiments.NAMES:
            out.print(f"{name:<17}{experiments.experiment(name).title}", soft_wrap=True)
        return
    wanted = [experiments.experiment(name) for name in dict.fromkeys(names)]
    if data is None and any(experiment.rows for experiment in wanted):
        raise InputError("say with --data where the pairs are")
    planner = Planner(
        experiments.profile(profile),
        data or Path(),
        seeds=seeds,
        settings=tuple(settings or ()),
        matcher=matcher,
        rates=tuple(noise or ()),
    )
    store = jobs.Store(folder)
    planned = reproducing.jobs_of(planner, wanted)
    for line in dict.fromkeys(line for experiment in wanted for line in planner.left_out(experiment)):
        _note(f"left out: {line}")
    if print_jobs:
        left = jobs.missing(store, planned)
        script = jobs.write_jobs(store, left, "-".join(names))
        for job in left:
            out.print(shlex.join(job.command(store.run(job).absolute())), soft_wrap=True)
        _note(f"{len(left)} of {len(planned)} runs are left; one command a line here, or: sbatch {script}")
        return
    _make_folder(folder)
    with locked(folder, busy="another `crcl reproduce` is at work here"):
        failed = [] if only_gather else _train_jobs(store, jobs.missing(store, planned), processes)
        for experiment in wanted:
            command = _reproduce_command(experiment, planner)
            for path in reproducing.gather(store, planner, experiment, command=command, say=_say):
                out.print(str(path), soft_wrap=True)
    if failed:
        raise TrainingError("\n".join([f"{len(failed)} of {len(planned)} runs failed:", *failed]))


def _train_jobs(store: jobs.Store, left: list[jobs.Job], processes: int) -> list[str]:
    if processes > 1:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a cluster sends is as good as Ctrl-C
        return jobs.train_apart(store, left, processes, say=_say)
    try:
        return jobs.train_here(store, left, say=_say, listen=_terminal)
    except Interrupted as stop:
        raise typer.Exit(130) from stop  # the same command goes on


def _reproduce_command(experiment: experiments.Experiment, planner: Planner) -> str:
    """The command that makes a table, without the paths of this machine."""
    words = ["crcl", "reproduce", experiment.name]
    if not experiment.rows:
        return shlex.join(words)
    words += ["--data", "DATA", "--profile", planner.profile.name]
    words += ["--seeds", str(planner.seeds)] + (["--matcher", planner.matcher] if planner.matcher else [])
    words += [word for rate in planner.rates for word in ("--noise", f"{rate:g}")]
    return shlex.join([*words, *(word for setting in planner.settings for word in ("--set", setting))])


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder for data, runs and pictures.")] = Path("demo"),
    images: Annotated[int, typer.Option(min=20, help="Training images to draw.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything.")] = 0,
    settings: Settings = None,
) -> None:
    """Draw 2,000 scenes, mismatch 40 % of the pairs, train plainly and with CRCL, compare. A few minutes, no network.

    Example: `crcl demo -o demo`
    """

    def listen(name: str, chosen: config.Config) -> Terminal:
        err.print(f"training {name}")
        return _terminal(chosen)

    outcomes = demonstration.demo(
        folder, images=images, seed=seed, settings=tuple(settings or ()), watch=_watch, listen=listen
    )
    table = Table("method", "rSum", "text R@1", "image R@1", "detection AUROC", "AP", title="Test scores on the scenes")
    for outcome in outcomes:
        scores, found = outcome.retrieval, outcome.detection
        detected = (f"{found.auroc:.3f}", f"{found.average_precision:.3f}") if found else ("", "")
        table.add_row(outcome.name, f"{scores.rsum:.1f}", f"{scores.i2t.r1:.1f}", f"{scores.t2i.r1:.1f}", *detected)
    out.print(table)
    for name, what in demonstration.LEFT_BEHIND.items():
        out.print(f"{folder / name}  {what}", soft_wrap=True)


def _say_if_finished(path: Path, chosen: config.Config) -> None:
    done, planned = recipe.epochs_done(Run.open(path), chosen)
    if done >= planned:
        out.print(f"finished already: {done} of {planned} epochs; nothing is left to train", soft_wrap=True)


def _warn_if_unfinished(run: Run, stored: config.Config) -> None:
    done, planned = recipe.epochs_done(run, stored)
    if done < planned:
        _note(f"{run.path} stopped after {done} of {planned} epochs; `crcl train ... --resume` finishes it")


def _terminal(chosen: config.Config) -> Terminal:
    return Terminal(recipe.schedule(chosen), err, networks=assembly.NETWORKS.get(chosen.method, 1))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _say(line: str) -> None:
    err.print(_printable(line), soft_wrap=True)


def _note(line: str) -> None:
    err.print(f"note: {line}", soft_wrap=True)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _refuse_input(output: Path, *inputs: str) -> None:
    """Never write over what was read."""
    if any(output.exists() and Path(name).exists() and output.samefile(name) for name in inputs):
        raise InputError(f"{output}: that is the data itself; name another file to write")


def _located(
    stored: config.Config, data: Path | None, features: Path | None, ids: Path | None, text_features: Path | None
) -> config.Config:
    """The stored config with data that is elsewhere now."""
    if data is None and not Path(stored.data.path).exists():
        raise InputError(f"{stored.data.path}: the run's data is not there; say with --data where it is now")
    files = {"data.features": features, "data.text_features": text_features, "data.ids": ids}
    if data is not None:  # the old table's files do not belong to other data
        stored = config.load(over=stored, base=dict.fromkeys(files))
    moved = {"data.path": data} | files
    return config.load(over=stored, base={key: str(path) for key, path in moved.items() if path is not None})


def _watch(what: str) -> Work:
    return Work(what, err)


def _retrieval_table(scores: Retrieval, title: str) -> Table:
    table = Table("", "R@1", "R@5", "R@10", "median rank", "mean rank", title=title)
    for name, direction in (("image to text", scores.i2t), ("text to image", scores.t2i)):
        values = (direction.r1, direction.r5, direction.r10, direction.median_rank, direction.mean_rank)
        table.add_row(name, *(f"{value:.1f}" for value in values))
    table.caption = f"rSum {scores.rsum:.1f}"
    return table
