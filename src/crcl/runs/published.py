"""Reading checkpoints published by the authors of methods: recognising the layout and renaming the weights."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.files import refuse
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.runs.unpickling import load

READABLE = "can read checkpoints of CRCL, SGRAF, RCL, SCAN, DECL, NCR, BiCro, L2RM and GSC"
SIZES = {
    "features": ("img.fc.weight", 1),
    "embedding": ("img.fc.weight", 0),
    "vocabulary": ("txt.embed.weight", 0),
    "word": ("txt.embed.weight", 1),
}
LOCAL_SIZES = SIZES | {
    "similarity": ("sim.sim_tranloc_w.weight", 0),
    "regions": ("sim.v_global_w.embedding_local.1.weight", 0),
}
"""The tensor and the dimension of it that give each size; those of SAF and SGR."""
UNUSED = "img.mlp.bns.1."  # a BatchNorm of VSE∞ that is in its files and never applied
PARTS = ("img", "txt", "sim")
POOLINGS = {"LogSumExp": "lse", "Mean": "mean", "Max": "max", "Sum": "sum"}


@dataclass(frozen=True)
class Published:
    """What a checkpoint holds, named as in a run folder."""

    layout: str
    """The method with this layout; methods with the same layout are named together."""
    matcher: str
    """Key of `matchers.MATCHERS`."""
    sizes: dict[str, int]
    """Arguments of the matcher, read off the tensors."""
    weights: dict[str, Tensor]
    """Of the matcher, or of the ensemble of two."""
    networks: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the matcher (scan), read off the stored command line."""
    beliefs: np.ndarray | None = None
    """(N,) float64 from 0 to 1 (CRCL)."""
    epoch: int | None = None
    rsum: float | None = None
    """The best rSum on dev, as its authors measured it."""
    notes: tuple[str, ...] = ()
    """Assumptions made where the file is incomplete."""


def read(path: str | Path) -> Published:
    """Read a checkpoint; all tensors that are missing, too many or misshapen are reported at once."""
    path = Path(path)
    content = load(path)
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}, expected a dict", where=path, hint=READABLE)
    layout, models = _networks(path, content)
    problems: list[InputError] = []
    networks = [_flat(f"{path}: {name}", model, path.stat().st_size, problems) for name, model in models.items()]
    refuse(problems)
    matcher = _matcher(path, networks[0])
    sizes = _sizes(matcher, networks[0])
    for name, network in zip(models, networks, strict=True):
        problems += [InputError(what, where=f"{path}: {name}") for what in _misfits(matcher, sizes, network)]
    refuse(problems)
    if layout == "SGRAF or RCL" and matcher == "scan":
        layout = "SCAN"
    options, notes = _scan_options(path, content.get("opt")) if matcher == "scan" else ({}, [])
    epoch = _number(content.get("epoch"))
    return Published(
        layout,
        matcher,
        sizes,
        _named(networks),
        len(networks),
        options,
        _beliefs(path, content["move_gt"]) if "move_gt" in content else None,
        None if epoch is None else int(epoch),
        _number(content.get("best_rsum")),
        tuple(notes),
    )


