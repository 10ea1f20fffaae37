"""Why pairs are suspect, in words, and what would repair them: drop, relink to another image, replace the caption.

Each reason is a rule over arrays. What is low or high is measured on the random decoys of the run, never on the truth.
A rule whose score is missing, or tells decoys from pairs no better than chance, is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from crcl.auditing.estimate import FEWEST, distinguishable
from crcl.auditing.findings import Findings, first_shown
from crcl.auditing.thresholds import Correspondences
from crcl.data.duplicates import Copies
from crcl.data.split import Split
from crcl.methods.base import Partners
from crcl.retrieval.words import Told

REASONS = {
    "random": ("fits no better than a random caption", ""),
    "neighbours": ("no neighbour agrees", ""),
    "siblings": ("unlike its sibling captions", ""),
    "elsewhere": ("fits another image far better", "fits the image of row {} far better"),
    "copy": ("copy of an image with another caption", "copy of the image of row {} with another caption"),
    "generic": ("generic caption", ""),
    "everything": ("image that everything fits", ""),
    "cut": ("caption cut", ""),
}
"""The reasons by name: in words, and in words that name a row, for those that point to one."""
FIXES = {"drop": "drop", "move": "relink to {} (row {})", "replace": "replace by {}"}
"""What would repair a pair, in words."""
BELIEVED = 0.5
"""A caption belongs elsewhere if the run believes so with this probability: more than anything else."""
_LOOKED_AT = 50  # pairs of an image's copies, the most believed first, among which another caption is looked for


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why each of S suspects is one, and what would repair it."""

    pairs: Split
    suspects: np.ndarray
    """(S,) numbers of the pairs, worst first"""
    holds: dict[str, np.ndarray]
    """(S,) bool each, by the names of `REASONS`; only of rules that could be applied"""
    points: dict[str, np.ndarray]
    """(S,) each: the pair that a reason points to, or -1"""
    relink: np.ndarray
    """(S,) the image that the caption belongs to, or -1"""
    replace: np.ndarray
    """(S,) the pair whose caption belongs to the image, or -1"""
    said: tuple[Told, ...] = ()
    """What the matcher says of words and sentences of the S captions"""

    def counts(self) -> dict[str, int]:
        """How many suspects have each reason, in words; only reasons that some have."""
        return {REASONS[name][0]: int(holds.sum()) for name, holds in self.holds.items() if holds.any()}

    def of(self, pair: int) -> list[tuple[str, int | None]]:
        """The reasons of a pair by name, each with the row that it points to, if any; none if it is not suspect."""
        place = self._places[pair]
        if place < 0:
            return []
        return [
            (name, int(self._rows[self.points[name][place]]) if name in self.points else None)
            for name, holds in self.holds.items()
            if holds[place]
        ]

    def fix(self, pair: int, named: Callable[[str], str] = str) -> str | None:
        """What would repair a pair, in words; None if it is not suspect. `named` writes the name of an image."""
        place = self._places[pair]
        if place < 0:
            return None
        image, caption = self.relink[place], self.replace[place]
        if image >= 0:
            row = self._rows[self._first_shown[image]]
            return FIXES["move"].format(named(str(self.pairs.image_ids[image])), row)
        return FIXES["drop"] if caption < 0 else FIXES["replace"].format(self.pairs.captions[caption])

    def of_words(self, pair: int) -> str:
        """What the matcher says of the words and sentences of a pair's caption; empty if it says nothing."""
        place = self._places[pair]
        return "" if place < 0 else " ".join(told.sentences[place] for told in self.said if told.sentences[place])

    def columns(self, rows: np.ndarray) -> dict[str, pa.Array]:
        """Columns of the audit's table for these pairs: `reason` and `fix`, null where a pair is not suspect.

        And what the matcher says of words (`lacking` or `regions`) and sentences, null where that is nothing.
        """
        reasons = ["; ".join(told(*found) for found in self.of(row)) or None for row in rows.tolist()]
        fixes = [self.fix(row) for row in rows.tolist()]
        found = {"reason": pa.array(reasons, pa.string()), "fix": pa.array(fixes, pa.string())}
        for told_of in self.said:
            cells = [(told_of.cells[place] or None) if place >= 0 else None for place in self._places[rows]]
            found[told_of.column] = pa.array(cells, pa.string())
        return found

    @cached_property
    def _places(self) -> np.ndarray:
        """(N,) place of each pair among the suspects, or -1"""
        places = np.full(len(self.pairs), -1)
        places[self.suspects] = np.arange(len(self.suspects))
        return places

    @cached_property
    def _rows(self) -> np.ndarray:
        return self.pairs.rows

    @cached_property
    def _first_shown(self) -> np.ndarray:
        return first_shown(self.pairs)


