"""Extracting features from image files, in batches, with a cache by content; safe to kill at any moment.

FOLDER/features.npy   float16, (images, regions, size) or (images, size)
FOLDER/ids.txt        the image id of each row
FOLDER/hashes.npy     (images, 32) uint8, a hash of each image's pixels: equal for copies, however their files differ
FOLDER/skipped.csv    image, reason: images that could not be used
FOLDER/about.json     the extractor, its settings and versions
FOLDER/cache/         features by the hash of the image file, one folder for each extractor and its settings

Several processes, which `torchrun` starts, divide the reading of the files and the batches among them, add to the same
cache, and the first one writes. The batches, and so the features, do not depend on the number of processes.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crcl import distributed
from crcl.data.files import SHOWN, open_features, read_ids
from crcl.data.images import MOST_PIXELS
from crcl.data.pictures.base import UnusableError, Wanted
from crcl.data.rows.stored import HASHES, skipped_text
from crcl.errors import InputError, TrainingError
from crcl.features.cache import ADVICE, Cache, as_rows, open_together
from crcl.features.decoding import prepared, usual_workers
from crcl.features.extractor import ABOUT, Extractor, describe_extractor, preparer, read_record
from crcl.progress import SILENT, Advance, Progress
from crcl.storage import locked, write_array, write_bytes

_HASH = 32  # bytes
_BUSY = "another process is extracting features to this folder"
_BUSY_HINT = "wait for it, or name another folder"


@dataclass(frozen=True)
class Extracted:
    """Summary of an extraction."""

    images: int
    shape: tuple[int, ...]
    """Shape of one image's features."""
    computed: int
    """Number of images that were not in the cache."""
    skipped: list[tuple[str, str]]
    """Names of the images that could not be used, with reasons."""


class Effort(NamedTuple):
    """How images are read: in which batches, of which size at most, by how many processes."""

    batch_size: int
    most_pixels: int
    workers: int | None


def extract(
    wanted: Sequence[Wanted],
    extractor: Extractor,
    folder: Path,
    *,
    cache: Path | None = None,
    batch_size: int = 32,
    most_pixels: int = MOST_PIXELS,
    workers: int | None = None,
    overwrite: bool = False,
    settled: bool = False,
    progress: Progress = SILENT,
) -> Extracted:
    """Write the features of all usable images to a folder; called again, it resumes where it was interrupted.

    Args:
        wanted: The images.
        extractor: Turns images into features.
        folder: The folder to write to.
        cache: Folder of the cache, by default within `folder`.
        batch_size: Images per batch.
        most_pixels: Larger images are skipped.
        workers: Processes that decode images; None: as many as there are cores, but 4 at most, and none for few images.
        overwrite: Replace features that another extractor made.
        settled: Leave existing features unchanged, since a run uses them; raise an error if the images have changed.
        progress: Receives the progress.
    """
    if batch_size < 1:
        raise InputError(f"batch size must be 1 or more, not {batch_size}")
    key = hashlib.sha256(json.dumps(extractor.settings, sort_keys=True).encode()).hexdigest()
    refuse_other(folder, key, overwrite=overwrite)
    kept = (cache or folder / "cache") / key[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be created ({error.strerror})", where=error.filename, hint="name another folder"
        ) from error
    with ExitStack() as held:
        if distributed.leads():
            for place in (folder, kept):
                held.enter_context(locked(place, busy=_BUSY, hint=_BUSY_HINT))
        store = open_together(kept)
        with progress.task("reading images") as advance:
            digests, reasons = _hash(wanted, advance)
        first: dict[bytes, Wanted] = {}
        for image, digest in digests.items():
            first.setdefault(digest, image)
        batches = _missing(first, store, batch_size)
        own = batches[distributed.own_share(len(batches))]
        with progress.task("features") as advance:
            broken = _exchanged(_compute(own, extractor, store, Effort(batch_size, most_pixels, workers), advance))
        computed = sum(map(len, batches)) - len(broken)
        if not distributed.leads():
            return _as_first_made()
        if distributed.count() > 1:
            store = Cache(kept)  # with what the others computed
        broken |= dict.fromkeys(store.infinite, "its features are not finite in float16")
        reasons |= {image: broken[digest] for image, digest in digests.items() if digest in broken}
        skipped = [(image.name, reasons[image]) for image in wanted if image in reasons]
        usable = {image.name: digest for image, digest in digests.items() if image not in reasons}
        about = describe_extractor(extractor) | {"key": key, "dtype": "float16"}
        if settled and (folder / "ids.txt").is_file() and (folder / "features.npy").is_file():
            _refuse_changes(folder, store, usable)
        else:
            _write(folder, store, usable, skipped, about)
    made = Extracted(len(usable), store.shape, computed, skipped)
    distributed.collect(json.dumps([made.images, made.shape, made.computed, made.skipped]).encode())
    return made


