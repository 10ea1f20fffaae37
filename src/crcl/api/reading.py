"""Public functions for data: read, info, extract_features, extract_text_features, inject_noise."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crcl import distributed
from crcl.api.common import Shown, is_run, pairs_of, path_of, receiver
from crcl.auditing.making import Models, make_texts, report_skipped
from crcl.config import describe_keys
from crcl.data import noise as noise_index
from crcl.data.images import MOST_PIXELS
from crcl.data.pairs import Pairs
from crcl.data.pictures.base import Wanted
from crcl.data.pictures.files import wanted_files
from crcl.data.rows.tables import Columns
from crcl.data.sources import layout_of
from crcl.data.sources.base import Given, Names
from crcl.data.sources.memory import is_table
from crcl.errors import InputError
from crcl.features.choice import choose_encoder, choose_extractor
from crcl.features.extract import Extracted, extract
from crcl.features.sentences import check_way
from crcl.features.texts import ExtractedTexts
from crcl.retrieval.engines.addresses import is_address
from crcl.retrieval.engines.remote import RemoteIndex
from crcl.retrieval.index.folder import Index, is_index
from crcl.retrieval.model import Model
from crcl.runs.describe import describe
from crcl.runs.folder import Run
from crcl.storage import refuse_input


def read(
    data: Any,
    captions: Sequence[str] | None = None,
    *,
    images: str | Path | None = None,
    features: Given = None,
    text_features: Given = None,
    ids: Names = None,
    image_index: Any = None,
    image_column: str = "image",
    caption_column: str = "caption",
    layout: str | None = None,
) -> Pairs:
    """Read image-caption pairs, on disk or in memory.

    Args:
        data: A table (`.csv`, `.tsv`, `.jsonl`, `.parquet`), a folder in the field's layout or of embeddings; or, in
            memory, a DataFrame, a pyarrow Table or a dict of lists with columns `image` (file names, PIL images, or
            bytes of image files), `caption` (texts, or lists of them) and, if there are splits, `split`; or a `Dataset`
            or `DatasetDict` of the library `datasets`, or `hub:USER/NAME` for one on the hub; or a list of image files
            or PIL images; or an array of features.
        captions: The captions of a list or an array.
        images: The folder of the image files that a table names; the table's own folder, if not given.
        features: Features of a table's images: a `.npy` file or an array, `(images, regions, size)` or
            `(images, size)`.
        text_features: A vector for each caption: a `.npy` file or an array.
        ids: The image of each row of the features: a file with one on each line, or a list.
        image_index: For an array of features: the number of each caption's image. Without it, each image has equally
            many captions, one after the other.
        image_column: Name of a table's column of images.
        caption_column: Name of a table's column of captions.
        layout: Name of the layout of a path, if it is not to be recognised by looking.

    Returns:
        The pairs of all splits. Without a column `split` a tenth of the images is held out as `dev`.

    Example:
        >>> import crcl
        >>> crcl.read({"image": ["a.jpg", "b.jpg"], "caption": ["two dogs", "a red car"]})
        Pairs('pairs in memory', 2 pairs, 2 images, splits train, dev)
    """
    return Pairs.of(
        data,
        captions,
        images=images,
        features=features,
        text_features=text_features,
        ids=ids,
        image_index=image_index,
        columns=Columns(image_column, caption_column),
        layout=layout,
    )


def info(path: Any = None) -> list[tuple[str, ...]]:
    """Facts about data or a run: counts and shapes, settings and progress; without either, all settings.

    Args:
        path: A run, an index or its address in an engine, pairs, or anything that `read` takes; None for the settings
            of a training.

    Returns:
        Names with facts, in the order to show them; or each setting with its type, default and meaning.

    Example:
        >>> crcl.info("runs/mine")[1]
        ('method', 'crcl on sgr, embedding 16')
    """
    if path is None:
        return [tuple(key) for key in describe_keys()]
    if isinstance(path, Index | RemoteIndex):
        return [*path.facts()]
    if is_address(path):
        with RemoteIndex.open(path) as remote:
            return [*remote.facts()]
    if isinstance(path, Run | Model):
        path = path_of(path)
    if isinstance(path, str | Path):
        if is_index(path):
            return [*Index.open(path).facts()]
        path = path_of(path) if is_run(path) else path
    return [*describe(path if isinstance(path, str | Path) else pairs_of(path))]


@distributed.processes()
def extract_features(
    source: Any,
    folder: str | Path,
    *,
    images: str | Path | None = None,
    model: str | None = None,
    grid: int = 6,
    whole: bool = False,
    pixels: bool = False,
    batch_size: int = 32,
    cache: str | Path | None = None,
    megapixels: float = MOST_PIXELS / 1e6,
    workers: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Shown = False,
) -> Extracted:
    """Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.

    Args:
        source: Pairs, or anything that `read` takes; or a folder of images, or a list of image files.
        images: The folder that the names of image files are relative to; a table's own folder or the current folder,
            if not given.
        folder: Where `features.npy`, `ids.txt` and `skipped.csv` go. The same call resumes after an interruption.
        model: CLIP, SigLIP or DINOv2: a saved model's folder or its name on the hub.
        grid: At most grid x grid regions.
        whole: One vector per image instead of regions.
        pixels: Write the pixels that the model reads, to fine-tune it with matcher `clip`.
        batch_size: Number of images that the model reads at once.
        cache: Where features are cached by content; `folder/cache` if not given.
        megapixels: Larger images are skipped before they are decoded.
        workers: Processes that decode images; the number of cores but at most 4, if not given.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        overwrite: Replace features made in another way.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        How many images have features, their shape, and which were skipped and why.

    Example:
        >>> crcl.extract_features("photos", "features").shape
        (36, 72)
    """
    shown = receiver(progress)
    base = None if images is None else Path(images)
    wanted = _wanted(source, base)
    extractor = choose_extractor(model, grid=grid, whole=whole, pixels=pixels, device=device, progress=shown)
    made = extract(
        wanted,
        extractor,
        Path(folder),
        cache=None if cache is None else Path(cache),
        batch_size=batch_size,
        most_pixels=round(megapixels * 1e6),
        workers=workers,
        overwrite=overwrite,
        progress=shown,
    )
    report_skipped(made, Path(folder), shown)
    return made


def _wanted(source: Any, images: Path | None) -> list[Wanted]:
    """The images of pairs or of anything that is read as such; or image files."""
    named = isinstance(source, str | Path)
    if isinstance(source, Pairs) or (layout_of(source) is not None if named else is_table(source)):
        return pairs_of(source, images=images).wanted_images()
    files = [source] if named else list(source) if isinstance(source, Iterable) else []
    if not files or not all(isinstance(file, str | Path) for file in files):
        raise InputError(
            f"{type(source).__name__}: expected pairs, a table, a folder of images or a list of image files",
            hint="{read()} makes pairs of images in memory and their captions",
        )
    return wanted_files([Path(file) for file in files], folder=images)


@distributed.processes()
def extract_text_features(
    source: Any,
    folder: str | Path,
    *,
    model: str,
    long_captions: str = "cut",
    cache: str | Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Shown = False,
) -> ExtractedTexts:
    """Make a vector of each caption of a table: by the text side of CLIP or SigLIP, or by a sentence encoder.

    Args:
        source: Pairs, or a table in any layout that `read` takes.
        folder: Where `text_features.npy` goes, one vector for each row. The same call resumes after an interruption.
        model: CLIP, SigLIP or a sentence encoder: a saved model's folder or its name on the hub.
        long_captions: What becomes of a caption that is longer than the model reads: `cut`; `mean`, the mean of its
            sentences' vectors; or `least`, that of the sentence that fits the image least: `folder` must then have
            vectors of the images by the same model (`extract_features` with `whole`).
        cache: Where vectors are cached by content; `folder/cache` if not given.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        overwrite: Replace vectors made in another way.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        How many captions have vectors, their size, and how many are longer than the model reads.

    Example:
        >>> crcl.extract_text_features("pairs.csv", "features", model="openai/clip-vit-base-patch32").size
        512
    """
    models = Models(model=model, long_captions=check_way(long_captions))
    return make_texts(
        pairs_of(source),
        choose_encoder(None, model, device=device),
        Path(folder),
        models,
        cache=None if cache is None else Path(cache),
        overwrite=overwrite,
        progress=receiver(progress),
    )


def inject_noise(
    data: Any, path: str | Path, *, rate: float, level: str = "caption", seed: int = 0, overwrite: bool = False
) -> np.ndarray:
    """Write a noise index in the field's layout, to share mismatches between tools and runs.

    Args:
        data: Pairs, or anything that `read` takes.
        path: The index file to write (`.npy`).
        rate: Share of the training pairs to mismatch, 0 to 1.
        level: `caption` permutes the images of single captions, `image` those of all captions of an image together.
        seed: Seed of the permutation.
        overwrite: Replace an existing file.

    Returns:
        (N,) whether each training pair still matches.

    Example:
        >>> truth = crcl.inject_noise(crcl.read("pairs.csv", features="features/features.npy"), "noise.npy", rate=0.4)
        >>> int(truth.sum())
        54
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError("exists already", where=path, hint="pass {overwrite} to replace it, or name another file")
    source = pairs_of(data)
    pairs = source.split("train")
    index = noise_index.mismatch(pairs.image_index, rate, seed, level=level, images=pairs.images)
    truth = noise_index.apply(pairs, index).truth
    refuse_input(path, pairs.source, source.name)
    noise_index.write_index(path, index)
    return np.ones(len(pairs), dtype=bool) if truth is None else truth
