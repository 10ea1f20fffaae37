"""Extracting vectors of captions, in batches, with a cache by content; safe to kill at any moment.

FOLDER/text_features.npy   float16, (rows, size): a vector for each row of the data
FOLDER/text_read.npy       uint8, (rows,): whether a caption was read whole, by its sentences, or cut
FOLDER/about.json          `text`: the encoder, its settings and versions, and how many captions were cut
FOLDER/cache/              vectors by the hash of the text, one folder for each encoder

Several processes, which `torchrun` starts, divide the parts of the cache among them, and the first one writes.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crcl import distributed
from crcl.errors import InputError, TrainingError
from crcl.features.cache import ADVICE, Cache, open_together
from crcl.features.encoder import Division, Encoder, describe_encoder, divide, encode, mean_vector
from crcl.features.extractor import ABOUT, read_record
from crcl.features.sentences import LongCaptions
from crcl.progress import SILENT, Advance, Progress
from crcl.storage import locked, replacing, write_array, write_bytes

FILE, READ = "text_features.npy", "text_read.npy"
DIVIDED, CUT = 1, 2
"""In `READ`: captions that were read by their sentences, and captions of which some was not read; 0: read whole."""
BATCH = 64
_STORED = 16  # batches in one file of the cache
_BLOCK = 4096  # rows that are written at a time
_BUSY, _BUSY_HINT = "another process is extracting features to this folder", "wait for it, or name another folder"

Shown = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Gives the vectors of the images that some rows show, (rows, D); zeros where an image has none."""


@dataclass(frozen=True)
class ExtractedTexts:
    """Summary of an extraction of text vectors."""

    captions: int
    """Rows with a caption."""
    size: int
    """Numbers in a vector."""
    computed: int
    """Number of texts that were not in the cache."""
    long: int
    """Captions that are longer than the model reads."""
    cut: int
    """Captions of which some is not read."""


def extract_texts(
    captions: Sequence[str],
    encoder: Encoder,
    folder: Path,
    *,
    way: LongCaptions = "cut",
    shown: Shown | None = None,
    cache: Path | None = None,
    batch_size: int = BATCH,
    overwrite: bool = False,
    settled: bool = False,
    progress: Progress = SILENT,
) -> ExtractedTexts:
    """Write the vectors of all captions to a folder; called again, it resumes where it was interrupted.

    Args:
        captions: The caption of each row of the data; empty ones get zeros.
        encoder: Turns captions into vectors.
        folder: The folder to write to.
        way: What becomes of captions that are longer than the encoder reads.
        shown: The images of the rows, by which `least` chooses a sentence.
        cache: Folder of the cache, by default within `folder`.
        batch_size: Texts per batch.
        overwrite: Replace vectors that another encoder made.
        settled: Leave existing vectors unchanged, since a run uses them; raise an error if the captions have changed.
        progress: Receives the progress.
    """
    if batch_size < 1:
        raise InputError(f"batch size must be 1 or more, not {batch_size}")
    if way == "least" and shown is None:
        raise InputError("a caption's least fitting sentence needs vectors of images by the same model")
    key = _digest(json.dumps([encoder.settings, way], sort_keys=True))
    content = _digest("\0".join(captions))
    known = _refuse_other(folder, key, overwrite=overwrite)
    if known is not None and known.get("content") == content and (settled or way != "least"):
        if distributed.leads() and not (folder / READ).is_file():  # made before this was kept
            _write_read(folder, divide(captions, encoder, way))
        return _as_before(known)
    if settled and known is not None:
        raise InputError("the captions are not those that the vectors were made of", where=folder / FILE)
    kept = (cache or folder / "cache") / _cache_name(encoder.settings)
    try:
        kept.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be created ({error.strerror})"
        raise InputError(what, where=error.filename, hint="name another folder") from error
    with ExitStack() as held:
        if distributed.leads():
            for place in (folder, kept):
                held.enter_context(locked(place, busy=_BUSY, hint=_BUSY_HINT))
        store = open_together(kept)
        divided = divide(captions, encoder, way)
        with progress.task("text vectors") as advance:
            computed = _compute(divided, encoder, store, batch_size, advance)
        distributed.meet()
        if not distributed.leads():
            distributed.meet()  # when the first one has written
            return replace(_as_before(read_record(folder / ABOUT).get("text", {})), computed=computed)
        if distributed.count() > 1:
            store = Cache(kept)  # with what the others computed
        _require_finite(divided, encoder, store)
        size = _write(folder, divided, store, way, shown)
        _write_read(folder, divided)
        made = ExtractedTexts(sum(map(bool, captions)), size, computed, int(divided.long.sum()), int(divided.cut.sum()))
        counts = {name: value for name, value in vars(made).items() if name != "computed"}
        about = describe_encoder(encoder) | {"key": key, "dtype": "float16", "long_captions": way, "content": content}
        about |= {"reads": encoder.longest} | counts
        record = (json.dumps(read_record(folder / ABOUT) | {"text": about}, indent=1) + "\n").encode()
        write_bytes(folder / ABOUT, record, advice=ADVICE)
    distributed.meet()
    return made