def _as_first_made() -> Extracted:
    """Wait until the first process has written the features, and return its summary."""
    images, shape, computed, skipped = json.loads(distributed.collect(b"")[0])
    return Extracted(images, tuple(shape), computed, [(name, reason) for name, reason in skipped])


def _exchanged(broken: dict[bytes, str]) -> dict[bytes, str]:
    """Why images could not be used, by hash, found by any process; waits until all have computed their share."""
    found = distributed.collect(json.dumps({digest.hex(): why for digest, why in broken.items()}).encode())
    return {bytes.fromhex(digest): why for part in found for digest, why in json.loads(part).items()}


def _missing(first: dict[bytes, Wanted], store: Cache, size: int) -> list[list[tuple[bytes, Wanted]]]:
    """Batches of the images that are not in the cache.

    All images are divided into batches, whatever is in the cache; what is missing of several batches is joined where it
    fits into one. So after a kill an unfinished batch has the same images as before, whichever processes computed the
    others, and their features are the same to the last bit.
    """
    every, batches = list(first.items()), [[]]  # type: list[tuple[bytes, Wanted]], list[list[tuple[bytes, Wanted]]]
    for start in range(0, len(every), size):
        missing = [(digest, image) for digest, image in every[start : start + size] if digest not in store]
        if len(batches[-1]) + len(missing) > size:
            batches.append([])
        batches[-1] += missing
    return [batch for batch in batches if batch]


