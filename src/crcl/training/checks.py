"""Checks that a matcher can read the given pairs, and that a run was trained on them."""

import os
from typing import Any

import torch

from crcl.config import Config
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.matchers.clip import Pretrained, image_side
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device, matcher_maker

_SMALLER = "choose smaller settings, such as matcher.embedding and matcher.word"
_COPIES = 4  # weights, their gradients, and two moments of the optimizer


def require_vectors(config: Config, pairs: Split) -> None:
    """Refuse captions without the vectors that the matcher reads."""
    if pairs.text_features is None:
        raise InputError(
            f"matcher {config.matcher.name} reads vectors of captions, but the data has none",
            where=config.data.path,
            hint="give them with a table ({text_features}), give a folder of embeddings, or choose another {matcher}",
        )


def require_pixels(config: Config, pairs: Split, published: Pretrained) -> None:
    """Refuse features that are not the pixels a published model reads, and settings that would change them."""
    side, name = image_side(published.model), config.matcher.model
    if pairs.features.shape[1:] != (1, 3 * side * side):
        regions, size = pairs.features.shape[1:]
        raise InputError(
            f"{regions} regions of {size} numbers, but {name} reads 3 x {side} x {side} pixels",
            where=pairs.source,
            hint="{extract_features()} makes them with the same {model} and {pixels}",
        )
    if config.data.standardize or config.data.vocab is not None:
        key = "data.standardize" if config.data.standardize else "data.vocab"
        raise InputError(f"{name} has its own pixels and tokens", where=key, hint="leave it out")


def require_memory(config: Config, sizes: dict[str, int], model: dict[str, Any] | None) -> None:
    """Refuse matchers whose training needs more memory than the machine has, before anything is made."""
    try:
        with torch.device("meta"):  # shapes only
            members = [matcher_maker(config, sizes, model=model, name=name)() for name in config.members()]
    except RuntimeError as error:  # more numbers than can be counted
        raise InputError(f"too large ({error})", where="matcher", hint=_SMALLER) from error
    weights = sum(weight.numel() for member in members for weight in member.parameters())
    needed, there = 4 * _COPIES * weights, _memory(choose_device(config.train.device))
    if there is not None and needed > there:
        raise InputError(
            f"{weights:,} weights need {needed / 2**30:,.1f} GiB to be trained, the machine has {there / 2**30:,.1f}",
            where="matcher",
            hint=_SMALLER,
        )


def _memory(device: torch.device) -> int | None:
    """Bytes of memory in all; None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def check_features(run: Run, pairs: Split) -> None:
    """Refuse image or text features that this run's matcher cannot read."""
    size = pairs.features.shape[2]
    if size != run.sizes["features"]:
        raise InputError(
            f"{size} numbers per region, but {run.path} was trained on {run.sizes['features']}", where=pairs.source
        )
    if "text_features" in run.sizes:
        _check_texts(run, pairs)
    regions = pairs.features.shape[1]
    name = run.config["matcher"]["name"]
    if MATCHERS[name].fixed_regions and regions != run.sizes["regions"]:
        raise InputError(
            f"{regions} regions per image, but {run.path} was trained on {run.sizes['regions']}, and its matcher "
            f"({name}) needs exactly as many",
            where=pairs.source,
        )


def _check_texts(run: Run, pairs: Split) -> None:
    size, texts = run.sizes["text_features"], pairs.text_features
    if texts is None or texts.shape[1] != size:
        given = "the captions come without vectors" if texts is None else f"vectors of {texts.shape[1]} numbers"
        raise InputError(f"{given}, but {run.path} was trained on vectors of {size} numbers", where=pairs.source)


def check_training_pairs(run: Run, pairs: Split, data: str) -> None:
    """Refuse pairs other than those the run was trained on, or the same pairs in another order."""
    check_features(run, pairs)
    regions = pairs.features.shape[1]
    if (len(pairs), regions) != (run.sizes["pairs"], run.sizes["regions"]):
        raise InputError(
            f"{len(pairs)} training pairs of {regions} regions, but {run.path} was trained on "
            f"{run.sizes['pairs']} pairs of {run.sizes['regions']}",
            where=data,
        )
    if pairs.fingerprint() != run.fingerprint:
        raise InputError(
            f"as many training pairs as {run.path} was trained on, but not the same captions and images in the same "
            "order: its beliefs would be assigned to other pairs",
            where=data,
        )
    if run.features and pairs.features_digest() != run.features:
        raise InputError(
            f"the same images as {run.path} was trained on, by name, but other features: images, or how their "
            "features are made, have changed since",
            where=pairs.source,
            hint="give the old ones with {features}, or train again",
        )
