import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crcl.data import scenes
from crcl.data.scenes.captions import MOST_CAPTIONS, relation, write_captions
from crcl.data.scenes.drawing import draw
from crcl.data.scenes.world import COLOURS, SHAPES, SIDE, SIZES, Scene, Thing, random_scene
from crcl.errors import InputError
from crcl.features.grid import grid_features

SHAPE_OF = {word: shape for shape, words in SHAPES.items() for word in words}
SIZE_OF = {word: size for size, words in SIZES.items() for word in words}
NAME = rf"an? (?:({'|'.join(SIZE_OF)}) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPE_OF)})\b"
EQUAL = rf"(two|three) ({'|'.join(SHAPE_OF)})(?:es|s| signs), ([\w, ]+?)(?: on | with |$)"
SIDEWAYS = r"(?:left|right) of"
WHERE = rf"((?:above|below) and to the {SIDEWAYS}|(?:to the )?{SIDEWAYS}|beside|next to|above|over|below|under)"


def named(size: str | None, colour: str, word: str, scene: Scene) -> Thing:
    """The thing that a name means; fails where there is none."""
    (thing,) = [thing for thing in scene.things if thing.colour == colour]
    assert thing.shape == SHAPE_OF[word]
    assert size is None or thing.size == SIZE_OF[size]
    return thing


def holds(where: str, first: Thing, second: Thing) -> bool:
    laws = {
        "left of": first.x < second.x - 15,
        "right of": first.x > second.x + 15,
        "above": first.y < second.y - 15,
        "over": first.y < second.y - 15,
        "below": first.y > second.y + 15,
        "under": first.y > second.y + 15,
        "beside": abs(first.y - second.y) < 8,
        "next to": abs(first.y - second.y) < 8,
    }
    return all(laws[part.removeprefix("to the ")] for part in where.split(" and "))


def told(number: int = 400, seed: int = 3) -> list[tuple[Scene, str]]:
    rng = np.random.default_rng(seed)
    drawn = [random_scene(rng) for _ in range(number)]
    return [(scene, caption) for scene in drawn for caption in write_captions(scene, rng)]


TOLD = told()


def test_every_named_thing_is_in_the_scene():
    names = [(scene, match) for scene, caption in TOLD for match in re.finditer(NAME, caption)]
    assert len(names) > len(TOLD)
    for scene, match in names:
        named(*match.groups(), scene)


def test_every_relation_holds_for_the_positions():
    checked = 0
    for scene, caption in TOLD:
        if match := re.search(rf"{NAME}(?: is| sits)? {WHERE} {NAME}", caption):
            first, second = named(*match.groups()[:3], scene), named(*match.groups()[4:], scene)
            assert holds(match[4], first, second), caption
        elif match := re.match(rf"{WHERE} {NAME} (?:is|there is|we see) {NAME}", caption):
            second, first = named(*match.groups()[1:4], scene), named(*match.groups()[4:], scene)
            assert holds(match[1], first, second), caption
        elif match := re.match(rf"something (\w+) {WHERE} something (\w+)", caption):
            by_colour = {thing.colour: thing for thing in scene.things}
            assert holds(match[2], by_colour[match[1]], by_colour[match[3]]), caption
        else:
            assert not re.search(rf"\b{WHERE}\b", caption), caption
            continue
        checked += 1
    assert checked > len(TOLD) / 3


def test_what_is_between_lies_in_the_middle():
    found = 0
    for scene, caption in TOLD:
        if match := re.fullmatch(rf"{NAME} between {NAME} and {NAME}", caption):
            middle, start, end = (named(*match.groups()[k : k + 3], scene) for k in (0, 3, 6))
            assert np.hypot(middle.x - (start.x + end.x) / 2, middle.y - (start.y + end.y) / 2) < 6
            found += 1
    assert found > 5


def test_numbers_of_things_and_of_equal_shapes_are_right():
    found = 0
    for scene, caption in TOLD:
        if match := re.match(r"(two|three) (shapes|things|figures),", caption):
            assert {"two": 2, "three": 3}[match[1]] == len(scene.things)
        elif match := re.match(EQUAL, caption):
            colours = set(re.split(r", | and ", match[3]))
            same = {thing.colour for thing in scene.things if thing.shape == SHAPE_OF[match[2]]}
            assert colours == same
            assert len(colours) == {"two": 2, "three": 3}[match[1]]
            found += 1
    assert found > 5


def test_backgrounds_are_told_as_drawn():
    for scene, caption in TOLD:
        if "stripes" in caption:
            assert scene.floor == "striped"
        if "floor" in caption:
            assert scene.floor == "floor"
        if match := re.search(r" on (?:a )?((?:pale )?\w+)(?: stripes| background)?$", caption):
            assert match[1] == scene.background


