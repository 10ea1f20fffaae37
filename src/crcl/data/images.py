"""Decoding images, or the reason why one cannot be used. The bytes are not trusted: sizes are limited."""

import hashlib
import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from crcl.data.pictures.base import UnusableError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
"""Formats to decode. Pillow knows more, but starts other programs for some of them."""
MOST_PIXELS = 100_000_000
LONGEST_SIDE = 10_000_000
"""Longer rows of pixels are decoded by Pillow, but cannot be copied."""


_MOST_READS = 1_000_000  # of one image: Pillow reads the bytes between two headers one by one


class _Limited(io.BytesIO):
    """The bytes of an image, for a decoder that asks for them in a reasonable number of pieces."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as BytesIO does."""
        self.left -= 1
        if self.left < 0:
            raise UnusableError("broken image (too many bytes that belong to nothing)")
        return super().read(size)


def decode(content: bytes, *, most_pixels: int = MOST_PIXELS, side: int | None = None) -> Image.Image:
    """The first frame as RGB, rotated as EXIF says, transparent parts on white.

    Args:
        content: Bytes of an image file.
        most_pixels: Larger images are refused.
        side: Allows formats that can to decode at a lower resolution, not below this many pixels per side; quicker.
    """
    if not content:
        raise UnusableError("empty file")
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns at a lower limit of its own
            image = Image.open(_Limited(content), formats=formats)
            width, height = image.size
            if width * height > most_pixels:
                raise UnusableError(f"{width} x {height} pixels, more than {most_pixels:,}")
            if max(width, height) > LONGEST_SIDE:
                raise UnusableError(f"{width} x {height} pixels, a side longer than {LONGEST_SIDE:,}")
            if side is not None:
                image.draft(None, (side, side))
            image.load()
            return as_rgb(image)
    except UnusableError:
        raise
    except Image.DecompressionBombError as error:
        raise UnusableError(f"too many pixels ({error})") from error
    except Image.UnidentifiedImageError as error:
        raise UnusableError("not an image of a known format") from error
    except Exception as error:  # hostile bytes make Pillow raise anything
        raise UnusableError(f"broken image ({_one_line(error)})") from error


def small_jpeg(content: bytes, *, side: int, quality: int = 85) -> bytes:
    """A thumbnail of an image file as JPEG, at most `side` pixels wide and high."""
    small = decode(content, side=2 * side)
    small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=quality)
    return file.getvalue()


def pixel_hash(image: Image.Image) -> bytes:
    """A hash of the size and the pixels of an RGB image: equal for copies, whatever the formats of their files."""
    digest = hashlib.sha256(f"{image.width} {image.height} ".encode())
    digest.update(image.tobytes())
    return digest.digest()


def as_rgb(image: Image.Image) -> Image.Image:
    """An image as RGB, rotated as EXIF says, transparent parts on white."""
    return _rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    """The image rotated as its EXIF data says; unchanged if that data is invalid."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # bad metadata does not make the pixels bad
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnusableError("floating-point pixels of unknown range")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    return image.convert("RGB")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
