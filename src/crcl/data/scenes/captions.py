"""Captions of a scene, from a small grammar."""

import numpy as np

from crcl.data.scenes.world import SHAPES, SIZES, Scene, Thing, pick
from crcl.errors import InputError

MOST_CAPTIONS = 50
"""Upper limit, so that the grammar does not run out of different captions."""
COUNTS = {2: "two", 3: "three"}


def relation(first: Thing, second: Thing) -> tuple[str, ...]:
    """Phrases, all true, for the position of the first thing relative to the second."""
    right, down = first.x - second.x, first.y - second.y
    sideways = ("to the left of", "left of") if right < 0 else ("to the right of", "right of")
    upright = ("above", "over") if down < 0 else ("below", "under")
    if abs(right) > 3 * abs(down):
        return (*sideways, "beside", "next to")
    if abs(down) > 3 * abs(right):
        return upright
    return (f"{upright[0]} and {sideways[0]}", f"{upright[0]} and {sideways[0]}", upright[0], sideways[0])


def write_captions(scene: Scene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Different true captions of a scene, which vary in wording, order and detail."""
    if not 1 <= count <= MOST_CAPTIONS:
        raise InputError(f"captions per image must be from 1 to {MOST_CAPTIONS}, not {count}")
    captions: dict[str, None] = {}
    while len(captions) < count:
        captions[_caption(scene, rng)] = None
    return list(captions)


def _caption(scene: Scene, rng: np.random.Generator) -> str:
    """One caption; every kind names enough details that it is seldom true of another scene."""
    things = [scene.things[i] for i in rng.permutation(len(scene.things))]
    first, second = things[:2]
    kind = pick(rng, ["related"] * 8 + ["listed"] * 5 + ["counted"] * 3 + ["single"] * 2 + ["colours", "between"])
    if kind == "between" and len(things) == 3 and scene.layout not in ("roof", "valley"):
        start, middle, end = scene.things if rng.random() < 0.5 else scene.things[::-1]
        return f"{_name(middle, rng)} between {_name(start, rng)} and {_name(end, rng)}"
    if kind == "listed":
        opening = pick(rng, ["", "", "a picture of ", "we see ", "a drawing with "])
        return opening + _joined([_name(thing, rng) for thing in things]) + _backdrop(scene, rng, 0.3)
    if kind == "counted":
        return _counted(scene, things, rng)
    if kind == "single":
        return _name(first, rng, sized=True) + _backdrop(scene, rng, 1.0)
    if kind == "colours":
        return f"something {first.colour} {pick(rng, relation(first, second))} something {second.colour}"
    return _related(first, second, rng) + (
        f", and {_name(things[2], rng)}" if len(things) == 3 and rng.random() < 0.5 else ""
    )


def _related(first: Thing, second: Thing, rng: np.random.Generator) -> str:
    where = pick(rng, relation(first, second))
    a, b = _name(first, rng), _name(second, rng)
    if rng.random() < 0.2:
        return f"{where} {b} {pick(rng, ['is', 'there is', 'we see'])} {a}"
    opening, verb = pick(rng, [("", ""), ("", ""), ("", " is"), ("there is ", ""), ("", " sits"), ("we see ", "")])
    return f"{opening}{a}{verb} {where} {b}"


def _counted(scene: Scene, things: list[Thing], rng: np.random.Generator) -> str:
    number = COUNTS[len(things)]
    first, second = things[:2]
    if first.shape == second.shape:
        same = sum(thing.shape == first.shape for thing in things)
        word = pick(rng, SHAPES[first.shape])
        plural = {"box": "boxes", "cross": "crosses", "plus": "plus signs", "rhombus": "rhombuses"}.get(
            word, word + "s"
        )
        colours = _joined([thing.colour for thing in things if thing.shape == first.shape])
        return f"{COUNTS[same]} {plural}, {colours}" + _backdrop(scene, rng, 0.3)
    noun = pick(rng, ["shapes", "things", "figures"])
    if rng.random() < 0.4:
        return f"{number} {noun}, one of them {_name(first, rng, sized=True)}" + _backdrop(scene, rng, 0.3)
    return f"{number} {noun}, among them {_name(first, rng)} and {_name(second, rng)}"


def _name(thing: Thing, rng: np.random.Generator, *, sized: bool = False) -> str:
    """A thing in words, such as `a tiny red disc`; names its size always if `sized`, otherwise half of the time."""
    words = [thing.colour, pick(rng, SHAPES[thing.shape])]
    if sized or rng.random() < 0.5:
        words.insert(0, pick(rng, SIZES[thing.size]))
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
