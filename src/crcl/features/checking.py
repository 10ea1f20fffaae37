"""Looking at all images before a training that decodes them as it goes: which can be used, and which are copies.

FOLDER/pixels.json    how images become the pixels that a model reads
FOLDER/ids.txt        the images that can be used
FOLDER/hashes.npy, FOLDER/skipped.csv, FOLDER/about.json    as in a folder of extracted features
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from crcl.data.files import read_ids
from crcl.data.images import MOST_PIXELS
from crcl.data.pictures.base import UnusableError, Wanted
from crcl.data.pictures.decoded import FILE, usable
from crcl.data.rows.stored import HASHES, read_skipped, skipped_text
from crcl.errors import InputError
from crcl.features.cache import as_rows
from crcl.features.decoding import prepared, usual_workers
from crcl.features.extract import Extracted, refuse_other
from crcl.features.extractor import ABOUT, describe_extractor, read_record
from crcl.features.vision import Pixels
from crcl.progress import SILENT, Progress
from crcl.storage import locked, write_array, write_bytes

_BUSY, _HINT = "another process is looking at images for this folder", "wait for it, or name another folder"
_ADVICE = "free some disk space and try again"


def check_images(
    wanted: Sequence[Wanted],
    model: Pixels,
    folder: Path,
    *,
    most_pixels: int = MOST_PIXELS,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Extracted:
    """Decode every image once, and write which can be used; called again for the same images, it does nothing.

    Args:
        wanted: The images.
        model: Says how images become pixels.
        folder: The folder to write to.
        most_pixels: Larger images are skipped.
        workers: Processes that decode; None: as many as there are cores, but 4 at most, and none for few images.
        overwrite: Replace features that were made in another way.
        progress: Receives the progress.
    """
    recipe = model.recipe(most_pixels)
    names = [image.name for image in wanted]
    key = hashlib.sha256(json.dumps([recipe.model_dump(), names]).encode("utf-8", "surrogatepass")).hexdigest()
    shape = (1, 3 * recipe.side**2)
    refuse_other(folder, key, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, busy=_BUSY, hint=_HINT):
        if read_record(folder / ABOUT).get("key") == key and (folder / "ids.txt").is_file():
            skipped = sorted((name, "looked at before") for name in read_skipped(folder / "skipped.csv"))
            return Extracted(len(read_ids(folder / "ids.txt")), shape, 0, skipped)
        hashes: dict[str, bytes] = {}
        skipped = []
        how_many = usual_workers(len(wanted)) if workers is None else workers
        found = prepared(_contents(wanted), _look_at, most_pixels=most_pixels, workers=how_many)
        with progress.task("looking at images") as advance:
            for number, (name, image) in enumerate(zip(names, found, strict=True), start=1):
                if isinstance(image, UnusableError):
                    skipped.append((name, str(image)))
                else:
                    hashes[name] = image[0]
                advance(number, len(names))
        if not hashes:
            raise InputError(f"none of the {len(names):,} images can be used", where=folder, hint=skipped[0][1])
        about = describe_extractor(model) | {"key": key, "dtype": "float16"}
        (folder / "ids.txt").unlink(missing_ok=True)
        for name, text in (
            (FILE, json.dumps(recipe.model_dump(), indent=1) + "\n"),
            (ABOUT, json.dumps(about, indent=1) + "\n"),
            ("skipped.csv", skipped_text(skipped)),
        ):
            write_bytes(folder / name, text.encode("utf-8", "backslashreplace"), advice=_ADVICE)
        write_array(folder / HASHES, as_rows(list(hashes.values())))
        write_bytes(folder / "ids.txt", "".join(f"{name}\n" for name in hashes).encode(), advice=_ADVICE)
    return Extracted(len(hashes), shape, len(wanted), skipped)


def _look_at(image: Image.Image) -> np.ndarray:
    """Refuses an image of which no pixels can be made; nothing is kept of the others."""
    usable(image)
    return np.empty(0, dtype=np.float32)


def _contents(wanted: Sequence[Wanted]) -> Iterator[bytes | UnusableError]:
    for image in wanted:
        try:
            yield image.read()
        except UnusableError as reason:
            yield reason
