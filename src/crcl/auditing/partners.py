"""Other images that captions belong to, as the run believes: which captions to move, and what to suggest."""

from pathlib import Path

import numpy as np

from crcl.data.sources.base import Location
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.methods.base import Partners
from crcl.runs.folder import Run


def read_partners(run: Run) -> Partners | None:
    """The beliefs of a run in other images; None where its method judges shown pairs only."""
    found = run.load_partners()
    return None if found is None else Partners(*found)


def check_movable(location: Location) -> None:
    """Refuse data in which captions cannot be moved to other images."""
    if location.text_features is not None and location.ids is None:
        raise InputError(
            "its images are known by their row, so that captions cannot be moved between them",
            where=Path(location.path),
            hint="pass {ids}, a file with the image of each row of the features",
        )


def moves(
    run: Run,
    location: Location,
    pairs: Split,
    relink: float | None,
) -> np.ndarray | None:
    """The image that each caption is moved to, `(N,)`, or -1; None if none is to be moved.

    Args:
        run: A run with beliefs in other images.
        location: Its table.
        pairs: The pairs of the table.
        relink: Move captions whose belief in another image is at least this.
    """
    if relink is None:
        return None
    partners = read_partners(run)
    if partners is None:
        raise InputError(
            "has no beliefs in other images, which tell where a caption belongs",
            where=run.path,
            hint="train with method relink",
        )
    check_movable(location)
    return choose_moves(partners, pairs, run.load_ledger(), relink)


def choose_moves(partners: Partners, pairs: Split, correspondence: np.ndarray, relink: float) -> np.ndarray:
    """The image that each caption is moved to, `(N,)`, or -1.

    It is the most believed other image, if the belief in it is at least `relink` and above that in the shown one. A
    caption that this image has already is not moved: the pair would be in the data twice.
    """
    moved = np.full(len(pairs), -1, dtype=np.int64)
    images, beliefs = partners.best()
    known = set(zip(pairs.image_index.tolist(), pairs.captions, strict=True))
    for row in np.flatnonzero((beliefs >= np.float32(relink)) & (beliefs > correspondence)).tolist():
        pair = (int(images[row]), pairs.captions[row])
        if pair not in known:
            known.add(pair)
            moved[row] = images[row]
    return moved
