"""Reading checkpoints published by the authors of methods: recognising the layout and renaming the weights."""

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
from crcl.runs.checkpoints import layouts
from crcl.runs.checkpoints.numbers import number, unusable
from crcl.runs.checkpoints.unpickling import load
from crcl.settings import MOST

READABLE = (
    "can read checkpoints of CRCL, SGRAF, RCL, SCAN, DECL, NCR, BiCro, L2RM, GSC, CHAN, VSRN, NAAF, IMRAM and GSMN"
)
_BY_FILE = ("SGRAF or RCL", "an unknown method")
"""Layouts whose files do not say by themselves who published them."""
PARTS = ("img", "txt", "sim")
PARTS_BY_DIRECTION = ("img", "txt", "sim.i2t", "sim.t2i")


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
    matcher, told = layouts.recognise(path, networks[0], content.get("opt"))
    sizes = layouts.sizes(matcher, networks[0])
    for name, network in zip(models, networks, strict=True):
        network |= told.weights
        where = f"{path}: {name}"
        problems += [InputError(what, where=where) for what in _misfits(matcher, sizes, told.options, network)]
    refuse(problems)
    epoch = number(content.get("epoch"))
    return Published(
        told.layout if told.layout and layout in _BY_FILE else layout,
        matcher,
        sizes,
        _named(networks),
        len(networks),
        told.options,
        _beliefs(path, content["move_gt"]) if "move_gt" in content else None,
        None if epoch is None or abs(epoch) > MOST else int(epoch),
        number(content.get("best_rsum")),
        told.notes,
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
    if isinstance(model, dict):
        return "an unknown method", {"model": _parts_of_flat(model)}
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
            parts[2][str(key).removeprefix("module.")] = value  # IMRAM's layers, or reported as additional
    return parts


def _flat(where: str, model: Any, limit: int, problems: list[InputError]) -> dict[str, Tensor]:
    """One network's weights under this package's names; what is no weight goes to the problems."""
    parts = list(model) if isinstance(model, list | tuple) else []
    if len(parts) not in (2, 3, 4) or not all(isinstance(part, dict) for part in parts):
        what = "must be a list of two to four dicts of weights (image, text, similarity)"
        problems.append(InputError(what, where=where))
        return {}
    if any(str(key).removeprefix("module.").startswith("bert.") for key in parts[1]):
        problems.append(InputError("its text encoder is BERT, which no matcher here has", where=where, hint=READABLE))
        return {}
    weights = {}
    for part, values in zip(PARTS_BY_DIRECTION if len(parts) == 4 else PARTS, parts, strict=False):
        for key, value in values.items():
            name = f"{part}.{str(key).removeprefix('module.')}"
            if name.startswith(layouts.UNUSED):
                continue
            name = layouts.RENAMED.get(name, name)
            if problem := unusable(value, limit):
                problems.append(InputError(problem, where=f"{where}: {name}"))
            else:
                weights[name] = value
    if sum(value.numel() * value.element_size() for value in weights.values()) > limit:
        problems.append(InputError("claims more numbers than the file can hold", where=where))
    return weights


def _misfits(
    matcher: str, sizes: dict[str, int], options: dict[str, Any], weights: Mapping[str, Tensor]
) -> Iterator[str]:
    """Tensors that are missing, additional or misshapen."""
    needed = layouts.size_tensors(matcher)
    with torch.device("meta"):  # names and shapes only
        expected = MATCHERS[matcher].kind(**(dict.fromkeys(needed, 2) | sizes), **options).state_dict()
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


def _beliefs(path: Path, value: Any) -> np.ndarray:
    plain = isinstance(value, Tensor) and not unusable(value, path.stat().st_size)
    array = value.detach().to(torch.float64).numpy() if plain and value.is_floating_point() else value
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "f":
        raise InputError("move_gt must be one belief per pair, an array of numbers in one dimension", where=path)
    outside = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if len(outside):
        where = ", ".join(f"entry {i} is {array[i]:g}" for i in outside[:10])
        raise InputError(f"{len(outside)} beliefs of move_gt are not from 0 to 1: {where}", where=path)
    return array.astype(np.float64)
