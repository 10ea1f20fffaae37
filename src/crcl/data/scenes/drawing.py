"""Drawing a scene as an image."""

from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

from crcl.data.scenes.world import BACKGROUNDS, COLOURS, SIDE, Scene, Thing

SMOOTH = 3
"""Scenes are drawn this many times larger and then reduced, for smooth edges."""


def draw(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """The scene as an RGB image, SIDE x SIDE, with slightly uneven colours, light and grain."""
    canvas = Image.new("RGB", (SIDE * SMOOTH, SIDE * SMOOTH), _tint(BACKGROUNDS[scene.background], rng, 3))
    pen = ImageDraw.Draw(canvas)
    darker = _tint(BACKGROUNDS[scene.background], rng, 3, shade=0.9)
    if scene.floor == "striped":
        for top in range(int(rng.integers(0, 12)), SIDE, 12):
            pen.rectangle(_scaled(0, top, SIDE, top + 5), fill=darker)
    if scene.floor == "floor":
        pen.rectangle(_scaled(0, SIDE - rng.uniform(9, 15), SIDE, SIDE), fill=darker)
    for thing in scene.things:
        _draw_thing(pen, thing, fill=_tint(COLOURS[thing.colour], rng, 14), turn=float(rng.uniform(-0.12, 0.12)))
    pixels = np.asarray(canvas.reduce(SMOOTH), dtype=np.float32)
    slope = np.linspace(-1, 1, SIDE, dtype=np.float32)
    light = 1 + rng.uniform(-0.05, 0.05) * slope[:, None] + rng.uniform(-0.05, 0.05) * slope[None, :]
    grain = rng.standard_normal((SIDE, SIDE), dtype=np.float32) * 4
    return Image.fromarray((pixels * light[..., None] + grain[..., None]).clip(0, 255).astype(np.uint8))


def _draw_thing(pen: ImageDraw.ImageDraw, thing: Thing, *, fill: tuple[int, ...], turn: float) -> None:
    x, y, r = thing.x, thing.y, thing.radius
    if thing.shape == "circle":
        pen.ellipse(_scaled(x - r, y - r, x + r, y + r), fill=fill)
    elif thing.shape == "ring":
        pen.ellipse(_scaled(x - r, y - r, x + r, y + r), outline=fill, width=round(0.36 * r * SMOOTH))
    else:
        points = [
            (x + r * (u * cos(turn) - v * sin(turn)), y + r * (u * sin(turn) + v * cos(turn)))
            for u, v in OUTLINES[thing.shape]
        ]
        pen.polygon([(px * SMOOTH, py * SMOOTH) for px, py in points], fill=fill)


OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
    "triangle": [(0, -1), (1, 0.85), (-1, 0.85)],
    "diamond": [(0, -1.1), (0.8, 0), (0, 1.1), (-0.8, 0)],
    "star": [((1.1, 0.45)[k % 2] * sin(k * pi / 5), -(1.1, 0.45)[k % 2] * cos(k * pi / 5)) for k in range(10)],
    "cross": [
        *[(-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33)],
        *[(0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33)],
    ],
    "heart": [
        (sin(t) ** 3, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t) + 2.5) / 15)
        for t in (k * pi / 20 for k in range(40))
    ],
}
"""Polygons around the origin, for a radius of 1."""


def _scaled(*numbers: float) -> list[float]:
    return [number * SMOOTH for number in numbers]


def _tint(
    colour: tuple[int, int, int], rng: np.random.Generator, spread: float, *, shade: float = 1.0
) -> tuple[int, ...]:
    return tuple(int(v) for v in (np.array(colour) * shade + rng.uniform(-spread, spread, 3)).clip(0, 255))