def _networks(path: Path, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method with this layout, and the networks by their names in the file."""
    if {"model_A", "model_B"} <= content.keys():
        return "NCR or BiCro", {name: content[name] for name in ("model_A", "model_B")}
    if "net" in content:
        return "L2RM", {"net": _parts_of_flat(content["net"])}
    if "net_A" in content:
        raise InputError("MSCN's layout, whose meta-nets are not read here", where=path, hint=READABLE)
    if "model" not in content:
        there = ", ".join(list(content)[:10]) or "nothing"
        raise InputError(f"no 'model' in it, but {there}", where=path, hint=READABLE)
    model = content["model"]
    if isinstance(model, list | tuple) and len(model) == 6:  # weights, then three arrays of training
        return "GSC", {"model": model[:3]}
    if "move_gt" in content:
        return "CRCL", {"model": model}
    if "Eiters" in content:
        return "SGRAF or RCL", {"model": model}
    return ("DECL" if "step" in content else "an unknown method"), {"model": model}


def _parts_of_flat(net: Any) -> Any:
    """One dict with the prefixes `img_enc.`, `txt_enc.`, `sim_enc.` as the list of three that others have."""
    if not isinstance(net, dict):
        return net
    parts: list[dict[str, Any]] = [{} for _ in PARTS]
    for key, value in net.items():
        part, _, name = str(key).removeprefix("module.").partition("_enc.")
        if part in PARTS:
            parts[PARTS.index(part)][name] = value
        else:
            parts[0][str(key)] = value  # will be reported as additional
    return parts


def _flat(where: str, model: Any, limit: int, problems: list[InputError]) -> dict[str, Tensor]:
    """One network's weights under this package's names; what is no weight goes to the problems."""
    parts = list(model) if isinstance(model, list | tuple) else []
    if len(parts) not in (2, 3) or not all(isinstance(part, dict) for part in parts):
        what = "must be a list of two or three dicts of weights (image, text, similarity)"
        problems.append(InputError(what, where=where))
        return {}
    if any(str(key).removeprefix("module.").startswith("bert.") for key in parts[1]):
        problems.append(InputError("its text encoder is BERT, which no matcher here has", where=where, hint=READABLE))
        return {}
    weights = {}
    for part, values in zip(PARTS, parts, strict=False):
        for key, value in values.items():
            name = f"{part}.{str(key).removeprefix('module.')}"
            if name.startswith(UNUSED):
                continue
            if problem := _unusable(value, limit):
                problems.append(InputError(problem, where=f"{where}: {name}"))
            else:
                weights[name] = value
    if sum(value.numel() * value.element_size() for value in weights.values()) > limit:
        problems.append(InputError("claims more numbers than the file can hold", where=where))
    return weights


def _unusable(value: Any, limit: int) -> str:
    """What is wrong with a weight in itself; no tensor is larger than its file (one number may be shown as many)."""
    if not isinstance(value, Tensor):
        return f"must be a tensor, is a {type(value).__name__}"
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_complex():
        return "must be a plain tensor of numbers"
    if value.numel() * value.element_size() > limit:
        return f"claims a shape of {tuple(value.shape)}, more than the file can hold"
    return "" if not value.is_floating_point() or bool(value.isfinite().all()) else "holds NaN or infinity"


def _matcher(path: Path, weights: Mapping[str, Tensor]) -> str:
    """Which matcher has such weights."""
    found = {
        "saf": "sim.SAF_module.",
        "sgr": "sim.SGR_module.",
        "vse": "txt.gpool.",
        "scan": "txt.rnn.",
    }
    kinds = [kind for kind, prefix in found.items() if any(name.startswith(prefix) for name in weights)]
    if "saf" in kinds and "sgr" in kinds:
        what = "has the modules of both SAF and SGR, which are published apart"
        raise InputError(what, where=path, hint="give a file for each")
    if not kinds:
        there = ", ".join(list(weights)[:10]) or "nothing"
        raise InputError(f"no matcher (vse, saf, sgr, scan) has such weights: {there}", where=path)
    return kinds[0]


def _sizes(matcher: str, weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The matcher's sizes as the tensors have them; what cannot be read off is left out."""
    return {
        size: weights[name].shape[axis]
        for size, (name, axis) in _size_tensors(matcher).items()
        if name in weights and weights[name].dim() > axis and weights[name].numel()
    }


def _size_tensors(matcher: str) -> dict[str, tuple[str, int]]:
    return LOCAL_SIZES if matcher in ("saf", "sgr") else SIZES


def _misfits(matcher: str, sizes: dict[str, int], weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Tensors that are missing, additional or misshapen."""
    needed = _size_tensors(matcher)
    with torch.device("meta"):  # names and shapes only
        expected = MATCHERS[matcher].kind(**(dict.fromkeys(needed, 2) | sizes)).state_dict()
    yield from (f"{name} is missing (as in {matcher})" for name in expected if name not in weights)
    yield from (f"{name} is not known in {matcher}" for name in weights if name not in expected)
    unclear = {name for size, (name, _) in needed.items() if size not in sizes and name in weights}
    yield from (f"{name} has shape {tuple(weights[name].shape)}, which gives no size" for name in sorted(unclear))
    if needed.keys() - sizes.keys():
        return  # what shape the others should have is not known
    for name, value in weights.items():
        if name not in expected:
            continue
        if value.shape != expected[name].shape:
            yield f"{name} has shape {tuple(value.shape)}, expected {tuple(expected[name].shape)}"
        elif value.is_floating_point() != expected[name].is_floating_point():
            yield f"{name} is {value.dtype}, expected {expected[name].dtype}"


def _named(networks: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of a matcher, or of an ensemble; float32 and each in memory of its own."""
    return {
        (f"members.{number}.{name}" if len(networks) > 1 else name): value.detach().to(
            torch.float32 if value.is_floating_point() else torch.int64, copy=True
        )
        for number, network in enumerate(networks)
        for name, value in network.items()
    }


def _scan_options(path: Path, opt: Any) -> tuple[dict[str, Any], list[str]]:
    """SCAN's direction and pooling from the command line that it was trained with, and what that does not say."""
    given = vars(opt) if isinstance(opt, argparse.Namespace) else opt if isinstance(opt, dict) else {}
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
        value = _number(given[theirs]) if theirs in given else 0.0
        if value is None or value < 0 or (theirs in given and not value):
            problems.append(f"opt.{theirs} is {_short(given[theirs])}, expected a number above 0")
        options[ours] = value
    refuse([InputError(problem, where=path) for problem in problems])
    unsaid = [name for name in ("cross_attn", "agg_func", "lambda_softmax", "lambda_lse") if name not in given]
    what = f"{options['direction']} with {options['pooling']}"
    notes = [f"{path.name} does not say {', '.join(unsaid)}: taken as {what} at the usual values"] if unsaid else []
    return options, notes


def _short(value: Any) -> str:
    return repr(value)[:60]


def _beliefs(path: Path, value: Any) -> np.ndarray:
    array = value.numpy() if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "f":
        raise InputError("move_gt must be one belief per pair, an array of numbers in one dimension", where=path)
    outside = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if len(outside):
        where = ", ".join(f"entry {i} is {array[i]:g}" for i in outside[:10])
        raise InputError(f"{len(outside)} beliefs of move_gt are not from 0 to 1: {where}", where=path)
    return array.astype(np.float64)


def _number(value: Any) -> float | None:
    """A number that a file may hold as plain value, tensor or array; None for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    usable = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    return float(value) if usable else None
