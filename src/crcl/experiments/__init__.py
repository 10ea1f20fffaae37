"""The paper's tables and figures as declared data, and the profiles that say how large a run is.

A table is a TOML file, here or of the user: rows with the runs that they need and the paper's numbers. A run is
`recipe/matcher`, where a recipe is one of the profile's (a compared method with its schedule) or a method as
`crcl train --method` takes it.
"""

from pathlib import Path

from crcl.errors import InputError, did_you_mean
from crcl.experiments import users
from crcl.experiments.declared import (
    NAMES,
    PROFILES,
    SCORES,
    ZERO_SHOT,
    Experiment,
    Numbers,
    Profile,
    Row,
    Source,
    built,
    of_the_paper,
    own,
    profile,
)

__all__ = [
    "NAMES",
    "PROFILES",
    "SCORES",
    "ZERO_SHOT",
    "Experiment",
    "Numbers",
    "Profile",
    "Row",
    "Source",
    "experiment",
    "own",
    "profile",
]


def experiment(name: str) -> Experiment:
    """A declared table or figure of the paper, or a user's (`FILE.toml`)."""
    if name.endswith(".toml"):
        path = Path(name)
        return built(path.stem, users.read(path), file=path.name)
    if name not in NAMES:
        there = f"there are {', '.join(NAMES)}, and tables of your own (FILE.toml)"
        raise InputError(f"no experiment '{name}'{did_you_mean(name, NAMES)}; {there}")
    return of_the_paper(name)
