import numpy as np
import pytest
from PIL import Image

from crcl.errors import InputError
from crcl.features.grid import CELL, FEATURE_SIZE, grid_features


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(96, 96), (640, 480), (1, 1), (3, 500)])
@pytest.mark.parametrize("grid", [1, 6, 7])
def test_features_are_finite_and_shaped_by_the_grid_alone(size, grid):
    features = grid_features(Image.fromarray(noise(size[1], size[0])), grid=grid)
    assert features.shape == (grid * grid, FEATURE_SIZE)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert features.min() >= 0
    assert features.max() < 1.5


def test_array_and_image_give_the_same():
    pixels = noise(50, 70)
    np.testing.assert_array_equal(grid_features(pixels), grid_features(Image.fromarray(pixels)))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_other_colour_modes_are_read_as_rgb(mode):
    image = Image.fromarray(noise(40, 40)).convert(mode)
    np.testing.assert_array_equal(grid_features(image), grid_features(image.convert("RGB")))


def test_different_images_differ():
    assert not np.allclose(grid_features(noise(96, 96, 1)), grid_features(noise(96, 96, 2)), atol=0.05)


def test_a_change_in_one_corner_moves_only_the_cells_there():
    blank = np.full((96, 96, 3), 200, dtype=np.uint8)
    marked = blank.copy()
    marked[4:12, 84:92] = (255, 0, 0)  # within the cell of row 0, column 5
    changed = (grid_features(blank) != grid_features(marked)).any(axis=1).reshape(6, 6)
    assert changed[0, 5]
    assert not changed[2:].any()
    assert not changed[:, :4].any()


def test_thumbnail_and_mean_follow_a_loop_over_the_cells():
    pixels = noise(96, 96)
    features = grid_features(pixels)
    for row in range(6):
        for column in range(6):
            cell = pixels[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] / 255
            found = features[row * 6 + column]
            corners = [cell[y : y + 4, x : x + 4].mean(axis=(0, 1)) for y in range(0, 16, 4) for x in range(0, 16, 4)]
            np.testing.assert_allclose(found[:48], np.concatenate(corners), atol=1e-5)
            np.testing.assert_allclose(found[48:51], cell.mean(axis=(0, 1)), atol=1e-5)
            np.testing.assert_allclose(found[51:54], cell.std(axis=(0, 1)), atol=1e-5)
            np.testing.assert_allclose(found[-2:], [(column + 0.5) / 6, (row + 0.5) / 6], atol=1e-6)


def test_an_upright_edge_has_a_sideways_direction_only():
    pixels = np.zeros((96, 96), dtype=np.uint8)
    pixels[:, 40:] = 255
    edges = grid_features(pixels)[:, 54:62]
    assert (edges[:, 0] > 0).sum() == 6
    assert not edges[:, 1:].any()


@pytest.mark.parametrize("array", [np.zeros((4, 4)), np.zeros(4, np.uint8), np.zeros((1, 4, 4, 3), np.uint8)])
def test_an_array_that_is_no_image_is_refused(array):
    with pytest.raises(InputError, match="uint8"):
        grid_features(array)


@pytest.mark.parametrize("shape", [(4, 4, 5), (0, 4, 3), (4, 0, 3)])
def test_an_array_without_pixels_or_with_odd_channels_is_refused(shape):
    with pytest.raises(InputError):
        grid_features(np.zeros(shape, np.uint8))


def test_a_grid_without_cells_is_refused():
    with pytest.raises(InputError, match="grid"):
        grid_features(noise(8, 8), grid=0)
