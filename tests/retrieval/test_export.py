"""Exports: the same similarities by ONNX and from the safetensors file, and nothing lost on the way."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from tiny import Answer, call, room, small_config, write_folder

from crcl.data.split import Split
from crcl.errors import InputError, TrainingError
from crcl.matchers.base import eval_mode
from crcl.matchers.kernels.pooling import GPO
from crcl.matchers.onnx_graphs import pooling_table
from crcl.retrieval import export
from crcl.retrieval.export_onnx import save_onnx
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.runs.folder import Run
from crcl.training import inputs, session

Crcl = Callable[..., Answer]
DOCS = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("export") / "data")


def trained(data: Path, name: str, *settings: str, networks: int = 1) -> Path:
    """A run with this matcher, kept for all tests; of two networks, the second has other weights."""
    path = data.parent / "-".join([name, *settings, str(networks)])
    if path.exists():
        return path
    if networks == 1:
        config = small_config(data, f"matcher.name={name}", "train.pieces=[1]", "ledger.freeze_epochs=0", *settings)
        return session.train(config, path).path
    shutil.copytree(trained(data, name, *settings), path)
    weights = Run.open(path).load_matcher()
    changed = {name: value * 1.1 if value.is_floating_point() else value.clone() for name, value in weights.items()}
    parts = enumerate((weights, changed))
    Run.open(path).save_matcher({f"members.{n}.{name}": value for n, part in parts for name, value in part.items()})
    about = json.loads((path / "config.json").read_text("utf-8"))
    about["sizes"]["networks"] = networks
    (path / "config.json").write_text(json.dumps(about), "utf-8")
    return path


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: call(capsys, monkeypatch, *map(str, words))


def opened(run: Path) -> tuple[Scorer, Split]:
    _, config, scorer = open_scorer(run)
    return scorer, inputs.open_pairs(config).split("test")


def onnx_session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def vectors_by_onnx(folder: Path, scorer: Scorer, pairs: Split, *, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """All images and captions of the pairs in one batch each, with garbage as padding."""
    rng = np.random.default_rng(0)
    features = pairs.gather(np.arange(pairs.images))
    mask = np.tile(np.arange(features.shape[1] + padding) < features.shape[1], (pairs.images, 1))
    garbage = rng.normal(size=(pairs.images, padding, features.shape[2])).astype(np.float32) * 1000
    (images,) = onnx_session(folder / "images.onnx").run(
        None, {"regions": np.concatenate([features, garbage], axis=1), "mask": mask}
    )
    captions = scorer.tokens(pairs)
    tokens = rng.integers(0, len(scorer.vocabulary), (len(pairs), captions.lengths.max() + padding))
    for row in range(len(pairs)):
        tokens[row, : captions.lengths[row]] = captions[row]
    (texts,) = onnx_session(folder / "texts.onnx").run(None, {"tokens": tokens, "lengths": captions.lengths})
    return images, texts


@pytest.mark.slow
@pytest.mark.parametrize("networks", [1, 2])
@pytest.mark.parametrize(
    ("name", "settings"), [("vse", ()), ("vse", ("data.standardize=true",)), ("bow", ("data.standardize=true",))]
)
def test_inner_products_of_the_graphs_vectors_are_the_similarities_whatever_the_padding(
    data: Path, tmp_path: Path, name: str, settings: tuple[str, ...], networks: int
) -> None:
    run = trained(data, name, *settings, networks=networks)
    difference = save_onnx(run, tmp_path / "graphs")
    assert difference is not None
    assert 0 < difference < 1e-5
    scorer, pairs = opened(run)
    expected = scorer.similarities(pairs)
    assert np.ptp(expected) > 0.1
    for padding in (0, 3):
        images, texts = vectors_by_onnx(tmp_path / "graphs", scorer, pairs, padding=padding)
        assert images.shape == (8, 8 * networks)
        np.testing.assert_allclose(images @ texts.T, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["vse", "bow"])
def test_any_number_of_images_regions_and_words_gives_what_torch_gives_for_each_alone(
    data: Path, tmp_path: Path, name: str
) -> None:
    run = trained(data, name)
    save_onnx(run, tmp_path / "graphs")
    scorer, _ = opened(run)
    images, texts = onnx_session(tmp_path / "graphs/images.onnx"), onnx_session(tmp_path / "graphs/texts.onnx")
    rng = np.random.default_rng(1)
    for batch, longest in ((1, 1), (4, 2), (3, 17), (2, 130)):
        lengths = rng.integers(1, longest + 1, batch)
        lengths[0] = longest
        regions = rng.normal(size=(batch, longest, 6)).astype(np.float32)
        tokens = rng.integers(0, len(scorer.vocabulary), (batch, longest))
        (found,) = images.run(None, {"regions": regions, "mask": np.arange(longest) < lengths[:, None]})
        (spoken,) = texts.run(None, {"tokens": tokens, "lengths": lengths})
        with eval_mode(scorer.matcher):
            for row, length in enumerate(lengths):
                part = torch.from_numpy(regions[row : row + 1, :length])
                image = scorer.matcher.encode_images(part, torch.ones(1, length, dtype=torch.bool))
                text = scorer.matcher.encode_texts(
                    torch.from_numpy(tokens[row : row + 1, :length]), torch.tensor([length])
                )
                np.testing.assert_allclose(found[row], image.features[0], atol=1e-5)
                np.testing.assert_allclose(spoken[row], text.features[0], atol=1e-5)


def test_repeated_words_weigh_in_the_graph_of_the_linear_matcher_as_in_torch(data: Path, tmp_path: Path) -> None:
    run = trained(data, "linear", "method=relink")
    save_onnx(run, tmp_path / "graphs")
    scorer, _ = opened(run)
    texts = onnx_session(tmp_path / "graphs/texts.onnx")
    size = len(scorer.vocabulary)
    tokens = np.array([[6, 6, 6, 6], [5, 6, 5, 7], [size - 1, 4, 4, 0], [1, 2, 0, 0]])
    lengths = np.array([4, 4, 3, 2])
    (found,) = texts.run(None, {"tokens": tokens, "lengths": lengths})
    with eval_mode(scorer.matcher):
        expected = scorer.matcher.encode_texts(torch.from_numpy(tokens), torch.from_numpy(lengths)).features
    assert found.shape == (4, 128)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("name", "sizes"), [("linear", (9,)), ("bow", (8, 9)), ("vse", (8, 9))])
def test_the_graphs_of_a_run_of_relink_give_the_mean_of_its_similarities(
    data: Path, tmp_path: Path, name: str, sizes: tuple[int, ...]
) -> None:
    run = trained(data, name, "method=relink", "matcher.linear=9", "data.standardize=true")
    difference = save_onnx(run, tmp_path / "graphs")
    assert difference is not None
    assert difference < 1e-5
    about = json.loads((tmp_path / "graphs/about.json").read_text("utf-8"))
    assert about["members"] == list(dict.fromkeys([name, "linear"]))
    assert about["images.onnx"]["vectors"] == about["texts.onnx"]["vectors"] == f"(batch, {sum(sizes)}) float32"
    scorer, pairs = opened(run)
    expected = scorer.similarities(pairs)
    assert np.ptp(expected) > 0.1
    for padding in (0, 3):
        images, texts = vectors_by_onnx(tmp_path / "graphs", scorer, pairs, padding=padding)
        assert images.shape == (8, sum(sizes))
        np.testing.assert_allclose(images @ texts.T, expected, atol=1e-5)


def test_an_image_of_one_region_has_a_graph_too(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    for split in ("train", "dev", "test"):
        np.save(data / f"{split}_ims.npy", np.load(data / f"{split}_ims.npy")[:, :1])
    run = session.train(small_config(data, "method=relink", "matcher.name=linear"), tmp_path / "run").path
    assert save_onnx(run, tmp_path / "graphs") < 1e-5
    scorer, pairs = opened(run)
    images, texts = vectors_by_onnx(tmp_path / "graphs", scorer, pairs, padding=0)
    np.testing.assert_allclose(images @ texts.T, scorer.similarities(pairs), atol=1e-5)


def test_an_image_whose_real_regions_are_not_the_first_is_the_same_image(data: Path, tmp_path: Path) -> None:
    save_onnx(trained(data, "vse"), tmp_path / "graphs")
    images = onnx_session(tmp_path / "graphs/images.onnx")
    regions = np.random.default_rng(0).normal(size=(1, 5, 6)).astype(np.float32)
    mask = np.array([[True, True, True, False, False]])
    (first,) = images.run(None, {"regions": regions, "mask": mask})
    (last,) = images.run(None, {"regions": regions[:, ::-1].copy(), "mask": mask[:, ::-1].copy()})
    np.testing.assert_allclose(first, last, atol=1e-6)


def test_the_table_of_pooling_weights_has_each_length_as_it_is_alone() -> None:
    torch.manual_seed(0)
    pooling = GPO()
    with torch.no_grad():
        table = pooling_table(pooling, 70)
        assert table.shape == (71, 70)
        assert not table[0].any()
        for length in (1, 2, 63, 64, 65, 70):
            torch.testing.assert_close(table[length, :length], pooling.weights(torch.tensor([length]))[0])
            assert not table[length, length:].any()
            assert table[length].sum() == pytest.approx(1)


def test_more_than_the_graph_has_weights_for_is_an_error_not_a_wrong_answer(data: Path, tmp_path: Path) -> None:
    save_onnx(trained(data, "vse", "data.max_words=10"), tmp_path / "graphs")
    images, texts = onnx_session(tmp_path / "graphs/images.onnx"), onnx_session(tmp_path / "graphs/texts.onnx")
    for words, length in ((13, 13), (13, 5), (12, 13)):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            texts.run(None, {"tokens": np.ones((1, words), np.int64), "lengths": np.array([length])})
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        images.run(None, {"regions": np.ones((1, 257, 6), np.float32), "mask": np.ones((1, 257), bool)})
    with pytest.raises(Exception, match="out of data bounds"):
        texts.run(None, {"tokens": np.full((1, 3), 10**6), "lengths": np.array([3])})


def test_the_folder_says_what_goes_in_and_out(data: Path, tmp_path: Path) -> None:
    run = trained(data, "vse", networks=2)
    save_onnx(run, tmp_path / "graphs")
    assert sorted(file.name for file in tmp_path.rglob("*.*")) == [
        "about.json", "images.onnx", "texts.onnx", "vocab.json"
    ]  # fmt: skip
    about = json.loads((tmp_path / "graphs/about.json").read_text("utf-8"))
    assert (about["matcher"], about["networks"], about["max_words"]) == ("vse", 2, 128)
    assert about["members"] == ["vse", "vse"]
    assert about["images.onnx"]["vectors"] == "(batch, 16) float32"
    assert json.loads((tmp_path / "graphs/vocab.json").read_text("utf-8")) == Run.open(run).vocabulary().to_json()


@pytest.mark.parametrize(
    ("name", "networks"), [("vse", 1), ("bow", 1), ("saf", 1), ("sgr", 1), ("scan", 1), ("saf", 2)]
)
def test_exported_weights_score_as_the_run_does(data: Path, tmp_path: Path, name: str, networks: int) -> None:
    run = trained(data, name, "data.standardize=true", networks=networks)
    words = export.save_weights(run, tmp_path / "new" / "model.safetensors")
    assert sorted((tmp_path / "new").iterdir()) == sorted([tmp_path / "new" / "model.safetensors", words])
    scorer, pairs = opened(run)
    loaded = export.load_weights(tmp_path / "new" / "model.safetensors")
    np.testing.assert_array_equal(loaded.similarities(pairs), scorer.similarities(pairs))
    assert loaded.max_words == scorer.max_words


@pytest.mark.parametrize("name", ["linear", "bow"])
def test_exported_weights_of_a_run_of_relink_score_as_the_run_does(data: Path, tmp_path: Path, name: str) -> None:
    run = trained(data, name, "method=relink", "matcher.linear=9", "data.standardize=true")
    export.save_weights(run, tmp_path / "model.safetensors")
    scorer, pairs = opened(run)
    loaded = export.load_weights(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.similarities(pairs), scorer.similarities(pairs))
    weights = safetensors.torch.load((tmp_path / "model.safetensors").read_bytes())
    assert ("members.1.word_weights" in weights) == (name == "bow")


def test_the_metadata_names_matcher_and_sizes_but_no_folder(data: Path, tmp_path: Path) -> None:
    run = trained(data, "vse")
    export.save_weights(run, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        about = file.metadata()
    assert (about["crcl_export"], about["matcher"], about["networks"]) == ("1", "vse", "1")
    assert json.loads(about["sizes"]) == Run.open(run).sizes
    config = json.loads(about["config"])
    assert config["data"]["path"] == "data"
    assert config["train"] == Run.open(run).config["train"]
    assert str(data.parent).encode() not in (tmp_path / "model.safetensors").read_bytes()


def test_a_run_with_meta_networks_gives_weights_but_no_graphs(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    rows, run = tmp_path / "rows.npy", tmp_path / "run"
    np.save(rows, np.arange(6))
    settings = ["method=mscn", "matcher.name=bow", "train.pieces=[2]", f"mscn.trusted={rows}"]
    session.train(small_config(data, *settings), tmp_path / "first")
    session.train(small_config(data, *settings, f"train.start={tmp_path / 'first'}"), run)
    export.save_weights(run, tmp_path / "model.safetensors")
    assert str(tmp_path).encode() not in (tmp_path / "model.safetensors").read_bytes()
    scorer, pairs = opened(run)
    loaded = export.load_weights(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.similarities(pairs), scorer.similarities(pairs))
    answer = crcl("export", run, "--onnx", "-o", tmp_path / "graphs")
    assert (answer.code, "the meta-networks of mscn judge both vectors together" in answer.err) == (2, True)
    assert not (tmp_path / "graphs").exists()


def test_matchers_without_vectors_are_refused_with_those_that_have_them(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    for name in ("saf", "sgr", "scan"):
        answer = crcl("export", trained(data, name, "data.standardize=true"), "--onnx", "-o", tmp_path / "graphs")
        assert answer.code == 2
        assert f"{name} compares the regions" in answer.err
        assert "there are graphs of vse, bow and linear; export without --onnx" in answer.err
    assert not list(tmp_path.iterdir())


def test_the_commands_say_what_was_written(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    run = trained(data, "vse")
    answer = crcl("export", run, "-o", tmp_path / "a.safetensors")
    assert answer == (
        0, f"weights written to {tmp_path}/a.safetensors, with the vocabulary beside it\n", ""
    )  # fmt: skip
    answer = crcl("export", run, "--onnx", "-o", tmp_path / "graphs")
    assert answer.code == 0
    assert re.search(r"vectors differ by \d\.\de-0[678] at most", answer.err)
    assert answer.out.startswith("graphs written to ")


def test_an_export_without_a_name_lies_beside_its_run(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained(data, "vse"), tmp_path / "mine")
    assert crcl("export", run).code == crcl("export", run, "--onnx").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine", "mine-onnx", "mine.safetensors", "mine.vocab.json"
    ]  # fmt: skip


def test_existing_exports_are_replaced_only_if_asked(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    first, second = trained(data, "vse"), trained(data, "bow", "data.standardize=true")
    for words in (["-o", tmp_path / "a.safetensors"], ["--onnx", "-o", tmp_path / "graphs"]):
        assert crcl("export", first, *words).code == 0
        before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
        answer = crcl("export", second, *words)
        assert answer.code == 2
        assert "exists already; pass --overwrite" in answer.err
        assert before == {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
        assert crcl("export", second, *words, "--overwrite").code == 0
    assert json.loads((tmp_path / "graphs/about.json").read_text("utf-8"))["matcher"] == "bow"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors", "a.vocab.json", "graphs"]


def test_what_is_no_export_is_never_overwritten(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    run = trained(data, "vse")
    before = {file: file.read_bytes() for file in run.iterdir()}
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "about.json").write_text("[]")
    (tmp_path / "b.vocab.json").write_text("{}")
    (tmp_path / "c.safetensors").mkdir()
    for words, message in (
        (["-o", run / "matcher.safetensors"], "not an export, so it is not overwritten"),
        (["--onnx", "-o", run], "not an export, so it is not overwritten"),
        (["--onnx", "-o", tmp_path / "graphs"], "not an export, so it is not overwritten"),
        (["-o", tmp_path / "b.safetensors"], "b.vocab.json: exists already, and the vocabulary is written here"),
        (["-o", tmp_path / "c.safetensors"], "not an export, so it is not overwritten"),
        (["-o", tmp_path / "d"], "weights are written as .safetensors"),
        (["-o", tmp_path / "b.vocab.json" / "d.safetensors"], "cannot be written"),
        (["--onnx", "-o", tmp_path / "b.vocab.json" / "d"], "cannot be written"),
    ):
        answer = crcl("export", run, *words, "--overwrite")
        assert answer.code == 2, answer
        assert message in answer.err
    assert before == {file: file.read_bytes() for file in run.iterdir()}
    assert (tmp_path / "b.vocab.json").read_text() == "{}"
    assert sorted(file.name for file in tmp_path.rglob("*")) == [
        "about.json", "b.vocab.json", "c.safetensors", "graphs"
    ]  # fmt: skip


def test_without_onnx_the_package_to_install_is_named(
    crcl: Crcl, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    answer = crcl("export", trained(data, "vse"), "--onnx", "-o", tmp_path / "graphs")
    assert answer.code == 2
    assert "pip install 'crcl[onnx]'" in answer.err
    assert not list(tmp_path.iterdir())
    assert crcl("export", trained(data, "vse"), "-o", tmp_path / "a.safetensors").code == 0


def test_without_onnxruntime_it_is_said_that_nothing_was_compared(
    crcl: Crcl, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    answer = crcl("export", trained(data, "vse"), "--onnx", "-o", tmp_path / "graphs")
    assert answer.code == 0
    assert "onnxruntime is not installed, so the graphs were not compared" in answer.err
    assert "compared" not in answer.out


def test_graphs_that_differ_from_torch_are_not_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(data, "vse")
    save_onnx(run, tmp_path / "graphs")
    before = (tmp_path / "graphs/images.onnx").read_bytes()
    monkeypatch.setattr("crcl.matchers.onnx_graphs._l2", lambda add, x: x)
    with pytest.raises(TrainingError, match=r"differ from torch's by .* not saved"):
        save_onnx(run, tmp_path / "graphs", overwrite=True)
    assert (tmp_path / "graphs/images.onnx").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["graphs"]


@pytest.mark.parametrize("words", [["-o", "a.safetensors"], ["--onnx", "-o", "graphs"]])
def test_a_full_disk_is_told_and_leaves_no_half_export(
    crcl: Crcl, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    run = trained(data, "vse")
    monkeypatch.chdir(tmp_path)
    with room(100):
        answer = crcl("export", run, *words)
    assert answer.code == 1
    assert "could not save" in answer.err
    assert "make room and export again" in answer.err
    assert not list(tmp_path.iterdir())


def damaged(tmp_path: Path, weights: dict[str, torch.Tensor], about: dict[str, str]) -> str:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors.torch.save(weights, metadata=about))
    with pytest.raises(InputError) as caught:
        export.load_weights(path)
    return str(caught.value)


def test_damaged_exports_are_refused(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    export.save_weights(trained(data, "vse", "data.standardize=true"), path)
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    weights = safetensors.torch.load(path.read_bytes())  # not mapped from the file, which is written over
    sizes = json.loads(about["sizes"])
    assert "not an export of crcl" in damaged(tmp_path, weights, {})
    assert "not an export of crcl" in damaged(tmp_path, weights, about | {"crcl_export": "2"})
    assert "damaged metadata" in damaged(tmp_path, weights, about | {"config": "{"})
    assert "damaged metadata" in damaged(tmp_path, weights, about | {"config": "[" * 100000})
    assert "must be an object" in damaged(tmp_path, weights, about | {"config": "[]"})
    assert "damaged metadata (sizes)" in damaged(tmp_path, weights, about | {"sizes": "[]"})
    too_many = json.dumps(sizes | {"networks": 2**30})
    assert "networks" in damaged(tmp_path, weights, about | {"sizes": too_many})
    larger = json.dumps(sizes | {"features": 2**30})
    assert "not a mean of" in damaged(tmp_path, weights, about | {"sizes": larger})
    fewer = {name: value for name, value in weights.items() if name != "img.fc.weight"}
    assert "does not fit its config" in damaged(tmp_path, fewer, about)
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a complete safetensors file"):
        export.load_weights(path)
    with pytest.raises(InputError, match="no such file"):
        export.load_weights(tmp_path / "other.safetensors")


def test_the_search_in_the_docs_runs_and_finds_what_the_matcher_finds(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(data, "vse", "data.standardize=true")
    save_onnx(run, tmp_path / "first-onnx")
    (tmp_path / "data").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(snippet, scope)
    scorer, pairs = opened(run)
    query = Split(["A red dog on the grass"], np.array([0]), pairs.features, pairs.image_ids)
    np.testing.assert_allclose(scope["similarity"], scorer.similarities(query)[:, 0], atol=1e-5)
    assert len(capsys.readouterr().out.splitlines()) == 5
