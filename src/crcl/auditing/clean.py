"""Writing data again without the suspects, or with correspondences, in the container that it came in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from crcl.auditing.findings import THRESHOLD
from crcl.auditing.partners import check_movable, moves
from crcl.auditing.review.cleaning import ByVerdict, decide
from crcl.data.cleaning.judged import Judged
from crcl.data.files import SAVED
from crcl.data.sources import LAYOUTS, layout_of
from crcl.data.sources.base import Layout, Location
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.runs.exchange.known import Known
from crcl.runs.folder import Run
from crcl.runs.verdicts import Verdicts


@dataclass(frozen=True)
class Cleaned:
    """How many rows were removed, how many were kept, and how many of the kept ones were not judged or were moved.

    Where verdicts counted, `verdicts` says how many rows they decided on; these are among the others.
    """

    removed: int
    kept: int
    unjudged: int
    moved: int = 0
    """Rows that now name another image."""
    threshold: float = field(default=THRESHOLD, compare=False)
    """Pairs with a lower correspondence were suspects."""
    verdicts: ByVerdict | None = None


@dataclass(frozen=True)
class Cleaning:
    """How to write cleaned data."""

    mark: bool = False
    """Keep all rows, and add correspondences instead."""
    overwrite: bool = False
    """Replace an existing file; a folder never is."""
    images: Literal["link", "copy"] | None = None
    """What to do with image files beside the data: nothing, by default."""
    rewrite: bool = False
    """Write containers of images anew, instead of lists of what to keep."""
    relink: float | None = None
    """Move captions whose belief in another image is at least this."""
    verdicts: bool = False
    """Verdicts beat beliefs."""

    def __post_init__(self) -> None:
        """Refuse an impossible belief, before long work."""
        if self.relink is None:
            return
        if not 0 < self.relink <= 1:
            raise InputError(
                f"the belief to move captions must be above 0 and at most 1, such as 0.9, got {self.relink:g}"
            )
        if self.mark:
            raise InputError("marked rows all stay as they are", hint="give {mark} or {relink}")


PLAIN = Cleaning()
"""Remove the suspects, and nothing else."""


def can_write(location: Location) -> bool:
    """Whether data can be written again without the suspects."""
    name = layout_of(location.path, location.layout)
    return name is not None and LAYOUTS[name].clean is not None


def refuse_output(location: Location, output: Path, *, overwrite: bool) -> Layout:
    """Refuse, before anything is read, an output that the data cannot be written to; else returns the layout."""
    data = Path(location.path)
    name = layout_of(data, location.layout)
    layout = LAYOUTS.get(name or "")
    if layout is None or layout.clean is None:
        raise InputError(
            f"{'not a table' if layout is None else layout.title}, so it cannot be cleaned",
            where=data,
            hint="{audit()} writes a table whose column 'row' says which captions to leave out",
        )
    as_folder = data.is_dir() if layout.as_folder is None else layout.as_folder
    endings = _endings(data)
    if not as_folder and output.suffix.lower() not in endings:
        hint = f"name a file that ends in {' or '.join(endings)}"
        raise InputError(f"{data} is cleaned in its own format", where=output, hint=hint)
    if not output.exists():
        _refuse_inside(data, output)
        return layout
    if data.exists() and output.samefile(data):
        raise InputError("that is the data itself", where=output, hint=f"name another {_kind(as_folder)} to write")
    _refuse_inside(data, output)
    if as_folder:
        raise InputError("exists already, and a folder is never replaced", where=output, hint="name a new one")
    if not overwrite:
        raise InputError("exists already", where=output, hint="pass {overwrite} to replace it, or name another file")
    if not output.is_file():
        raise InputError("not a file, so it is not overwritten", where=output, hint="name another one")
    return layout


def _endings(data: Path) -> list[str]:
    """The endings that a cleaned copy of a file may have: its own, and for what was in memory CSV too."""
    was_in_memory = data.suffix.lower() == ".parquet" and data.with_name(SAVED).is_file()
    return [data.suffix.lower(), *([".csv"] if was_in_memory else [])]


def _refuse_inside(data: Path, output: Path) -> None:
    """Refuse an output in the folder of the data, which is never touched."""
    if data.is_dir() and output.resolve().is_relative_to(data.resolve()):
        raise InputError(f"lies in the data, {data}", where=output, hint="name a place outside of it")


def _refuse_options(data: Path, layout: Layout, how: Cleaning) -> None:
    """Refuse what cannot be done with data in this layout, instead of leaving it undone."""
    if how.images not in (None, "link", "copy"):
        raise InputError(f"'{how.images}': image files are linked or copied", hint="give {images} as link or copy")
    if how.images is not None and "images" not in layout.options:
        raise InputError(
            "its images stay where they are: only imagefolders and images with text files come with theirs",
            where=data,
            hint="leave {images} out",
        )
    if how.rewrite and "rewrite" not in layout.options:
        raise InputError("only tars are written anew", where=data, hint="leave {rewrite} out")


def _kind(as_folder: bool) -> str:
    return "folder" if as_folder else "file"


def clean_pairs(
    run: Run,
    location: Location,
    output: Path,
    pairs: Split,
    correspondence: np.ndarray,
    *,
    threshold: float,
    how: Cleaning,
) -> Cleaned:
    """Write the data of a run again: as `clean` does, with moves by the run's beliefs and with the run's verdicts."""
    known = None
    if how.verdicts:
        stored = Verdicts.open(run)
        known = Known.of(stored.current(), pairs, stored.path)
        if (known.images >= 0).any():
            check_movable(location)
    moved = moves(run, location, pairs, how.relink)
    return clean(location, output, pairs, correspondence, threshold=threshold, moved=moved, known=known, how=how)


def clean(
    location: Location,
    output: str | Path,
    pairs: Split,
    correspondence: np.ndarray,
    *,
    threshold: float = THRESHOLD,
    moved: np.ndarray | None = None,
    known: Known | None = None,
    how: Cleaning = PLAIN,
) -> Cleaned:
    """Write a copy of the data that the pairs were read from, without the suspects or with all correspondences.

    Rows that are not among the pairs (held out, skipped) are not judged, and stay. The data itself is never touched.

    Args:
        location: The data.
        output: The file or the folder to write, in the same layout.
        pairs: The judged pairs, read from the data.
        correspondence: (N,) of the pairs.
        threshold: Remove pairs with a lower correspondence.
        moved: (N,) the image that each caption is moved to, or -1; pairs that are moved are not removed.
        known: What verdicts say, which beat correspondences; None: there are none.
        how: How to write it.
    """
    data, output = Path(location.path), Path(output)
    layout = refuse_output(location, output, overwrite=how.overwrite)
    _refuse_options(data, layout, how)
    if not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be between 0 and 1, got {threshold}")
    if len(correspondence) != len(pairs):
        raise InputError(f"{len(pairs)} pairs, but correspondences of {len(correspondence)}", where=data)
    if pairs.truth is not None:
        raise InputError(
            "some of its pairs were mismatched on purpose before training (noise), so the correspondences do not "
            "describe the pairs in the data",
            where=data,
            hint="train without noise to clean it",
        )
    rows = pairs.rows.tolist()
    names = (str(pairs.image_ids[image]) for image in pairs.image_index)
    expected = ((name.strip(), caption.strip()) for name, caption in zip(names, pairs.captions, strict=True))
    if how.mark and known is not None:  # all rows stay as they are
        known = known.unrepaired()
    fates = decide(pairs, correspondence, moved, threshold=threshold, known=known)
    judged = Judged(
        data,
        dict(zip(rows, expected, strict=True)),
        dict(zip(rows, fates.correspondence, strict=True)),
        {rows[place] for place in np.flatnonzero(fates.removed)},
        _by_row(rows, pairs, fates.images),
        mark=how.mark,
        images=how.images,
        rewrite=how.rewrite,
        corrected={rows[place]: text for place, text in fates.captions.items()},
    )
    assert layout.clean is not None
    total = layout.clean(location, judged, output)
    removed = 0 if how.mark else len(judged.suspects)
    kept = total - removed
    by_verdict = fates.by_verdict
    if how.mark and known is not None:
        by_verdict = ByVerdict(kept=int((known.right | known.wrong).sum()))
    return Cleaned(removed, kept, total - len(rows), len(judged.moved), threshold, by_verdict)


def _by_row(rows: list[int], pairs: Split, images: np.ndarray) -> dict[int, str]:
    """The image that each moved row is moved to."""
    return {rows[place]: str(pairs.image_ids[images[place]]) for place in np.flatnonzero(images >= 0)}
