"""Public functions for search: index, index_to, search."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from crcl.api.common import AnyRun, Shown, how_many_candidates, open_model, path_of, receiver, run_data
from crcl.auditing.making import recorded_image_folder, with_features_as
from crcl.data.pairs import Pairs
from crcl.data.pictures.base import Pictures
from crcl.data.pictures.files import Files
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.progress import Progress
from crcl.retrieval.engines.addresses import FORMS, NO_ADDRESS, is_address, without_credentials
from crcl.retrieval.engines.remote import RemoteIndex, write
from crcl.retrieval.index.building import Work, create, run_digest
from crcl.retrieval.index.building import add as add_to
from crcl.retrieval.index.dividing import check_recall
from crcl.retrieval.index.folder import About, Index, What, check_k, is_index
from crcl.retrieval.index.hits import Hit, Hits
from crcl.retrieval.index.reranking import captions_again, check_stages, features_of, images_again
from crcl.retrieval.model import Model
from crcl.retrieval.vectors import check_one_vector
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.storage import require_writable
from crcl.training.inputs import check_features


def index(
    run: AnyRun,
    folder: str | Path,
    *,
    data: Any = None,
    images: str | Path | None = None,
    split: str | None = None,
    add: bool = False,
    recall: float | None = None,
    overwrite: bool = False,
    device: str = "auto",
    memory: float | None = None,
    dtype: str | None = None,
    progress: Shown = False,
) -> Index:
    """Write the vectors of a run's images and captions to a folder, to search in.

    Args:
        run: A run whose matcher has one vector for each image and text.
        folder: Where the index goes.
        data: Other data, or the run's data if it has moved: a path or pairs. Where it has no features, they are made
            as those of the run were.
        images: The folder of the image files of other data; where the data says, if not given.
        split: Only this split; all of them, if not given. An image of several splits, known by its name, is there once.
        add: Add to an existing index of this run what it lacks.
        recall: Search some cells of the vectors only, as few as find this share of the ten best on captions of the
            data, such as 0.95; needs the package faiss. 1 is exact search, which is the default up to a million; beyond
            that it is 0.95, where faiss is installed.
        overwrite: Replace an existing index.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        dtype: Number type of matrix products, `float32` or `bfloat16`; float32, if not given.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The index, opened. A process that is killed leaves the old index or the new one.

    Example:
        >>> run = crcl.train(crcl.read("pairs.csv", images="photos"), "runs/vse", matcher="vse")
        >>> crcl.index("runs/vse", "photos.index").about.matcher
        'vse'
    """
    path = Path(folder)
    check_recall(recall)
    _check_folder(path, add=add, overwrite=overwrite)
    model = open_model(run, device=device, memory=memory, dtype=dtype, progress=receiver(progress))
    with TemporaryDirectory(prefix="crcl-") as made:
        pairs = _pairs(model, data, images, Path(made), receiver(progress))
        about, splits = _indexed(model, pairs, split)
        return (add_to if add else create)(path, about, Work(model.scorer, splits, recall, receiver(progress)))


def index_to(
    run: AnyRun,
    url: str,
    *,
    data: Any = None,
    images: str | Path | None = None,
    split: str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    memory: float | None = None,
    dtype: str | None = None,
    progress: Shown = False,
) -> RemoteIndex:
    """Write the vectors of a run's images and captions to a search engine, which `search` then takes by its address.

    Written in batches: the same call again resumes, and adds what is new. Needs `pip install 'crcl[engines]'`.

    Args:
        run: A run whose matcher has one vector for each image and text.
        url: `qdrant://HOST:PORT/NAME` (`qdrants://` for https; its key in the environment variable `QDRANT_API_KEY`),
            `qdrant+local:FOLDER/NAME` for a trial without a server, or `postgresql://USER@HOST/DATABASE#NAME` for a
            PostgreSQL with pgvector.
        data: Other data, or the run's data if it has moved: a path or pairs. Where it has no features, they are made
            as those of the run were.
        images: The folder of the image files of other data; where the data says, if not given.
        split: Only this split; all of them, if not given. An image of several splits, known by its name, is there once.
        overwrite: Replace the vectors of another run that are there.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        dtype: Number type of matrix products, `float32` or `bfloat16`; float32, if not given.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The index in the engine.

    Example:
        >>> with crcl.index_to("runs/vse", "qdrant+local:engine/photos", split="dev") as photos:
        ...     photos.about.matcher
        'vse'
    """
    if not is_address(url):
        raise InputError(NO_ADDRESS, where=without_credentials(url), hint=f"expected {FORMS}")
    model = open_model(run, device=device, memory=memory, dtype=dtype, progress=receiver(progress))
    with TemporaryDirectory(prefix="crcl-") as made:
        pairs = _pairs(model, data, images, Path(made), receiver(progress))
        about, splits = _indexed(model, pairs, split)
        with receiver(progress).task("indexing") as advance:
            return write(url, about, model.scorer, splits, overwrite=overwrite, advance=advance)


def _pairs(model: Model, data: Any, images: str | Path | None, folder: Path, progress: Progress) -> Pairs:
    """The pairs to index, with features, which are made in `folder` if there are none."""
    check_one_vector(model.config)
    pairs = run_data(model.config, data, images=None if images is None else Path(images))
    return with_features_as(model, pairs, folder, progress=progress)


def _indexed(model: Model, pairs: Pairs, split: str | None) -> tuple[About, list[Split]]:
    """Facts of a new index of a run, and the splits that go into it."""
    splits = [pairs.split(name) for name in ([split] if split is not None else pairs.splits)]
    for each in splits:
        check_features(model.run, each)
    return _about(model, pairs, splits[0].gather(_FIRST)), splits


_FIRST = np.zeros(1, dtype=np.int64)


def search(
    index: Index | RemoteIndex | str | Path,
    query: str | None = None,
    *,
    image: Any = None,
    like: str | None = None,
    k: int = 10,
    what: What | None = None,
    rerank: AnyRun | None = None,
    candidates: int | None = None,
    run: AnyRun | None = None,
    data: Any = None,
    device: str = "auto",
) -> Hits:
    """The images or captions of an index that fit a sentence, a photo, or one of its own images best.

    Args:
        index: An index, opened or as a path; or the address of an engine, as `index_to` takes it.
        query: A sentence; or give one of the next two instead.
        image: A photo: a file or a PIL image.
        like: The key of an image of the index, which finds other images near it.
        k: How many; fewer are returned if there are fewer.
        what: `images` or `captions`; if not given, captions for a photo and images otherwise.
        rerank: A second run, of any matcher, which ranks the first `candidates` again; the scores are then its own.
        candidates: How many the second run ranks again, at least `k`; 100, if not given. Only with `rerank`.
        run: The run of the index, if it has moved.
        data: The data with features for the second run and with image files for a sheet, if not where the run says.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.

    Returns:
        What was found, best first: a list whose members have `rank`, `key`, `score` and `captions`; its method `sheet`
        writes a page of thumbnails.

    Example:
        >>> hits = crcl.search("photos.index", "two dogs", k=3)
        >>> [hit.rank for hit in hits]
        [1, 2, 3]
    """
    if sum(given is not None for given in (query, image, like)) != 1:
        raise InputError("expected a sentence, a photo or an image of the index", hint="give one of the three")
    again = how_many_candidates(candidates, rerank)
    wanted: What = what or ("images" if image is None else "captions")
    second = None
    if rerank is not None:
        check_stages(wanted, from_image=query is None)
        _check_candidates(again, k)
        second = open_model(rerank, device=device, memory=None)
    with _opened(index) as opened:
        asked = _Asked(query, image, like, wanted, k if second is None else again)
        found = _first_stage(opened, asked, run, device)
        about = opened.about
    if second is not None:
        found = _second_stage(second, found, asked, data)[:k]
    title = query if query is not None else f"like {like}" if like is not None else f"{image}"
    return Hits(found, query=title, pictures=lambda: _pictures(about, run, data))


@dataclass(frozen=True)
class _Asked:
    query: str | None
    image: Any
    like: str | None
    what: What
    k: int


@contextmanager
def _opened(index: Index | RemoteIndex | str | Path) -> Iterator[Index | RemoteIndex]:
    """An index; a connection that is made here ends here."""
    if isinstance(index, str) and is_address(index):
        with RemoteIndex.open(index) as remote:
            yield remote
    elif isinstance(index, str) and "://" in index:
        raise InputError(NO_ADDRESS, where=without_credentials(index), hint=f"expected {FORMS}")
    elif isinstance(index, Index | RemoteIndex):
        yield index
    elif isinstance(index, str | Path):
        yield Index.open(index)
    else:
        raise InputError(f"expected an index or its path, got {index!r}", hint="{index()} makes one of a run")


def _first_stage(index: Index | RemoteIndex, asked: _Asked, run: AnyRun | None, device: str) -> list[Hit]:
    if asked.like is not None:
        return index.like(asked.like, k=asked.k, what=asked.what)
    model = open_model(_run_of(index.about, index.path) if run is None else run, device=device, memory=None)
    if asked.query is not None:
        return model.search(asked.query, index, k=asked.k, what=asked.what)
    model.check_index(index)
    return index.find(model.encode_images([asked.image])[0], k=asked.k, what=asked.what)


def _run_of(about: About, index: Path | str = "") -> str:
    """The run that an index names."""
    if not Path(about.run).is_dir():
        what = f"the index is of the run {about.run}, which is not there any more"
        raise InputError(what, where=index, hint="say where that run is now, or index another one")
    return about.run


def _second_stage(model: Model, hits: list[Hit], asked: _Asked, data: Any) -> list[Hit]:
    """What the first stage found, ranked by the run of the second."""
    if asked.image is not None:
        return captions_again(hits, model, asked.image)
    if asked.query is not None and asked.what == "captions":
        raise InputError("a run compares images with texts, and cannot rank captions for a sentence", where="rerank")
    pairs = run_data(model.config, data)
    if asked.query is not None:
        return images_again(hits, model, pairs, asked.query)
    return captions_again(hits, model, features_of([str(asked.like)], pairs))


def _pictures(about: About, run: AnyRun | None, data: Any) -> Pictures | None:
    """Where the images of an index lie; None if that is unknown."""
    config = stored_config(Run.open(path_of(_run_of(about) if run is None else run)))
    pairs = run_data(config, (about.data or None) if data is None else data)
    recorded = recorded_image_folder(None if pairs.location is None else pairs.location.features)
    return pairs.pictures if recorded is None else Files(recorded)


def _about(model: Model, pairs: Pairs, first: np.ndarray) -> About:
    """Facts of a new index."""
    location = pairs.location
    moved = location is not None and location.path != model.config.data.path
    return About(
        str(model.run.path.absolute()),
        run_digest(model.run.path),
        model.config.matcher.name,
        model.encode_images(first).shape[1],
        data=str(Path(location.path).absolute()) if location is not None and moved else "",
    )


def _check_candidates(candidates: int, k: int) -> None:
    check_k(k)
    if candidates < k:
        what = f"{candidates} candidates are fewer than the {k} to return"
        raise InputError(what, hint=f"set {{candidates}} to at least {k}, or {{k}} to less")


def _check_folder(path: Path, *, add: bool, overwrite: bool) -> None:
    """Refuse, before long work, a folder that cannot be written, or that would lose something."""
    if add:
        Index.open(path)
    elif path.exists():
        if not is_index(path):
            raise InputError("exists already and is not an index", where=path, hint="name another folder")
        if not overwrite:
            raise InputError("exists already", where=path, hint="pass {add} to add to it, or {overwrite}")
    require_writable(path)
