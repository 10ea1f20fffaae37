"""Commands that make a run, and hand on what it has learnt: train, import, export."""

from pathlib import Path
from typing import Annotated, Any

import typer

from crcl import config
from crcl.cli.options import CaptionColumn, Data, Features, Ids, ImageColumn, Settings, TextFeatures, columns_of, text
from crcl.cli.screen import note, out, shown, tell_next
from crcl.data.pairs import Pairs
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.methods import METHODS, methods_of
from crcl.progress import Together
from crcl.retrieval import export as exporting
from crcl.retrieval.export_onnx import save_onnx
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run
from crcl.training import importing as adopting
from crcl.training import inputs, session
from crcl.training.tensorboard import TensorBoard


def train(
    data: Data,
    run: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
    preset: Annotated[str | None, typer.Option(help=f"One of: {', '.join(config.presets())}.")] = None,
    file: Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")] = None,
    method: Annotated[str | None, typer.Option(help=f"One of: {', '.join(METHODS)}.")] = None,
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
        "data.features": text(features and features.absolute()),
        "data.text_features": text(text_features and text_features.absolute()),
        "data.ids": text(ids and ids.absolute()),
        "data.vocab": text(vocab),
        "data.image_column": image_column,
        "data.caption_column": caption_column,
        "data.decoys": share,
        "method": method,
        "matcher.name": matcher,
        "noise.rate": noise,
        "noise.level": noise_level,
        "noise.seed": noise_seed,
        "noise.file": text(noise_file),
        "train.seed": seed,
        "train.workers": workers,
        "train.device": device,
        "train.memory": memory,
        "train.start": text(start and start.absolute()),
    }
    asked: dict[str, Any] = {
        "preset": preset,
        "file": file,
        "base": {key: value for key, value in given.items() if value is not None},
        "settings": settings or (),
    }
    go_on = resume and run.is_dir()
    chosen = session.resumed_config(run, **asked) if go_on else session.new_config(**asked)
    if go_on:
        _say_if_finished(run, chosen)
    progress = Together(shown, TensorBoard(run / "tensorboard")) if tensorboard else shown
    pairs = inputs.open_pairs(chosen)
    session.train(chosen, run, pairs=pairs, resume=resume, overwrite=overwrite, progress=progress)
    _tell_where(run, pairs)


def _say_if_finished(path: Path, chosen: config.Config) -> None:
    done, planned = epochs_done(Run.open(path), chosen)
    if done >= planned:
        out.print(f"finished already: {done} of {planned} epochs; nothing is left to train", soft_wrap=True)


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
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run folder.")] = False,
) -> None:
    """Make a run of a published checkpoint: CRCL, SGRAF, SCAN, DECL, RCL, NCR, BiCro, L2RM, GSC; CLIP, SigLIP.

    Example: `crcl import model_best.pth.tar --data data/f30k_precomp -o runs/published`

    Nothing in the file is executed: what is not weights, arrays or plain values is refused.
    """
    columns = columns_of(image_column, caption_column)
    places: dict[str, Any] = {"features": features and features.absolute(), "ids": ids and ids.absolute()}
    places["columns"] = columns
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
            progress=shown,
            **places,
        )
    out.print(f"{made.config['matcher']['name']} imported from {made.imported}", soft_wrap=True)
    fitting = methods_of(made.networks)
    go_on = [["train", str(data), "-o", "NEW", "--start", str(run), "--method", fitting[0]]] if fitting else []
    _tell_where(run, Pairs.of(data, columns=columns), *go_on)


def _tell_where(run: Path, pairs: Pairs, *more: list[str]) -> None:
    out.print(f"the run is in {run}", soft_wrap=True)
    split = [] if "test" in pairs.splits else ["--split", "dev"]
    tell_next(["evaluate", str(run), *split], ["audit", str(run)], *more)


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="File to write (.safetensors), or a folder with --onnx and for clip; beside the run if not given.",
        ),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Graphs that run without torch, of vse and bow.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
) -> None:
    """Write the trained matcher for use elsewhere: its weights in one file, or as ONNX graphs.

    Example: `crcl export runs/first -o first.safetensors`, or `crcl export runs/first --onnx -o first-onnx`

    ONNX graphs are compared with torch on random inputs before they are kept.
    """
    model = Run.open(run).model() is not None
    if output is None:
        output = run.with_name(f"{run.absolute().name}{'-onnx' if onnx else '-model' if model else '.safetensors'}")
    if model and not onnx:
        exporting.save_model(run, output, overwrite=overwrite)
        out.print(f"written to {output}, which transformers reads; the images' preprocessor_config.json is the old one")
        return
    if not onnx:
        words = exporting.save_weights(run, output, overwrite=overwrite)
        out.print(f"weights written to {output}, words to {words}", soft_wrap=True)
        return
    difference = save_onnx(run, output, overwrite=overwrite)
    if difference is None:
        note("onnxruntime is not installed, so the graphs were not compared with torch: pip install 'crcl[onnx]'")
    else:
        out.print(f"compared with torch on random inputs: the vectors differ by {difference:.1e} at most")
    out.print(f"graphs written to {output}; {output / 'about.json'} says how to use them", soft_wrap=True)
