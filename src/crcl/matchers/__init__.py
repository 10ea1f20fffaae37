"""Matchers: networks that turn images and texts into similarities."""

from collections.abc import Callable

from torch import nn

from crcl.matchers.base import Encoded, Matcher
from crcl.matchers.bow import Bow
from crcl.matchers.clip import Clip
from crcl.matchers.dual import Dual
from crcl.matchers.ensemble import Ensemble
from crcl.matchers.scan import SCAN
from crcl.matchers.sgraf import SAF, SGR
from crcl.matchers.vse import VSE

MATCHERS: dict[str, Callable[..., nn.Module]] = {
    "vse": VSE,
    "bow": Bow,
    "saf": SAF,
    "sgr": SGR,
    "scan": SCAN,
    "dual": Dual,
    "clip": Clip,
}

__all__ = ["MATCHERS", "SAF", "SCAN", "SGR", "VSE", "Bow", "Clip", "Dual", "Encoded", "Ensemble", "Matcher"]
