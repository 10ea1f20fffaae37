"""Images as strangers send them: decoded to upright RGB, or refused with a reason."""

import csv
import io
from contextlib import suppress

import numpy as np
import pytest
from image_files import bomb, halves, saved
from PIL import Image

from crcl.data.images import decode, pixel_hash
from crcl.data.pictures.base import UnusableError
from crcl.data.rows.stored import skipped_text


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGB", "PNG"), ("P", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("RGBA", "WEBP")]
)
def test_every_colour_mode_comes_out_as_the_colours_that_it_shows(mode, kind):
    image = decode(saved(halves(mode), kind))
    assert (image.mode, image.size) == ("RGB", (40, 20))
    np.testing.assert_allclose(image.getpixel((5, 10)), (255, 0, 0), atol=40)
    np.testing.assert_allclose(image.getpixel((35, 10)), (0, 0, 255), atol=40)


def test_of_a_gif_the_first_frame_is_taken():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    assert decode(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])).getpixel((4, 4)) == (255, 0, 0)


def test_an_image_is_turned_as_its_exif_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    image = decode(saved(halves(), "JPEG", exif=exif, quality=95))
    assert image.size == (20, 40)
    np.testing.assert_allclose(image.getpixel((10, 5)), (255, 0, 0), atol=40)  # what was left is above


def test_nonsense_in_the_exif_does_not_lose_the_image():
    assert decode(saved(halves(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")).size == (40, 20)


def test_what_is_transparent_is_white_whatever_colour_is_hidden_there():
    assert decode(saved(Image.new("RGBA", (4, 4), (10, 20, 30, 0)), "PNG")).getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bits_keep_their_shades():
    shades = np.array([[0, 16384, 32768, 65535]], dtype=np.uint16)
    assert [pixel[0] for pixel in np.asarray(decode(saved(Image.fromarray(shades), "PNG")))[0]] == [0, 64, 128, 255]


def test_an_image_of_too_many_pixels_is_refused_from_its_header():
    for side in (20_000, 11_000):  # above Pillow's own limit, and between that and ours
        with pytest.raises(UnusableError, match="pixels"):
            decode(bomb(side, side))
    with pytest.raises(UnusableError, match="40 x 20 pixels, more than 799"):
        decode(saved(halves(), "PNG"), most_pixels=799)
    assert decode(saved(halves(), "PNG"), most_pixels=800).size == (40, 20)


def test_one_endless_row_of_pixels_which_pillow_cannot_copy_is_refused():
    with pytest.raises(UnusableError, match="90000000 x 1 pixels, a side longer than 10,000,000"):
        decode(saved(Image.new("1", (90_000_000, 1)), "PNG"))


def test_the_hash_of_pixels_is_that_of_the_picture_not_of_the_file():
    content = pixel_hash(decode(saved(halves(), "PNG")))
    assert content == pixel_hash(decode(saved(halves(), "BMP"))) == pixel_hash(halves())
    assert content != pixel_hash(halves().transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert pixel_hash(Image.new("RGB", (2, 8))) != pixel_hash(Image.new("RGB", (4, 4)))


def test_every_cut_of_a_file_is_refused_and_none_ends_the_program():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8))
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "BMP"):
        whole = saved(noise, kind)
        for length in (0, 1, 10, len(whole) // 3, len(whole) // 2):
            with pytest.raises(UnusableError):
                decode(whole[:length])


def test_changed_bytes_give_an_image_or_a_reason():
    rng = np.random.default_rng(0)
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        whole = np.frombuffer(saved(halves("P" if kind == "GIF" else "RGB"), kind), dtype=np.uint8)
        for _ in range(40):
            changed = whole.copy()
            changed[rng.integers(0, len(whole), 4)] = rng.integers(0, 256, 4)
            with suppress(UnusableError):
                assert decode(changed.tobytes(), most_pixels=10_000).mode == "RGB"


@pytest.mark.parametrize("content", [b"hello", b"<svg/>", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_formats_that_are_not_known_are_refused(content):
    with pytest.raises(UnusableError, match="known format"):
        decode(content)


def test_skipped_names_stay_in_their_cells():
    rows = [('a",\nb.png', "not found"), ("=1+1", "x")]
    assert list(csv.reader(io.StringIO(skipped_text(rows), newline=""))) == [["image", "reason"], *map(list, rows)]


def test_bytes_that_belong_to_nothing_are_not_read_to_their_end_one_by_one():
    content = b"\xff\xd8\xff" + bytes(20_000_000)
    with pytest.raises(UnusableError, match="too many bytes that belong to nothing"):
        decode(content)
