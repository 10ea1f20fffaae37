"""The built-in demo data: drawn scenes of coloured shapes, with captions from a small grammar."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from crcl.errors import InputError

SIDE = 96
"""Pixels along one side of a scene."""
SMOOTH = 3
"""Scenes are drawn this much larger and reduced, so that edges are smooth."""
MOST_IMAGES, MOST_CAPTIONS = 100_000, 50
"""More of either are refused: the scenes or the wordings would run out."""

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
"""Places of three things on a 3 x 3 raster, as (column, row)."""
COUNTS = {2: "two", 3: "three"}

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Thing:
    """One coloured shape, with its middle and radius in pixels; y grows downwards."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """Two or three things of different colours on a background; `layout` names how they lie."""

    things: tuple[Thing, ...]
    layout: str
    background: str
    floor: str

    @property
    def description(self) -> tuple[object, ...]:
        """All that captions can tell of the scene: two scenes with the same description look alike."""
        return (self.layout, *((thing.size, thing.colour, thing.shape) for thing in self.things))


def random_scene(rng: np.random.Generator) -> Scene:
    """A random scene."""
    count = int(rng.integers(2, 4))
    layout = _pick(rng, list(LAYOUTS) if count == 3 else ["row", "column", "falling", "rising"])
    places = LAYOUTS[layout] if count == 3 else [LAYOUTS[layout][0], LAYOUTS[layout][2]]
    colours = rng.permutation(list(COLOURS))[:count]
    # two things stand a little closer together than the outer ones of three
    step = 30.0 if count == 3 else float(rng.uniform(21, 29))
    things = []
    for (column, row), colour in zip(places, colours, strict=True):
        size = _pick(rng, list(SIZES))
        x, y = SIDE / 2 + step * (np.array([column, row]) - 1) + rng.uniform(-2, 2, size=2)
        radius = RADII[size] * float(rng.uniform(0.9, 1.1))
        things.append(Thing(_pick(rng, list(SHAPES)), str(colour), size, float(x), float(y), radius))
    return Scene(tuple(things), layout, _pick(rng, list(BACKGROUNDS)), _pick(rng, FLOORS))


def relation(first: Thing, second: Thing) -> tuple[str, ...]:
    """Wordings, all true, of where the first thing lies as seen from the second."""
    right, down = first.x - second.x, first.y - second.y
    sideways = ("to the left of", "left of") if right < 0 else ("to the right of", "right of")
    upright = ("above", "over") if down < 0 else ("below", "under")
    if abs(right) > 3 * abs(down):
        return (*sideways, "beside", "next to")
    if abs(down) > 3 * abs(right):
        return upright
    return (f"{upright[0]} and {sideways[0]}", f"{upright[0]} and {sideways[0]}", upright[0], sideways[0])


def tell(scene: Scene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Sentences that hold for the scene; they differ in wording, order and in how much they tell."""
    if not 1 <= count <= MOST_CAPTIONS:
        raise InputError(f"captions per image must be from 1 to {MOST_CAPTIONS}, not {count}")
    told: dict[str, None] = {}
    while len(told) < count:
        told[_caption(scene, rng)] = None
    return list(told)


def _caption(scene: Scene, rng: np.random.Generator) -> str:
    """One sentence; every kind names enough that it seldom holds for another scene by chance."""
    things = [scene.things[i] for i in rng.permutation(len(scene.things))]
    first, second = things[:2]
    kind = _pick(rng, ["related"] * 8 + ["listed"] * 5 + ["counted"] * 3 + ["single"] * 2 + ["colours", "between"])
    if kind == "between" and len(things) == 3 and scene.layout not in ("roof", "valley"):
        start, middle, end = scene.things if rng.random() < 0.5 else scene.things[::-1]
        return f"{_name(middle, rng)} between {_name(start, rng)} and {_name(end, rng)}"
    if kind == "listed":
        opening = _pick(rng, ["", "", "a picture of ", "we see ", "a drawing with "])
        return opening + _joined([_name(thing, rng) for thing in things]) + _backdrop(scene, rng, 0.3)
    if kind == "counted":
        return _counted(scene, things, rng)
    if kind == "single":
        return _name(first, rng, sized=True) + _backdrop(scene, rng, 1.0)
    if kind == "colours":
        return f"something {first.colour} {_pick(rng, relation(first, second))} something {second.colour}"
    return _related(first, second, rng) + (
        f", and {_name(things[2], rng)}" if len(things) == 3 and rng.random() < 0.5 else ""
    )


