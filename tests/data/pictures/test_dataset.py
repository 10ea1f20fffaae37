"""Images in rows of `datasets.Dataset` objects: bytes as they are, or files that they name."""

import io
import pickle
from pathlib import Path

import pytest
from PIL import Image

from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.dataset import DatasetImages, ending, ending_of
from crcl.data.rows.cells import Cells

datasets = pytest.importorskip("datasets")
CELLS = Cells("image", "caption", True, "image.path", False)


def images_of(*cells: tuple[bytes | None, str | None], within: list[Path] | None = None) -> DatasetImages:
    """Images named by the numbers of their rows, each in a data set of its own."""
    features = datasets.Features({"image": datasets.Image()})
    parts = [
        datasets.Dataset.from_dict({"image": [{"bytes": content, "path": path}]}, features=features)
        for content, path in cells
    ]
    return DatasetImages(
        [part.with_format("arrow") for part in parts], CELLS, {f"{i}": i for i in range(len(parts))}, within
    )


def test_bytes_are_read_and_pickled(tmp_path: Path) -> None:
    found = images_of((b"one", "a.png"), (b"two", None))
    assert (found.read("0"), found["1"], list(found), len(found)) == (b"one", b"two", ["0", "1"], 2)
    assert pickle.loads(pickle.dumps(found)).read("1") == b"two"
    assert len({found, found}) == 1
    with pytest.raises(KeyError):
        found["2"]


def test_a_file_is_read_where_only_its_path_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"file")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/link.png").symlink_to(tmp_path / "a.png")
    paths = [str(tmp_path / name) for name in ("a.png", "none.png", "below/../a.png", "below/link.png")]
    found = images_of(*((None, path) for path in paths))
    assert [found[f"{i}"] for i in range(4)] == [b"file", b"", b"file", b"file"]
    limited = images_of(*((None, path) for path in paths), within=[tmp_path / "below"])
    for name in ("0", "2", "3"):
        with pytest.raises(UnusableError, match="outside the cache of downloads"):
            limited.read(name)


@pytest.mark.parametrize(
    ("content", "path", "reason"),
    [
        (b"", "a", "empty file"),
        (b"x" * 11, "a", "11 bytes, more than 10"),
        (None, "none.png", "not found"),
    ],
)
def test_what_cannot_be_read_has_a_reason_and_is_empty_as_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, path: str | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnusableError, match=reason):
        images_of((content, path)).read("0", most=10)
    with pytest.raises(UnusableError, match="not found"):
        images_of((content, path)).read("1")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF"])
def test_the_ending_is_that_of_the_format(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, format=kind)
    assert ending(file.getvalue()[:16]) in Image.registered_extensions()
    assert Image.registered_extensions()[ending(file.getvalue()[:16])] == kind


def test_what_is_no_image_has_no_ending_of_images() -> None:
    assert ending(b"<html>") == ending(b"") == ending_of("/etc/passwd") == ".bin"
    assert ending_of("a.JPG") == ".jpg"