def told(name: str, row: int | None) -> str:
    """A reason in words."""
    plain, pointing = REASONS[name]
    return plain if row is None else pointing.format(row)


def find_reasons(
    found: Findings,
    known: Correspondences,
    copies: Copies,
    partners: Partners | None,
    cut: np.ndarray | None = None,
) -> Reasons:
    """The reasons for the suspects of an audit.

    Args:
        found: The pairs and which of them are suspect.
        known: Their scores, and those of decoys.
        copies: Copies among the images and captions.
        partners: Other images that captions belong to, as the run believes; None where it has no such beliefs.
        cut: (S,) bool, suspects of whose caption the end was not read; None where that is not known.
    """
    suspects, pairs = found.suspects, found.pairs
    holds = _by_decoys(known, suspects)
    generic, everything = _fitting_everything(known, found.correspondence >= found.threshold)
    if partners is not None:
        belongs = belonging(partners, pairs, copies.text)
    else:
        belongs = belonging_by_similarity(found, copies.text)
    there = copies_with_another_caption(copies, pairs, found.correspondence, suspects)
    holds["generic"] = (copies.generic if generic is None else copies.generic | generic)[suspects]
    if everything is not None:
        holds["everything"] = everything[suspects]
    if cut is not None:
        holds["cut"] = cut
    holds["copy"], holds["elsewhere"] = there >= 0, belongs[suspects] >= 0
    shown = first_shown(pairs)[belongs[suspects]]
    relink = np.where(holds["generic"], -1, belongs[suspects])
    # the caption of a copy, if that pair is not suspect; else one of another pair that belongs to this image
    believed = (there >= 0) & (found.correspondence[there] >= found.threshold)
    replace = np.where(believed, there, _one_that_belongs(belongs, pairs)[suspects])
    return Reasons(
        pairs,
        suspects,
        {name: holds[name] for name in REASONS if name in holds},
        {"copy": there, "elsewhere": np.where(holds["elsewhere"], shown, -1)},
        relink,
        replace,
    )


def below_decoys(pairs: np.ndarray, decoys: np.ndarray) -> np.ndarray | None:
    """Whether pairs score below the median decoy, (N,); None where the score does not tell decoys from pairs.

    Args:
        pairs: Their scores, (N,); NaN where there is none.
        decoys: Those of random decoys, (D,).
    """
    judged, known = pairs[~np.isnan(pairs)], decoys[~np.isnan(decoys)]
    if len(known) < FEWEST or not len(judged) or not distinguishable(judged, known):
        return None
    return pairs < np.median(known)


def fits_everything(offsets: np.ndarray, matching: np.ndarray, decoys: np.ndarray) -> np.ndarray | None:
    """Whether random partners fit an image or a caption nearly as well as its own one would, (N,).

    That is so if their mean cosine is closer to that of the median matching pair than to that of the median decoy.
    None where matching pairs do not fit better than decoys.

    Args:
        offsets: Mean cosine of each pair's image (or caption) with random captions (or images), (N,).
        matching: Cosines of pairs that are not suspect.
        decoys: Cosines of random decoys.
    """
    matching, decoys = matching[~np.isnan(matching)], decoys[~np.isnan(decoys)]
    if not len(matching) or len(decoys) < FEWEST or not distinguishable(matching, decoys):
        return None
    return offsets > (np.median(matching) + np.median(decoys)) / 2


def belonging(partners: Partners, pairs: Split, text: np.ndarray) -> np.ndarray:
    """The other image that each caption belongs to, `(N,)`, or -1: each is among the best for the other.

    The image must be the most believed one, with `BELIEVED` or more, and the caption among the captions most believed
    to belong to that image: as many as images have on average. A text that the image shows already is left out.

    Args:
        partners: Other images for each caption, and the beliefs in these.
        pairs: The pairs.
        text: The first pair with the same caption as each, (N,).
    """
    belongs = np.full(len(pairs), -1, dtype=np.int64)
    images, beliefs = partners.best()
    shown = np.isin(text * pairs.images + images, text * pairs.images + pairs.image_index)
    rows = np.flatnonzero((beliefs >= BELIEVED) & ~shown)
    order = rows[np.lexsort((rows, -beliefs[rows], images[rows]))]
    sorted_images = images[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_images, sorted_images)  # among captions of the same image
    wanted = order[place < _usual_captions(pairs)]
    belongs[wanted] = images[wanted]
    return belongs


