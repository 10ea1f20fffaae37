"""Public functions for runs: train, import_checkpoint, export."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from crcl import distributed
from crcl.api.common import AnyRun, Settings, Shown, as_names, as_settings, pairs_of, path_of, receiver, verdicts_path
from crcl.auditing.making import Models, finds_images, wants_vectors, with_features, with_pixels
from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.errors import InputError
from crcl.features.sentences import check_way
from crcl.matchers import MATCHERS
from crcl.progress import Progress, ProgressGroup
from crcl.retrieval import export as exporting
from crcl.retrieval.export_onnx import save_onnx
from crcl.runs.describe import report_finished
from crcl.runs.folder import Run
from crcl.training import importing, session
from crcl.training.tensorboard import TensorBoard
from crcl.training.verdicts import check_given


@distributed.processes()
def train(
    data: Any,
    run: str | Path,
    *,
    method: str | None = None,
    matcher: str | None = None,
    noise: float | None = None,
    decoys: float | None = None,
    decoy_kinds: str | Sequence[str] | None = None,
    verdicts: AnyRun | None = None,
    seed: int | None = None,
    model: str | None = None,
    text_model: str | None = None,
    long_captions: str = "cut",
    start: AnyRun | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Settings = None,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    progress: Shown = False,
) -> Run:
    """Train a matcher on pairs that are partly wrong, and learn which ones are.

    Args:
        data: Pairs, or anything that `read` takes.
        run: The run folder to write.
        method: `crcl` (the default), `ncr`, `decl`, ...: docs/methods.md.
        matcher: `vse` (the default), `bow`, `saf`, `sgr`, `scan`, `dual`, `clip`.
        noise: Mismatch this share of the training pairs on purpose, to measure robustness.
        decoys: Add known mismatches as a share of the pairs, such as 0.05: an audit then estimates its precision.
        decoy_kinds: Kinds of decoys, `random` if not given: `near` ones have the caption of a similar image, `swap`
            ones one word exchanged (docs/audit.md).
        verdicts: A run that was reviewed, or a file of verdicts (docs/verdicts.md): right pairs keep the belief 1,
            wrong ones 0, and corrected ones are trained as corrected; for methods `crcl` and `relink`.
        seed: Seed of weights, batches and augmentation.
        model: Vision model for features of a table's images, where it has none; a saved model's folder or a hub name.
            For matchers that read vectors (`dual`), its text side gives those of the captions. For matcher `clip` it is
            the model to train; images without features are then decoded whenever they are read.
        text_model: Model for vectors of the captions, if it is another one: CLIP, SigLIP or a sentence encoder.
        long_captions: What becomes of captions that are longer than this model reads: `cut`, `mean` or `least`.
        start: A run to continue from: its matcher, vocabulary and correspondences.
        preset: A shipped set of settings, such as `cpu` or `f30k-vse`.
        config: A TOML file of settings.
        settings: Any other settings.
        resume: Continue an interrupted run; it ends bit-identical to one that was never interrupted.
        overwrite: Replace an existing run folder.
        tensorboard: Also write TensorBoard events into the run folder.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The run: weights, correspondences, metrics, and all that is needed to score new photos and sentences.

    Example:
        >>> pairs = crcl.read("pairs.csv", images="photos")
        >>> crcl.train(pairs, "runs/new", preset="cpu", noise=0.4, settings={"train.pieces": [3, 4]})
        Run('runs/new': crcl on vse, 7 epochs)
    """
    shown, path = receiver(progress), Path(run)
    with distributed.first_process_first():
        pairs = pairs_of(data).save(path.with_name(f"{path.name}-data"), overwrite=overwrite)
        models = Models(model, text_model, check_way(long_captions))
        given = {
            "method": method,
            "matcher.name": matcher,
            "noise.rate": noise,
            "data.decoys": decoys,
            "data.decoy_kinds": as_names(decoy_kinds),
            "data.verdicts": verdicts_path(verdicts),
            "train.seed": seed,
            "train.start": None if start is None else str(Path(path_of(start)).absolute()),
        }
        base = {key: value for key, value in given.items() if value is not None}
        if text_model is not None and not models.aligned:
            base["matcher.aligned"] = False  # the cosine of vectors of two models means nothing
        chosen: dict[str, Any] = {"preset": preset, "file": config, "base": base, "settings": as_settings(settings)}
        resumes = resume and path.is_dir()
        plan = partial(session.resumed_config, path) if resumes else session.new_config
        planned = plan(**chosen)
        if decoy_kinds is not None and not planned.data.decoys:
            raise InputError(
                "no decoys are requested", where="data.decoy_kinds", hint="give {decoys} too, such as 0.05"
            )
        if not resumes:
            check_given(planned)
        if MATCHERS[planned.matcher.name].pretrained and model is not None:  # it is the model to train
            base["matcher.model"] = model
            planned, models = plan(**chosen), Models(None, text_model, models.long_captions)
    distributed.meet()  # none writes before all have looked
    making: dict[str, Any] = {"settled": resume, "overwrite": overwrite, "progress": shown}
    pairs = _with_features(pairs, planned, models, path.with_name(f"{path.name}-features"), **making)
    chosen["base"] = base | ({} if pairs.location is None else pairs.location.absolute().settings())
    full = plan(**chosen)
    if resumes:
        report_finished(Run.open(path), full, shown)
    if tensorboard and distributed.is_first():
        shown = ProgressGroup(shown, TensorBoard(path / "tensorboard"))
    return session.train(full, path, pairs=pairs, resume=resume, overwrite=overwrite, progress=shown)


def _with_features(
    pairs: Pairs, planned: Config, models: Models, folder: Path, *, settled: bool, overwrite: bool, progress: Progress
) -> Pairs:
    """The pairs with what their matcher reads, made in a folder where they lack it."""
    name, given = planned.matcher.name, models.model is not None or models.text_model is not None
    making: dict[str, Any] = {"settled": settled, "overwrite": overwrite, "progress": progress}
    if planned.matcher.model is not None and MATCHERS[name].pretrained and not given:
        lacking = not pairs.has_features and finds_images(pairs)
        with distributed.first_process_first():
            making["overwrite"] = overwrite and distributed.is_first()
            return with_pixels(pairs, folder, planned.matcher.model, **making) if lacking else pairs
    vectors = given and wants_vectors(pairs, models, name, progress)
    lacks_images = not pairs.has_features and (models.model is not None or finds_images(pairs))
    if lacks_images or (vectors and not pairs.has_text_features) or models.text_model is not None:
        by = models if not pairs.has_features else Models(None, models.text_model or models.model, models.long_captions)
        return with_features(pairs, folder, by, vectors=vectors, **making)
    return pairs


def import_checkpoint(
    checkpoint: str | Path,
    data: Any,
    run: str | Path,
    *,
    vocab: str | Path | None = None,
    noise_file: str | Path | None = None,
    method: str | None = None,
    overwrite: bool = False,
    progress: Shown = False,
) -> Run:
    """Make a run of a published checkpoint (CRCL, SGRAF, SCAN, DECL, RCL, NCR, BiCro, L2RM, GSC, ...), or of a CLIP.

    Nothing in the file is executed: what is not weights, arrays or plain values is refused.

    Args:
        checkpoint: The authors' file, such as `model_best.pth.tar`; or the folder or hub name of a CLIP or SigLIP.
        data: The data that it was trained on; for a CLIP any pairs.
        run: The run folder to write.
        vocab: Its vocabulary in the field's JSON; searched for near the data, if not given.
        noise_file: The noise index that it was trained with (`.npy`).
        method: The method that trained it, if the file does not say.
        overwrite: Replace an existing run folder.
        progress: True shows messages on the terminal; a `Progress` of your own receives them.

    Returns:
        The run.

    Example:
        >>> clip = "openai/clip-vit-base-patch32"
        >>> pairs = crcl.read("pairs.csv", images="photos")
        >>> made = crcl.extract_features(pairs, "pixels", model=clip, pixels=True)
        >>> pairs = pairs.with_features("pixels/features.npy", "pixels/ids.txt")
        >>> crcl.import_checkpoint(clip, pairs, "runs/clip")
        Run('runs/clip': clip, imported from clip-vit-base-patch32 (clip, not trained here))
    """
    return importing.import_run(
        checkpoint,
        pairs_of(data),
        run,
        vocab=vocab,
        noise_file=noise_file,
        method=method,
        overwrite=overwrite,
        progress=receiver(progress),
    )


def export(
    run: AnyRun,
    path: str | Path | None = None,
    *,
    onnx: bool = False,
    overwrite: bool = False,
    progress: Shown = False,
) -> Path:
    """Write the trained matcher for use outside of crcl: its weights in one file, or as ONNX graphs.

    Args:
        run: A run.
        path: A `.safetensors` file, or a folder for ONNX and for matcher `clip`; beside the run, if not given.
        onnx: Write ONNX graphs, which run without torch; for matchers `vse` and `bow`. They are compared with torch.
        overwrite: Replace an existing export.
        progress: True shows messages on the terminal; a `Progress` of your own receives them.

    Returns:
        The file or folder that was written.

    Example:
        >>> crcl.export("runs/mine", "mine.safetensors")
        PosixPath('mine.safetensors')
    """
    opened = Run.open(path_of(run))
    whole_model = opened.model() is not None and not onnx
    ending = "-onnx" if onnx else "-model" if whole_model else ".safetensors"
    output = Path(path) if path is not None else opened.path.with_name(f"{opened.path.absolute().name}{ending}")
    if whole_model:
        exporting.save_model(opened.path, output, overwrite=overwrite)
    elif onnx:
        difference = save_onnx(opened.path, output, overwrite=overwrite)
        receiver(progress).note(
            "onnxruntime is not installed, so the graphs were not compared with torch: pip install 'crcl[onnx]'"
            if difference is None
            else f"compared with torch on random inputs: vectors differ by {difference:.1e} at most"
        )
    else:
        exporting.save_weights(opened.path, output, overwrite=overwrite)
    return output
