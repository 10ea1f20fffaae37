"""Methods: how a matcher is trained on pairs that are partly wrong. One file each."""

from crcl.methods import bicro, crcl, decl, gsc, l2rm, mscn, ncr, plain, relink
from crcl.methods.base import MethodRecord

METHODS: dict[str, MethodRecord] = {
    "crcl": crcl.RECORD,
    "triplet": plain.TRIPLET,
    "triplet-hardest": plain.TRIPLET_HARDEST,
    "infonce": plain.INFONCE,
    "complementary": plain.COMPLEMENTARY,
    "decl": decl.RECORD,
    "ncr": ncr.RECORD,
    "bicro": bicro.RECORD,
    "mscn": mscn.RECORD,
    "gsc": gsc.RECORD,
    "l2rm": l2rm.RECORD,
    "relink": relink.RECORD,
}
"""Every method by its name. The first one is the default."""


def methods_of(networks: int, *, meta: bool = False) -> list[str]:
    """Names of the methods that train this number of networks, with meta-networks or without."""
    return [
        name for name, record in METHODS.items() if record.networks == networks and (record.meta is not None) == meta
    ]


__all__ = ["METHODS", "MethodRecord", "methods_of"]
