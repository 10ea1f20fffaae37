"""A matcher from a config, and from a run folder: constructor arguments, weights, device."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from crcl import distributed
from crcl.config import DEVICES, Config
from crcl.errors import InputError
from crcl.matchers import MATCHERS, BuildContext, Ensemble
from crcl.matchers.ensemble import SHARES


def matcher_maker(
    config: Config,
    sizes: dict[str, int],
    *,
    word_weights: torch.Tensor | None = None,
    model: dict[str, Any] | None = None,
    device: torch.device | None = None,
    name: str | None = None,
) -> Callable[[], nn.Module]:
    """A function that makes a fresh matcher: that of the config, or the one of this name.

    `model` has the sizes of a published model.
    """
    hidden = config.record.meta
    context = BuildContext(
        sizes=sizes,
        memory=config.train.memory,
        meta=0 if hidden is None else config.get(hidden),
        word_weights=word_weights,
        model=model,
    )
    return lambda: MATCHERS[name or config.matcher.name].make(config.matcher, context).to(device)


def restored_matcher(
    config: Config, sizes: dict[str, int], weights: dict[str, torch.Tensor], source: str, *, model: Any = None
) -> nn.Module:
    """The matcher with these weights, an ensemble if the run has several networks; `source` is for messages."""
    networks = sizes["networks"]
    try:
        if networks > len(weights):
            raise RuntimeError(f"{networks} networks, but {len(weights)} tensors")
        with torch.device("meta"):  # no memory for sizes that only the config claims
            names = config.members() if len(config.members()) == networks else (config.matcher.name,) * networks
            members = [matcher_maker(config, sizes, model=model, name=name)() for name in names]
            shares = torch.empty(networks) if SHARES in weights else None
            module = members[0] if networks == 1 else Ensemble(members, shares=shares)
        # copies: a weight that is mapped from its file lies where the file has it, which changes how it is rounded
        module.load_state_dict({name: weight.clone() for name, weight in weights.items()}, assign=True)
        if isinstance(module, Ensemble) and not _add_up(module.shares):
            raise RuntimeError(f"shares of its networks that do not add up to 1: {module.shares}")
    except RuntimeError as error:
        raise InputError(f"does not fit its config.json: {error}", where=source) from error
    return module


def _add_up(shares: torch.Tensor | None) -> bool:
    return shares is None or (bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 1e-3)


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if available, otherwise the CPU.

    Several processes on one machine have a GPU each, unless the name says which.
    """
    if name in ("auto", "cuda") and torch.cuda.is_available() and distributed.launched():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(DEVICES, name):
        raise InputError("must be auto, cpu, cuda, cuda:N or mps", where=f"device {name!r}")
    device = torch.device(name)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device.type]
    if not there or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise InputError("not available here", where=f"device {name}", hint="use cpu or auto")
    return device
