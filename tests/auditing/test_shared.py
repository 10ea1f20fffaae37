"""An audit that several real processes share is that of one."""

from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
from several import torchrun
from small_clip import draw_scenes, save_clip
from tiny import finish

import crcl

SETTINGS = {"method": "relink", "matcher.name": "dual", "matcher.embedding": 16, "train.pieces": [1, 1]}


@pytest.mark.slow
def test_two_processes_audit_as_one_does(tmp_path: Path) -> None:
    model, table = str(save_clip(tmp_path / "clip")), draw_scenes(tmp_path / "scenes", train=150)
    images = table.parent / "images"
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    found = crcl.audit(table, alone, images=images, model=model, threshold=0.5, suggest=50, settings=SETTINGS)
    found.write(alone / "audit.csv")
    words = [
        "--images",
        str(images),
        "--model",
        model,
        "--folder",
        str(shared),
        "--threshold",
        "0.5",
        "--suggest",
        "50",
    ]
    words += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    answer = finish(torchrun(2, "-m", "crcl", "audit", str(table), *words))
    assert answer.code == 0, answer.err
    assert answer.out.count("written to") == 1, "one process writes"
    for name in ("features/features.npy", "features/text_features.npy"):
        assert (shared / name).read_bytes() == (alone / name).read_bytes()
    one, other = (pyarrow.csv.read_csv(folder / "audit.csv").sort_by("row") for folder in (alone, shared))
    assert one.column_names == other.column_names
    assert len(one) == 300
    assert one["image_1"].null_count < 300, "some have suggestions"
    for name in one.column_names:
        if one[name].type in (pyarrow.float64(), pyarrow.float32()):
            np.testing.assert_allclose(other[name].to_numpy(), one[name].to_numpy(), atol=1e-5, err_msg=name)
        else:
            assert one[name].equals(other[name]), name
    assert (shared / "report/index.html").is_file()
