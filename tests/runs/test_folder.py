"""The run folder: whole or refused, never half-written, never unpickled, never lost by accident."""

import json
import multiprocessing
import multiprocessing.process
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Answer, Stop, StopAfter, call, room, small_config, train_command, write_folder

from crcl.data.batches import Standardize
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError, TrainingError
from crcl.runs.about import FORMAT
from crcl.runs.folder import Run
from crcl.runs.overwriting import refuse_existing
from crcl.storage import is_locked, locked, write_bytes
from crcl.training import session

SIZES = {"pairs": 3, "images": 2, "regions": 1, "features": 4, "vocabulary": 6, "networks": 1}
WORDS = Vocabulary.build(["dog"], minimum=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("checkpoint") / "data")


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    return session.train(small_config(data, "data.standardize=true"), data.parent / "trained").path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to break."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: Path, run: Path
) -> Callable[[str], Answer]:
    """Give the broken run to one of the commands."""
    words = {
        "train": train_command(data, run, "--resume", settings=["data.standardize=true"]),
        "evaluate": ["evaluate", str(run)],
        "audit": ["audit", str(run)],
        "info": ["info", str(run)],
    }
    return lambda name: call(capsys, monkeypatch, *words[name])


DEV = {"rsum": 6.0, "i2t": {"r1": 1.0}, "t2i": {"r1": 1.0}}


def create(path: Path, **options: Any) -> Run:
    return Run.create(path, config={"a": 1}, sizes=SIZES, fingerprint="known", vocabulary=WORDS, **options)


def test_what_was_put_into_a_run_folder_comes_out_again(tmp_path: Path) -> None:
    noise = np.array([1, 0, 1])
    standardize = Standardize(np.arange(4, dtype=np.float32), 2.5)
    create(tmp_path / "deep" / "run", noise=noise, standardize=standardize)
    run = Run.open(tmp_path / "deep" / "run")
    assert (run.config, run.sizes) == ({"a": 1}, SIZES)
    assert run.vocabulary().words == WORDS.words
    np.testing.assert_array_equal(run.noise(), noise)
    np.testing.assert_array_equal(run.standardize().mean, standardize.mean)
    assert run.standardize().deviation == 2.5
    run.save_matcher({"weight": torch.arange(6.0).reshape(2, 3).T})
    assert torch.equal(run.load_matcher()["weight"], torch.arange(6.0).reshape(2, 3).T)
    run.save_ledger(np.array([0.5, 1, 0], dtype=np.float32))
    np.testing.assert_array_equal(run.load_ledger(), np.array([0.5, 1, 0], dtype=np.float32))
    assert run.load_state() is None
    run.save_state({"tensor": torch.ones(2), "plain": [1, "a", None]})
    assert run.load_state()["plain"] == [1, "a", None]
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["run"]


