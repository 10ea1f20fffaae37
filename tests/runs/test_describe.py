"""What `crcl info` says of data and of runs."""

from pathlib import Path

import numpy as np
import pytest
from reading import read
from tiny import Stop, StopAfter, small_config, write_folder

from crcl.data.noise import mismatch, write_index
from crcl.errors import InputError
from crcl.runs.card import model_card
from crcl.runs.describe import describe, shares_of
from crcl.runs.folder import Run
from crcl.training import session


def test_data_is_described_split_by_split(tmp_path: Path) -> None:
    facts = describe(write_folder(tmp_path / "data"))
    assert facts[0] == ("data", str(tmp_path / "data"))
    assert facts[1][0] == "layout"
    assert facts[1][1].startswith("precomp: ")
    assert [name for name, _ in facts[2:]] == ["train"] * 3 + ["dev"] * 3 + ["test"] * 3
    assert facts[2:5] == [
        ("train", "48 pairs, 24 images, 2 captions per image"),
        ("train", "features 4 regions x 6 numbers, float32"),
        ("train", "captions of 6 to 7 words, 6.5 on average"),
    ]


def test_captions_per_image_are_a_range_where_they_differ(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("image,caption,split\na,one,train\na,two words,train\nb,three,train\nb,x,dev\n")
    np.save(tmp_path / "features.npy", np.zeros((2, 5), dtype=np.float16))
    (tmp_path / "ids.txt").write_text("a\nb\n")
    facts = describe(tmp_path / "pairs.csv")
    assert facts[2:4] == [
        ("train", "3 pairs, 2 images, 1 to 2 captions per image"),
        ("train", "features 1 regions x 5 numbers, float16"),
    ]


def test_data_without_features_is_described_by_its_rows(tmp_path: Path) -> None:
    rows = [f"{image}.jpg,{'a dog ' * (image + 1)},{'test' if image > 7 else 'train'}" for image in range(10)]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,caption,split", *rows, "9.jpg,,test", ""]))
    facts = dict(describe(tmp_path / "pairs.csv"))
    assert facts["layout"].startswith("table: ")
    assert facts["test"] == "captions of 18 to 20 words, 19.0 on average"
    assert facts["features"].startswith("none yet")
    assert [line for name, line in describe(tmp_path / "pairs.csv") if name in ("train", "dev", "test")][::2] == [
        "7 pairs, 7 images, 1 captions per image",  # a tenth of train is held out, as there is no dev
        "1 pairs, 1 images, 1 captions per image",
        "2 pairs, 2 images, 1 captions per image",
    ]


def test_a_finished_run_is_described_with_its_best_epoch(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = session.train(small_config(data), tmp_path / "run")
    facts = dict(describe(run.path))
    assert facts["method"] == "crcl on bow, embedding 8"
    assert facts["data"] == f"{data}: 48 pairs, 24 images"
    assert facts["noise"] == "40% at caption level, seed 0"
    assert facts["schedule"] == "pieces [1, 2], seed 0"
    assert facts["progress"] == "3 of 3 epochs"
    best = max(run.metrics()[1:], key=lambda record: float(record["dev"]["rsum"]))
    assert facts["best epoch"] == f"{best['epoch'] + 1} of piece 2, dev rSum {best['dev']['rsum']:.1f}"
    assert facts["beliefs"].startswith(f"mean {run.load_ledger().mean():.3f}")


def test_what_is_scored_beside_the_network_is_named_and_not_counted_as_a_network(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    told = {}
    for name in ("bow", "linear"):
        path = session.train(small_config(data, f"matcher.name={name}", method="relink"), tmp_path / name).path
        told[name] = dict(describe(path))["method"], model_card(path)
    shares = shares_of(Run.open(tmp_path / "bow"))
    assert shares is not None
    assert sum(shares) == 1
    own, other = (f"{share:g}" for share in shares)
    assert told["bow"][0] == f"relink on bow, embedding 8, scored together with linear (shares {own} and {other})"
    assert told["linear"][0] == "relink on linear, 128 dimensions"
    assert "`relink` on matcher `bow`; similarities are the mean of its own and those of `linear`, " in told["bow"][1]
    assert f"with the shares {own} and {other}\n" in told["bow"][1]
    assert "`relink` on matcher `linear`\n" in told["linear"][1]
    assert "networks" not in told["bow"][1]


def test_a_run_without_an_epoch_is_described_too(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    with pytest.raises(Stop):
        session.train(small_config(data, method="infonce"), tmp_path / "run", progress=StopAfter(1))
    facts = dict(describe(tmp_path / "run"))
    assert facts["progress"] == "0 of 2 epochs"
    assert "best epoch" not in facts


def test_a_line_that_is_just_being_written_is_left_out(tmp_path: Path) -> None:
    run = session.train(small_config(write_folder(tmp_path / "data")), tmp_path / "run")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"piece": 1, "ep')
    assert dict(describe(run.path))["progress"] == "3 of 3 epochs"


def test_mismatches_from_a_file_are_named(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    write_index(tmp_path / "noise.npy", mismatch(read(data).image_index, 0.4, 0))
    config = small_config(data, "noise.rate=0.0", f"noise.file={tmp_path / 'noise.npy'}")
    run = session.train(config, tmp_path / "run")
    assert dict(describe(run.path))["noise"] == str(tmp_path / "noise.npy")


def test_a_config_with_unknown_keys_is_refused(tmp_path: Path) -> None:
    run = session.train(small_config(write_folder(tmp_path / "data")), tmp_path / "run")
    config = run.path / "config.json"
    config.write_text(config.read_text().replace('"noise"', '"nose"'))
    with pytest.raises(InputError, match="nose"):
        describe(run.path)
    assert Run.open(run.path).sizes == run.sizes


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a run folder nor data"):
        describe(tmp_path)
    with pytest.raises(InputError, match="not found"):
        describe(tmp_path / "nowhere")
