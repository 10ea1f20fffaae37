"""Bad input through the command line: exit code 2, no traceback, a message that says what, where and what instead."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import Answer, call, command, small_config, train_command, write_folder

from crcl.runs.folder import FORMAT
from crcl.training import session

Refused = Callable[..., str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data")


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    return session.train(small_config(data), tmp_path / "run").path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a command that must be refused, and give its message as one line."""
    monkeypatch.setenv("COLUMNS", "500")

    def run(*words: object, code: int = 2) -> str:
        answer: Answer = call(capsys, monkeypatch, *map(str, words))
        assert answer.code == code, answer.err
        assert "Traceback" not in answer.err
        return " ".join(answer.err.split())

    return run


@pytest.fixture
def train(refused: Refused, tmp_path: Path) -> Refused:
    """`crcl train` that must be refused before it leaves a run folder, except where the data is read late."""

    def run(data: Path, *words: str, settings: tuple[str, ...] = (), leaves: bool = False) -> str:
        message = refused(*train_command(data, tmp_path / "new", *words, settings=settings))
        assert leaves or not (tmp_path / "new").exists()
        return message

    return run


# Files


def test_missing_data_is_answered_with_what_is_near(data: Path, train: Refused, refused: Refused) -> None:
    message = train(data.with_name("dta"))
    assert f"{data.with_name('dta')}: not found (did you mean 'data'?)" in message
    assert "expected a table, a folder of features or other data" in message
    assert "not found" in refused("info", data.with_name("dta"))
    assert "not found" in refused("noise", data.with_name("dta"), "--rate", "0.4", "-o", "x.npy")


@pytest.mark.parametrize("name", ["train_caps.txt", "train_ims.npy", "dev_ims.npy", "dev_caps.txt"])
def test_a_missing_file_of_a_folder_is_named(data: Path, train: Refused, name: str) -> None:
    (data / name).unlink()
    message = train(data)
    assert name in message or f"no {name.split('_')[0]} split" in message
    assert str(data) in message


def test_an_empty_folder_is_no_data(tmp_path: Path, train: Refused) -> None:
    (tmp_path / "empty").mkdir()
    assert "nor data that is recognised; it contains no files" in train(tmp_path / "empty")


@pytest.mark.parametrize("option", ["--noise-file", "--config"])
def test_a_missing_file_of_an_option_is_named(data: Path, train: Refused, tmp_path: Path, option: str) -> None:
    given = [option, str(tmp_path / "absent"), *(["--noise", "0"] if option == "--noise-file" else [])]
    message = train(data, *given)
    assert f"{tmp_path / 'absent'}: " in message
    assert "no" in message


@pytest.mark.parametrize("name", ["evaluate", "audit"])
def test_a_missing_run_folder_and_one_that_is_none_are_told_apart(refused: Refused, tmp_path: Path, name: str) -> None:
    assert f"{tmp_path / 'absent'}: no such run folder" in refused(name, tmp_path / "absent")
    assert f"{tmp_path}: not a run folder (it has no config.json)" in refused(name, tmp_path)  # nor data


