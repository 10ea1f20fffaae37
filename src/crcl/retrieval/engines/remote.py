"""The images and captions of a run in an engine: written in batches that can be repeated, and searched."""

from collections.abc import Iterator, Sequence

import numpy as np

from crcl.data.split import Split
from crcl.errors import InputError
from crcl.progress import Advance
from crcl.retrieval.engines.addresses import open_engine
from crcl.retrieval.engines.base import Engine, Item
from crcl.retrieval.index.folder import About, What, check_k
from crcl.retrieval.index.hits import Hit
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.vectors import image_vectors, text_vectors

_BATCH = 500
_MOST = 10**9  # results; engines take no larger number


class RemoteIndex:
    """Vectors of a run's images and captions in an engine, to search in. `crcl.index_to` writes one.

    A context manager, which ends the connection.

    Attributes:
        path: The address, without credentials.
        about: Which run it is of, and the size of its vectors.
    """

    def __init__(self, engine: Engine, about: About) -> None:
        self.engine = engine
        self.path = engine.shown
        self.about = about

    @classmethod
    def open(cls, address: str) -> "RemoteIndex":
        """Connect to an engine; raises an error if it has no vectors of a run there."""
        engine = open_engine(address)
        try:
            about = engine.about()
            if about is None:
                raise InputError("no vectors of a run there", where=engine.shown, hint="{index_to()} writes them")
        except BaseException:
            engine.close()
            raise
        return cls(engine, about)

    def close(self) -> None:
        """End the connection."""
        self.engine.close()

    def __enter__(self) -> "RemoteIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteIndex({self.path!r}: {'; '.join(self.sentences())})"

    def sentences(self) -> list[str]:
        """Counts."""
        images, captions = self.engine.count("images"), self.engine.count("captions")
        return [f"{images:,} images, {captions:,} captions, {self.about.size} numbers each"]

    def facts(self) -> list[tuple[str, str]]:
        """Names with facts, in the order to show them."""
        run = f"{self.about.run} ({self.about.matcher})"
        return [("index", self.path), ("run", run), ("content", "; ".join(self.sentences()))]

    def find(self, vector: np.ndarray, *, k: int = 10, what: What = "images") -> list[Hit]:
        """The best images or captions for one vector `(size,)`, best first."""
        check_k(k)
        return self._hits(self.engine.nearest(what, vector, min(int(k), _MOST)), what)

    def like(self, key: str, *, k: int = 10, what: What = "images") -> list[Hit]:
        """Other images that are like an image of the index, or captions that fit it."""
        check_k(k)
        vector = self.engine.vector_of(Item(key))
        if vector is None:
            raise InputError(f"no image {key!r}", where=self.path)
        found = self.engine.nearest(what, vector, min(int(k), _MOST) + (what == "images"))
        others = [(item, score) for item, score in found if what == "captions" or item.id != Item(key).id]
        return self._hits(others[:k], what)

    def _hits(self, found: list[tuple[Item, float]], what: What) -> list[Hit]:
        texts = self.engine.captions_of([item.key for item, _ in found]) if what == "images" and found else {}
        return [
            Hit(rank, item.key, score, (item.caption,) if item.caption is not None else tuple(texts.get(item.key, ())))
            for rank, (item, score) in enumerate(found, start=1)
        ]


def write(
    address: str, about: About, scorer: Scorer, splits: Sequence[Split], *, overwrite: bool, advance: Advance
) -> RemoteIndex:
    """Write what an engine lacks of the images and captions, batch by batch; the same call again resumes."""
    engine = open_engine(address, make=True)
    try:
        _prepare(engine, about, overwrite=overwrite)
        _write_all(engine, scorer, splits, advance)
        engine.finish()
    except BaseException:
        engine.close()
        raise
    return RemoteIndex(engine, about)


def _prepare(engine: Engine, about: About, *, overwrite: bool) -> None:
    """Make a place for the vectors, unless there is one of the same run."""
    old = engine.about()
    if old is not None and overwrite:
        engine.drop()
    elif old is not None and (old.digest, old.size) != (about.digest, about.size):
        what = f"holds vectors of another run, {old.run}"
        raise InputError(what, where=engine.shown, hint="name another place, or replace them with {overwrite}")
    engine.create(about)


def _write_all(engine: Engine, scorer: Scorer, splits: Sequence[Split], advance: Advance) -> None:
    done, total = 0, sum(split.images + len(split) for split in splits)
    for split in splits:
        for numbers in _batches(split.images):
            items = [Item(split.image_ids[number]) for number in numbers]
            new = _lacking(engine, "images", items)
            if len(new):
                engine.write("images", [items[at] for at in new], image_vectors(scorer, split, numbers[new]))
            done += len(numbers)
            advance(done, total)
        tokens = scorer.tokens(split)
        for numbers in _batches(len(split)):
            owners = split.image_index[numbers]
            items = [
                Item(split.image_ids[image], split.captions[number], int(number))
                for number, image in zip(numbers, owners, strict=True)
            ]
            new = _lacking(engine, "captions", items)
            if len(new):
                engine.write("captions", [items[at] for at in new], text_vectors(scorer, tokens, numbers[new]))
            done += len(numbers)
            advance(done, total)


def _lacking(engine: Engine, what: What, items: list[Item]) -> np.ndarray:
    """Places of the items that the engine lacks, each item once."""
    ids = [item.id for item in items]
    seen = engine.known(what, ids)
    places = []
    for place, name in enumerate(ids):
        if name not in seen:
            seen.add(name)
            places.append(place)
    return np.array(places, dtype=np.int64)


def _batches(count: int) -> Iterator[np.ndarray]:
    for start in range(0, count, _BATCH):
        yield np.arange(start, min(start + _BATCH, count))
