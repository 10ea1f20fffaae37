"""Matchers in published checkpoints: which weights tell one, where its sizes are, and what its command line said."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crcl.data.files import refuse
from crcl.errors import InputError
from crcl.runs.checkpoints.numbers import number

SIZES = {
    "features": ("img.fc.weight", 1),
    "embedding": ("img.fc.weight", 0),
    "vocabulary": ("txt.embed.weight", 0),
    "word": ("txt.embed.weight", 1),
}
"""The tensor and the dimension of it that give each size."""
OWN_SIZES = {
    **dict.fromkeys(
        ("saf", "sgr"),
        SIZES
        | {
            "similarity": ("sim.sim_tranloc_w.weight", 0),
            "regions": ("sim.v_global_w.embedding_local.1.weight", 0),
        },
    ),
    "imram": SIZES | {"features": ("img.fc_local.weight", 1), "embedding": ("img.fc_local.weight", 0)},
}
SIGNS = {
    "saf": "sim.SAF_module.",
    "sgr": "sim.SGR_module.",
    "vse": "txt.gpool.",
    "chan": "img.feedforward.",
    "vsrn": "img.Rs_GCN_1.",
    "imram": "img.fc_local.",
    "gsmn": "sim.i2t.graph_convolution_1.",
    "scan": "txt.rnn.",
}
"""How the name of a weight begins that a matcher has, and none of those behind it."""
UNUSED = ("img.mlp.bns.1.", "txt.fc.", "sim.t2i.graph_convolution_3.params")
"""Weights of VSE∞, CHAN and GSMN that are in their files and have no effect."""
RENAMED = {"txt.embed.glove.weight": "txt.embed.weight"}
POOLINGS = {"LogSumExp": "lse", "Mean": "mean", "Max": "max", "Sum": "sum"}
QUERIES = {"full_IMRAM": "both", "text_IMRAM": "words", "image_IMRAM": "regions"}


@dataclass(frozen=True)
class Told:
    """What is known of a matcher besides the tensors of its file."""

    layout: str = ""
    """Who published it; empty where several have."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the matcher."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Weights of ours that the authors keep among the options."""
    notes: tuple[str, ...] = ()
    """Assumptions made where the file is incomplete."""


def recognise(path: Path, weights: Mapping[str, Tensor], opt: Any) -> tuple[str, Told]:
    """The matcher that has such weights, and what the command line that it was trained with says about it."""
    kinds = [kind for kind, sign in SIGNS.items() if any(name.startswith(sign) for name in weights)]
    if "saf" in kinds and "sgr" in kinds:
        what = "has the modules of both SAF and SGR, which are published apart"
        raise InputError(what, where=path, hint="give a file for each")
    if not kinds:
        there = ", ".join(list(weights)[:10]) or "nothing"
        raise InputError(f"no matcher ({', '.join(SIGNS)}, naaf) has such weights: {there}", where=path)
    given = vars(opt) if isinstance(opt, argparse.Namespace) else opt if isinstance(opt, dict) else {}
    matcher = "naaf" if kinds[0] == "scan" and "thres_safe" in given else kinds[0]
    reader = _READERS.get(matcher)
    return matcher, Told() if reader is None else reader(path, weights, given)


def size_tensors(matcher: str) -> dict[str, tuple[str, int]]:
    """The tensor and the dimension of it that give each size of a matcher."""
    return OWN_SIZES.get(matcher, SIZES)


def sizes(matcher: str, weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The matcher's sizes as the tensors have them; what cannot be read off is left out."""
    return {
        size: weights[name].shape[axis]
        for size, (name, axis) in size_tensors(matcher).items()
        if name in weights and weights[name].dim() > axis and weights[name].numel()
    }