def refuse_other(folder: Path, key: str, *, overwrite: bool) -> None:
    """Raise an error before features of another extractor, or files of the user, are overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError("is a file, expected a folder to write to", where=folder)
    if overwrite:
        return
    about = read_record(folder / ABOUT)
    known = about.get("key")
    if not (folder / "features.npy").exists():
        for name in () if known or "text" in about else (ABOUT, "ids.txt", "skipped.csv"):
            if (folder / name).exists() and not _only_skipped(folder / name):
                raise InputError(
                    "exists already and is not part of extracted features",
                    where=folder / name,
                    hint="name another folder, or pass {overwrite} to replace it",
                )
        return
    if known != key:
        raise InputError(
            "has features of another model or other settings" if known else "has features that were not made by crcl",
            where=folder,
            hint="name another folder, or pass {overwrite} to replace them",
        )


def _only_skipped(path: Path) -> bool:
    """Whether a file is the `skipped.csv` of an extraction in which no image could be used."""
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as stream:
        return stream.readline(100) == skipped_text([])
    return False


def _refuse_changes(folder: Path, store: Cache, usable: dict[str, bytes]) -> None:
    """Raise an error that lists missing, new and changed images, if they differ from those of the stored features.

    An image has changed if one of its numbers differs by more than a hundredth of the largest: with an empty cache
    features are computed again, and differ slightly on another device.
    """
    features = open_features(folder / "features.npy")
    row = {name: number for number, name in enumerate(read_ids(folder / "ids.txt"))}
    both = [name for name in usable if name in row]
    changed = []
    for number, new in store.rows([usable[name] for name in both]):
        now, before = np.atleast_2d(new).astype(np.float32), features[row[both[number]]].astype(np.float32)
        if now.shape != before.shape or np.abs(now - before).max() > 0.01 * np.abs(before).max():
            changed.append(both[number])
    lines = [
        f"{len(names):,} {what}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
        for what, names in (
            ("missing or no longer usable", [name for name in row if name not in usable]),
            ("new", [name for name in usable if name not in row]),
            ("changed", changed),
        )
        if names
    ]
    if lines:
        raise InputError.several(
            [InputError(line) for line in lines],
            what="the images are not those that the features were made of",
            where=folder,
        )


def _hash(wanted: Sequence[Wanted], advance: Advance) -> tuple[dict[Wanted, bytes], dict[Wanted, str]]:
    """The hash of each image file, and the reasons why some files cannot be read."""
    own = range(len(wanted))[distributed.own_share(len(wanted))]
    hashes, reasons = [], {}
    for done, number in enumerate(own, start=1):
        try:
            hashes.append(hashlib.sha256(wanted[number].read()).digest())
        except UnusableError as reason:
            reasons[number] = str(reason)
            hashes.append(bytes(_HASH))
        advance(done, len(own))
    known = np.zeros((len(wanted), _HASH), np.uint8)
    for process, content in enumerate(distributed.collect(b"".join(hashes))):
        known[process :: distributed.count()] = np.frombuffer(content, np.uint8).reshape(-1, _HASH)
    told = [json.loads(part) for part in distributed.collect(json.dumps(reasons).encode())]
    reasons = {int(number): reason for part in told for number, reason in part.items()}
    return (
        {image: known[number].tobytes() for number, image in enumerate(wanted) if number not in reasons},
        {wanted[number]: reasons[number] for number in sorted(reasons)},
    )


def _compute(
    batches: Sequence[Sequence[tuple[bytes, Wanted]]],
    extractor: Extractor,
    store: Cache,
    how: Effort,
    advance: Advance,
) -> dict[bytes, str]:
    """Compute features and add them to the cache, batch by batch.

    Returns:
        The reasons why images could not be used, by hash.
    """
    todo = [image for batch in batches for image in batch]
    ends = set(accumulate(map(len, batches)))
    broken: dict[bytes, str] = {}
    waiting: dict[bytes, NDArray[np.float32]] = {}
    contents: list[bytes] = []  # of the images that are waiting
    prepare = preparer(extractor)
    found = prepared(
        _contents(todo),
        extractor.prepare if prepare is None else prepare,
        most_pixels=how.most_pixels,
        workers=0 if prepare is None else usual_workers(len(todo)) if how.workers is None else how.workers,
    )
    for number, ((digest, _), image) in enumerate(zip(todo, found, strict=True), start=1):
        if isinstance(image, UnusableError):
            broken[digest] = str(image)
        else:
            content, waiting[digest] = image
            contents.append(content)
        if number in ends and waiting:
            store.add(list(waiting), contents, extractor.compute(list(waiting.values())))
            waiting.clear()
            contents.clear()
        advance(number, len(todo))
    return broken


def _contents(todo: Sequence[tuple[bytes, Wanted]]) -> Iterator[bytes | UnusableError]:
    """The bytes of each image file, or why they cannot be used."""
    for digest, image in todo:
        try:
            content = image.read()
        except UnusableError as reason:
            yield reason
            continue
        same = hashlib.sha256(content).digest() == digest
        yield content if same else UnusableError("changed while it was being read")


def _write(
    folder: Path, store: Cache, usable: dict[str, bytes], skipped: list[tuple[str, str]], about: dict[str, Any]
) -> None:
    """Write the files that training reads; the ids last, since features without them are not read."""
    path, ids, out = folder / "features.npy", folder / "ids.txt", folder / "skipped.csv"
    reasons = skipped_text(skipped).encode("utf-8", "backslashreplace")
    if not usable:
        write_bytes(out, reasons, advice=ADVICE)
        common = ", ".join(f"{count:,} x {why}" for why, count in Counter(why for _, why in skipped).most_common(3))
        raise InputError(
            f"none of the {len(skipped):,} images can be used ({common})",
            where=out,
            hint="pass the folder of a table's images as {images}",
        )
    temporary = path.with_name(".features.npy.tmp")
    try:
        with temporary.open("wb") as file:
            for number, features in store.rows(list(usable.values())):
                if not file.tell():
                    header = {"descr": "<f2", "fortran_order": False, "shape": (len(usable), *store.shape)}
                    np.lib.format.write_array_header_1_0(file, header)
                    start = file.tell()
                file.seek(start + number * features.nbytes)
                file.write(features.astype("<f2").tobytes())
            file.flush()
            os.fsync(file.fileno())
        ids.unlink(missing_ok=True)
        (folder / HASHES).unlink(missing_ok=True)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise TrainingError(f"{path}: cannot be written ({error.strerror}); {ADVICE}") from error
    counts = {"images": len(usable), "skipped": len(skipped), "shape": list(store.shape)}
    texts = {name: value for name, value in read_record(folder / ABOUT).items() if name == "text"}  # see features.texts
    write_bytes(folder / ABOUT, (json.dumps(about | counts | texts, indent=1) + "\n").encode(), advice=ADVICE)
    write_bytes(out, reasons, advice=ADVICE)
    write_array(folder / HASHES, as_rows([store.contents[digest] for digest in usable.values()]))
    write_bytes(ids, "".join(f"{name}\n" for name in usable).encode(), advice=ADVICE)