def test_outputs_that_cannot_be_written_are_refused(refused: Refused, data: Path, run: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "noise.npy"
    assert f"{absent}: cannot be written" in refused("noise", data, "--rate", "0.4", "-o", absent)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused("audit", run, "-o", tmp_path / "file" / "a.csv")
    assert "written as .csv or .parquet" in refused("audit", run, "-o", tmp_path / "suspects.xlsx")
    inside = train_command(data, tmp_path / "file" / "run")
    assert "cannot be written" in refused(*inside)
    assert "/proc/none.npy: cannot be written" in refused("evaluate", run, "--save-sims", "/proc/none.npy")


def test_an_audit_that_cannot_be_written_is_refused_before_anything_is_trained(
    refused: Refused, tmp_path: Path
) -> None:
    table = write_table(tmp_path, "image,caption\na.jpg,a dog\nb.jpg,a cat\n")
    asked = ["audit", table, "--folder", tmp_path / "audit"]
    for words in (["-o", "/proc/none/a.csv"], ["--report", "/proc/none"]):
        assert f"{words[1]}: cannot be written (/proc" in refused(*asked, *words)
    assert not (tmp_path / "audit").exists()


def test_a_name_that_no_file_can_have_is_refused(refused: Refused, run: Path) -> None:
    long = f"{'a' * 300}.csv"
    for words in (["info", long], ["audit", long], ["audit", run, "-o", long]):
        message = refused(*words)
        assert long in message
        assert "File name too long" in message


def test_a_run_is_not_gone_on_with_nor_judged_on_other_features(
    refused: Refused, data: Path, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = np.load(data / "train_ims.npy")
    stored[3, 0] += 1
    np.save(data / "train_ims.npy", stored)
    for words in (["audit", run], train_command(data, run, "--resume")):
        assert f"the same images as {run} was trained on, by name, but other features" in refused(*words)
    about = json.loads((run / "config.json").read_text())
    del about["features"]
    (run / "config.json").write_text(json.dumps(about))  # as older versions wrote it
    assert call(capsys, monkeypatch, "audit", str(run)).code == 0


# Captions


def test_captions_that_no_number_per_image_explains_are_refused_with_numbers_that_fit(
    data: Path, train: Refused
) -> None:
    with (data / "train_caps.txt").open("a") as file:
        file.write("one too many\n")
    message = train(data)
    assert f"{data / 'train_caps.txt'}: 49 captions for 24 images" in message
    assert "expected 48 captions (2 per image) or 72 captions (3 per image)" in message


def replace_caption(data: Path, line: int, caption: bytes) -> None:
    captions = (data / "train_caps.txt").read_bytes().split(b"\n")
    captions[line - 1] = caption
    (data / "train_caps.txt").write_bytes(b"\n".join(captions))


def test_an_empty_caption_is_refused_with_its_line(data: Path, train: Refused) -> None:
    replace_caption(data, 7, b"  ")
    assert f"{data / 'train_caps.txt'}:7: empty caption" in train(data)


def test_invalid_utf8_is_refused_with_file_and_line(data: Path, train: Refused) -> None:
    replace_caption(data, 5, b"a caf\xe9 in paris")
    message = train(data)
    assert f"{data / 'train_caps.txt'}:5: not UTF-8 (byte 0xe9 at position 6); save the file as UTF-8" in message


def test_a_caption_of_ten_thousand_words_and_one_of_unknown_words_are_no_error(data: Path, tmp_path: Path) -> None:
    replace_caption(data, 3, b"dog " * 10_000)
    replace_caption(data, 4, b"xyzzy")
    assert len(session.train(small_config(data), tmp_path / "new").metrics()) == 3


# Features


def replace_features(data: Path, change: Callable[[np.ndarray], Any], split: str = "train") -> None:
    path = data / f"{split}_ims.npy"
    np.save(path, change(np.load(path)), allow_pickle=True)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused_with_row_and_image(
    data: Path, train: Refused, workers: str, value: float
) -> None:
    def spoil(features: np.ndarray) -> np.ndarray:
        features[5, 1, 2] = value
        return features

    replace_features(data, spoil)
    message = train(data, "--set", f"train.workers={workers}", leaves=True)
    assert f"{data / 'train_ims.npy'}: NaN or infinity in row 5 (image 'train5.jpg')" in message
    assert "compute these features again or leave the images out" in message


def test_features_of_dev_that_are_not_finite_are_refused_too(data: Path, train: Refused) -> None:
    replace_features(data, lambda features: features * np.nan, split="dev")
    assert f"{data / 'dev_ims.npy'}: NaN or infinity in row 0 (image 'dev0.jpg')" in train(data, leaves=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda features: features[:, 0, 0], "features have shape (24,), expected (images, regions, size)"),
        (lambda features: features[..., None], "features have shape (24, 4, 6, 1), expected (images, regions, size)"),
        (lambda features: features.astype(np.int32), "features are int32, expected float16 or float32"),
        (lambda features: features.astype(np.float64), "features are float64, expected float16 or float32"),
        (lambda features: features[:0], "empty"),
    ],
)
def test_features_of_a_wrong_rank_or_type_are_refused(
    data: Path, train: Refused, change: Callable[[np.ndarray], Any], message: str
) -> None:
    replace_features(data, change)
    answer = train(data)
    assert str(data / "train_ims.npy") in answer
    assert message in answer


