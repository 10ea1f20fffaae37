"""Decoys of several kinds in a training: read again from its folder, resumed, told where a kind is not possible."""

import json
from pathlib import Path

import numpy as np
import pytest
from embedded import write_embeddings
from small_clip import draw_scenes, save_clip
from small_encoder import save_encoder
from tiny import Noting, Stop, StopAfter, assert_same_runs, call, small_config, train_command, write_folder

import crcl
from crcl.features.language import LanguageModel
from crcl.methods.relink.method import Relink
from crcl.progress import Clock
from crcl.runs.folder import Run
from crcl.training import session
from crcl.training.build import prepare
from crcl.training.inputs import read_data

ALL = 'data.decoy_kinds=["swap","random","near"]'
LINEAR = ("method=relink", "matcher.name=linear-vectors", "train.pieces=[2]")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("kinds") / "data", train=60)


def test_a_training_has_decoys_of_each_kind_and_its_folder_gives_them_again(data: Path, tmp_path: Path) -> None:
    config = small_config(data, "data.decoys=0.1", ALL)
    assert config.data.decoy_kinds == ("random", "near", "swap")
    said: list[str] = []
    run = session.train(config, tmp_path / "run", progress=Noting(said))
    assert "training on 120 pairs and 50 decoys (known mismatches)" in said
    assert run.decoy_kinds().tolist() == ["random"] * 30 + ["near"] * 10 + ["swap"] * 10
    assert run.load_ledger().shape == (120,)
    assert run.load_decoy_ledger().shape == (50,)
    again, fresh = read_data(config, Run.open(tmp_path / "run")), read_data(config)
    drawn = run.drawn_decoys()
    assert drawn is not None
    assert drawn.equals(again.drawn)
    assert drawn.equals(fresh.drawn)
    np.testing.assert_array_equal(run.decoys(), again.decoys)
    assert again.train.captions[-10:] == list(drawn.texts)
    for caption, swapped, text in zip(drawn.drawn[-10:, 0], range(160, 170), drawn.texts, strict=True):
        assert again.train.captions[caption] != text
        assert (again.tokens[swapped] != again.tokens[int(caption)]).sum() == 1  # type: ignore[index]
        assert again.train.image_index[swapped] == again.train.image_index[caption]
    alone = session.train(small_config(data, "data.decoys=0.1"), tmp_path / "alone")
    np.testing.assert_array_equal(alone.decoys(), drawn.drawn[:30])
    assert alone.decoy_kinds().tolist() == ["random"] * 30
    assert not (alone.path / "decoy_kinds.json").exists()


