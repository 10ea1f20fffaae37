"""From a config to a training and back from a run folder: every method, matcher and preset, on tiny data."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reading import read
from tiny import Noting, Stop, StopAfter, small_config, write_folder

import crcl
from crcl import config
from crcl.auditing.findings import find
from crcl.data import noise
from crcl.data.batches import Standardize
from crcl.data.text.frequencies import inverse_document_frequency
from crcl.data.text.vocabulary import Tokens, Vocabulary
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.matchers.kernels import products
from crcl.methods import METHODS
from crcl.methods.base import Learner, Method, Plan
from crcl.methods.crcl import CRCL
from crcl.methods.plain import Objective
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device
from crcl.training import checks, inputs, session

OF_WORDS = [name for name, record in MATCHERS.items() if not (record.reads_vectors or record.pretrained)]
"""The others: test_dual.py and test_clip.py."""
SHRUNK = ["matcher.embedding=8", "matcher.word=6", "train.pieces=[1,2]", "ledger.freeze_epochs=1", "train.device=cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("recipe") / "data")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "matcher"),
    [(method, matcher) for method, record in METHODS.items() for matcher in OF_WORDS if matcher in record.matchers],
)
def test_every_method_trains_every_matcher_it_goes_with_and_leaves_a_run_that_can_be_scored(
    data: Path, tmp_path: Path, method: str, matcher: str
) -> None:
    chosen = small_config(data, f"matcher.name={matcher}", method=method)
    run = session.train(chosen, tmp_path / "run")
    epochs = 3 if method == "crcl" else 2  # the plain ones train the last piece only
    at_once = method == "relink" and matcher == "linear"
    assert len(run.metrics()) == (1 if at_once else epochs)
    beliefs = run.load_ledger()
    assert beliefs.shape == (48,)
    assert ((beliefs >= 0) & (beliefs <= 1)).all()
    _, stored, scorer = open_scorer(run.path)
    assert stored == chosen
    scores = evaluate([scorer], inputs.open_pairs(stored).split("dev"))
    assert scores.rsum == max(record["dev"]["rsum"] for record in run.metrics()[-2:])  # the best epoch's matcher


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in config.presets() if name not in ("clip", "embeddings")])
def test_every_preset_trains(data: Path, tmp_path: Path, name: str) -> None:
    chosen = config.load(preset=name, base={"data.path": str(data), "noise.rate": 0.4}, settings=SHRUNK)
    run = session.train(chosen, tmp_path / "run")
    assert len(run.metrics()) == (3 if chosen.method == "crcl" else 2)  # plain methods train the last piece only


def test_a_training_learns_the_tiny_data(data: Path, tmp_path: Path) -> None:
    run = session.train(small_config(data, "train.pieces=[3,12]", "noise.rate=0.2"), tmp_path / "run")
    first, *_, last = run.metrics()
    assert last["loss"] < first["loss"]
    assert max(record["dev"]["rsum"] for record in run.metrics()) > first["dev"]["rsum"]


def built(chosen: config.Config) -> Method:
    return chosen.record.build(
        make_learner=lambda: Learner(lambda: torch.nn.Linear(1, 1)),
        pairs=4,
        plan=Plan(epochs=2, batch_size=4, matcher=MATCHERS[chosen.matcher.name]),
        **chosen.of_method(),
    )


def test_the_terms_and_the_fixed_q_of_the_papers_ablation_can_be_asked_for(data: Path) -> None:
    sims = torch.zeros(4, 4)
    for q, value in ((0, 6 * math.tan(0.25)), (1, 6 / 4)):
        chosen = small_config(data, "loss.kind=robust", f"loss.q={q}", method="complementary")
        method = built(chosen)
        assert isinstance(method, Objective)
        torch.testing.assert_close(method.loss(sims), torch.full((4,), value))
    for terms in ("both", "active", "complementary"):
        chosen = small_config(data, f"loss.terms={terms}", method="crcl")
        method = built(chosen)
        assert isinstance(method, CRCL)
        assert method.terms == terms


def hardest(data: Path, *settings: str) -> Objective:
    chosen = small_config(data, "loss.margin=0.3", *settings, method="triplet-hardest")
    method = built(chosen)
    assert isinstance(method, Objective)
    return method


def test_hardest_triplets_begin_with_the_sum_over_all_negatives_for_as_many_epochs_as_asked(data: Path) -> None:
    method = hardest(data)
    assert method.first_epochs == 1
    assert hardest(data, "loss.first_epochs=0").first_epochs == 0
    assert hardest(data, "loss.first_epochs=2", "train.pieces=[3]").first_epochs == 2
    sims = torch.tensor([[0.5, 0.6, 0.1], [0.2, 0.5, 0.4], [0.3, 0.3, 0.3]])
    over = (0.3 + sims - sims.diagonal()[:, None]).clamp(min=0).fill_diagonal_(0)
    under = (0.3 + sims - sims.diagonal()[None, :]).clamp(min=0).fill_diagonal_(0)
    torch.testing.assert_close(method.loss(sims), over.amax(1) + under.amax(0))
    assert method.first_loss is not None
    torch.testing.assert_close(method.first_loss(sims), over.sum(1) + under.sum(0))


def test_words_mismatches_and_scale_come_from_the_run_when_it_is_resumed(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    vocabulary = tmp_path / "vocab.json"
    Vocabulary.build(read(data).captions, minimum=1).save(vocabulary)
    index = tmp_path / "noise.npy"
    noise.write_index(index, noise.mismatch(read(data).image_index, 0.5, 3))
    chosen = small_config(
        data, f"data.vocab={vocabulary}", f"noise.file={index}", "noise.rate=0.0", "data.standardize=true"
    )
    first = inputs.read_data(chosen)
    with pytest.raises(Stop):
        session.train(chosen, tmp_path / "run", progress=StopAfter(5))
    vocabulary.unlink()
    index.unlink()
    again = inputs.read_data(chosen, Run.open(tmp_path / "run"))
    assert again.vocabulary.words == first.vocabulary.words
    np.testing.assert_array_equal(again.train.image_index, first.train.image_index)
    np.testing.assert_array_equal(again.train.truth, first.train.truth)
    assert isinstance(again.standardize, Standardize)
    np.testing.assert_array_equal(again.standardize.mean, first.standardize.mean)  # type: ignore[union-attr]
    session.train(chosen, tmp_path / "run", resume=True)


def test_a_built_vocabulary_has_the_words_of_train_and_dev_seen_often_enough(data: Path) -> None:
    found = inputs.read_data(small_config(data, "data.min_count=20")).vocabulary
    counts: dict[str, int] = {}
    for split in ("train", "dev"):
        for caption in read(data, split).captions:
            for word in caption.split():
                counts[word] = counts.get(word, 0) + 1
    expected = {word for word, count in counts.items() if count >= 20}
    assert expected
    assert {word for word in found.words if not word.startswith("<")} == expected


def test_words_weigh_by_how_few_captions_have_them(data: Path) -> None:
    found = inputs.read_data(small_config(data, "data.min_count=1"))
    assert isinstance(found.tokens, Tokens)
    weights = inverse_document_frequency(found.tokens, len(found.vocabulary))
    captions = found.train.captions
    for word in ("a", "red", "snow"):
        having = sum(word in caption.split() for caption in captions)
        number = found.vocabulary.words.index(word)
        assert weights[number].item() == pytest.approx(np.log((1 + len(captions)) / (1 + having)) + 1)


def test_a_resumed_config_is_the_runs_own_with_what_may_change(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        session.train(small_config(data), tmp_path / "run", progress=StopAfter(2))
    resumed = session.resumed_config(tmp_path / "run", settings=["train.workers=2", "train.save_minutes=1"])
    assert resumed.train.workers == 2
    assert resumed.train.pieces == (1, 2)
    assert resumed.noise.rate == 0.4


def test_a_run_is_not_gone_on_with_in_another_way(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        session.train(small_config(data), tmp_path / "run", progress=StopAfter(2))
    changes = ["train.lr=0.5", "loss.tau=0.1", "train.workers=1"]
    with pytest.raises(InputError) as caught:
        session.resumed_config(tmp_path / "run", settings=changes)
    assert "train.lr: the run has 0.01, now given 0.5" in str(caught.value)
    assert "loss.tau: the run has 0.05, now given 0.1" in str(caught.value)
    assert "workers" not in str(caught.value)
    with pytest.raises(InputError, match=r"train\.lr: the run has"):
        session.train(small_config(data, *changes), tmp_path / "run", resume=True)


@pytest.mark.parametrize(("sizes", "message"), [({"train": 20}, "40 training pairs of 4"), ({}, "numbers per region")])
def test_data_that_does_not_belong_to_the_run_is_refused(
    data: Path, tmp_path: Path, sizes: dict[str, int], message: str
) -> None:
    run = session.train(small_config(data), tmp_path / "run")
    other = write_folder(tmp_path / "other", **sizes)
    if not sizes:
        for split in ("train", "dev"):
            images = np.load(other / f"{split}_ims.npy")
            np.save(other / f"{split}_ims.npy", images[:, :, :5])
    with pytest.raises(InputError, match=message):
        session.train(small_config(other), tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=message):
        inputs.audited_pairs(run, small_config(other))


def test_the_device_is_a_gpu_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    for name in ("cuda", "cuda:1"):
        with pytest.raises(InputError, match=rf"device {name}: not available here; use cpu or auto"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto").type == "cuda"
    assert choose_device("cuda:0").index == 0
    with pytest.raises(InputError, match="cuda:1: not available"):
        choose_device("cuda:1")
    with pytest.raises(InputError, match="'quantum': must be auto, cpu"):
        choose_device("quantum")


@pytest.mark.slow
def test_captions_of_ten_thousand_words_and_of_unknown_words_only_train_like_others(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    for split in ("train", "dev", "test"):
        captions = (data / f"{split}_caps.txt").read_text().splitlines()
        captions[3] = "dog " * 10_000
        captions[4] = "xyzzy plugh"
        (data / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
    for matcher in OF_WORDS:
        run = session.train(small_config(data, f"matcher.name={matcher}"), tmp_path / matcher)
        assert all(np.isfinite(record["loss"]) for record in run.metrics())
        _, _, scorer = open_scorer(run.path)
        assert np.isfinite(scorer.pair_similarities(inputs.audited_pairs(run, small_config(data)))).all()


def test_a_table_trains_like_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    train, dev = read(folder, "train"), read(folder, "dev")
    np.save(tmp_path / "features.npy", np.concatenate([train.features, dev.features]))
    (tmp_path / "ids.txt").write_text("\n".join([*train.image_ids, *dev.image_ids]) + "\n")
    rows = ["image,caption,split"]
    for name, pairs in (("train", train), ("dev", dev)):
        rows += [
            f"{pairs.image_ids[image]},{caption},{name}"
            for image, caption in zip(pairs.image_index, pairs.captions, strict=True)
        ]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    metrics: list[Any] = []
    for name, path in (("one", folder), ("other", tmp_path / "pairs.csv")):
        metrics.append(session.train(small_config(path), tmp_path / name).metrics())
    assert metrics[0] == metrics[1]


def test_beliefs_are_not_put_on_other_pairs_of_the_same_number(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    config = small_config(data)
    run = session.train(config, tmp_path / "run")
    captions = (data / "train_caps.txt").read_text().splitlines()
    (data / "train_caps.txt").write_text("\n".join(captions[::-1]) + "\n")
    with pytest.raises(InputError, match="its beliefs would be assigned to other pairs"):
        inputs.audited_pairs(run, config)
    with pytest.raises(InputError, match="its beliefs would be assigned to other pairs"):
        session.train(config, tmp_path / "run", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("matcher", ["vse", "bow", "saf", "sgr", "scan"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_on_cpu_too(tmp_path: Path, matcher: str, precision: str) -> None:
    data = write_folder(tmp_path / "data")
    settings = [f"matcher.name={matcher}", "matcher.similarity=8", f"train.precision={precision}"]
    run = session.train(small_config(data, *settings), tmp_path / "run")
    assert np.isfinite([record["loss"] for record in run.metrics()]).all()


@pytest.mark.parametrize("matcher", ["vse", "sgr"])
def test_a_resumed_training_in_bfloat16_is_bit_identical(tmp_path: Path, matcher: str) -> None:
    data = write_folder(tmp_path / "data")
    chosen = small_config(data, f"matcher.name={matcher}", "matcher.similarity=8", "train.precision=bfloat16")
    whole = session.train(chosen, tmp_path / "whole")
    with pytest.raises(Stop):
        session.train(chosen, tmp_path / "run", progress=StopAfter(5))
    run = session.train(chosen, tmp_path / "run", resume=True)
    assert run.metrics() == whole.metrics()
    expected = whole.load_matcher()
    assert all(torch.equal(weight, expected[name]) for name, weight in run.load_matcher().items())
    exact = session.train(
        small_config(data, f"matcher.name={matcher}", "matcher.similarity=8"), tmp_path / "exact"
    ).load_matcher()
    assert any(not torch.equal(weight, expected[name]) for name, weight in exact.items())


def test_large_batches_in_chunks_have_nearly_the_same_loss_in_bfloat16(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    losses = [
        session.train(
            small_config(data, "matcher.name=vse", "train.precision=bfloat16", f"train.chunk={chunk}"),
            tmp_path / str(chunk),
        ).metrics()[-1]["loss"]
        for chunk in (0, 6)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_a_processor_without_bfloat16_products_trains_and_scores_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "cpu_has_bfloat16", lambda: False)
    data = write_folder(tmp_path / "data")
    trained: list[str] = []
    scored: list[str] = []
    session.train(small_config(data, "train.precision=bfloat16"), tmp_path / "run", progress=Noting(trained))
    crcl.evaluate(tmp_path / "run", dtype="bfloat16", device="cpu", progress=Noting(scored))
    for told in (trained, scored):
        assert any("this processor has no bfloat16 products" in line for line in told)


def test_scores_in_bfloat16_are_near_those_in_float32(tmp_path: Path) -> None:
    run = session.train(small_config(write_folder(tmp_path / "data"), "matcher.name=vse"), tmp_path / "run")
    exact, rough = (crcl.evaluate(run, dtype=dtype, device="cpu").rsum for dtype in (None, "bfloat16"))
    assert rough == pytest.approx(exact, abs=15)  # of 8 images: one rank is 12.5 / 2 points
    model = crcl.load(run, dtype="bfloat16", device="cpu")
    assert model.scorer.dtype == torch.bfloat16
    index = crcl.index(run, tmp_path / "index", split="test", dtype="bfloat16", device="cpu")
    assert index.about.matcher == "vse"
    with pytest.raises(InputError, match="must be float32 or bfloat16"):
        crcl.evaluate(run, dtype="int8")


def test_a_run_is_gone_on_with_or_replaced_but_not_both(tmp_path: Path) -> None:
    config = small_config(write_folder(tmp_path / "data"))
    with pytest.raises(InputError, match="not both"):
        session.train(config, tmp_path / "run", resume=True, overwrite=True)


def test_a_run_may_be_gone_on_with_in_less_memory(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    settings = ["matcher.name=sgr", "matcher.similarity=6", "train.pieces=[1]", "ledger.freeze_epochs=0"]
    config = small_config(data, *settings)
    session.train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        session.train(config, tmp_path / "run", progress=StopAfter(2))
    run = session.train(small_config(data, *settings, "train.memory=0.01"), tmp_path / "run", resume=True)
    assert run.metrics() == Run.open(tmp_path / "whole").metrics()


def test_one_pair_is_not_enough_to_learn_from(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=1, captions=1)
    with pytest.raises(InputError, match="1 training pair"):
        session.train(small_config(data, **{"noise.rate": 0.0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cut_captions_and_captions_of_unknown_words_are_told(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    captions = (data / "train_caps.txt").read_text().splitlines()
    captions[0], captions[1] = "word " * 10_000, "zzz yyy"
    (data / "train_caps.txt").write_text("\n".join(captions) + "\n")
    told: list[str] = []
    session.train(small_config(data), tmp_path / "run", progress=Noting(told))
    assert [line.split(" captions")[0] for line in told] == ["1", "1"]


def test_the_masked_word_weighs_no_more_than_words_do(tmp_path: Path) -> None:
    data = inputs.read_data(small_config(write_folder(tmp_path / "data")))
    assert isinstance(data.tokens, Tokens)
    weights = inverse_document_frequency(data.tokens, len(data.vocabulary))
    assert weights[data.vocabulary.mask] < weights.max()


def test_audit_names_rows_as_the_table_counts_them(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    ids = (folder / "train_ids.txt").read_text().split()
    captions = (folder / "train_caps.txt").read_text().splitlines()
    lines = [f"{ids[row // 2]},{caption}" for row, caption in enumerate(captions)]
    (tmp_path / "pairs.csv").write_text("image,caption\n" + "\n".join(lines) + "\n")
    (tmp_path / "ids.txt").write_text("\n".join(ids) + "\n")
    (folder / "train_ims.npy").rename(tmp_path / "features.npy")
    config = small_config(tmp_path / "pairs.csv")
    run = session.train(config, tmp_path / "run")
    pairs = inputs.audited_pairs(run, config)
    table = find(pairs, run.load_ledger(), np.zeros(len(pairs), np.float32)).table().to_pylist()
    assert len(table) < len(lines)  # a tenth is held out
    assert all(captions[row["row"]] == row["caption"] for row in table)


@pytest.mark.parametrize("name", ["saf", "sgr", "scan"])
def test_a_local_matcher_refuses_images_with_another_number_of_regions(tmp_path: Path, name: str) -> None:
    data = write_folder(tmp_path / "data")
    run = session.train(small_config(data, f"matcher.name={name}", "matcher.similarity=6"), tmp_path / "run")
    other = write_folder(tmp_path / "other")
    np.save(other / "test_ims.npy", np.load(other / "test_ims.npy")[:, :3])
    with pytest.raises(InputError, match=r"3 regions per image, but .* was trained on 4"):
        checks.check_features(run, read(other, "test"))