def _related(first: Thing, second: Thing, rng: np.random.Generator) -> str:
    where = _pick(rng, relation(first, second))
    a, b = _name(first, rng), _name(second, rng)
    if rng.random() < 0.2:
        return f"{where} {b} {_pick(rng, ['is', 'there is', 'we see'])} {a}"
    opening, verb = _pick(rng, [("", ""), ("", ""), ("", " is"), ("there is ", ""), ("", " sits"), ("we see ", "")])
    return f"{opening}{a}{verb} {where} {b}"


def _counted(scene: Scene, things: list[Thing], rng: np.random.Generator) -> str:
    number = COUNTS[len(things)]
    first, second = things[:2]
    if first.shape == second.shape:
        same = sum(thing.shape == first.shape for thing in things)
        word = _pick(rng, SHAPES[first.shape])
        plural = {"box": "boxes", "cross": "crosses", "plus": "plus signs", "rhombus": "rhombuses"}.get(
            word, word + "s"
        )
        colours = _joined([thing.colour for thing in things if thing.shape == first.shape])
        return f"{COUNTS[same]} {plural}, {colours}" + _backdrop(scene, rng, 0.3)
    noun = _pick(rng, ["shapes", "things", "figures"])
    if rng.random() < 0.4:
        return f"{number} {noun}, one of them {_name(first, rng, sized=True)}" + _backdrop(scene, rng, 0.3)
    return f"{number} {noun}, among them {_name(first, rng)} and {_name(second, rng)}"


def _name(thing: Thing, rng: np.random.Generator, *, sized: bool = False) -> str:
    """Such as `a tiny red disc`; the size is told in half of the cases unless asked for."""
    words = [thing.colour, _pick(rng, SHAPES[thing.shape])]
    if sized or rng.random() < 0.5:
        words.insert(0, _pick(rng, SIZES[thing.size]))
    return f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"


def _backdrop(scene: Scene, rng: np.random.Generator, chance: float) -> str:
    if rng.random() >= chance:
        return ""
    if scene.floor == "striped":
        return f" on {scene.background} stripes"
    if scene.floor == "floor" and rng.random() < 0.5:
        return f" with a floor, on {scene.background}"
    return f" on a {scene.background} background"


def _joined(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _pick(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]


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
"""Polygons around the origin, to be multiplied by the radius."""


def _scaled(*numbers: float) -> list[float]:
    return [number * SMOOTH for number in numbers]


def _tint(
    colour: tuple[int, int, int], rng: np.random.Generator, spread: float, *, shade: float = 1.0
) -> tuple[int, ...]:
    return tuple(int(v) for v in (np.array(colour) * shade + rng.uniform(-spread, spread, 3)).clip(0, 255))


def write(
    folder: str | Path,
    *,
    describe: Callable[[Image.Image], NDArray[Any]],
    train: int = 2000,
    dev: int = 200,
    test: int = 200,
    captions: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw all scenes into a new folder, in the field's precomp layout, with the images as PNG files beside it.

    `describe` turns an image into its features (R, F). The folder appears when all of it is there.
    """
    folder = Path(folder).absolute()
    splits = {"train": train, "dev": dev, "test": test}
    total = sum(splits.values())
    if min(splits.values()) < 1 or total > MOST_IMAGES:
        raise InputError(f"scenes need 1 or more images in each split and {MOST_IMAGES} at most in all, not {splits}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: there is something already; name a new folder or remove it")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "images").mkdir(parents=True)
        _write_splits(partial, splits, describe=describe, captions=captions, seed=seed, progress=progress)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_splits(
    folder: Path,
    splits: dict[str, int],
    *,
    describe: Callable[[Image.Image], NDArray[Any]],
    captions: int,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    rng = np.random.default_rng(seed)
    seen: set[tuple[object, ...]] = set()
    for split, count in splits.items():
        features: list[NDArray[np.float32]] = []
        told: list[str] = []
        names: list[str] = []
        while len(names) < count:
            scene = random_scene(rng)
            if scene.description in seen:
                continue
            seen.add(scene.description)
            names.append(f"{len(seen) - 1:06d}.png")
            image = draw(scene, rng)
            # the grain leaves little to compress: a higher level costs time and saves nothing
            image.save(folder / "images" / names[-1], compress_level=1)
            features.append(np.asarray(describe(image), dtype=np.float32))
            told += tell(scene, rng, count=captions)
            if progress is not None:
                progress(len(seen), sum(splits.values()))
        np.save(folder / f"{split}_ims.npy", np.stack(features))
        for name, lines in (("caps", told), ("ids", names)):
            (folder / f"{split}_{name}.txt").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n"
            )
