"""How features were made is kept with a run and used for new photos; what a stranger writes there is checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_clip import save_clip

from crcl.errors import InputError
from crcl.features.extractor import describe_extractor
from crcl.features.grid import PixelGrid
from crcl.features.provenance import image_features, open_extractor, read_about
from crcl.features.vision import VisionModel


def test_the_pixel_grid_is_opened_again_as_it_was() -> None:
    found = open_extractor(describe_extractor(PixelGrid(grid=3)))
    assert found.settings == PixelGrid(grid=3).settings
    image = Image.new("RGB", (30, 20), "red")
    np.testing.assert_array_equal(image_features(found, [image])[0], PixelGrid(grid=3).prepare(image))


def test_a_vision_model_is_opened_again_and_refused_when_its_weights_have_changed(tmp_path: Path) -> None:
    name = str(save_clip(tmp_path / "clip"))
    made = describe_extractor(VisionModel(name, grid=2))
    assert {"transformers", "pillow"} == set(made["versions"])
    assert open_extractor(made).settings == made["settings"]
    save_clip(tmp_path / "clip", seed=1)
    with pytest.raises(InputError, match="has changed since"):
        open_extractor(made)


@pytest.mark.parametrize("grid", [0, -1, 33, 10**9, 1.5, "x", [], True])
def test_a_grid_that_no_extractor_has_is_refused_before_it_takes_memory(grid: Any) -> None:
    with pytest.raises(InputError, match="grid of"):
        open_extractor({"extractor": "pixel grid", "settings": {"extractor": "pixel grid", "grid": grid, "version": 1}})


@pytest.mark.parametrize("settings", ["x", -1, True, None, {}, {"extractor": []}, {"extractor": "unheard of"}])
def test_settings_that_say_nothing_are_features_of_unknown_origin(settings: Any) -> None:
    with pytest.raises(InputError, match="unknown origin"):
        open_extractor({"extractor": "x", "settings": settings})


def test_a_model_of_a_run_is_never_fetched_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refused(*given: object, **options: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    made = {"extractor": "someone/else", "settings": {"extractor": "vision model", "grid": 6}}
    with pytest.raises(InputError, match=r"someone/else: cannot be loaded"):
        open_extractor(made)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"settings": 3}', "[" * 100_000])
def test_a_file_beside_the_features_that_is_something_else_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "about.json").write_text(content)
    assert read_about(tmp_path / "features.npy") == {}
