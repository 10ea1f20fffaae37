"""The index folder: its scores are the run's similarities, adding is safe, and bad input is refused."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import call, start, train_command, write_folder

import crcl
from crcl.errors import InputError
from crcl.retrieval.index.exact import nearest

METHODS = {"crcl": "bow", "relink": "bow", "ncr": "vse"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run of one network, of one with a companion, and of two networks."""
    folder = tmp_path_factory.mktemp("indexed")
    data = write_folder(folder / "data")
    for method, matcher in METHODS.items():
        settings = {key: value for key, _, value in (word.partition("=") for word in SETTINGS)}
        settings["matcher.name"] = matcher
        given = [f"{key}={value}" for key, value in settings.items()]
        crcl.train(data, folder / method, method=method, settings=given)
    crcl.index(folder / "crcl", folder / "made", data=data)
    return folder


SETTINGS = [word for word in train_command(Path(), Path()) if "=" in word]


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_the_similarities_of_the_run(home: Path, method: str) -> None:
    model = crcl.load(home / method, device="cpu")
    index = crcl.index(model, home / f"{method}.index", data=home / "data", split="test", overwrite=True)
    test = crcl.read(home / "data").split("test")
    sims = model.similarity(test.gather(np.arange(test.images)), ["a red dog on the grass", "a white car"])
    scores, positions = index.search_vectors(model.encode_texts(["a red dog on the grass", "a white car"]), k=99)
    assert index.images == list(test.image_ids)
    for column in range(2):
        assert np.allclose(scores[column], sims[positions[column], column], atol=2e-3)


def test_a_search_finds_what_the_sentence_says(home: Path) -> None:
    hits = crcl.search(home / "made", "a red dog on the grass", k=5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.captions for hit in hits)


def test_a_run_in_place_of_an_index_is_refused_by_a_sentence(home: Path) -> None:
    with pytest.raises(
        crcl.InputError, match=r"expected an index or its path, got Run\(.*; crcl.index\(...\) makes one"
    ):
        crcl.search(crcl.load(home / "crcl").run, "a red dog")  # type: ignore[arg-type]


def test_an_image_finds_the_other_images_and_captions_too(home: Path) -> None:
    keys = [hit.key for hit in crcl.search(home / "made", like="test3.jpg", k=99)]
    assert len(keys) == 39
    assert "test3.jpg" not in keys
    assert len(crcl.search(home / "made", like="test3.jpg", what="captions", k=4)) == 4


