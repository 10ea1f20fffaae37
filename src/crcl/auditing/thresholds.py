"""Choosing the threshold below which pairs are suspect: given, estimated with decoys, or the method's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from crcl.auditing.estimate import FEWEST, Estimate, distinguishable, estimate
from crcl.auditing.findings import THRESHOLD
from crcl.auditing.scores.calibration import wrong_probability
from crcl.auditing.scores.interval import Interval, told
from crcl.auditing.scores.of_run import Scores, stored_scores
from crcl.auditing.scores.rating import Rating
from crcl.auditing.scores.resampling import share_interval
from crcl.auditing.summary import rate_of, recall_at
from crcl.errors import InputError
from crcl.progress import Progress
from crcl.runs.exchange.known import Known
from crcl.runs.folder import Run

BOUNDING = 100
"""So many decoys bound the rate though they do not tell it: by chance a share of them is off by ten points."""


@dataclass(frozen=True)
class Correspondences:
    """The correspondences of a run by one of its scores, with the estimate by its decoys."""

    correspondence: np.ndarray | None
    """(N,); None for an imported run without any"""
    estimate: Estimate | None = None
    unsure: str = ""
    """Why the decoys allow no estimate; empty where they do, or where there are none."""
    score: str = "belief"
    """The score that they come from."""
    scores: Scores | None = None
    """All scores of the run; None for an imported run without beliefs."""
    ratings: Mapping[str, Rating] = field(default_factory=dict)
    """How well each score tells decoys from pairs, the best first; empty without decoys."""
    other_decoys: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Correspondences of decoys of other kinds than random, by kind: of those made of pairs that are believed."""
    known: Known | None = None
    """What verdicts said of the pairs when the training began; they are in the correspondences already."""
    without: Estimate | None = None
    """The estimate by decoys alone, where verdicts are known."""
    vague: Estimate | None = None
    """The estimate where its rate may be nearly anything, so that it is not told: `estimate` is None there."""

    @property
    def blind(self) -> bool:
        """Whether decoys are believed as much as pairs, or too few to tell."""
        return bool(self.unsure) and self.vague is None

    @property
    def doubtful(self) -> bool:
        """Whether most pairs lie among the decoys."""
        found = self.estimate or self.vague
        return found is not None and found.doubtful

    def p_wrong(self) -> np.ndarray | None:
        """(N,) probability that each pair is mismatched; None without an estimate."""
        found = self.estimate
        if found is None:
            return None
        wrong = wrong_probability(found.correspondence, found.decoys, found.rate)
        return wrong if self.known is None else 1 - self.known.over(1 - wrong)

    def recall(self, threshold: float) -> dict[str, Interval]:
        """Estimated recall at a threshold with its interval, by kind of decoy; without `random` if none is estimated.

        That of near and swap decoys is the share of so many decoys, with the binomial interval of Jeffreys.
        """
        random = {} if self.estimate is None else {"random": recall_at(self.estimate, threshold)}
        shares = {kind: float((found < threshold).mean()) for kind, found in self.other_decoys.items()}
        return random | {
            kind: Interval(share, *share_interval(share, len(self.other_decoys[kind])))
            for kind, share in shares.items()
        }


def read_correspondences(run: Run, score: str | None = None) -> Correspondences:
    """The correspondences of a run and the estimate by its decoys, with the verdicts that it was trained with.

    Args:
        run: The run.
        score: The score to take; if not given, the one that tells random decoys from pairs best, of those in the run.
    """
    known = Known.read(run.path, pairs=run.sizes["pairs"], images=run.sizes["images"])
    found = _judged(run, score, known)
    if known is None or found.correspondence is None:
        return without_vague(found)
    with_known = None if found.estimate is None else found.estimate.with_known(known.wrong, known.right)
    told = known.over(found.correspondence)
    return without_vague(replace(found, correspondence=told, estimate=with_known, known=known, without=found.estimate))


def without_vague(found: Correspondences) -> Correspondences:
    """The same without an estimate whose rate may be nearly anything; `unsure` says so."""
    estimated = found.estimate
    if estimated is None or not (rate := rate_of(estimated)).vague:
        return found
    if estimated.doubtful and len(estimated.decoys) >= BOUNDING:
        return found  # the rate is an upper bound that chance hardly moves: that is worth telling
    why = f"{len(estimated.decoys):,} decoys say no more than that {told(rate)} are mismatched"
    return replace(found, estimate=None, unsure=why, vague=estimated)


def _judged(run: Run, score: str | None, known: Known | None) -> Correspondences:
    """The correspondences as scores have them, and the estimate by decoys alone."""
    if not run.has_beliefs:
        if score is not None:
            raise InputError("imported without beliefs, so it has no scores", where=run.path)
        return Correspondences(None)
    scores = stored_scores(run)
    if known is not None:
        scores = replace(scores, wrong=known.wrong & ~known.repaired)
    random = scores.kinds == "random"
    if random.sum() < FEWEST:
        if score not in (None, scores.own):
            raise InputError(
                f"scores are compared by decoys, and {random.sum()} are too few",
                where=run.path,
                hint="leave {score} out, or train with {decoys}",
            )
        why = f"{random.sum()} decoys are too few for an estimate, which needs {FEWEST} or more" if random.any() else ""
        return Correspondences(scores.of(scores.own)[: scores.pairs], unsure=why, score=scores.own, scores=scores)
    ratings = scores.ratings()
    chosen = scores.choose(score, ratings)
    beliefs = scores.belief(chosen)
    correspondence, decoys = beliefs[: scores.pairs], beliefs[scores.pairs :]
    sure = distinguishable(correspondence, decoys[random])
    found = estimate(correspondence, decoys[random]) if sure else None
    believed = _believed_originals(run, correspondence, found)
    return Correspondences(
        correspondence,
        found,
        "" if sure else "the decoys have correspondences as high as the pairs, so nothing can be estimated from them",
        chosen,
        scores,
        ratings,
        {str(kind): decoys[believed & (scores.kinds == kind)] for kind in np.unique(scores.kinds[~random & believed])},
    )


