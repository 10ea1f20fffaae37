"""The table of an audit as other tools read it: plain types, and the path of each image file."""

from pathlib import Path

import pandas
import pyarrow.parquet
import pytest
from drawn import SETTINGS, drawn, write_table
from PIL import Image

import crcl
from crcl.auditing.result import Audit
from crcl.errors import InputError


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("tools")
    return crcl.audit(write_table(drawn(100), folder), folder / "made", keep=0.8, settings=SETTINGS)


def test_parquet_has_the_path_of_each_image_and_types_that_every_reader_knows(audit: Audit, tmp_path: Path) -> None:
    path = audit.write(tmp_path / "audit.parquet")
    frame = pandas.read_parquet(path)
    assert list(frame["row"]) == audit.table["row"].to_pylist()
    assert all(Path(name).is_absolute() for name in frame["image_path"])
    assert Image.open(frame["image_path"][0]).size == Image.open(frame["image_path"][1]).size
    assert frame["image_path"].str.endswith(tuple(frame["image"])).all()
    kinds = {str(field.type) for field in pyarrow.parquet.read_schema(path)}
    assert kinds <= {"int64", "string", "float", "double", "bool"}
    assert audit.write(path) == path  # an earlier audit is replaced


def test_datasets_shows_the_images_of_the_table(audit: Audit, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = audit.write(tmp_path / "audit.parquet")
    data = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    shown = data.cast_column("image_path", datasets.Image())[0]
    assert shown["image_path"].size[0] > 0
    assert shown["caption"] == audit.table["caption"][0].as_py()


def test_a_file_that_is_gone_has_no_path_and_csv_has_none_at_all(audit: Audit, tmp_path: Path) -> None:
    gone = Path(audit.run.config["data"]["path"]).parent / audit.table["image"][0].as_py()
    moved = gone.rename(tmp_path / gone.name)
    try:
        frame = pandas.read_parquet(audit.write(tmp_path / "audit.parquet"))
    finally:
        moved.rename(gone)
    assert frame["image_path"].isna().tolist() == [True] + [False] * (len(frame) - 1)
    assert "image_path" not in pandas.read_csv(audit.write(tmp_path / "audit.csv"))
    with pytest.raises(InputError, match=r"that is the data itself|is not an audit"):
        audit.write(audit.run.config["data"]["path"])
