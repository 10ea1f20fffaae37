"""Scenes of coloured shapes on a background, and drawing one at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

SIDE = 96
"""Pixels along one side of a scene."""

COLOURS = {
    "red": (214, 40, 40),
    "orange": (245, 133, 20),
    "yellow": (240, 205, 20),
    "green": (46, 150, 60),
    "blue": (40, 90, 210),
    "purple": (136, 52, 170),
    "brown": (122, 76, 42),
    "black": (30, 30, 34),
}
SHAPES = {
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "cross": ("cross", "plus"),
    "diamond": ("diamond", "rhombus"),
    "ring": ("ring", "hoop"),
    "heart": ("heart",),
}
SIZES = {"small": ("small", "little", "tiny"), "large": ("large", "big", "huge")}
RADII = {"small": 8.0, "large": 14.0}
BACKGROUNDS = {
    "white": (252, 252, 252),
    "grey": (222, 222, 224),
    "cream": (250, 240, 214),
    "pale blue": (214, 230, 248),
    "pale green": (218, 240, 216),
    "pink": (250, 222, 228),
}
FLOORS = ("plain", "striped", "floor")
LAYOUTS = {
    "row": [(0, 1), (1, 1), (2, 1)],
    "column": [(1, 0), (1, 1), (1, 2)],
    "falling": [(0, 0), (1, 1), (2, 2)],
    "rising": [(0, 2), (1, 1), (2, 0)],
    "roof": [(0, 2), (1, 0), (2, 2)],
    "valley": [(0, 0), (1, 2), (2, 0)],
}
"""Positions of three things on a 3 x 3 grid, as (column, row)."""
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Thing:
    """One coloured shape, with its centre and radius in pixels; y grows downwards."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """Two or three things of different colours on a background; `layout` is a key of `LAYOUTS`."""

    things: tuple[Thing, ...]
    layout: str
    background: str
    floor: str

    @property
    def description(self) -> tuple[object, ...]:
        """Layout and things of the scene; scenes with the same description look alike."""
        return (self.layout, *((thing.size, thing.colour, thing.shape) for thing in self.things))


def random_scene(rng: np.random.Generator) -> Scene:
    """A random scene."""
    count = int(rng.integers(2, 4))
    layout = pick(rng, list(LAYOUTS) if count == 3 else ["row", "column", "falling", "rising"])
    places = LAYOUTS[layout] if count == 3 else [LAYOUTS[layout][0], LAYOUTS[layout][2]]
    colours = rng.permutation(list(COLOURS))[:count]
    # two things are a little closer together than the outer two of three
    step = 30.0 if count == 3 else float(rng.uniform(21, 29))
    things = []
    for (column, row), colour in zip(places, colours, strict=True):
        size = pick(rng, list(SIZES))
        x, y = SIDE / 2 + step * (np.array([column, row]) - 1) + rng.uniform(-2, 2, size=2)
        radius = RADII[size] * float(rng.uniform(0.9, 1.1))
        things.append(Thing(pick(rng, list(SHAPES)), str(colour), size, float(x), float(y), radius))
    return Scene(tuple(things), layout, pick(rng, list(BACKGROUNDS)), pick(rng, FLOORS))


def pick(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    """A random element."""
    return choices[int(rng.integers(len(choices)))]
