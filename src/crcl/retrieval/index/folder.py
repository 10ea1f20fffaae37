"""The index folder: vectors of a run's images and captions as memory maps, with their keys and texts.

    index.json          which run, how many, sizes, measured latency; written last, and all that counts
    images.f16          vectors of images, (images, size) float16 without a header
    captions.f16        vectors of captions, (captions, size)
    images-N.parquet    keys of images, one file for each time that items were added
    captions-N.parquet  captions, and the position of each one's image
    images-ROWS.cells   8-bit codes of the vectors in cells, where a recall was asked for; also of captions

What a killed process wrote beyond the counts of `index.json` is not read, and is written again.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crcl.data.cells import installed
from crcl.errors import InputError, did_you_mean
from crcl.retrieval.index.cells import Cells, Found
from crcl.retrieval.index.exact import nearest
from crcl.retrieval.index.hits import Hit

FORMAT = 1
ABOUT = "index.json"
What = Literal["images", "captions"]
"""What is searched."""


@dataclass(frozen=True)
class About:
    """Content of `index.json`."""

    run: str
    """The run folder."""
    digest: str
    """SHA-256 of the run's weights."""
    matcher: str
    size: int
    """Numbers of a vector."""
    data: str = ""
    """Where the data was, if not where the run says."""
    images: int = 0
    captions: int = 0
    parts: int = 0
    """How many times items were added."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Milliseconds of a search for one sentence: `p50`, `p99`, and the number of `queries`."""
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The setting of a search in cells, and its recall, of `images` and of `captions`; without one, search is exact."""
    format: int = FORMAT

    def is_sound(self) -> bool:
        """Whether the values are of the right kinds; they come from a file or an engine, and are not trusted."""
        counts = (self.size, self.images, self.captions, self.parts)
        texts = (self.run, self.digest, self.matcher, self.data)
        measured = isinstance(self.measured, dict) and all(
            isinstance(value, int | float) for value in self.measured.values()
        )
        return (
            self.format == FORMAT
            and all(type(count) is int and count >= 0 for count in counts)
            and all(isinstance(text, str) for text in texts)
            and measured
            and (not self.measured or {"p50", "p99"} <= self.measured.keys())
        )


class Searchable(Protocol):
    """An index in a folder or in an engine."""

    about: About

    @property
    def path(self) -> Path | str:
        """Where it is, for messages."""

    def find(self, vector: np.ndarray, *, k: int = 10, what: What = "images") -> list[Hit]:
        """The best images or captions for one vector `(size,)`, best first."""

    def like(self, key: str, *, k: int = 10, what: What = "images") -> list[Hit]:
        """Other images that are like an image of the index, or captions that fit it."""


class Index:
    """Vectors of a run's images and captions, to search in. `crcl.index` writes one.

    Attributes:
        path: The folder.
        about: Which run it is of, counts, sizes and measured latency.

    Example:
        >>> crcl.Index.open("photos.index")
        Index('photos.index': 56 images, 112 captions, 16 numbers each; exact, 0.1 ms)
    """

    def __init__(self, path: Path, about: About) -> None:
        self.path = path
        self.about = about
        self._opened: dict[What, Cells | None] = {}

    @classmethod
    def open(cls, path: str | Path) -> "Index":
        """Open an index folder; raises an error if it is none, or is incomplete."""
        path = Path(path)
        return cls(path, read_about(path))

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}: {'; '.join(self.sentences())})"

    def sentences(self) -> list[str]:
        """Counts, and how long one search takes."""
        about, ms, found = self.about, self.about.measured.get("p50"), self.found()
        way = "exact" if found is None else f"recall {found.recall:.3f}"
        return [
            f"{about.images:,} images, {about.captions:,} captions, {about.size} numbers each",
            way if ms is None else f"{way}, {ms:.1f} ms",
        ]

    @property
    def bytes(self) -> int:
        """Bytes of the vectors and codes on disk."""
        codes = sum(found.bytes for what in get_args(What) if (found := self.found(what)))
        return 2 * self.about.size * (self.about.images + self.about.captions) + codes

    def _way(self, what: What) -> str:
        """How images or captions are searched, in words."""
        found = self.found(what)
        if found is None:
            return "exact search"
        short = "" if found.recall >= found.asked else f", less than the {found.asked:g} asked for"
        queries = "captions" if what == "images" else "images"
        return (
            f"recall@10 {found.recall:.3f} on {found.queries} {queries}{short}: {found.probe:,} of {found.cells:,} "
            f"cells, {found.again} candidates scored again; {found.bytes / 1e6:,.1f} MB of codes"
        )

    @cached_property
    def images(self) -> list[str]:
        """The key of each image, by position."""
        return list(self._read("images", {"key": pa.string()})["key"].to_pylist())

    @cached_property
    def captions(self) -> list[str]:
        """Each caption, by position."""
        return list(self._captions["caption"].to_pylist())

    @cached_property
    def image_of_caption(self) -> np.ndarray:
        """(captions,) int64, the position of each caption's image."""
        found = self._captions["image"].to_numpy()
        if len(found) and not (found.min() >= 0 and found.max() < self.about.images):
            raise _damaged(self.path, "images of captions")
        return np.asarray(found)

    @cached_property
    def _captions(self) -> pa.Table:
        return self._read("captions", {"caption": pa.string(), "image": pa.int64()})

    @cached_property
    def _position(self) -> dict[str, int]:
        return {key: position for position, key in enumerate(self.images)}

    @cached_property
    def _by_image(self) -> tuple[np.ndarray, np.ndarray]:
        """Captions in the order of their images, and where those of each image begin."""
        order = np.argsort(self.image_of_caption, kind="stable")
        return order, np.searchsorted(self.image_of_caption[order], np.arange(self.about.images + 1))

    def captions_of(self, position: int) -> list[str]:
        """The captions of an image."""
        order, start = self._by_image
        return [self.captions[row] for row in order[start[position] : start[position + 1]]]

    def position(self, key: str) -> int:
        """The position of an image by its key."""
        if key not in self._position:
            raise InputError(f"no image {key!r}{did_you_mean(str(key), self.images[:10_000])}", where=self.path)
        return self._position[key]

    def vectors(self, what: What = "images") -> np.ndarray:
        """Vectors of the images or captions, by position: a memory map. (rows, size) float16"""
        rows = self._count(what)
        file = self.path / f"{what}.f16"
        if not file.is_file() or file.stat().st_size < 2 * rows * self.about.size:
            raise _damaged(self.path, file.name)
        if not rows:
            return np.empty((0, self.about.size), dtype=np.float16)
        return np.memmap(file, dtype=np.float16, mode="r", shape=(rows, self.about.size))

    def search_vectors(
        self,
        vectors: np.ndarray,
        *,
        k: int = 10,
        what: What = "images",
        among: np.ndarray | None = None,
        exact: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best images or captions for each vector of `Model.encode_texts` or `Model.encode_images`, best first.

        Args:
            vectors: (queries, size).
            k: How many; fewer are returned if there are fewer.
            what: `images` or `captions`.
            among: Positions to search among; all, if not given.
            exact: Compare with all vectors, even if the index has cells.

        Returns:
            Scores `(queries, k)` float32, and positions `(queries, k)` int64. The scores are the run's similarities,
            up to rounding to float16.
        """
        check_k(k)
        stored = self.vectors(what)
        queries = np.asarray(vectors, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.about.size:
            raise InputError(
                f"vectors of shape {queries.shape}, expected (queries, {self.about.size})", where=self.path
            )
        cells = None if exact or among is not None else self._cells(what)
        if cells is not None:
            return cells.search(stored, queries, k)
        if among is None:
            return nearest(stored, queries, k)
        positions = np.unique(np.asarray(among, dtype=np.int64))
        if len(positions) and not (positions[0] >= 0 and positions[-1] < len(stored)):
            raise InputError(f"positions must be from 0 to {len(stored) - 1}", where="among")
        scores, rows = nearest(stored[positions], queries, k)
        return scores, positions[rows]

    def _cells(self, what: What) -> Cells | None:
        """The cells of the images or captions; None where all vectors are compared."""
        if what not in self._opened:
            found, opened = self.found(what), None
            if found is not None and installed():  # without the package, search is exact and takes longer
                try:
                    opened = Cells.open(self.path / cells_file(what, found.rows), found, self.about.size)
                except ValueError as error:
                    raise _damaged(self.path, str(error)) from error
            self._opened[what] = opened
        return self._opened[what]

    def found(self, what: What = "images") -> Found | None:
        """The setting of a search in cells, with its measured recall; None where search is exact."""
        content = self.about.cells.get(what)
        return None if content is None else Found(**content)

    def find(self, vector: np.ndarray, *, k: int = 10, what: What = "images") -> list[Hit]:
        """The best images or captions for one vector `(size,)`, best first."""
        scores, positions = self.search_vectors(vector[None], k=k, what=what)
        return self.hits(scores[0], positions[0], what)

    def like(self, key: str, *, k: int = 10, what: What = "images") -> list[Hit]:
        """Other images that are like an image of the index, or captions that fit it."""
        check_k(k)
        place = self.position(key)
        asked = k + 1 if what == "images" else k  # itself may be among them
        scores, positions = self.search_vectors(self.vectors()[place : place + 1], k=asked, what=what)
        others = np.flatnonzero(positions[0] != place)[:k] if what == "images" else slice(None)
        return self.hits(scores[0][others], positions[0][others], what)

    def hits(self, scores: np.ndarray, positions: np.ndarray, what: What = "images") -> list[Hit]:
        """What one query of `search_vectors` found, with keys and captions."""
        found = []
        for rank, (score, position) in enumerate(zip(scores, positions, strict=True), start=1):
            image = int(position) if what == "images" else int(self.image_of_caption[position])
            texts = self.captions_of(image) if what == "images" else [self.captions[position]]
            found.append(Hit(rank, self.images[image], float(score), tuple(texts)))
        return found

    def facts(self) -> list[tuple[str, str]]:
        """Names with facts, in the order to show them."""
        about = self.about
        measured = about.measured
        facts = [
            ("index", str(self.path)),
            ("run", f"{about.run} ({about.matcher})"),
            ("content", f"{about.images:,} images, {about.captions:,} captions"),
            ("vectors", f"{about.size} numbers each, float16; {self.bytes / 1e6:,.1f} MB in all"),
            *((what, self._way(what)) for what in get_args(What)),
        ]
        if measured:
            facts.append(("latency", f"{measured['p50']:.1f} ms, p99 {measured['p99']:.1f} ms, one sentence at a time"))
        return facts

    def _count(self, what: What) -> int:
        if what not in get_args(What):
            raise InputError(f"{what!r}: expected images or captions", where="what")
        return self.about.images if what == "images" else self.about.captions

    def _read(self, what: What, columns: dict[str, pa.DataType]) -> pa.Table:
        schema = pa.schema(columns)
        try:
            files = [self.path / f"{what}-{part}.parquet" for part in range(self.about.parts)]
            table = pa.concat_tables([schema.empty_table(), *(pq.read_table(file, schema=schema) for file in files)])
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self.path, f"{what}: {type(error).__name__}") from error
        if len(table) != self._count(what) or any(table[name].null_count for name in columns):
            raise _damaged(self.path, f"{len(table)} {what}")
        return table


def read_about(path: Path) -> About:
    """Read `index.json`; raises an error if the folder is no complete index."""
    if not (path / ABOUT).is_file():
        what = "not an index" if path.exists() else "no such index"
        raise InputError(what, where=path, hint="{index()} makes one")
    try:
        content = json.loads((path / ABOUT).read_text("utf-8"))
        about = About(**content)
        good = about.is_sound() and all(Found(**found).is_sound() for found in about.cells.values())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, type(error).__name__) from error
    if not good:
        raise _damaged(path, ABOUT)
    return about


def cells_file(what: What, rows: int) -> str:
    """The file of the cells of so many images or captions."""
    return f"{what}-{rows}.cells"


def check_k(k: int) -> None:
    """Refuse a number of hits that is none."""
    if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:  # numpy has integers of its own
        raise InputError(f"{k!r}: expected a whole number of at least 1", where="k")


def is_index(path: str | Path) -> bool:
    """Whether a folder is an index."""
    return (Path(path) / ABOUT).is_file()


def about_json(about: About) -> dict[str, Any]:
    """Content of `index.json` as plain values."""
    return asdict(about)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"damaged or incomplete index ({what})", where=path, hint="index again with {overwrite}")
