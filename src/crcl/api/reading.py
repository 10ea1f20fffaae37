"""Reading pairs, describing data and runs, making features and noise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crcl.api.common import AnyRun, Shown, pairs_of, path_of, receiver
from crcl.auditing.prepare import report_skipped
from crcl.data import noise as mismatching
from crcl.data.images import MOST_PIXELS, wanted_images
from crcl.data.pairs import Pairs
from crcl.data.sources.base import Given, Names
from crcl.data.sources.rows import Columns
from crcl.errors import InputError
from crcl.features.choice import choose_extractor
from crcl.features.extract import Extracted, extract
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
) -> Pairs:
    """Read image-caption pairs, on disk or in memory.

    Args:
        data: A table (`.csv`, `.tsv`, `.jsonl`, `.parquet`), a folder in the field's layout or of embeddings; or, in
            memory, a DataFrame, a pyarrow Table or a dict of lists with columns `image` and `caption` (and `split`);
            or a list of image files or PIL images; or an array of features.
        captions: The captions that go with a list or an array.
        images: The folder of the image files that a table names; the table's own folder, if not given.
        features: Features of a table's images: a `.npy` file or an array, `(images, regions, size)` or
            `(images, size)`.
        text_features: A vector for each caption: a `.npy` file or an array.
        ids: The image of each row of the features: a file with one on each line, or a list.
        image_index: For an array of features: the number of each caption's image. Without it, each image has equally
            many captions, one after the other.
        image_column: What a table calls its column of images.
        caption_column: What it calls its column of captions.

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
    )


def info(path: AnyRun | Pairs) -> list[tuple[str, str]]:
    """Facts about data or a run: counts and shapes, settings and progress.

    Args:
        path: Data or a run, on disk or opened.

    Returns:
        Names with facts, in the order to show them.

    Example:
        >>> crcl.info("runs/mine")[1]
        ('method', 'crcl on sgr, embedding 16')
    """
    return describe(path_of(path) if isinstance(path, Run | Model) else path)


def extract_features(
    images: str | Path | Sequence[str | Path] | Pairs,
    folder: str | Path,
    *,
    below: str | Path | None = None,
    model: str | None = None,
    grid: int = 6,
    whole: bool = False,
    pixels: bool = False,
    batch_size: int = 32,
    cache: str | Path | None = None,
    megapixels: float = MOST_PIXELS / 1e6,
    device: str = "auto",
    overwrite: bool = False,
    progress: Shown = False,
) -> Extracted:
    """Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.

    Args:
        images: Pairs of a table, a folder of images, or image files.
        below: A folder that names of image files are relative to; where you are, if not given.
        folder: Where `features.npy`, `ids.txt` and `skipped.csv` go. The same call resumes after an interruption.
        model: CLIP, SigLIP or DINOv2: a saved model's folder or its name on the hub.
        grid: At most grid x grid regions.
        whole: One vector per image instead of regions.
        pixels: The pixels that the model reads, to fine-tune it with matcher `clip`.
        batch_size: Images that the model sees at once.
        cache: Where features are kept by content; `folder/cache` if not given.
        megapixels: Larger images are skipped before they are decoded.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        overwrite: Replace features made in another way.
        progress: Whether, or to whom, to show progress.

    Returns:
        How many images have features, their shape, and which were skipped and why.

    Example:
        >>> crcl.extract_features("photos", "features").shape
        (36, 72)
    """
    shown = receiver(progress)
    if isinstance(images, Pairs):
        wanted = images.wanted_images()
    else:
        files = [Path(images)] if isinstance(images, str | Path) else [Path(name) for name in images]
        wanted = wanted_images(files, folder=None if below is None else Path(below))
    extractor = choose_extractor(model, grid=grid, whole=whole, pixels=pixels, device=device, progress=shown)
    made = extract(
        wanted,
        extractor,
        Path(folder),
        cache=None if cache is None else Path(cache),
        batch_size=batch_size,
        most_pixels=round(megapixels * 1e6),
        overwrite=overwrite,
        progress=shown,
    )
    report_skipped(made, Path(folder), shown)
    return made


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
    index = mismatching.mismatch(pairs.image_index, rate, seed, level=level, images=pairs.images)
    truth = mismatching.apply(pairs, index).truth
    refuse_input(path, pairs.source, source.name)
    mismatching.write_index(path, index)
    return np.ones(len(pairs), dtype=bool) if truth is None else truth