def test_relations_turn_around_with_their_order():
    turned = {"left of": "right of", "above": "below", "over": "under", "beside": "beside", "next to": "next to"}
    turned |= {other: one for one, other in turned.items()}
    rng = np.random.default_rng(0)
    for _ in range(100):
        for first, second in combinations(random_scene(rng).things, 2):
            for here, there in zip(relation(first, second), relation(second, first), strict=True):
                parts = [part.removeprefix("to the ") for part in here.split(" and ")]
                assert [turned[part] for part in parts] == [p.removeprefix("to the ") for p in there.split(" and ")]


def test_captions_of_a_scene_differ_and_colours_within_it_too():
    for scene in {scene for scene, _ in TOLD}:
        assert len({thing.colour for thing in scene.things}) == len(scene.things)
    for start in range(0, len(TOLD), 5):
        assert len({caption for _, caption in TOLD[start : start + 5]}) == 5


def test_every_scene_has_the_most_captions_one_may_ask_for():
    for scene, _ in TOLD[::50]:
        assert len(set(write_captions(scene, np.random.default_rng(0), count=MOST_CAPTIONS))) == MOST_CAPTIONS


def test_a_caption_seldom_holds_for_another_scene():
    texts = [caption for _, caption in TOLD]
    assert len(set(texts)) > 0.9 * len(texts)


def test_things_lie_inside_the_picture_and_apart():
    for scene in {scene for scene, _ in TOLD}:
        for thing in scene.things:
            assert 0 < thing.x - thing.radius < thing.x + thing.radius < SIDE
            assert 0 < thing.y - thing.radius < thing.y + thing.radius < SIDE
        for one, other in combinations(scene.things, 2):
            assert max(abs(one.x - other.x), abs(one.y - other.y)) > one.radius + other.radius - 6


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("colour", list(COLOURS))
def test_a_thing_is_drawn_in_its_colour_at_its_place(shape, colour):
    thing = Thing(shape, colour, "large", 30.0, 60.0, 14.0)
    image = np.asarray(draw(Scene((thing,), "row", "white", "plain"), np.random.default_rng(0)), dtype=float)
    near = np.abs(image - COLOURS[colour]).sum(axis=-1) < 75
    rows, columns = np.nonzero(near)
    assert len(rows) > 100
    assert abs(columns.mean() - thing.x) < 3
    assert abs(rows.mean() - thing.y) < 5


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write(folder: Path, **changes) -> Path:
    sizes = {"train": 12, "dev": 4, "test": 3, "captions": 4, "seed": 5} | changes
    scenes.write(folder, describe=grid_features, **sizes)
    return folder


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    first = files(write(tmp_path / "a"))
    assert first == files(write(tmp_path / "b"))
    assert first != files(write(tmp_path / "c", seed=6))


def test_the_folder_has_the_precomp_layout(tmp_path):
    folder = write(tmp_path / "demo")
    seen = []
    for split, count in {"train": 12, "dev": 4, "test": 3}.items():
        features = np.load(folder / f"{split}_ims.npy", allow_pickle=False)
        names = (folder / f"{split}_ids.txt").read_text().splitlines()
        captions = (folder / f"{split}_caps.txt").read_text().splitlines()
        assert features.shape == (count, 36, grid_features(np.zeros((9, 9), np.uint8)).shape[1])
        assert features.dtype == np.float32
        assert len(names) == count
        assert len(captions) == 4 * count
        assert all(captions)
        for row, name in zip(features, names, strict=True):
            with Image.open(folder / "images" / name) as image:
                assert image.size == (SIDE, SIDE)
                np.testing.assert_array_equal(grid_features(image), row)
        seen += names
    assert sorted(path.name for path in (folder / "images").iterdir()) == sorted(set(seen))
    assert len(set(seen)) == 19


def test_no_description_comes_twice(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(scenes, "draw", lambda scene, rng: drawn.append(scene) or Image.new("RGB", (4, 4)))
    scenes.write(tmp_path / "a", describe=lambda _: np.zeros((1, 1)), train=3000, dev=1, test=1, captions=1)
    assert len({scene.description for scene in drawn}) == len(drawn) == 3002


def test_progress_counts_to_the_end(tmp_path):
    calls = []
    write(tmp_path / "a", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 19) for done in range(1, 20)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_write_leaves_nothing(tmp_path, error):
    def stop(done: int, total: int) -> None:
        if done == 7:
            raise error

    with pytest.raises(error):
        write(tmp_path / "a", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled_and_a_full_one_is_left_alone(tmp_path):
    (tmp_path / "empty").mkdir()
    assert files(write(tmp_path / "empty"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already"):
        write(tmp_path / "full")
    assert files(tmp_path / "full") == {"mine.txt": b"mine"}


@pytest.mark.parametrize("wrong", [{"train": 0}, {"dev": -1}, {"captions": 0}, {"train": 10**9}, {"captions": 10**5}])
def test_sizes_that_make_no_data_are_refused(tmp_path, wrong):
    with pytest.raises(InputError):
        write(tmp_path / "a", **wrong)
    assert not (tmp_path / "a").exists()