def _scan(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Told:
    problems: list[str] = []
    direction, pooling = given.get("cross_attn", "t2i"), given.get("agg_func", "LogSumExp")
    norm = given.get("raw_feature_norm", "clipped_l2norm")
    if str(direction) not in ("t2i", "i2t"):
        problems.append(f"opt.cross_attn is {_short(direction)}, expected t2i or i2t")
    if str(pooling) not in POOLINGS:
        problems.append(f"opt.agg_func is {_short(pooling)}, expected one of {', '.join(POOLINGS)}")
    if str(norm) != "clipped_l2norm":
        problems.append(f"opt.raw_feature_norm is {_short(norm)}, but only clipped_l2norm is implemented")
    options: dict[str, Any] = {"direction": str(direction), "pooling": POOLINGS.get(str(pooling))}
    for ours, theirs in (("smooth", "lambda_softmax"), ("sharp", "lambda_lse")):
        options[ours] = _above_zero(given, theirs, problems)
    refuse([InputError(problem, where=path) for problem in problems])
    unsaid = [name for name in ("cross_attn", "agg_func", "lambda_softmax", "lambda_lse") if name not in given]
    what = f"{options['direction']} with {options['pooling']}"
    notes = [f"{path.name} does not say {', '.join(unsaid)}: taken as {what} at the usual values"] if unsaid else []
    return Told("SCAN", options, notes=tuple(notes))


def _naaf(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Told:
    problems: list[str] = []
    smooth = _above_zero(given, "lambda_softmax", problems)
    thresholds = {}
    for ours, theirs in (("threshold", "thres"), ("safe_threshold", "thres_safe")):
        value = number(given.get(theirs, 0.0))
        if value is None:
            problems.append(f"opt.{theirs} is {_short(given[theirs])}, expected a number")
        thresholds[ours] = torch.tensor(value or 0.0)
    refuse([InputError(problem, where=path) for problem in problems])
    return Told("NAAF", {"smooth": smooth}, thresholds)


def _imram(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Told:
    problems: list[str] = []
    mode, steps = given.get("model_mode", "full_IMRAM"), number(given.get("iteration_step", 3))
    if str(mode) not in QUERIES:
        problems.append(f"opt.model_mode is {_short(mode)}, expected one of {', '.join(QUERIES)}")
    if steps is None or steps not in range(1, 10):
        problems.append(f"opt.iteration_step is {_short(given['iteration_step'])}, expected a number from 1 to 9")
    smooth = _above_zero(given, "lambda_softmax", problems)
    refuse([InputError(problem, where=path) for problem in problems])
    unsaid = [name for name in ("model_mode", "iteration_step", "lambda_softmax") if name not in given]
    notes = [f"{path.name} does not say {', '.join(unsaid)}: taken at the usual values"] if unsaid else []
    options = {"queries": QUERIES[str(mode)], "steps": int(steps or 0), "smooth": smooth}
    return Told("IMRAM", options, notes=tuple(notes))


def _gsmn(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Told:
    problems: list[str] = []
    smooth = _above_zero(given, "lambda_softmax", problems)
    refuse([InputError(problem, where=path) for problem in problems])
    note = f"{path.name} does not say lambda_softmax: taken as 20, as published for Flickr30K"
    return Told("GSMN", {"smooth": smooth}, notes=() if "lambda_softmax" in given else (note,))


def _chan(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Told:
    return Told("CHAN", notes=(f"{path.name} is pooled by LogSumExp, as published for regions that attend",))


def _vsrn(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Told:
    return Told("VSRN", {"form": "f30k" if "img.bn.weight" in weights else "coco"})


_READERS: dict[str, Callable[[Path, Mapping[str, Tensor], Mapping[str, Any]], Told]] = {
    "scan": _scan,
    "naaf": _naaf,
    "imram": _imram,
    "gsmn": _gsmn,
    "chan": _chan,
    "vsrn": _vsrn,
}


def _above_zero(given: Mapping[str, Any], name: str, problems: list[str]) -> float | None:
    """A number above 0 among the options; 0, the usual value, if it is not said."""
    value = number(given[name]) if name in given else 0.0
    if value is None or value < 0 or (name in given and not value):
        problems.append(f"opt.{name} is {_short(given[name])}, expected a number above 0")
    return value


def _short(value: Any) -> str:
    return repr(value)[:60]