def test_adding_is_idempotent_and_gives_what_one_build_gives(home: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    for split in ("train", "dev", "test", "test"):
        index = crcl.index(home / "crcl", parts, data=home / "data", split=split, add=parts.exists())
    whole = crcl.Index.open(home / "made")
    assert index.images == whole.images
    assert index.captions == whole.captions
    assert np.allclose(index.vectors(), whole.vectors(), atol=1e-3)
    assert index.about.parts == 3


def test_a_killed_add_leaves_the_old_index_which_can_be_added_to(home: Path, tmp_path: Path) -> None:
    crcl.index(home / "crcl", tmp_path / "old", data=home / "data", split="dev")
    before = crcl.Index.open(tmp_path / "old").images
    process = start("index", str(home / "crcl"), str(home / "data"), "-o", str(tmp_path / "old"), "--add")
    grown = (tmp_path / "old/images.f16").stat().st_size
    for _ in range(3000):
        if process.poll() is not None or (tmp_path / "old/images.f16").stat().st_size > grown:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    after = crcl.Index.open(tmp_path / "old").images
    assert after == before or len(after) == 40
    assert len(crcl.index(home / "crcl", tmp_path / "old", data=home / "data", add=True).images) == 40


def test_what_a_killed_process_wrote_behind_the_counts_is_not_read(home: Path, tmp_path: Path) -> None:
    crcl.index(home / "crcl", tmp_path / "old", data=home / "data", split="dev")
    with (tmp_path / "old/images.f16").open("ab") as file:
        file.write(b"\xff" * 1000)
    added = crcl.index(home / "crcl", tmp_path / "old", data=home / "data", add=True)
    assert np.isfinite(added.vectors().astype(np.float32)).all()
    assert len(added.images) == 40


def test_the_commands_index_and_search(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = str(tmp_path / "made")
    assert call(capsys, monkeypatch, "index", str(home / "crcl"), str(home / "data"), "-o", made).code == 0
    answer = call(capsys, monkeypatch, "search", made, "a red dog", "-k", "2", "--json")
    assert [hit["rank"] for hit in json.loads(answer.out)] == [1, 2]
    assert call(capsys, monkeypatch, "search", made, "a red dog").code == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere", "a dog"], "no such index"),
        (["redis://me:geheim@host/x", "a dog"], "redis://me@host/x: not the address of an engine; expected qdrant://"),
        (["made", " "], "empty text"),
        (["made"], "give one of the three"),
        (["made", "a dog", "-k", "0"], "at least 1"),
        (["made", "--like", "test33.jpg"], "no image 'test33.jpg'"),
        (["made", "a dog", "--run", "ncr"], "is an index of"),
        (["made", "--image", "nowhere.jpg"], "nknown origin"),
    ],
)
def test_bad_input_of_search_is_a_message(
    home: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    answer = call(capsys, monkeypatch, "search", *words)
    assert answer.code == 2
    assert expected in answer.err


def test_k_may_be_larger_than_the_index(home: Path) -> None:
    assert len(crcl.search(home / "made", "a dog", k=10**9)) == 40
    assert len(crcl.search(home / "made", "a dog", k=np.int64(3))) == 3


def test_existing_folders_and_other_runs_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        crcl.index(home / "crcl", home / "made", data=home / "data")
    with pytest.raises(InputError, match="not an index"):
        crcl.index(home / "crcl", home / "data", data=home / "data", overwrite=True)
    with pytest.raises(InputError, match="another run"):
        crcl.index(home / "ncr", home / "made", data=home / "data", add=True)


def test_a_damaged_index_is_refused(home: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(home / "made", tmp_path / "damaged"))
    (damaged / "images.f16").write_bytes(b"")
    with pytest.raises(InputError, match="damaged"):
        crcl.search(damaged, "a dog")
    (damaged / "images.f16").unlink()
    with pytest.raises(InputError, match=r"damaged or incomplete index \(images.f16\)"):
        crcl.index(home / "crcl", damaged, data=home / "data", add=True)
    (damaged / "index.json").write_text("[]")
    with pytest.raises(InputError, match="damaged"):
        crcl.Index.open(damaged)
    good = json.loads((home / "made/index.json").read_text("utf-8"))
    wrong = {"measured": [{"p50": "quick", "p99": 1}, {"p50": 1.0}, [1]], "matcher": [7], "size": [True, -1, 1.5]}
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        (damaged / "index.json").write_text(json.dumps(good | {name: value}))
        with pytest.raises(InputError, match="damaged"):
            crcl.Index.open(damaged)


def test_an_index_whose_run_is_gone_says_so_and_takes_another_place(home: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(home / "made", tmp_path / "moved"))
    about = json.loads((moved / "index.json").read_text("utf-8"))
    (moved / "index.json").write_text(json.dumps(about | {"run": str(tmp_path / "gone")}))
    with pytest.raises(InputError, match=r"moved: the index is of the run .*gone, which is not there any more; say wh"):
        crcl.search(moved, "a dog")
    assert len(crcl.search(moved, "a dog", run=home / "crcl", k=2)) == 2
    assert len(crcl.search(moved, like=crcl.Index.open(moved).images[0], k=2)) == 2


def test_a_local_matcher_is_told_the_way_in_two_stages(home: Path, tmp_path: Path) -> None:
    given = [word for word in SETTINGS if "matcher.name" not in word]
    crcl.train(home / "data", tmp_path / "sgr", matcher="sgr", settings=[*given, "matcher.similarity=4"])
    with pytest.raises(InputError, match="two stages"):
        crcl.index(tmp_path / "sgr", tmp_path / "index", data=home / "data")


@pytest.mark.parametrize("held", [1, 60, 10**6])
def test_blocks_find_what_one_product_finds(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr("crcl.retrieval.index.exact._BLOCK", 70)
    monkeypatch.setattr("crcl.retrieval.index.exact._SCORES", held)
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(100, 7)).astype(np.float16), rng.normal(size=(3, 7)).astype(np.float32)
    scores, rows = nearest(vectors, queries, 5)
    sims = queries @ vectors.astype(np.float32).T
    assert (rows == np.argsort(-sims, axis=1)[:, :5]).all()
    assert np.allclose(scores, -np.sort(-sims, axis=1)[:, :5], atol=1e-5)