def new_vectors(
    texts: Sequence[str], encoder: Encoder, *, way: LongCaptions, shown: Shown | None = None
) -> NDArray[np.float16]:
    """Vectors of further texts, made and rounded as `extract_texts` does, without files. (texts, D)"""
    divided = divide(texts, encoder, way)
    known = encode(encoder, divided.texts).astype(np.float16)
    return _combined(divided.parts, known, np.arange(len(texts)), way, shown)


def how_read(vectors: Path, rows: int) -> NDArray[np.uint8] | None:
    """How each caption was read, (rows,): 0, `DIVIDED` or `CUT`; None where that is not known of these vectors."""
    path = vectors.with_name(READ)
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.shape == (rows,)
    return found if fits and vectors.name == FILE else None


def known_vectors(
    texts: Sequence[str], folder: Path, settings: dict[str, Any], open_encoder: Callable[[], Encoder]
) -> NDArray[np.float16]:
    """Vectors of texts that are in the cache of a folder; by the encoder, if some are not or are damaged. (texts, D)"""
    digests, kept = [_key(text) for text in texts], folder / "cache" / _cache_name(settings)
    store = Cache(kept, tidy=False) if kept.is_dir() else None
    if store is not None and all(digest in store for digest in digests):
        with suppress(TrainingError):  # a damaged file, which is removed
            found = dict(store.rows(digests))
            return np.stack([found[number] for number in range(len(texts))])
    return encode(open_encoder(), texts).astype(np.float16)


def long_note(made: ExtractedTexts, encoder: Encoder, way: LongCaptions) -> str:
    """What to tell about captions that are longer than the model reads; empty if there are none."""
    if not made.long:
        return ""
    share = f"{100 * made.long / made.captions:.1f} %"
    long = f"{made.long:,} of {made.captions:,} captions ({share}) are longer than the {encoder.longest} tokens that "
    long += f"{encoder.title} reads"
    if way == "cut":
        return f"{long}, and are cut; they can be read by sentences instead (long captions: mean or least)"
    rest = f"; of {made.cut:,} of these a sentence is still too long, and cut" if made.cut else ""
    return f"{long}, and are read by sentences ({way}){rest}"


def _cache_name(settings: dict[str, Any]) -> str:
    return _digest(json.dumps(settings, sort_keys=True))[:16]


