"""Making features of pairs for an audit or a training: of their images, and vectors of their captions."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crcl import distributed
from crcl.data.files import SHOWN, open_features, read_ids
from crcl.data.pairs import Pairs
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.decoded import FILE as FILE_OF_PIXELS
from crcl.data.pictures.files import Files
from crcl.errors import InputError
from crcl.features.choice import choose_encoder, choose_extractor, has_texts
from crcl.features.encoder import Encoder
from crcl.features.extract import Extracted, extract
from crcl.features.extractor import ABOUT, read_record
from crcl.features.sentences import LongCaptions, check_way
from crcl.features.texts import FILE, ExtractedTexts, extract_texts, long_note
from crcl.matchers import MATCHERS
from crcl.matchers.base import reads_vectors
from crcl.progress import Progress
from crcl.retrieval.model import Model
from crcl.storage import write_bytes


@dataclass(frozen=True)
class Models:
    """The models that features are made by."""

    model: str | None = None
    """For images; without one the built-in pixel grid."""
    text_model: str | None = None
    """For captions, if it is not `model`."""
    long_captions: LongCaptions = "cut"
    """What becomes of captions that are longer than the model reads."""

    @property
    def aligned(self) -> bool:
        """Whether vectors of images and captions are of one model, so that they can be compared."""
        return self.model is not None and self.text_model in (None, self.model)


def wants_vectors(pairs: Pairs, models: Models, matcher: str | None, progress: Progress) -> bool:
    """Whether captions are to be read as vectors, by this matcher or, if none is chosen yet, by what there is.

    Refuses a matcher that does not fit the models.
    """
    record = None if matcher is None else MATCHERS.get(matcher)
    if record is not None and not record.reads_vectors:
        if models.text_model is not None:
            raise InputError(
                f"matcher {matcher} reads words, not vectors of captions",
                hint="leave out {text_model} or {matcher}",
            )
        return False
    if pairs.has_text_features or models.text_model is not None or has_texts(models.model):
        return True
    if record is not None and models.model is not None:
        raise InputError(
            f"has no text side, but matcher {matcher} reads vectors of captions",
            where=models.model,
            hint="pass a sentence encoder as {text_model} too",
        )
    if models.model is not None:
        progress.note(f"{models.model} has no text side: captions are read word by word; or name a text model too")
    return False


def with_features(
    pairs: Pairs,
    folder: Path,
    models: Models,
    *,
    vectors: bool,
    device: str = "auto",
    settled: bool = False,
    overwrite: bool = False,
    progress: Progress,
) -> Pairs:
    """The pairs with features of their images, and with vectors of their captions, made in `folder` if they are needed.

    Several processes share the work.

    Args:
        pairs: The pairs.
        folder: Where the features go.
        models: The models to make them by; a given one replaces features that the pairs have.
        vectors: Whether captions are read as vectors; images are then vectors too, instead of regions.
        device: Device that the models run on.
        settled: Refuse to change features that exist already, because a run was trained on them.
        overwrite: Replace features made in another way.
        progress: Receives messages and progress.
    """
    needs_texts = vectors and (models.text_model is not None or not pairs.has_text_features)
    encoder = choose_encoder(models.model, models.text_model, device=device) if needs_texts else None
    if not pairs.has_features or models.model is not None:
        whole = vectors and models.model is not None
        extractor = choose_extractor(models.model, whole=whole, device=device, progress=progress)
        made = extract(
            pairs.wanted_images(), extractor, folder, overwrite=overwrite, settled=settled, progress=progress
        )
        report_skipped(made, folder, progress)
        if distributed.leads() and isinstance(pairs.pictures, Files) and pairs.pictures.folder is not None:
            _record_image_folder(folder / ABOUT, pairs.pictures.folder)
        pairs = pairs.with_features(folder / "features.npy", folder / "ids.txt")
    elif pairs.is_table and pairs.location is not None and pairs.location.features is None:
        progress.note(f"using the features beside {pairs.name}; name a vision model to make others")
    if encoder is not None:
        make_texts(pairs, encoder, folder, models, settled=settled, overwrite=overwrite, progress=progress)
        pairs = pairs.with_features(text_features=folder / FILE)
    return pairs


def with_pixels(
    pairs: Pairs, folder: Path, model: str, *, settled: bool = False, overwrite: bool = False, progress: Progress
) -> Pairs:
    """The pairs with the pixels that a CLIP or SigLIP reads, decoded whenever they are read, and stored nowhere.

    Args:
        pairs: The pairs.
        folder: Where is written which images can be used.
        model: The model, by its folder or its name on the hub.
        settled: Do not look at the images again, because a run was trained on them.
        overwrite: Replace features made in another way.
        progress: Receives messages and progress.
    """
    from crcl.features.checking import check_images  # loads torch
    from crcl.features.vision import Pixels

    if not (settled and (folder / FILE_OF_PIXELS).is_file() and (folder / "ids.txt").is_file()):
        made = check_images(pairs.wanted_images(), Pixels(model), folder, overwrite=overwrite, progress=progress)
        report_skipped(made, folder, progress)
    return pairs.with_features(folder / FILE_OF_PIXELS, folder / "ids.txt")


def with_features_as(model: Model, pairs: Pairs, folder: Path, *, progress: Progress) -> Pairs:
    """The pairs with features and vectors made in `folder` as those of a run; unchanged where they have features.

    Unchanged, too, where the run does not know how its features were made, or the images are not found.
    """
    if pairs.has_features or not model.takes_photos or not finds_images(pairs):
        return pairs
    made = extract(pairs.wanted_images(), model.extractor, folder, progress=progress)
    if made.skipped:
        name, reason = made.skipped[0]
        progress.note(f"{len(made.skipped):,} images cannot be used and are left out, such as {name}: {reason}")
    pairs = pairs.with_features(folder / "features.npy", folder / "ids.txt")
    if reads_vectors(model.scorer.matcher) and not pairs.has_text_features:
        way = check_way(str(model.run.made.get("text", {}).get("long_captions", "cut")))
        make_texts(pairs, model.encoder, folder, Models(long_captions=way), progress=progress)
        pairs = pairs.with_features(text_features=folder / FILE)
    return pairs


def make_texts(
    pairs: Pairs,
    encoder: Encoder,
    folder: Path,
    models: Models,
    *,
    cache: Path | None = None,
    settled: bool = False,
    overwrite: bool = False,
    progress: Progress,
) -> ExtractedTexts:
    """Make vectors of the captions of all rows, and report how many captions are longer than the model reads."""
    rows = pairs.source.rows()
    if rows is None:
        hint = "give the pairs as a table, or choose a {matcher} that reads words"
        raise InputError("vectors can be made of the captions of a table only", where=pairs.name, hint=hint)
    way = models.long_captions
    if way == "least" and not models.aligned:
        raise InputError(
            "the sentence of a caption that fits its image least is known only if one model reads both",
            where="long captions",
            hint="pass a CLIP or SigLIP as {model} and no {text_model}, or choose another way",
        )
    if way == "least":
        _require_images(folder, encoder)
    made = extract_texts(
        rows["caption"].to_pylist(),
        encoder,
        folder,
        way=way,
        shown=_shown(rows["image"].to_pylist(), folder) if way == "least" else None,
        cache=cache,
        settled=settled,
        overwrite=overwrite,
        progress=progress,
    )
    if note := long_note(made, encoder, way):
        progress.note(note)
    return made


def _require_images(folder: Path, encoder: Encoder) -> None:
    """Refuse a folder without vectors of the images by the model that reads the captions."""
    about = read_record(folder / ABOUT)
    settings = about.get("settings")
    whole = isinstance(settings, dict) and settings.get("grid", 0) is None
    if about.get("extractor") != encoder.title or not whole or not (folder / "ids.txt").is_file():
        hint = (
            "make them first with {extract_features()}, {model} and {whole}, or choose another way for {long_captions}"
        )
        raise InputError(f"has no vectors of the images by {encoder.title}", where=folder, hint=hint)


def _shown(names: list[str], folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The vectors of the images that rows show, of length 1; zeros where an image could not be used."""
    features = open_features(folder / "features.npy")
    row_of = {name: row for row, name in enumerate(read_ids(folder / "ids.txt"))}

    def vectors(rows: np.ndarray) -> np.ndarray:
        found = np.zeros((len(rows), features.shape[2]), dtype=np.float32)
        places = [row_of.get(names[row], -1) for row in rows]
        known = np.flatnonzero(np.array(places) >= 0)
        found[known] = features[[places[number] for number in known]].astype(np.float32).mean(axis=1)
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    return vectors


def finds_images(pairs: Pairs) -> bool:
    """Whether image files of the pairs exist, so that features can be made."""
    for wanted in pairs.wanted_images()[:SHOWN] if pairs.pictures is not None else ():
        with suppress(UnusableError):
            wanted.read()
            return True
    return False


def report_skipped(made: Extracted, folder: Path, progress: Progress) -> None:
    """Report images that could not be used, and where the reasons are."""
    if made.skipped:
        progress.note(
            f"{len(made.skipped):,} images were skipped, so training leaves their pairs out; see "
            f"{folder / 'skipped.csv'} for the reasons"
        )


def _record_image_folder(about: Path, images: Path) -> None:
    """Record the folder of the images beside their features, for later reports."""
    known = read_record(about) | {"folder": str(images.absolute())}
    write_bytes(about, (json.dumps(known, indent=1) + "\n").encode(), advice="make room and try again")


def recorded_image_folder(features: str | None) -> Path | None:
    """The folder of the images that features were made from, if it is recorded and still exists."""
    if features is None:
        return None
    recorded = read_record(Path(features).with_name(ABOUT)).get("folder")
    folder = Path(recorded) if isinstance(recorded, str) else None
    return folder if folder is not None and folder.is_dir() else None
