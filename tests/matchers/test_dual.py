"""The matcher for embeddings, from plain cosine to a training, an audit and an evaluation of made-up vectors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from embedded import made_up, write_embeddings
from reading import read
from tiny import SMALL, Stop, StopAfter, assert_same_runs, call, small_config, write_folder

from crcl import config
from crcl.auditing.findings import find
from crcl.data.batches import Batches
from crcl.data.maps.shards import Shards
from crcl.data.split import Split
from crcl.data.text.vectors import TextVectors
from crcl.data.text.vocabulary import SPECIALS, Vocabulary
from crcl.errors import InputError
from crcl.matchers import Dual, Ensemble
from crcl.methods import METHODS
from crcl.metrics import Detection
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.export import load_weights, save_weights
from crcl.retrieval.export_onnx import save_onnx
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.training import checks, inputs, session

DUAL = ["matcher.name=dual", "matcher.embedding=32"]
NO_WORDS = Vocabulary(SPECIALS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embeddings(tmp_path_factory.mktemp("dual") / "data", 120, text=10)


def vectors(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 1, size, generator=torch.Generator().manual_seed(seed))


def similarities(matcher: Dual, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(images.shape[:2], dtype=torch.bool)
    lengths = torch.ones(len(texts), dtype=torch.int64)
    return matcher.similarity(matcher.encode_images(images, mask), matcher.encode_texts(texts, lengths))


def test_untrained_it_is_the_plain_cosine_where_both_sizes_agree() -> None:
    images, texts = 7 * vectors(5, 16), 0.2 * vectors(4, 16, seed=1)
    expected = torch.nn.functional.cosine_similarity(images, texts[:, 0][None], dim=2)
    torch.testing.assert_close(similarities(Dual(features=16, text_features=16, embedding=8), images, texts), expected)


def test_sizes_may_differ_and_all_weights_learn() -> None:
    matcher = Dual(features=12, text_features=7, embedding=8)
    step = torch.optim.SGD(matcher.parameters(), lr=0.1)
    for _ in range(2):  # the first layers of the residuals learn as soon as the last ones are not 0
        step.zero_grad()
        similarities(matcher, vectors(6, 12), vectors(6, 7, seed=1)).diagonal().sum().backward()
        step.step()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in matcher.parameters())


def test_a_vector_of_zeros_is_similar_to_nothing_and_does_not_blow_up_the_gradient() -> None:
    matcher = Dual(features=16, text_features=16, embedding=8)
    images = vectors(4, 16)
    images[2] = 0
    sims = similarities(matcher, images, vectors(4, 16, seed=1))
    assert (sims[2] == 0).all()
    sims.sum().backward()
    gradients = [weight.grad for weight in matcher.parameters() if weight.grad is not None]
    assert max(float(gradient.abs().max()) for gradient in gradients) < 100


def test_batches_hold_vectors_and_leave_them_as_they_are() -> None:
    images, texts = made_up(9, image=6, text=5)
    names = [str(row) for row in range(9)]
    pairs = Split(names, np.arange(9), images[:, None], names, text_features=Shards([texts]))
    batches = Batches(pairs, TextVectors(pairs), vocabulary=5, mask_token=4, batch_size=4, augment=True)
    seen = 0
    for batch in batches.epoch(0):
        np.testing.assert_array_equal(batch.tokens[:, 0].numpy(), texts[batch.pairs.numpy()].astype(np.float32))
        np.testing.assert_array_equal(batch.regions[:, 0].numpy(), images[batch.pairs.numpy()].astype(np.float32))
        assert (batch.lengths == 1).all()
        seen += len(batch)
    assert seen == 8  # a single pair that is left has no negatives
    joined = batches.make(np.array([1, 2])).join(batches.make(np.array([3])))
    assert joined.tokens.shape == (3, 1, 5)


def test_blocks_folds_and_ensembles_score_as_one_product(tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "data", 40, columns={"split": ["test"] * 38 + ["train"] * 2})
    pairs = read(folder, "test")
    images, texts = (side[:38].astype(np.float32) for side in made_up(40))
    cosine = images @ texts.T / np.outer(np.linalg.norm(images, axis=1), np.linalg.norm(texts, axis=1))
    alone = Dual(features=16, text_features=16, embedding=8)
    for matcher in (alone, Ensemble([alone, Dual(features=16, text_features=16, embedding=8)])):
        scorer = Scorer(matcher, NO_WORDS, batch_size=7)
        np.testing.assert_allclose(scorer.similarities(pairs), cosine, atol=1e-5)
        np.testing.assert_allclose(scorer.pair_similarities(pairs), cosine.diagonal(), atol=1e-5)
        halves = [np.mean(cosine[half, half].argmax(1) == np.arange(19)) for half in (slice(19), slice(19, 38))]
        assert evaluate([scorer], pairs, folds=2).i2t.r1 == pytest.approx(100 * np.mean(halves))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_it_and_leaves_a_run_that_can_be_scored(data: Path, tmp_path: Path, method: str) -> None:
    chosen = small_config(data, *DUAL, method=method)
    run = session.train(chosen, tmp_path / "run")
    assert len(run.metrics()) == (3 if method == "crcl" else 2)
    opened, stored, scorer = open_scorer(run.path)
    assert opened.sizes["text_features"] == 10
    scores = evaluate([scorer], inputs.open_pairs(stored).split("dev"))
    assert scores.rsum == max(record["dev"]["rsum"] for record in run.metrics()[-2:])


def detected(tmp_path: Path, text: int) -> Detection:
    data = write_embeddings(tmp_path / "data", 800, text=text)
    settings = ["matcher.embedding=64", "train.batch_size=64", "train.lr=0.002", "train.pieces=[2,4]"]
    base = {"data.path": str(data), "noise.rate": 0.4}
    run = session.train(config.load(preset="embeddings", base=base, settings=settings), tmp_path / "run")
    _, stored, scorer = open_scorer(run.path)
    pairs = inputs.audited_pairs(run, stored)
    found = find(pairs, run.load_ledger(), scorer.pair_similarities(pairs)).detection()
    assert found is not None
    return found


@pytest.mark.parametrize("text", [16, 10])
def test_mismatches_among_embeddings_are_found(tmp_path: Path, text: int) -> None:
    assert detected(tmp_path, text).auroc > 0.95


def test_a_training_on_vectors_that_was_stopped_ends_as_if_it_had_not_been(data: Path, tmp_path: Path) -> None:
    chosen = small_config(data, *DUAL, "train.save_minutes=0")
    session.train(chosen, tmp_path / "whole")
    with pytest.raises(Stop):
        session.train(chosen, tmp_path / "stopped", progress=StopAfter(9))
    session.train(chosen, tmp_path / "stopped", resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")


def test_from_the_command_line_a_folder_trains_evaluates_and_is_audited(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, table = str(tmp_path / "run"), tmp_path / "suspects.csv"
    settings = [word for setting in SMALL[1:] for word in ("--set", setting)]
    trained = call(capsys, monkeypatch, "train", str(data), "-o", run, "--matcher", "dual", "--noise", "0.4", *settings)
    assert trained.code == 0, trained.err
    scored = call(capsys, monkeypatch, "evaluate", run, "--split", "dev", "--json")
    assert 0 < json.loads(scored.out)["rsum"] <= 600
    audited = call(capsys, monkeypatch, "audit", run, "-o", str(table))
    assert audited.code == 0, audited.err
    assert len(table.read_text().splitlines()) == 1 + 108
    assert call(capsys, monkeypatch, "info", run).code == 0


def test_from_the_command_line_a_table_with_two_files_is_audited_where_it_has_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    images, texts = made_up(60, text=10)
    np.save(old / "images.npy", images)
    np.save(old / "texts.npy", texts)
    rows = [f"{row}.jpg,what {row} shows" for row in range(60)]
    (old / "pairs.csv").write_text("\n".join(["image,caption", *rows]) + "\n")

    def files(folder: Path) -> list[str]:
        return ["--features", str(folder / "images.npy"), "--text-features", str(folder / "texts.npy")]

    run, settings = str(tmp_path / "run"), [word for setting in SMALL[1:] for word in ("--set", setting)]
    words = ["train", str(old / "pairs.csv"), "-o", run, "--matcher", "dual", *files(old), *settings]
    assert call(capsys, monkeypatch, *words).code == 0
    new = old.rename(tmp_path / "new")
    answer = call(capsys, monkeypatch, "audit", run)
    assert (answer.code, "pass --data if it has moved" in answer.err) == (2, True)
    assert call(capsys, monkeypatch, "audit", run, "--data", str(new / "pairs.csv"), *files(new)).code == 0


def test_captions_without_vectors_are_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="matcher dual reads vectors of captions, but the data has none; give them with"
    ):
        session.train(small_config(write_folder(tmp_path / "data"), *DUAL), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_matchers_read_the_words_of_embeddings(data: Path, tmp_path: Path) -> None:
    run = session.train(small_config(data), tmp_path / "run")
    assert "text_features" not in run.sizes
    assert len(run.vocabulary()) > len(NO_WORDS)


def test_vectors_of_another_size_or_none_are_refused(data: Path, tmp_path: Path) -> None:
    run = session.train(small_config(data, *DUAL), tmp_path / "run")
    other = read(write_embeddings(tmp_path / "other", text=9), "dev")
    with pytest.raises(InputError, match=r"vectors of 9 numbers, but .* was trained on vectors of 10 numbers"):
        checks.check_features(run, other)
    with pytest.raises(InputError, match="the captions come without vectors"):
        checks.check_features(run, replace(other, text_features=None))


@pytest.mark.parametrize("method", ["crcl", "relink"])  # relink adds the linear matcher of vectors
def test_its_weights_can_be_exported_and_graphs_are_refused(data: Path, tmp_path: Path, method: str) -> None:
    run = session.train(small_config(data, *DUAL, method=method), tmp_path / "run")
    save_weights(run.path, tmp_path / "dual.safetensors")
    pairs = read(data, "dev")
    _, _, scorer = open_scorer(run.path)
    there = load_weights(tmp_path / "dual.safetensors").pair_similarities(pairs)
    np.testing.assert_array_equal(there, scorer.pair_similarities(pairs))
    with pytest.raises(InputError, match="dual reads vectors of captions"):
        save_onnx(run.path, tmp_path / "graphs")


def test_a_run_goes_on_from_another_run_on_vectors(data: Path, tmp_path: Path) -> None:
    first = session.train(small_config(data, *DUAL), tmp_path / "first")
    chosen = session.new_config(
        base={"data.path": str(data), "noise.rate": 0.4, "train.start": str(first.path)}, settings=[*SMALL, *DUAL]
    )
    second = session.train(chosen, tmp_path / "second")
    assert second.sizes == first.sizes


def test_vectors_of_two_models_are_projected_even_if_they_have_one_size() -> None:
    images, texts = vectors(5, 16), vectors(4, 16, seed=1)
    for embedding in (8, 16):
        matcher = Dual(features=16, text_features=16, embedding=embedding, aligned=False)
        assert matcher.encode_images(images, torch.ones(5, 1, dtype=torch.bool)).features.shape == (5, embedding)
        cosine = torch.nn.functional.cosine_similarity(images, texts[:, 0][None], dim=2)
        assert (similarities(matcher, images, texts) - cosine).abs().max() > 0.1
    same, other = (Dual(features=16, text_features=16, embedding=8, aligned=value) for value in (True, False))
    assert set(same.state_dict()) < set(other.state_dict())