class Evil:
    """An object whose unpickling leaves a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def test_features_that_are_objects_are_refused_and_never_unpickled(data: Path, train: Refused, tmp_path: Path) -> None:
    replace_features(data, lambda features: np.array([Evil(str(tmp_path / "mark"))] * len(features), dtype=object))
    message = train(data)
    assert f"{data / 'train_ims.npy'}: contains Python objects, which are never loaded" in message
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', (",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"-" * 8000 + b"1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 36, 72), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1180591620717411303424,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (20, True, 24), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (20, 1, 24), }" + b" " * 20000,
    ],
    ids=["cut", "deep", "negative", "vast", "a truth value", "long"],
)
def test_features_whose_header_is_nonsense_are_refused(data: Path, train: Refused, header: bytes) -> None:
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 400
    (data / "train_ims.npy").write_bytes(content)
    told = train(data)
    assert f"{data / 'train_ims.npy'}: not a complete .npy file" in told
    assert "pickle" not in told  # numpy's advice for some of them


def test_half_a_features_file_is_refused(data: Path, train: Refused) -> None:
    content = (data / "train_ims.npy").read_bytes()
    (data / "train_ims.npy").write_bytes(content[: len(content) // 2])
    assert f"{data / 'train_ims.npy'}: not a complete .npy file" in train(data)


def test_dev_features_of_another_shape_are_refused(data: Path, train: Refused) -> None:
    replace_features(data, lambda features: features[:, :, :5], split="dev")
    assert "features of train have shape (4, 6) per image, those of dev (4, 5)" in train(data)


# Noise


@pytest.mark.parametrize("rate", ["-0.1", "1.5", "nan"])
def test_a_rate_outside_0_to_1_is_refused(data: Path, train: Refused, refused: Refused, rate: str) -> None:
    assert f"noise.rate: must be {'a finite number' if rate == 'nan' else 'at'}" in train(data, "--noise", rate)
    message = refused("noise", data, f"--rate={rate}", "-o", data / "noise.npy")
    assert f"noise rate is {rate}, expected a number from 0 to 1" in message
    assert not (data / "noise.npy").exists()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.arange(47), "noise index has 47 entries; * needs 48 (one per caption) or 24 (one per image)"),
        (np.r_[np.arange(23), 24], "has 1 entries outside the image rows 0 to 23: entry 23 is 24"),
        (np.r_[-1, np.zeros(47, dtype=int)], "has 1 entries outside the image rows 0 to 23: entry 0 is -1"),
        (np.zeros((24, 2), dtype=int), "shape (24, 2), expected a 1-D array"),
        (np.zeros(24), "numbers are float64, expected int64"),
        (np.array([Evil("mark")] * 24, dtype=object), "contains Python objects, which are never loaded"),
    ],
    ids=["length", "too high", "negative", "rank", "floats", "objects"],
)
def test_a_noise_index_that_does_not_fit_is_refused(
    data: Path, train: Refused, tmp_path: Path, index: np.ndarray, message: str
) -> None:
    np.save(tmp_path / "noise.npy", index, allow_pickle=True)
    answer = train(data, "--noise", "0", "--noise-file", str(tmp_path / "noise.npy"))
    assert all(part in answer for part in message.split(" * "))


def test_a_noise_file_and_a_rate_are_refused_together(data: Path, train: Refused, tmp_path: Path) -> None:
    np.save(tmp_path / "noise.npy", np.arange(24))
    message = train(data, "--noise-file", str(tmp_path / "noise.npy"))
    assert "noise.file: cannot be combined with noise.rate = 0.4" in message


def test_an_unknown_level_is_refused_with_the_known_ones(data: Path, train: Refused, refused: Refused) -> None:
    message = refused("noise", data, "--rate", "0.4", "--level", "captions", "-o", data / "x.npy")
    assert "unknown noise level 'captions' (did you mean 'caption'?); expected caption or image" in message
    assert "noise.level: must be one of caption, image" in train(data, "--noise-level", "captions")


# Tables


def write_table(folder: Path, text: str) -> Path:
    (folder / "pairs.csv").write_text(text)
    np.save(folder / "features.npy", np.zeros((2, 3), dtype=np.float32))
    (folder / "ids.txt").write_text("a.jpg\nb.jpg\n")
    return folder / "pairs.csv"


def test_a_table_without_the_columns_is_refused_with_those_it_has(tmp_path: Path, train: Refused) -> None:
    table = write_table(tmp_path, "picture,captoin\na.jpg,a dog\n")
    message = train(table)
    assert f"{table}: no column 'image'; columns: picture, captoin" in message
    assert "no column 'caption' (did you mean 'captoin'?)" in message  # all that is wrong at once


def test_an_image_without_features_is_refused_with_its_row_and_the_nearest(tmp_path: Path, train: Refused) -> None:
    table = write_table(tmp_path, "image,caption,split\na.jpg,a dog,train\nb.jpeg,a cat,train\na.jpg,x,dev\n")
    message = train(table)
    assert (
        f"{table}:row 2 (the first is 1): image 'b.jpeg' has no features: it is not in {tmp_path / 'ids.txt'}"
        in message
    )
    assert "(did you mean 'b.jpg'?)" in message


def test_a_table_without_features_is_refused_with_where_they_could_be(tmp_path: Path, train: Refused) -> None:
    table = write_table(tmp_path, "image,caption\na.jpg,a dog\nb.jpg,a cat\n")
    (tmp_path / "features.npy").unlink()
    message = train(table)
    assert f"{table}: no features of its images: neither features.npy nor pairs_ims.npy" in message
    assert "`crcl features`" in message


def test_features_for_a_folder_are_refused(data: Path, train: Refused) -> None:
    message = train(data, "--features", str(data / "train_ims.npy"))
    assert "this folder has its own features and ids; pass these with a table only" in message


# Names and values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "crlc"], "method: must be one of crcl, triplet, .* got 'crlc' \\(did you mean 'crcl'\\?\\)"),
        (["--matcher", "bwo"], "matcher.name: must be one of vse, bow, .* \\(did you mean 'bow'\\?\\)"),
        (["--preset", "f30k"], "unknown preset 'f30k'.* presets: cc152k-saf, "),
        (["--set", "loss.taw=1"], "loss.taw: unknown key \\(did you mean 'loss.tau'\\?\\)"),
        (["--set", "train.lr=fast"], "train.lr: must be a number, got 'fast'"),
        (["--set", "train.lr"], "must be key=value"),
        (["--device", "gpu"], "train.device: must be auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        (["--device", "cuda:77"], "device cuda:77: not available here; use cpu or auto"),
        (["--seed", "-1"], "train.seed: must be at least 0, got -1"),
    ],
)
def test_unknown_names_and_wrong_values_are_refused_with_the_right_ones(
    data: Path, refused: Refused, tmp_path: Path, words: list[str], message: str
) -> None:
    answer = refused("train", data, "-o", tmp_path / "new", *words)
    assert re.search(message, answer), answer
    assert not (tmp_path / "new").exists()


def test_every_wrong_setting_is_reported_at_once(data: Path, refused: Refused, tmp_path: Path) -> None:
    message = refused("train", data, "-o", tmp_path / "new", "--method", "x", "--set", "a.b=1", "--set", "loss.tau=-1")
    for key in ("method: ", "a.b: unknown key", "loss.tau: must be greater than 0"):
        assert key in message


def test_all_settings_that_contradict_each_other_are_reported_at_once(data: Path, train: Refused) -> None:
    settings = ("ledger.freeze_epochs=10", "ledger.probability=eval", "ledger.correction=official")
    message = train(data, "--set", "a.b=1", settings=settings)
    for key in ("a.b: unknown key", "ledger.freeze_epochs: 10 epochs", "ledger.probability=eval works with"):
        assert key in message


def test_commands_that_score_refuse_a_device_that_is_none(refused: Refused, run: Path) -> None:
    for name in ("evaluate", "audit"):
        assert "device 'gpu': must be auto, cpu, cuda, cuda:N or mps" in refused(name, run, "--device", "gpu")


def test_an_unknown_split_is_refused_with_those_there(refused: Refused, run: Path) -> None:
    assert "no split 'tset' (did you mean 'test'?)" in refused("evaluate", run, "--split", "tset")


def test_a_threshold_that_is_no_belief_is_refused(refused: Refused, run: Path) -> None:
    assert "threshold must be between 0 and 1, got 2" in refused("audit", run, "--threshold", "2")


def test_unknown_commands_and_options_are_refused(refused: Refused, data: Path) -> None:
    assert "No such command 'trian'" in refused("trian")
    assert "No such option" in refused("info", data, "--colour")
    assert "Missing option" in refused("train", data)
    assert "20" in refused("demo", "--images", "3")


# Run folders


def test_a_run_folder_of_another_version_is_refused(refused: Refused, run: Path, data: Path) -> None:
    content = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**content, "format": FORMAT + 1}))
    for words in (["evaluate", run], ["audit", run], ["info", run], train_command(data, run, "--resume")):
        message = refused(*words)
        assert f"{run}: a run folder of format {FORMAT + 1}, this version reads format {FORMAT}" in message


def test_an_existing_run_folder_is_not_overwritten_without_being_asked(refused: Refused, run: Path, data: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    message = refused(*train_command(data, run))
    assert f"{run}: exists already; pass --resume to continue it, or --overwrite to replace it" in message
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_folder_that_is_no_run_is_neither_resumed_nor_overwritten(refused: Refused, data: Path) -> None:
    before = sorted(path.name for path in data.iterdir())
    assert "not a run folder" in refused(*train_command(data, data, "--resume"))
    assert "not a run folder, so it is not overwritten" in refused(*train_command(data, data, "--overwrite"))
    assert sorted(path.name for path in data.iterdir()) == before


def test_runs_and_data_that_do_not_belong_together_are_refused(refused: Refused, run: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", train=20)
    message = refused("audit", run, "--data", other)
    assert f"40 training pairs of 4 regions, but {run} was trained on 48 pairs of 4" in message
    replace_features(other, lambda features: features[:, :, :3], split="test")
    message = refused("evaluate", run, "--data", other)
    assert f"{other / 'test_ims.npy'}: 3 numbers per region, but {run} was trained on 6" in message


@pytest.mark.slow
def test_a_real_process_answers_bad_input_with_exit_code_2_and_no_traceback(data: Path, tmp_path: Path) -> None:
    replace_caption(data, 5, b"a caf\xe9 in paris")
    answer = command(*train_command(data, tmp_path / "run"))
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith(f"crcl: {data / 'train_caps.txt'}:5: not UTF-8")
