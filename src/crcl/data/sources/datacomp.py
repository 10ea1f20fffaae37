"""A pool of DataComp: tables of texts, and vectors of both sides in a file of the same name beside each.

    metadata/*.parquet    uid, text, other columns
    metadata/*.npz        l14_img and l14_txt, or b32_img and b32_txt: (rows, size) float16

The files may also lie in the folder itself. Images are named by their uid: 32 hexadecimal digits.
"""

from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from crcl.data.cleaning.judged import Judged, written_folder
from crcl.data.cleaning.uids import write_uids
from crcl.data.files import refuse
from crcl.data.maps.archives import array_names, open_member
from crcl.data.maps.shards import Shards
from crcl.data.rows.tables import place
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.vectors import Named, Vectors, VectorsSource, count_rows, read_tables
from crcl.errors import InputError

MODELS = ("l14", "b32")
"""CLIP models whose vectors a pool may have, in order of preference."""
_COLUMNS = Named(("uid",), "text", required=True)


def recognises(path: Path) -> bool:
    """Whether a path is a folder of tables with vectors beside them; a run folder is not."""
    try:
        if not path.is_dir() or (path / "config.json").exists():
            return False
        return any(file.with_suffix(".npz").exists() for file in _tables(path)[:1])
    except OSError:
        return False


def _tables(path: Path) -> list[Path]:
    """The tables in the folder `metadata`, or else in the folder itself, sorted by name."""
    return sorted((path / "metadata").glob("*.parquet")) or sorted(path.glob("*.parquet"))


class PoolSource(VectorsSource):
    """A pool of DataComp, by the vectors of its larger model, or of the one that is chosen."""

    models: tuple[str, ...] = MODELS

    @cached_property
    def _files(self) -> list[Path]:
        return _find_tables(Path(self.location.path))

    def table(self) -> pa.Table:
        """Columns image (the uid), caption and optionally split of the tables."""
        return _read(self._files)

    def vectors(self) -> Vectors:
        """The vectors of all files, of one model."""
        archives = [file.with_suffix(".npz") for file in self._files]
        model = self._model(archives)
        counts = [count_rows(file) for file in self._files]
        sides = []
        for side in ("img", "txt"):
            key = f"{model}_{side}"
            parts = [open_member(archive, key, rows=rows) for archive, rows in zip(archives, counts, strict=True)]
            sides.append(Shards(parts, [f"{archive}:{key}" for archive in archives]))
        return Vectors(sides[0], sides[1], str(archives[0].parent))

    def _model(self, archives: list[Path]) -> str:
        """The first model whose vectors all files have."""
        names = [set(array_names(archive)) for archive in archives]
        missing = []
        for model in self.models:
            lacking = [
                archive
                for archive, there in zip(archives, names, strict=True)
                if not {f"{model}_img", f"{model}_txt"} <= there
            ]
            if not lacking:
                return model
            missing.append(InputError(f"no {model}_img and {model}_txt", where=lacking[0]))
        raise InputError.several(missing)


class SmallPoolSource(PoolSource):
    """A pool of DataComp, by the vectors of its smaller model."""

    models = ("b32",)


def _find_tables(path: Path) -> list[Path]:
    """The tables of a pool; each must have vectors beside it."""
    files = _tables(path)
    if not files:
        raise InputError("no .parquet files, neither in it nor in metadata", where=path)
    hint = "get it again, or move the table elsewhere"
    refuse(
        [
            InputError("not found; each table needs its vectors beside it", where=file.with_suffix(".npz"), hint=hint)
            for file in files
            if not file.with_suffix(".npz").is_file()
        ]
    )
    return files


def _read(files: list[Path]) -> pa.Table:
    """The rows of a pool; uids must be hexadecimal."""
    rows = read_tables(files, _COLUMNS)
    good = pc.match_substring_regex(rows["image"], "^[0-9a-fA-F]{32}$")
    if not pc.all(good).as_py():
        bad = [row for row, right in enumerate(good.to_pylist()) if not right]
        refuse(
            [
                InputError(
                    f"uid '{rows['image'][row].as_py()[:40]}' is not 32 hexadecimal digits",
                    where=place(str(files[0].parent), row),
                    hint="use {layout} embeddings for other pools",
                )
                for row in bad
            ]
        )
    return rows


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write lists of what to keep, in a new folder, and the uids as DataComp's resharder reads them."""
    rows = _read(_find_tables(Path(location.path)))
    return written_folder(output, lambda folder: write_uids(folder, judged, rows))


LAYOUT = Layout(
    "a DataComp pool (tables with uid and text, .npz files beside them)", recognises, PoolSource.open, clean
)
SMALL = Layout("a DataComp pool by its b32 vectors, where it has l14 too", lambda _: False, SmallPoolSource.open, clean)
"""The same data by the smaller model's vectors; never chosen by looking."""