def _believed_originals(run: Run, correspondence: np.ndarray, found: Estimate | None) -> np.ndarray:
    """Whether each decoy was made of a pair that is not suspect itself. (D,) bool

    A caption that belongs elsewhere does not become a nearly right one by an exchanged word or a similar image.
    """
    drawn = run.decoys()
    if drawn is None or found is None:
        return np.ones(0 if drawn is None else len(drawn), dtype=bool)
    return correspondence[drawn[:, 0]] >= found.best_f1()


@dataclass(frozen=True)
class Choice:
    """How to choose the threshold: given or by what it leads to; with nothing given, by the best estimated F1."""

    threshold: float | None = None
    precision: float | None = None
    """Flag as many as possible at this estimated precision."""
    keep: float | None = None
    """Keep this share of the pairs, the most believed."""
    wrong_at_most: float | None = None
    """Flag as few as possible, so that at most this share of the kept pairs is mismatched, as estimated."""

    def __post_init__(self) -> None:
        """Refuse an impossible choice, before long work."""
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(name.replace('_', ' ') for name in given)} are given, each of which decides what is "
                "flagged",
                hint=f"give {' or '.join(f'{{{name}}}' for name in given)}",
            )
        for name in ("keep", "wrong_at_most"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name.replace('_', ' ')} must be between 0 and 1, such as 0.3, got {value:g}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InputError(f"the threshold must be between 0 and 1, got {self.threshold:g}")
        if self.precision is not None and not 0 < self.precision <= 1:
            raise InputError(f"the precision must be above 0 and at most 1, such as 0.95, got {self.precision:g}")


def choose_threshold(
    found: Correspondences, choice: Choice, *, own: float | None, method: str, progress: Progress
) -> float:
    """The threshold below which pairs are suspect; notes say what is unsure about it.

    Args:
        found: The correspondences of the run.
        choice: What the user requested.
        own: The method's own threshold, if it has one.
        method: Its name, for messages.
        progress: Receives notes.

    Returns:
        The requested threshold; or the highest with the requested precision; or the one with the best estimated F1.
        Without decoys the method's own threshold, or 0.1. It is 0, which flags nothing, where the decoys allow no
        estimate, or where no threshold has the requested precision.
    """
    if found.unsure:
        progress.note(found.unsure)
    if choice.threshold is not None:
        return choice.threshold
    if choice.precision is not None:
        return _precise(found, choice.precision, progress)
    if choice.keep is not None:
        if found.correspondence is None:
            raise InputError("the run has no correspondences to keep the best by", hint="give a {threshold}")
        order = np.sort(found.correspondence)
        return float(order[min(round((1 - choice.keep) * len(order)), len(order) - 1)])
    if choice.wrong_at_most is not None:
        return _clean_enough(found, choice.wrong_at_most, progress)
    if found.estimate is not None:
        return found.estimate.best_f1()
    if found.unsure:
        return 0.0
    if own is None and found.correspondence is not None:
        progress.note(
            f"correspondences of a run with {method} are probabilities within a batch, which have no natural "
            f"threshold: {THRESHOLD:g} is arbitrary, so trust the order of the pairs rather than the flags. Train with "
            "decoys for a threshold with an estimated precision, or choose one by looking at the pairs around it"
        )
    return THRESHOLD if own is None else own


def _estimate(found: Correspondences, what: str) -> Estimate:
    """The estimate by decoys, which `what` needs; refuses where there is none."""
    if found.estimate is not None:
        return found.estimate
    if found.unsure:
        more = "" if found.ratings else "train with more {decoys}, or "  # else their number is not what is wrong
        raise InputError(f"{what} cannot be estimated: {found.unsure}", hint=f"{more}give a {{threshold}}")
    raise InputError(
        f"{what} is estimated from decoys, and this run has none", hint="train with {decoys}, or give a {threshold}"
    )


def _precise(known: Correspondences, precision: float, progress: Progress) -> float:
    estimated = _estimate(known, "the precision")
    found = estimated.at_precision(precision)
    if not found:
        best = np.nanmax(estimated.precision, initial=0)
        progress.note(
            f"no threshold has an estimated precision of {precision:.0%} (the best has {best:.0%}), so nothing is "
            "flagged; a lower precision, or a threshold, flags some"
        )
    return found or 0.0


def _clean_enough(known: Correspondences, share: float, progress: Progress) -> float:
    estimated = _estimate(known, "how much of the kept is wrong")
    found = estimated.at_wrong(share)
    if found is None:
        kept = estimated.kept()
        least = kept.wrong[kept.share > 0].min(initial=1)
        progress.note(
            f"no threshold leaves at most {share:.1%} of the kept pairs wrong (the best leaves {least:.1%}), so "
            "nothing is flagged; a larger share, or a threshold, flags some"
        )
    return found or 0.0


def refuse_unsure(found: Correspondences, threshold: float | None, where: Path, *, mark: bool) -> None:
    """Refuse to remove pairs where the decoys allow no estimate and no threshold is given."""
    if found.unsure and threshold is None and not mark:
        raise InputError(
            f"no row is known to be wrong: {found.unsure}",
            where=where,
            hint="look at the pairs that the audit lists first, then give a {threshold} to remove those below it, or "
            "{mark} to keep all rows with their correspondence",
        )
