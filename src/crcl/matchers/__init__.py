"""Matchers: networks that turn images and texts into similarities."""

from crcl.matchers import bow, clip, dual, linear, scan, sgraf, vse
from crcl.matchers.base import Encoded, Matcher
from crcl.matchers.bow import Bow
from crcl.matchers.clip import Clip
from crcl.matchers.dual import Dual
from crcl.matchers.ensemble import Ensemble
from crcl.matchers.linear import Linear, LinearVectors
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.matchers.scan import SCAN
from crcl.matchers.sgraf import SAF, SGR
from crcl.matchers.vse import VSE

MATCHERS: dict[str, MatcherRecord] = {
    "vse": vse.RECORD,
    "bow": bow.RECORD,
    "saf": sgraf.SAF_RECORD,
    "sgr": sgraf.SGR_RECORD,
    "scan": scan.RECORD,
    "dual": dual.RECORD,
    "clip": clip.RECORD,
    "linear": linear.RECORD,
    "linear-vectors": linear.VECTORS,
}
"""Every matcher by its name. The first one is the default."""

__all__ = [
    "MATCHERS",
    "SAF",
    "SCAN",
    "SGR",
    "VSE",
    "Bow",
    "BuildContext",
    "Clip",
    "Dual",
    "Encoded",
    "Ensemble",
    "Linear",
    "LinearVectors",
    "Matcher",
    "MatcherRecord",
    "MatcherSettings",
]
