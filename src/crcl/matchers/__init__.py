"""Matchers: networks that turn images and texts into similarities."""

from collections.abc import Callable

from torch import nn

from crcl.matchers.base import Encoded, Matcher
from crcl.matchers.bow import Bow
from crcl.matchers.vse import VSE

MATCHERS: dict[str, Callable[..., nn.Module]] = {"vse": VSE, "bow": Bow}

__all__ = ["MATCHERS", "VSE", "Bow", "Encoded", "Matcher"]
