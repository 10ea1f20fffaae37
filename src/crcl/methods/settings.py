"""Settings that several methods share, and checks of them; settings of a single method are in its own file."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from crcl.settings import Count, NotNegative, Positive, Section, Share, ShareAboveZero, ShareBelowOne


class LossSettings(Section):
    """Parameters of the losses; each method reads its own."""

    tau: Positive = 0.05
    """Temperature τ of the matching probabilities (Eq. 3); 0.03 to 0.07 is sensible."""
    scale: NotNegative = 5.0
    """Scale λ of the active complementary loss (Eq. 8)."""
    terms: Literal["both", "active", "complementary"] = "both"
    """Method crcl: the whole loss, L_d alone, or L_r alone with q = 1 - label (the paper's ablation)."""
    margin: NotNegative = 0.2
    """Margin of the triplet losses (Eq. 2)."""
    first_epochs: Annotated[int, Field(ge=0)] = 1
    """First epochs of triplet-hardest, which take all negatives; published: 1 for vse, 0 for scan, saf and sgr."""
    kind: Literal["log", "tan", "abs", "exp", "gce", "robust"] = "tan"
    """Method complementary: a member of RCL's family, or robust: L_r (Eq. 6) with the fixed q of loss.q."""
    q: Share = 0.2
    """Exponent q of gce (greater than 0 there) and of robust."""
    curve: Literal["exponential", "linear", "sine"] = "exponential"
    """How the margin grows with a pair's label (methods ncr and bicro)."""


class LedgerSettings(Section):
    """Self-refining correction of the correspondences (method crcl)."""

    momentum: ShareBelowOne = 0.8
    """Momentum β: weight of the previous belief (Eq. 11)."""
    threshold: ShareBelowOne = 0.1
    """Threshold ε: a belief below it counts as 0 in the loss (Eq. 12)."""
    freeze_epochs: Annotated[int, Field(ge=0)] = 2
    """First epochs e_f of each piece in which the beliefs stay as they are."""
    correction: Literal["paper", "official", "none"] = "paper"
    """paper: Eq. 10-12 to the letter; official: as in the authors' code; none: the current probability alone."""
    probability: Literal["train", "eval"] = "train"
    """Take matching probabilities from the training steps, or from a pass in eval mode after each epoch."""
    negatives: Annotated[int, Field(ge=0)] = 0
    """Judge pairs as if against so many negatives, whatever the size of the batch; 0: against those of the batch."""


class DivisionSettings(Section):
    """Division into clean and noisy pairs (methods ncr, bicro and l2rm)."""

    warmup: Count = 5
    """First epochs, which train on all pairs; the decay of the learning rate does not count them."""
    threshold: ShareBelowOne = 0.5
    """A pair is clean if the mixture's posterior is above this."""
    kept: ShareAboveZero = 0.3
    """Share of each batch, with the smallest losses, that the warm-up of bicro trains on."""
    cut: ShareBelowOne = 0.5
    """A label of bicro that is not above this becomes 0."""


def check_division_warmup(*, pieces: tuple[int, ...], division: DivisionSettings, **others: Section) -> Iterator[str]:
    """Yield a message if the training would end before it divides its pairs."""
    if division.warmup >= pieces[-1]:
        yield (
            f"division.warmup: the {division.warmup} epochs of the warm-up divide no pairs, and train.pieces "
            f"{list(pieces)} ends with {pieces[-1]}: no pair would ever be called noisy"
        )


def check_warmup(name: str, warmup: int, pieces: tuple[int, ...]) -> Iterator[str]:
    """Yield a message if the training would end before it judges its pairs."""
    if warmup >= pieces[-1]:
        yield (
            f"{name}.warmup: {warmup} epochs count every pair as matched, and train.pieces {list(pieces)} ends with "
            f"{pieces[-1]}: no pair would ever be judged"
        )