def test_partners_come_out_again_without_those_of_decoys_and_a_run_may_have_none(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    assert run.load_partners() is None
    images = np.array([[1], [0], [1], [0]])
    beliefs = np.array([[0.25], [0], [1], [0.5]])
    run.save_partners(images, beliefs)
    found = Run.open(tmp_path / "run").load_partners()
    assert found is not None
    assert [part.dtype for part in found] == [np.int64, np.float32]
    np.testing.assert_array_equal(found[0], images[:3])
    np.testing.assert_array_equal(found[1], beliefs[:3])


GOOD = np.array([[1], [0], [1]]), np.array([[0.25], [0], [1]], dtype=np.float32)


@pytest.mark.parametrize(
    ("images", "beliefs"),
    [
        (GOOD[0][:2], GOOD[1][:2]),
        (GOOD[0][:, 0], GOOD[1][:, 0]),
        (GOOD[0], GOOD[1][:2]),
        (GOOD[0].astype(np.float32), GOOD[1]),
        (GOOD[0], GOOD[1].astype(np.float64)),
        (GOOD[0] + 1, GOOD[1]),
        (GOOD[0] - 1, GOOD[1]),
        (GOOD[0], GOOD[1] * 2),
        (GOOD[0], GOOD[1] * np.float32(np.nan)),
    ],
)
def test_partners_that_no_training_writes_are_refused(tmp_path: Path, images: np.ndarray, beliefs: np.ndarray) -> None:
    run = create(tmp_path / "run")
    np.savez(run.path / "partners.npz", images=images, beliefs=beliefs)
    with pytest.raises(InputError, match=r"partners\.npz: damaged \(.*train again"):
        run.load_partners()


def test_a_broken_file_of_partners_is_named(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    for content in (b"", b"nothing"):
        (run.path / "partners.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"partners\.npz: damaged"):
            run.load_partners()


def test_a_run_without_noise_and_scale_has_none(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    assert run.noise() is None
    assert run.standardize() is None


def test_a_run_records_how_its_features_were_made(tmp_path: Path) -> None:
    made = {"extractor": "vision", "model": "a/b", "settings": {"rows": 3}}
    assert create(tmp_path / "known", made=made).made == Run.open(tmp_path / "known").made == made
    assert create(tmp_path / "given").made == Run.open(tmp_path / "given").made == {}


@pytest.mark.parametrize("found", [0, FORMAT + 1, "1", None])
def test_a_run_folder_of_another_format_is_refused_with_both_numbers(tmp_path: Path, found: Any) -> None:
    create(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**content, "format": found}))
    with pytest.raises(InputError, match=rf"format {found}, this version reads format {FORMAT}.*train again"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize(
    "content",
    [
        {"format": FORMAT},
        {"format": FORMAT, "config": {}, "sizes": {}},
        {"format": FORMAT, "config": [], "sizes": SIZES},
        {"format": FORMAT, "config": {}, "sizes": {**SIZES, "pairs": "three"}},
        {"format": FORMAT, "config": {}, "sizes": SIZES, "files": 5},
        {"format": FORMAT, "config": {}, "sizes": SIZES, "made": "by hand"},
    ],
)
def test_an_incomplete_config_is_refused(tmp_path: Path, content: Any) -> None:
    create(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"config\.json: incomplete"):
        Run.open(tmp_path / "run")


def test_a_missing_folder_and_one_that_is_no_run_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"not a run folder \(it has no config\.json\)"):
        Run.open(tmp_path)


# Which commands can still do their work without a file, or with a damaged one; all others must say so.
NEEDS = {
    "config.json": {"train", "evaluate", "audit", "info"},
    "vocab.json": {"train", "evaluate", "audit", "info"},
    "noise.npy": {"train", "evaluate", "audit", "info"},
    "standardize.npz": {"train", "evaluate", "audit", "info"},
    "matcher.safetensors": {"train", "evaluate", "audit"},
    "ledger.npz": {"train", "audit", "info"},
    "training.pt": set(),
    "metrics.jsonl": {"train"},
}
READS = {
    "config.json": {"train", "evaluate", "audit", "info"},
    "vocab.json": {"train", "evaluate", "audit"},
    "noise.npy": {"train", "audit"},
    "standardize.npz": {"train", "evaluate", "audit"},
    "matcher.safetensors": {"train", "evaluate", "audit"},
    "ledger.npz": {"train", "audit", "info"},
    "training.pt": {"train"},
    "metrics.jsonl": {"train"},
}
COMMANDS = ["train", "evaluate", "audit", "info"]


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("asked", COMMANDS)
def test_half_a_run_folder_is_noticed_by_each_command_that_needs_the_missing_file(
    ask: Callable[[str], Answer], run: Path, name: str, asked: str
) -> None:
    (run / name).unlink()
    answer = ask(asked)
    if asked not in NEEDS[name]:
        assert answer.code == 0, answer.err
        return
    assert answer.code == 2
    assert str(run) in answer.err
    if name != "config.json":
        assert name in answer.err
        assert "--overwrite" in answer.err


def shorten(content: bytes) -> bytes:
    return content[: len(content) // 2]


def garbage(content: bytes) -> bytes:
    return np.random.default_rng(0).bytes(300)


def nothing(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [shorten, garbage, nothing])
@pytest.mark.parametrize("name", READS)
def test_a_damaged_file_is_named_by_each_command_that_reads_it(
    ask: Callable[[str], Answer], run: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    (run / name).write_bytes(damage((run / name).read_bytes()))
    for asked in COMMANDS:
        answer = ask(asked)
        assert answer.code in (0, 2), answer.err
        if asked in READS[name]:
            assert answer.code == 2, asked
            assert str(run / name) in answer.err
            assert "damaged" in answer.err or "not a JSON file" in answer.err


class Evil:
    """A pickle that would leave a mark if it were loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_nothing_in_a_run_folder_is_ever_unpickled(
    ask: Callable[[str], Answer], run: Path, trained: Path, tmp_path: Path
) -> None:
    evil = Evil(tmp_path / "mark")
    kinds: dict[str, Callable[[Path], None]] = {
        "pickle": lambda path: path.write_bytes(pickle.dumps(evil, protocol=2)),
        "torch": lambda path: torch.save(evil, path),
        "array": lambda path: np.save(path.open("wb"), np.array([evil], dtype=object), allow_pickle=True),
        "arrays": lambda path: np.savez(path.open("wb"), correspondence=np.array([evil], dtype=object)),
    }
    files = ("training.pt", "ledger.npz", "noise.npy", "standardize.npz", "matcher.safetensors", "vocab.json")
    for name in files:
        for write in kinds.values():
            write(run / name)
            for asked in COMMANDS:
                answer = ask(asked)
                assert answer.code == 2 or asked not in READS[name], (name, asked)
                assert "allow_pickle" not in answer.err
                assert "weights_only" not in answer.err  # torch would advise to unpickle
        shutil.copy(trained / name, run / name)
    assert not evil.mark.exists()
    pickle.loads(pickle.dumps(evil))
    assert evil.mark.exists()  # it would have worked


def test_weights_of_another_shape_are_refused(ask: Callable[[str], Answer], run: Path) -> None:
    Run.open(run).save_matcher({"weight": torch.ones(2)})
    answer = ask("evaluate")
    assert answer.code == 2
    assert "does not fit its config.json" in answer.err


def test_words_of_another_number_are_refused(ask: Callable[[str], Answer], run: Path) -> None:
    WORDS.save(run / "vocab.json")
    answer = ask("evaluate")
    assert answer.code == 2
    assert f"vocab.json: {len(WORDS)} words, the run was trained with" in answer.err


def test_an_existing_folder_is_not_replaced_without_being_asked(tmp_path: Path) -> None:
    first = create(tmp_path / "run")
    with pytest.raises(InputError, match=r"exists already; pass resume=True .* overwrite=True to"):
        create(tmp_path / "run")
    first.save_ledger(np.ones(1))
    create(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "ledger.npz").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_overwriting_refuses_what_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"dear")
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "clip"}')
    for name in ("photos", "letter", "model"):
        with pytest.raises(InputError, match="not a run folder, so it is not overwritten"):
            create(tmp_path / name, overwrite=True)
    assert (tmp_path / "photos" / "a.jpg").read_bytes() == b"dear"
    assert (tmp_path / "model" / "config.json").exists()
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty", overwrite=True)
    refuse_existing(tmp_path / "new", overwrite=False)


def test_a_run_whose_config_is_damaged_can_be_overwritten(tmp_path: Path) -> None:
    create(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{")
    create(tmp_path / "run", overwrite=True)
    assert Run.open(tmp_path / "run").sizes == SIZES


def test_overwriting_never_deletes_what_the_training_reads(tmp_path: Path) -> None:
    create(tmp_path / "run")
    table = tmp_path / "run" / "pairs.csv"
    table.write_text("dear")
    config = {"data": {"path": str(table)}}
    with pytest.raises(InputError, match=r"holds .*pairs.csv, which is read, so it is not overwritten"):
        Run.create(tmp_path / "run", config=config, sizes=SIZES, fingerprint="known", vocabulary=WORDS, overwrite=True)
    assert table.read_text() == "dear"


@pytest.mark.parametrize("path", [".", ".."])
def test_the_folder_one_is_in_is_not_made_a_run(tmp_path: Path, monkeypatch, path: str) -> None:
    (tmp_path / "within").mkdir()
    monkeypatch.chdir(tmp_path / "within")
    with pytest.raises(InputError, match="is the current folder, or one above it"):
        create(Path(path))
    assert list(tmp_path.rglob("*")) == [tmp_path / "within"]


def test_links_in_a_strangers_run_folder_are_not_written_through(tmp_path: Path) -> None:
    dear = tmp_path / "dear"
    dear.write_text("dear")
    run = create(tmp_path / "run")
    (run.path / ".audit.csv.tmp").symlink_to(dear)
    write_bytes(run.path / "audit.csv", b"pairs")
    assert (run.path / "audit.csv").read_bytes() == b"pairs"
    (run.path / "metrics.jsonl").symlink_to(dear)
    with pytest.raises(InputError, match=r"metrics.jsonl: a link, which a training would write through"), run.locked():
        pass
    (run.path / "metrics.jsonl").unlink()
    (run.path / ".lock").symlink_to(dear)
    with pytest.raises(InputError, match="cannot be written"), locked(run.path):
        pass
    assert not is_locked(run.path)
    assert dear.read_text() == "dear"


def test_a_folder_that_cannot_be_made_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        create(tmp_path / "file" / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_at_the_start_leaves_no_folder_and_the_one_to_overwrite_as_it_was(tmp_path: Path) -> None:
    with room(10), pytest.raises(TrainingError, match="could not save"):
        create(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    create(tmp_path / "run").save_ledger(np.ones(1))
    with room(10), pytest.raises(TrainingError, match="could not save"):
        create(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "ledger.npz").exists()


def test_a_full_disk_while_appending_is_told_and_the_half_line_is_taken_back(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    first, second = ({"piece": 0, "epoch": epoch, "loss": 1.5, "dev": DEV} for epoch in (0, 1))
    run.append("metrics.jsonl", first)
    length = run.length("metrics.jsonl")
    with room(length + 5), pytest.raises(TrainingError, match=r"could not save .*metrics\.jsonl"):
        run.append("metrics.jsonl", second)
    assert run.metrics() == [first]  # half a line is no line
    run.truncate("metrics.jsonl", length)
    run.append("metrics.jsonl", second)
    assert run.metrics() == [first, second]


@pytest.mark.parametrize(("weight", "told"), [(torch.ones(2).half(), "float16"), (torch.tensor([torch.nan]), "finite")])
def test_weights_that_no_training_writes_are_refused(tmp_path: Path, weight: torch.Tensor, told: str) -> None:
    run = create(tmp_path / "run")
    run.save_matcher({"layer.weight": weight})
    with pytest.raises(InputError, match=rf"matcher\.safetensors: damaged \(layer\.weight is .*{told}"):
        run.load_matcher()


DAMAGED = [{**DEV, "rsum": "abc"}, {**DEV, "i2t": 3}, {}, 3]


@pytest.mark.parametrize(
    "line",
    ["{}", "[]", "3", "{" * 5000, "not json"]
    + [json.dumps({"piece": 0, "epoch": 0, "loss": 1.5, "dev": dev}) for dev in DAMAGED],
)
def test_a_line_of_metrics_that_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    run = create(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl: damaged"):
        run.metrics()


@pytest.mark.parametrize(
    "beliefs",
    [
        np.ones(2, np.float32),
        np.full(3, 1.5, np.float32),
        np.full(3, -0.1, np.float32),
        np.full(3, np.nan, np.float32),
        np.array(["a", "b", "c"]),
        np.ones((3, 1)),
    ],
)
def test_a_ledger_that_is_not_a_belief_per_pair_is_refused(tmp_path: Path, beliefs: np.ndarray) -> None:
    run = create(tmp_path / "run")
    np.savez(run.path / "ledger.npz", correspondence=beliefs)
    with pytest.raises(InputError, match=r"ledger\.npz: damaged"):
        run.load_ledger()


@pytest.mark.parametrize("size", [0, -5, True, 10**13, "3", None])
def test_sizes_that_nothing_can_have_are_refused(tmp_path: Path, size: object) -> None:
    run = create(tmp_path / "run")
    content = json.loads((run.path / "config.json").read_text())
    content["sizes"]["vocabulary"] = size
    (run.path / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="incomplete"):
        Run.open(run.path)


def test_rests_of_a_killed_training_are_removed(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    (run.path / ".training.pt.tmp").write_bytes(b"half")
    with run.locked():
        assert not (run.path / ".training.pt.tmp").exists()


def in_another_process(work: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    """Fork, and exit with 2 where the work is refused."""

    def refused_with_two() -> None:
        try:
            work()
        except InputError as error:
            sys.exit(2 if "another process is training this run" in str(error) else 1)

    process = multiprocessing.get_context("fork").Process(target=refused_with_two)
    process.start()
    return process


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_second_process_is_locked_out_of_a_run_and_may_not_overwrite_it(data: Path, tmp_path: Path, how: str) -> None:
    with pytest.raises(Stop):
        session.train(small_config(data), tmp_path / "run", progress=StopAfter(5))
    before = (tmp_path / "run" / "training.pt").read_bytes()
    with Run.open(tmp_path / "run").locked():
        second = in_another_process(lambda: session.train(small_config(data), tmp_path / "run", **{how: True}))
        second.join()
    assert second.exitcode == 2
    assert (tmp_path / "run" / "training.pt").read_bytes() == before
    session.train(small_config(data), tmp_path / "run", **{how: True})


def test_a_killed_training_leaves_no_lock_though_its_workers_may_live_on(data: Path, tmp_path: Path) -> None:
    config = small_config(data, "train.pieces=[1,1000]", "train.workers=2", "train.save_minutes=0")
    training = in_another_process(lambda: session.train(config, tmp_path / "run"))
    try:
        while not (tmp_path / "run" / "training.pt").exists():
            assert training.is_alive()
            time.sleep(0.005)
    finally:
        training.kill()
        training.join()
    with Run.open(tmp_path / "run").locked():
        pass
