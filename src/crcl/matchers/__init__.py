"""Matchers: networks that turn images and texts into similarities."""

from crcl.matchers import bow, clip, dual, hrem, linear, vse, vsrn
from crcl.matchers.base import Encoded, Matcher
from crcl.matchers.bow import Bow
from crcl.matchers.clip import Clip
from crcl.matchers.dual import Dual
from crcl.matchers.ensemble import Ensemble
from crcl.matchers.hrem import HREM
from crcl.matchers.linear import Linear, LinearVectors
from crcl.matchers.local import chan, gsmn, imram, naaf, scan, sgraf
from crcl.matchers.local.chan import CHAN
from crcl.matchers.local.gsmn import GSMN
from crcl.matchers.local.imram import IMRAM
from crcl.matchers.local.naaf import NAAF
from crcl.matchers.local.scan import SCAN
from crcl.matchers.local.sgraf import SAF, SGR
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.matchers.vse import MVVSE, VSE
from crcl.matchers.vsrn import VSRN

MATCHERS: dict[str, MatcherRecord] = {
    "vse": vse.RECORD,
    "bow": bow.RECORD,
    "saf": sgraf.SAF_RECORD,
    "sgr": sgraf.SGR_RECORD,
    "scan": scan.RECORD,
    "chan": chan.RECORD,
    "naaf": naaf.RECORD,
    "imram": imram.RECORD,
    "gsmn": gsmn.RECORD,
    "vsrn": vsrn.RECORD,
    "mvvse": vse.VIEWS,
    "hrem": hrem.RECORD,
    "dual": dual.RECORD,
    "clip": clip.RECORD,
    "linear": linear.RECORD,
    "linear-vectors": linear.VECTORS,
}
"""Every matcher by its name. The first one is the default."""

__all__ = [
    "CHAN",
    "GSMN",
    "HREM",
    "IMRAM",
    "MATCHERS",
    "MVVSE",
    "NAAF",
    "SAF",
    "SCAN",
    "SGR",
    "VSE",
    "VSRN",
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