def belonging_by_similarity(found: Findings, text: np.ndarray) -> np.ndarray:
    """The same for a run without such beliefs, from the suggestions: which cover the suspects, and their images, only.

    The image must be the best for the caption, and fit it as well as the median pair that is not suspect; and the
    caption must be among the best for the image, which is known for images of suspects.
    """
    pairs, suggestions = found.pairs, found.suggestions
    belongs = np.full(len(pairs), -1, dtype=np.int64)
    fine = found.correspondence >= found.threshold
    if suggestions is None or suggestions.fit != "similarity" or not fine.any():
        return belongs
    images, fit = suggestions.images[:, 0], suggestions.image_fit[:, 0]
    captions = suggestions.captions[:, : _usual_captions(pairs)]
    wanted = pairs.image_index[suggestions.rows][:, None] * len(pairs) + text[captions]
    mutual = np.isin(images * len(pairs) + text[suggestions.rows], wanted[captions >= 0])
    chosen = (images >= 0) & (fit >= np.median(found.similarity[fine])) & mutual
    belongs[suggestions.rows[chosen]] = images[chosen]
    return belongs


def copies_with_another_caption(
    copies: Copies, pairs: Split, correspondence: np.ndarray, suspects: np.ndarray
) -> np.ndarray:
    """For each suspect the most believed pair that shows a copy of its image with another caption, `(S,)`, or -1.

    Exact copies come before near ones. Where a copy has the same caption too, there is none.
    """
    group = copies.same[pairs.image_index]
    near = copies.near[group]
    near = np.where(near < 0, -1, copies.same[near])
    order = np.lexsort((-correspondence, group))
    starts, ends = (np.searchsorted(group[order], np.arange(pairs.images), side=side) for side in ("left", "right"))
    shown = np.bincount(copies.same[np.unique(pairs.image_index)], minlength=pairs.images)
    exact = np.where(shown[group] > 1, group, -1)
    found = np.full(len(suspects), -1, dtype=np.int64)
    for place in np.flatnonzero((exact[suspects] >= 0) | (near[suspects] >= 0)).tolist():
        suspect = suspects[place]
        others = np.concatenate(
            [
                order[starts[other] : min(ends[other], starts[other] + _LOOKED_AT)]
                for other in (exact[suspect], near[suspect])
                if other >= 0
            ]
        )
        others = others[pairs.image_index[others] != pairs.image_index[suspect]]
        if len(others) and (copies.text[others] != copies.text[suspect]).all():
            found[place] = others[0]
    return found


def _by_decoys(known: Correspondences, suspects: np.ndarray) -> dict[str, np.ndarray]:
    """The rules that compare a score with that of the median decoy."""
    judged: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if known.estimate is not None:
        judged["random"] = known.estimate.correspondence, known.estimate.decoys
    for name, score in (("neighbours", "neighbours"), ("siblings", "consistency")):
        values = None if known.scores is None else known.scores.values.get(score)
        if values is not None:
            judged[name] = _divided(known, values)
    low = {name: below_decoys(*values) for name, values in judged.items()}
    return {name: below[suspects] for name, below in low.items() if below is not None}


def _fitting_everything(known: Correspondences, fine: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Whether each pair's caption fits every image, and its image every caption; None where that is not known."""
    if known.scores is None or not known.scores.offsets or "cosine" not in known.scores.values:
        return None, None
    pairs, decoys = _divided(known, known.scores.values["cosine"])
    caption, image = (known.scores.offsets[name][: len(pairs)] for name in ("caption_offset", "image_offset"))
    return fits_everything(caption, pairs[fine], decoys), fits_everything(image, pairs[fine], decoys)


def _divided(known: Correspondences, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A score of the pairs, and that of the random decoys."""
    assert known.scores is not None
    pairs = known.scores.pairs
    return values[:pairs], values[pairs:][known.scores.kinds == "random"]


def _one_that_belongs(belongs: np.ndarray, pairs: Split) -> np.ndarray:
    """For each pair another one whose caption belongs to its image, `(N,)`, or -1."""
    caption = np.full(pairs.images, -1, dtype=np.int64)
    rows = np.flatnonzero(belongs >= 0)[::-1]
    caption[belongs[rows]] = rows  # of several the first in the data
    return caption[pairs.image_index]


def _usual_captions(pairs: Split) -> int:
    """How many captions an image has on average, rounded."""
    return max(round(len(pairs) / max(len(np.unique(pairs.image_index)), 1)), 1)
