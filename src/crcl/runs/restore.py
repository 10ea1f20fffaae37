"""A matcher from a config, and from a run folder: constructor arguments, weights, device."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from crcl.config import DEVICES, Config
from crcl.errors import InputError
from crcl.matchers import MATCHERS, Ensemble
from crcl.matchers.base import is_pretrained, reads_vectors
from crcl.matchers.clip import check

FIXED_REGIONS = ("saf", "sgr")


def matcher_maker(
    config: Config,
    sizes: dict[str, int],
    *,
    word_weights: torch.Tensor | None = None,
    model: dict[str, Any] | None = None,
    device: torch.device | None = None,
) -> Callable[[], nn.Module]:
    """A function that makes a fresh matcher; `model` is what is known of a published one."""
    options: dict[str, Any] = {"features": sizes["features"]}
    if is_pretrained(MATCHERS[config.matcher.name]):
        options |= {"vocabulary": sizes["vocabulary"], "model": check(model, source="model.json")}
    elif reads_vectors(MATCHERS[config.matcher.name]):
        options |= {"text_features": sizes.get("text_features", 0), "embedding": config.matcher.embedding}
    else:
        options |= {"vocabulary": sizes["vocabulary"], "word": config.matcher.word}
        options["embedding"] = config.matcher.embedding
    if config.matcher.name == "bow":
        options["word_weights"] = word_weights
    if config.matcher.name in FIXED_REGIONS:
        options |= {"regions": sizes["regions"], "similarity": config.matcher.similarity, "memory": config.train.memory}
    if config.matcher.name == "scan":
        options |= {"direction": config.matcher.direction, "pooling": config.matcher.pooling}
        options |= {"smooth": config.matcher.smooth or None, "sharp": config.matcher.sharp or None}
        options["memory"] = config.train.memory
    if config.method == "mscn":
        options["meta"] = config.mscn.hidden
    return lambda: MATCHERS[config.matcher.name](**options).to(device)


def restored_matcher(
    config: Config, sizes: dict[str, int], weights: dict[str, torch.Tensor], source: str, *, model: Any = None
) -> nn.Module:
    """The matcher, of one network or several, that these weights are of."""
    networks = sizes["networks"]
    try:
        if networks > len(weights):
            raise RuntimeError(f"{networks} networks, but {len(weights)} tensors")
        with torch.device("meta"):  # no memory for sizes that only the config claims
            make = matcher_maker(config, sizes, model=model)
            module = make() if networks == 1 else Ensemble([make() for _ in range(networks)])
        # copies: a weight that is mapped from its file lies where the file has it, which changes how it is rounded
        module.load_state_dict({name: weight.clone() for name, weight in weights.items()}, assign=True)
    except RuntimeError as error:
        raise InputError(f"{source} does not fit its config.json: {error}") from error
    return module


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(DEVICES, name):
        raise InputError(f"device {name!r}: must be auto, cpu, cuda, cuda:N or mps")
    device = torch.device(name)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device.type]
    if not there or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device {name}: not available here; use cpu or auto")
    return device
