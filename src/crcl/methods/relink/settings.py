"""Settings of method relink."""

from typing import Annotated

from pydantic import Field

from crcl.settings import Count, Section, Share, ShareBelowOne


class RelinkSettings(Section):
    """Beliefs in partners, and the linear model that starts them (method relink)."""

    refresh: Count = 3
    """Epochs between two judgements of all captions by the network; the last epoch ends with one in any case."""
    network: Share = 0.5
    """Share of the network in these judgements, beside the linear model."""
    average: ShareBelowOne = 0.998
    """Most weight of the old value in the running average of the weights, which reaches back two epochs at most."""
    folds: Annotated[int, Field(ge=2)] = 4
    """Folds of the linear model."""
    ensemble: bool = True
    """Score by the network and the linear model together, each with the share that is best on dev, instead of by the
    network alone."""
