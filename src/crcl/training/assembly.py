"""From a config to what is trained: matchers, methods, devices. The table of methods is here."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from crcl import losses
from crcl.config import Config
from crcl.ledger import Ledger
from crcl.methods.base import Learner, Method
from crcl.methods.bicro import BiCro
from crcl.methods.crcl import CRCL
from crcl.methods.decl import DECL
from crcl.methods.gsc import GSC
from crcl.methods.l2rm import L2RM
from crcl.methods.mscn import MSCN
from crcl.methods.ncr import NCR
from crcl.methods.plain import Objective

BELIEVING = ("crcl", "gsc")
"""Methods that learn from beliefs, and so can begin with those of another run: their builders take a `start`."""

Builder = Callable[..., Method]
"""From a config, a function that makes a learner (a method of two networks calls it twice) and the number of pairs."""


def _crcl(
    config: Config, make_learner: Callable[[], Learner], pairs: int, *, start: np.ndarray | None = None
) -> Method:
    ledger = Ledger(
        pairs,
        momentum=config.ledger.momentum,
        threshold=config.ledger.threshold,
        freeze_epochs=config.ledger.freeze_epochs,
        correction=config.ledger.correction,
        start=start,
    )
    return CRCL(
        make_learner(),
        ledger,
        tau=config.loss.tau,
        scale=config.loss.scale,
        terms=config.loss.terms,
        probability=config.ledger.probability,
    )


def _objective(loss: Callable[[Config], Callable[..., torch.Tensor]]) -> Builder:
    def build(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
        return Objective(make_learner(), loss(config), pairs, tau=config.loss.tau)

    return build


def _hardest(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return Objective(
        make_learner(),
        partial(losses.triplet, margin=config.loss.margin),
        pairs,
        tau=config.loss.tau,
        first_loss=partial(losses.triplet, margin=config.loss.margin, negatives="sum"),
        first_epochs=config.loss.first_epochs,
    )


def _complementary(config: Config) -> Callable[..., torch.Tensor]:
    tau, kind, q = config.loss.tau, config.loss.kind, config.loss.q
    if kind == "robust":
        return partial(losses.robust_complementary, tau=tau, q=q)
    return partial(losses.contrastive_complementary, tau=tau, kind=kind, q=q)


def _decl(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return DECL(
        make_learner(),
        pairs,
        warmup=config.decl.warmup,
        tau=config.decl.evidence_tau,
        divergence=config.decl.divergence,
        hinge=config.decl.hinge,
        margin=config.loss.margin,
        most=config.decl.most_negatives,
        least=config.decl.least_negatives,
        shrink=config.decl.shrink,
    )


def _ncr(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return NCR(make_learner, pairs, **_division(config))


def _bicro(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return BiCro(make_learner, pairs, **_division(config), kept=config.division.kept, cut=config.division.cut)


def _division(config: Config) -> dict[str, Any]:
    """What the methods that divide the pairs are told alike."""
    return {
        "epochs": config.train.pieces[-1],
        "warmup": config.division.warmup,
        "margin": config.loss.margin,
        "curve": config.loss.curve,
        "threshold": config.division.threshold,
    }


def _mscn(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return MSCN(
        (make_learner(), make_learner()),
        pairs,
        margin=config.loss.margin,
        warmup=config.mscn.warmup,
        meta_learning_rate=config.mscn.meta_lr,
    )


def _gsc(config: Config, make_learner: Callable[[], Learner], pairs: int, *, start: np.ndarray | None = None) -> Method:
    return GSC(
        make_learner(),
        pairs,
        tau=config.loss.tau,
        scale=config.gsc.structure,
        momentum=config.gsc.momentum,
        start=start,
    )


def _l2rm(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return L2RM(
        make_learner(),
        pairs,
        slots=config.train.batch_size,
        warmup=config.division.warmup,
        margin=config.loss.margin,
        tau=config.loss.tau,
        threshold=config.division.threshold,
        mass=config.l2rm.mass,
        regularisation=config.l2rm.regularisation,
        own=config.l2rm.own,
        scale=config.l2rm.rematched,
        planted=config.l2rm.planted,
        cost_learning_rate=config.l2rm.cost_lr,
    )


METHODS: dict[str, Builder] = {
    "crcl": _crcl,
    "triplet": _objective(lambda c: partial(losses.triplet, margin=c.loss.margin, negatives="sum")),
    "triplet-hardest": _hardest,
    "infonce": _objective(lambda c: partial(losses.info_nce, tau=c.loss.tau)),
    "complementary": _objective(_complementary),
    "decl": _decl,
    "ncr": _ncr,
    "bicro": _bicro,
    "mscn": _mscn,
    "gsc": _gsc,
    "l2rm": _l2rm,
}

NETWORKS: dict[str, int] = {"ncr": 2, "bicro": 2, "mscn": 2}
"""Methods that train several networks, and how many; evaluation takes the mean of their similarities."""


def methods_of(networks: int, *, meta: bool = False) -> list[str]:
    """The methods that train so many networks, those with a meta-network each or those without."""
    return [name for name in METHODS if NETWORKS.get(name, 1) == networks and (name == "mscn") == meta]