def _write_read(folder: Path, divided: Division) -> None:
    write_array(folder / READ, np.where(divided.cut, CUT, np.where(divided.long, DIVIDED, 0)).astype(np.uint8))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _refuse_other(folder: Path, key: str, *, overwrite: bool) -> dict[str, Any] | None:
    """What is known of the vectors that are there; raises an error before others are overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError("is a file, expected a folder to write to", where=folder)
    known = read_record(folder / ABOUT).get("text")
    known = known if isinstance(known, dict) else {}
    if not (folder / FILE).exists():
        return None
    if known.get("key") == key:
        return known
    if not overwrite:
        what = "another text model or other settings" if known.get("key") else "captions that were not made by crcl"
        hint = "name another folder, or pass {overwrite} to replace them"
        raise InputError(f"has vectors of {what}", where=folder / FILE, hint=hint)
    return None


def _as_before(known: dict[str, Any]) -> ExtractedTexts:
    counts = (known.get(name) for name in ("captions", "size", "long", "cut"))
    captions, size, long, cut = (count if isinstance(count, int) else 0 for count in counts)
    return ExtractedTexts(captions, size, 0, long, cut)


def _compute(divided: Division, encoder: Encoder, store: Cache, batch_size: int, advance: Advance) -> int:
    """Compute vectors of texts that are not in the cache, batches of texts of similar length, and add them to it.

    The cache stores complete batches, so after a kill the remaining batches have the same texts as without it, and the
    vectors are the same to the last bit. Several processes take turns with the parts that are stored.

    Returns:
        How many were computed, by all processes.
    """
    digests = [_key(text) for text in divided.texts]
    order = np.argsort(divided.lengths, kind="stable")
    todo = [number for number in order.tolist() if digests[number] not in store]
    starts = range(0, len(todo), batch_size * _STORED)
    for start in starts[distributed.own_share(len(starts))]:
        part = todo[start : start + batch_size * _STORED]
        vectors = []
        for first in range(0, len(part), batch_size):
            batch = part[first : first + batch_size]
            tokens = [ids for ids, _ in encoder.tokenize([divided.texts[number] for number in batch])]
            vectors.append(encoder.compute(tokens))
            advance(start + first + len(batch), len(todo))
        hashes = [digests[number] for number in part]
        store.add(hashes, hashes, np.concatenate(vectors))
    return len(todo)


def _require_finite(divided: Division, encoder: Encoder, store: Cache) -> None:
    if bad := [text for text in divided.texts if store.infinite and _key(text) in store.infinite]:
        what = f"gives vectors that are not finite, for {len(bad):,} captions, such as {bad[0][:100]!r}"
        raise InputError(what, where=encoder.title, hint="name another model")


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _write(folder: Path, divided: Division, store: Cache, way: LongCaptions, shown: Shown | None) -> int:
    """Write the vector of each row; returns their size."""
    rows, scratch = len(divided.parts), folder / ".texts.tmp"
    try:
        scratch.unlink(missing_ok=True)  # left by a process that was killed
        known = _gather(scratch, [_key(text) for text in divided.texts], store)
        with replacing(folder / FILE) as temporary:
            found = np.lib.format.open_memmap(
                temporary, "w+", dtype=np.dtype("<f2"), shape=(rows, known.shape[1]), version=(1, 0)
            )
            for start in range(0, rows, _BLOCK):
                here = np.arange(start, min(start + _BLOCK, rows))
                found[here] = _combined(divided.parts, known, here, way, shown)
            found.flush()
            del found
        return int(known.shape[1])
    except OSError as error:
        raise TrainingError(f"{folder / FILE}: cannot be written ({error.strerror or error}); {ADVICE}") from error
    finally:
        with suppress(OSError):
            scratch.unlink()


def _gather(path: Path, digests: list[bytes], store: Cache) -> NDArray[np.float16]:
    """The vectors of all texts in order, on disk: there may be more than fit into memory. (texts, D)"""
    found: NDArray[np.float16] | None = None
    for number, vector in store.rows(digests):
        if found is None:
            found = np.memmap(path, np.float16, "w+", shape=(len(digests), len(vector)))
        found[number] = vector
    if found is None:
        raise InputError("there are no captions")
    return found


def _combined(
    parts: list[tuple[int, ...]],
    known: NDArray[np.float16],
    rows: NDArray[np.int64],
    way: LongCaptions,
    shown: Shown | None,
) -> NDArray[np.float16]:
    """The vectors of some rows, (rows, D): those of their texts, of which long captions have several."""
    found = np.zeros((len(rows), known.shape[1]), dtype=np.float16)
    single = np.array([len(parts[row]) == 1 for row in rows])
    found[single] = known[[parts[row][0] for row in rows[single]]]
    several = np.flatnonzero([len(parts[row]) > 1 for row in rows])
    images = shown(rows[several]) if way == "least" and shown is not None and len(several) else None
    for place, number in enumerate(several):
        vectors = known[list(parts[rows[number]])].astype(np.float32)
        found[number] = mean_vector(vectors) if images is None else vectors[np.argmin(vectors @ images[place])]
    return found
