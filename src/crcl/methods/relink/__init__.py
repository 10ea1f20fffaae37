"""Relink: the image that a caption belongs to is a hidden variable. A method of this project, not of the paper."""

from collections.abc import Callable

from crcl.matchers import MatcherRecord
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.relink import sampled, search
from crcl.methods.relink.method import Relink
from crcl.methods.relink.settings import RelinkSettings
from crcl.methods.settings import LossSettings


def _build(
    *, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, relink: RelinkSettings
) -> Relink:
    return Relink(make_learner(), pairs, plan, relink, tau=loss.tau, scale=loss.scale)


def _companion(matcher: MatcherRecord, *, loss: LossSettings, relink: RelinkSettings) -> str | None:
    """The linear model that is scored beside a network, where it reads the same and its similarities compare."""
    if not relink.ensemble or matcher.closed_form or matcher.pretrained or not matcher.one_vector:
        return None
    return "linear-vectors" if matcher.reads_vectors else "linear"


def _able(images: int) -> bool:
    return images <= sampled.EXACT or search.installed()


RECORD = MethodRecord(
    name="relink",
    summary="learns from the images that captions belong to, as it believes (ours, not the paper's)",
    build=_build,
    sections={"loss": LossSettings, "relink": RelinkSettings},
    threshold=0.5,
    companion=_companion,
    fits_closed_form=True,
    takes_verdicts=True,
    able=_able,
)

__all__ = ["RECORD", "Relink", "RelinkSettings"]