@pytest.mark.parametrize("settings", [[], ["method=relink"], ["method=relink", "matcher.name=linear"]])
def test_a_training_with_all_kinds_that_is_lost_ends_bit_identical(
    data: Path, tmp_path: Path, settings: list[str]
) -> None:
    config = small_config(data, "data.decoys=0.1", ALL, "train.pieces=[2]", "train.save_minutes=0", *settings)
    whole = session.train(config, tmp_path / "whole").path
    with pytest.raises(Stop):
        session.train(config, tmp_path / "lost", progress=StopAfter(3))
    session.train(config, tmp_path / "lost", resume=True)
    assert_same_runs(tmp_path / "lost", whole)
    for name in ("decoys.npy", "decoy_kinds.json"):
        assert (tmp_path / "lost" / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_from_before_there_were_kinds_is_resumed_to_the_same_end(data: Path, tmp_path: Path) -> None:
    config = small_config(data, "data.decoys=0.1", "train.save_minutes=0")
    whole = session.train(config, tmp_path / "whole").path
    with pytest.raises(Stop):
        session.train(config, tmp_path / "old", progress=StopAfter(3))
    about = json.loads((tmp_path / "old/config.json").read_text())
    assert about["config"]["data"].pop("decoy_kinds") == ["random"]
    assert "decoy_kinds.json" not in about["files"]
    (tmp_path / "old/config.json").write_text(json.dumps(about))
    session.train(config, tmp_path / "old", resume=True)
    assert_same_runs(tmp_path / "old", whole)


def test_kinds_cannot_change_on_the_way(data: Path, tmp_path: Path) -> None:
    session.train(small_config(data, "data.decoys=0.1"), tmp_path / "run")
    with pytest.raises(crcl.InputError, match="decoy_kinds"):
        session.train(small_config(data, "data.decoys=0.1", ALL), tmp_path / "run", resume=True)


def test_relink_fits_no_caption_that_a_decoy_of_any_kind_is_made_of(data: Path) -> None:
    config = small_config(data, "method=relink", "data.decoys=0.1", ALL)
    read = read_data(config)
    method, batches = prepare(config, read)
    assert isinstance(method, Relink)
    method.begin_piece(0)
    assert read.decoys is not None
    taught = method._linear_model(batches).shown.taught
    assert not taught[read.decoys[:, 0]].any()
    assert taught.sum() == 120 - 50
    drawn = method._draw(batches, Clock(0, 0, 0, 0, 0.01))
    assert (drawn[:, read.decoys[:, 0]] == -1).all()


def test_captions_that_are_vectors_of_unknown_origin_have_no_exchanged_words(tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "data", 300, text=10)
    said: list[str] = []
    run = session.train(
        small_config(embeddings, *LINEAR, "data.decoys=0.1", ALL), tmp_path / "run", progress=Noting(said)
    )
    assert set(run.decoy_kinds()) == {"random", "near"}
    assert any("no decoys with an exchanged word" in line and "text model" in line for line in said)


def test_where_no_word_can_be_exchanged_that_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", train=60)
    (folder / "train_caps.txt").write_text("".join(f"etwas {row}\n" for row in range(120)), "utf-8")
    said: list[str] = []
    config = small_config(folder, "data.decoys=0.1", "data.min_count=1", ALL)
    assert set(session.train(config, tmp_path / "run", progress=Noting(said)).decoy_kinds()) == {"random", "near"}
    assert any("no word to exchange" in line for line in said)


def test_the_text_model_of_the_captions_reads_exchanged_words_too(tmp_path: Path) -> None:
    table = draw_scenes(tmp_path / "scenes", train=60)
    model = save_encoder(tmp_path / "bert", size=16, positions=80)
    pairs = crcl.read(table, images=tmp_path / "scenes/images")
    given = {
        "text_model": str(model),
        "matcher": "linear-vectors",
        "method": "relink",
        "settings": ["train.pieces=[2]"],
    }
    run = crcl.train(pairs, tmp_path / "run", decoys=0.25, decoy_kinds="random,swap", **given)
    drawn = run.drawn_decoys()
    assert drawn is not None
    assert drawn.vectors is not None
    assert len(drawn.texts) == len(drawn.vectors) == 10
    encoder = LanguageModel(str(model))
    for text, vector in zip(drawn.texts, drawn.vectors, strict=True):
        np.testing.assert_allclose(vector, encoder.compute([encoder.tokenize([text])[0][0]])[0], atol=2e-3)
    again = crcl.train(pairs, tmp_path / "run", resume=True, decoys=0.25, decoy_kinds=["swap", "random"], **given)
    assert drawn.equals(again.drawn_decoys())


def test_words_that_a_text_model_does_not_read_are_not_exchanged(tmp_path: Path) -> None:
    table = draw_scenes(tmp_path / "scenes", train=60)
    model = save_clip(tmp_path / "clip")  # reads ten letters
    pairs = crcl.read(table, images=tmp_path / "scenes/images")
    given = {"model": str(model), "matcher": "linear-vectors", "method": "relink", "settings": ["train.pieces=[2]"]}
    run = crcl.train(pairs, tmp_path / "run", decoys=0.25, decoy_kinds="random,swap", **given)
    drawn = run.drawn_decoys()
    assert drawn is not None
    assert len(drawn.texts) < 10
    encoder = LanguageModel(str(model))
    captions = list(pairs.with_features(**features_of(tmp_path)).split("train").captions)
    for text, caption in zip(drawn.texts, drawn.drawn[drawn.kinds == "swap", 0], strict=True):
        assert encoder.tokenize([text])[0][0] != encoder.tokenize([captions[caption]])[0][0]


def features_of(folder: Path) -> dict[str, Path]:
    made = folder / "run-features"
    return {"features": made / "features.npy", "ids": made / "ids.txt"}


def test_kinds_by_the_command_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = train_command(data, tmp_path / "run")
    answer = call(capsys, monkeypatch, *words, "--decoys", "0.1", "--decoy-kinds", "near, random")
    assert answer.code == 0, answer.err
    assert set(Run.open(tmp_path / "run").decoy_kinds()) == {"random", "near"}
    refused = train_command(data, tmp_path / "other")
    answer = call(capsys, monkeypatch, *refused, "--decoys", "0.1", "--decoy-kinds", "close")
    assert answer.code == 2
    assert "data.decoy_kinds" in answer.err
    assert "must be one of random, near, swap, got 'close'" in answer.err
    answer = call(capsys, monkeypatch, *refused, "--decoy-kinds", "near")
    assert answer.code == 2
    assert "--decoys" in answer.err
    assert not (tmp_path / "other").exists()
