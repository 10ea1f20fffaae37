"""Published checkpoints become runs with the same similarities; what is not weights is refused, and never run."""

import argparse
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch
from reading import read
from tiny import Answer, Noting, call, write_folder
from torch import nn

from crcl.data import noise
from crcl.data.pairs import Pairs
from crcl.data.text.vocabulary import MASK, Vocabulary
from crcl.errors import InputError
from crcl.matchers import MATCHERS, SAF, Ensemble
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.runs.checkpoints.published import read as read_published
from crcl.runs.checkpoints.unpickling import ALLOWED
from crcl.runs.describe import describe, stored_config
from crcl.runs.folder import Run
from crcl.training.importing import find_vocabulary, import_checkpoint

Numbers = Callable[[str], dict[str, np.ndarray]]
Weights = dict[str, torch.Tensor]
Crcl = Callable[..., Answer]
SIZES = {"features": 6, "embedding": 8, "word": 5}
LOCAL = {"regions": 4, "similarity": 6}
PAIRS = 48


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with its vocabulary inside, in the field's layout, without `<mask>`."""
    folder = write_folder(tmp_path_factory.mktemp("published") / "tiny_precomp")
    words = Vocabulary.build([*read(folder).captions, *read(folder, "dev").captions], minimum=1).words
    write_words(folder / "tiny_precomp_vocab.json", [word for word in words if word != MASK])
    return folder


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: call(capsys, monkeypatch, *map(str, words))


def write_words(path: Path, words: list[str]) -> None:
    numbers = {word: number for number, word in enumerate(words)}
    content = {"word2idx": numbers, "idx2word": {str(n): w for w, n in numbers.items()}, "idx": len(words)}
    path.write_text(json.dumps(content), "utf-8")


def vocabulary_of(data: Path) -> Vocabulary:
    return Vocabulary.load(data / "tiny_precomp_vocab.json")


def network(kind: str, rows: int, *, seed: int = 0, **options: Any) -> nn.Module:
    """A matcher whose every number matters, running statistics included."""
    torch.manual_seed(seed)
    sizes = SIZES | {"vocabulary": rows} | (LOCAL if kind in ("saf", "sgr") else {})
    module = MATCHERS[kind].kind(**sizes, **options).eval()
    for name, value in module.state_dict().items():
        if "running" in name:
            value.uniform_(0.5, 1.5)
        elif "threshold" in name:
            value.fill_(0.25 if "safe" in name else 0.4)
    return module


def parts(module: nn.Module, *, prefix: str = "") -> list[Weights]:
    """The list of dicts that authors save."""
    state = {key: value for key, value in module.state_dict().items() if "threshold" not in key}  # kept in the options
    names = ("img", "txt", "sim") if any(key.startswith("sim.") for key in state) else ("img", "txt")
    found = [
        {prefix + key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
        for name in names
    ]
    if "mlp.bns.0.weight" in {key.removeprefix(prefix) for key in found[0]}:  # in every file of VSE∞, never applied
        found[0][f"{prefix}mlp.bns.1.weight"] = torch.ones(SIZES["embedding"])
    return found


OPT = argparse.Namespace(data_name="f30k_precomp", learning_rate=2e-4, grad_clip=2.0, use_restval=False)


NAAF_OPT = argparse.Namespace(thres=0.4, thres_safe=torch.tensor(0.25), lambda_softmax=20.0)


def content(layout: str, *models: list[Weights], **more: Any) -> dict[str, Any]:
    """A dict with the keys of this layout."""
    base = {"epoch": 7, "best_rsum": np.float64(400.25), "opt": OPT}
    if layout == "CRCL":
        beliefs = np.linspace(0, 1, PAIRS)
        return base | {"schedule": 3, "model": models[0], "step": 900, "move_gt": beliefs} | more
    if layout == "NCR":
        return base | {"model_A": models[0], "model_B": models[1]} | more
    if layout == "L2RM":
        names = ("img_enc", "txt_enc", "sim_enc")
        net = {f"{n}.{key}": w for n, part in zip(names, models[0], strict=True) for key, w in part.items()}
        return {"net": net, "cost_function": {"W": torch.eye(3)}} | more
    if layout == "CHAN":  # a layer of the text encoder is never applied
        text = models[0][1] | {"fc.weight": torch.eye(SIZES["embedding"]), "fc.bias": torch.ones(SIZES["embedding"])}
        return base | {"model": [models[0][0], text, {}, {}], "Eiters": 900} | more
    if layout == "GSMN":  # a part for each direction
        split = [{k[4:]: w for k, w in models[0][2].items() if k.startswith(way)} for way in ("i2t.", "t2i.")]
        split[1]["graph_convolution_3.params"] = torch.ones(8, 1)
        return base | {"model": [*models[0][:2], *split], "Eiters": 900} | more
    if layout == "NAAF":
        return base | {"model": models[0], "Eiters": 900, "opt": NAAF_OPT} | more
    if layout == "IMRAM":
        places = ("img_enc.", "txt_enc.", "")
        net = {f"module.{n}{key}": w for n, part in zip(places, models[0], strict=True) for key, w in part.items()}
        return base | {"model": net} | more
    if layout == "GSC":
        return base | {"model": [*models[0], *(np.ones(PAIRS) for _ in range(3))]} | more
    return base | {"model": models[0]} | ({"step": 900} if layout == "DECL" else {"Eiters": 900}) | more


def save(folder: Path, values: Any, **options: Any) -> Path:
    path = folder / "model_best.pth.tar"
    torch.save(values, path, **options)
    return path


def sims_of(module: nn.Module, data: Path, vocabulary: Vocabulary) -> np.ndarray:
    return Scorer(module, vocabulary).similarities(read(data, "test"))  # type: ignore[arg-type]


def similarities(run: Run, data: Path) -> np.ndarray:
    return open_scorer(run.path)[2].similarities(read(data, "test"))


LAYOUTS = [
    ("CRCL", "vse", True, "crcl"),
    ("CRCL", "saf", True, "crcl"),
    ("CRCL", "sgr", True, "crcl"),
    ("SGRAF", "saf", False, "triplet-hardest"),
    ("SGRAF", "sgr", False, "triplet-hardest"),
    ("RCL", "sgr", True, "complementary"),
    ("SCAN", "scan", False, "triplet-hardest"),
    ("DECL", "saf", False, "decl"),
    ("L2RM", "sgr", False, "l2rm"),
    ("GSC", "sgr", False, "gsc"),
    ("CHAN", "chan", True, "triplet-hardest"),
    ("VSRN", "vsrn", False, "triplet-hardest"),
    ("GSMN", "gsmn", False, "triplet-hardest"),
    ("NAAF", "naaf", False, "triplet-hardest"),
    ("IMRAM", "imram", False, "triplet-hardest"),
]
OWN: dict[str, dict[str, Any]] = {"vsrn": {"form": "f30k"}, "imram": {"steps": 3}}
"""Options that a matcher is published with, where they are not the default."""


@pytest.mark.parametrize(("layout", "kind", "masked", "method"), LAYOUTS)
def test_an_imported_run_scores_as_the_matcher_that_was_published(
    data: Path, tmp_path: Path, layout: str, kind: str, masked: bool, method: str
) -> None:
    vocabulary = vocabulary_of(data)
    module = network(kind, len(vocabulary) - (not masked), **OWN.get(kind, {}))
    run = import_checkpoint(save(tmp_path, content(layout, parts(module))), Pairs.of(data), tmp_path / "run")
    np.testing.assert_array_equal(similarities(run, data), sims_of(module, data, vocabulary))
    config = stored_config(Run.open(run.path))
    assert (config.method, config.matcher.name, config.matcher.embedding) == (method, kind, 8)
    facts = dict(describe(run.path))
    assert facts["imported"].startswith(f"from model_best.pth.tar ({layout})")
    assert ("epoch 7, dev rSum 400.2" in facts["imported"]) == (layout != "L2RM")
    assert facts["noise"] == "not known"


@pytest.mark.parametrize("kind", ["vse", "saf", "sgr"])
def test_the_authors_weights_give_the_authors_numbers(recorded: Numbers, tmp_path: Path, kind: str) -> None:
    """From a file with tensors recorded from the authors' implementation to the similarities recorded with them."""
    numbers = recorded(kind)
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "train_ims.npy", numbers["images"])
    (folder / "train_caps.txt").write_text("a dog\n" * 7)
    write_words(tmp_path / "vocab.json", ["<pad>", "<start>", "<end>", "<unk>", *(f"word{n}" for n in range(18))])
    names = ("img.", "txt.", "sim.") if kind != "vse" else ("img.", "txt.")
    model = [
        {key.removeprefix(name): torch.tensor(w) for key, w in numbers.items() if key.startswith(name)}
        for name in names
    ]
    run = import_checkpoint(
        save(tmp_path, content("CRCL", model, move_gt=np.ones(7))), Pairs.of(folder), tmp_path / "run"
    )
    matcher = open_scorer(run.path)[2].matcher
    lengths = torch.tensor(numbers.get("image_lengths", np.full(7, 36)))
    mask = torch.arange(36) < lengths[:, None]
    with torch.no_grad():
        matcher.eval()  # type: ignore[attr-defined]
        images = matcher.encode_images(torch.tensor(numbers["images"]), mask)
        texts = matcher.encode_texts(torch.tensor(numbers["captions"]), torch.tensor(numbers["lengths"]))
        np.testing.assert_allclose(matcher.similarity(images, texts), numbers["similarities"], atol=1e-5)


def test_two_networks_become_one_run_with_the_mean_of_their_similarities(data: Path, tmp_path: Path) -> None:
    vocabulary = vocabulary_of(data)
    both = [network("sgr", len(vocabulary) - 1, seed=seed) for seed in (1, 2)]
    run = import_checkpoint(save(tmp_path, content("NCR", *map(parts, both))), Pairs.of(data), tmp_path / "run")
    assert run.networks == 2
    matcher = open_scorer(run.path)[2].matcher
    assert isinstance(matcher, Ensemble)
    one, other = (sims_of(module, data, vocabulary) for module in both)
    assert np.abs(one - other).max() > 1e-4
    np.testing.assert_allclose(similarities(run, data), (one + other) / 2, atol=1e-6)
    assert "model_best.pth.tar (NCR or BiCro), 2 networks, epoch 7" in dict(describe(run.path))["imported"]


def test_tensors_that_two_networks_share_are_kept_apart(data: Path, tmp_path: Path) -> None:
    module = network("saf", len(vocabulary_of(data)))
    run = import_checkpoint(
        save(tmp_path, content("NCR", parts(module), parts(module))), Pairs.of(data), tmp_path / "run"
    )
    np.testing.assert_allclose(similarities(run, data), sims_of(module, data, vocabulary_of(data)), atol=1e-6)


def test_keys_with_the_prefix_of_data_parallel_are_read(data: Path, tmp_path: Path) -> None:
    module = network("vse", len(vocabulary_of(data)))
    run = import_checkpoint(
        save(tmp_path, content("CRCL", parts(module, prefix="module."))), Pairs.of(data), tmp_path / "run"
    )
    np.testing.assert_array_equal(similarities(run, data), sims_of(module, data, vocabulary_of(data)))


def test_files_of_old_versions_of_torch_and_numpy_are_read(data: Path, tmp_path: Path) -> None:
    module = network("vse", len(vocabulary_of(data)))
    path = save(tmp_path, content("CRCL", parts(module)), _use_new_zipfile_serialization=False)
    raw = path.read_bytes()
    assert b"numpy._core.multiarray" in raw
    path.write_bytes(raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    found = read_published(path)
    assert (found.layout, found.matcher, found.epoch, found.rsum) == ("CRCL", "vse", 7, 400.25)
    np.testing.assert_array_equal(found.beliefs, np.linspace(0, 1, PAIRS))
    assert import_checkpoint(path, Pairs.of(data), tmp_path / "run").load_ledger().shape == (PAIRS,)


def test_nothing_more_is_allowed_afterwards(data: Path, tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    read_published(save(tmp_path, content("CRCL", parts(network("vse", 9)))))
    assert set(torch.serialization.get_safe_globals()) == before
    assert not set(ALLOWED) & before


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cross_attn": "i2t", "agg_func": "Mean", "lambda_softmax": 4.0, "lambda_lse": 5.0}, ("i2t", "mean", 4, 5)),
        ({"cross_attn": "t2i", "agg_func": "LogSumExp", "lambda_softmax": 7, "lambda_lse": 3.0}, ("t2i", "lse", 7, 3)),
        ({"cross_attn": "t2i", "agg_func": "Max", "lambda_softmax": 9, "lambda_lse": 6}, ("t2i", "max", 9, 6)),
        ({"cross_attn": "i2t", "agg_func": "Sum", "lambda_softmax": 9, "lambda_lse": 6}, ("i2t", "sum", 9, 6)),
        ({}, ("t2i", "lse", None, None)),
    ],
)
def test_scan_attends_and_pools_as_its_command_line_said(
    data: Path, tmp_path: Path, given: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    vocabulary = vocabulary_of(data)
    options = dict(zip(("direction", "pooling", "smooth", "sharp"), expected, strict=True))
    module = network("scan", len(vocabulary), **options)
    said: list[str] = []
    path = save(tmp_path, content("SCAN", parts(module), opt=argparse.Namespace(**given)))
    run = import_checkpoint(
        path, Pairs.of(data), tmp_path / "run", vocab=data / "tiny_precomp_vocab.json", progress=Noting(said)
    )
    np.testing.assert_array_equal(similarities(run, data), sims_of(module, data, vocabulary))
    assert said == (
        []
        if given
        else [
            "model_best.pth.tar does not say cross_attn, agg_func, lambda_softmax, lambda_lse: "
            "taken as t2i with lse at the usual values"
        ]
    )


def test_a_scan_of_another_kind_is_refused_with_all_that_differs(tmp_path: Path) -> None:
    odd = argparse.Namespace(cross_attn="both", agg_func=["Mean"], raw_feature_norm="softmax", lambda_lse=-1)
    path = save(tmp_path, content("SCAN", parts(network("scan", 9)), opt=odd))
    with pytest.raises(InputError) as refused:
        read_published(path)
    message = str(refused.value)
    assert len(message.splitlines()) == 4
    for word in ("cross_attn is 'both'", "agg_func is ['Mean']", "raw_feature_norm is 'softmax'", "lambda_lse is -1"):
        assert word in message


@pytest.mark.parametrize(
    ("mode", "steps", "queries"), [("text_IMRAM", 3, "words"), ("image_IMRAM", 1, "regions"), ("full_IMRAM", 2, "both")]
)
def test_imram_asks_as_its_command_line_said(tmp_path: Path, mode: str, steps: int, queries: str) -> None:
    told = argparse.Namespace(model_mode=mode, iteration_step=steps, lambda_softmax=11.0)
    found = read_published(save(tmp_path, content("IMRAM", parts(network("imram", 9)), opt=told)))
    assert found.options == {"queries": queries, "steps": steps, "smooth": 11.0}
    assert found.notes == ()


def test_vsrn_of_coco_is_known_by_the_missing_norm(tmp_path: Path) -> None:
    found = read_published(save(tmp_path, content("VSRN", parts(network("vsrn", 9, form="coco")))))
    assert (found.matcher, found.options) == ("vsrn", {"form": "coco"})


@pytest.mark.parametrize(
    ("layout", "odd", "message"),
    [
        ("IMRAM", {"model_mode": "all", "iteration_step": 0}, r"model_mode is 'all'[\s\S]*iteration_step is 0"),
        ("NAAF", {"thres_safe": "high"}, "thres_safe is 'high', expected a number"),
        ("GSMN", {"lambda_softmax": -1}, "lambda_softmax is -1, expected a number above 0"),
    ],
)
def test_options_that_no_matcher_can_have_are_refused(
    tmp_path: Path, layout: str, odd: dict[str, Any], message: str
) -> None:
    values = content(layout, parts(network(layout.lower(), 9)), opt=argparse.Namespace(**odd))
    with pytest.raises(InputError, match=message):
        read_published(save(tmp_path, values))


def test_word_vectors_that_started_from_glove_are_read(tmp_path: Path) -> None:
    model = parts(network("naaf", 9))
    model[1]["embed.glove.weight"] = model[1].pop("embed.weight")
    found = read_published(save(tmp_path, content("NAAF", model)))
    assert found.weights["txt.embed.weight"].shape == (9, 5)
    assert found.weights["safe_threshold"] == 0.25


class Evil:
    """Unpickled, this would run a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("place", ["in opt", "as a weight", "as the whole"])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("how", ["system", "open", "touch"])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(
    crcl: Crcl, data: Path, tmp_path: Path, how: str, zipped: bool, place: str
) -> None:
    mark = tmp_path / "mark"
    evil = {
        "system": Evil(os.system, f"touch {mark}"),
        "open": Evil(open, str(mark), "w"),
        "touch": Evil(Path.touch, mark),
    }[how]
    values: Any = content("CRCL", parts(network("vse", 9)))
    if place == "in opt":
        values["opt"] = argparse.Namespace(evil=evil)
    elif place == "as a weight":
        values["model"][0]["fc.weight"] = evil
    else:
        values = evil
    path = save(tmp_path, values, _use_new_zipfile_serialization=zipped)
    answer = crcl("import", path, "--data", data, "-o", tmp_path / "run")
    assert answer.code == 2
    assert "refused: it names" in answer.err
    assert "nothing in it was run" in answer.err
    assert "Traceback" not in answer.err
    assert not mark.exists()
    assert not (tmp_path / "run").exists()


def test_numpys_own_unpickling_is_not_reached(tmp_path: Path) -> None:
    values = content("CRCL", parts(network("vse", 9)), move_gt=np.array([1, "x", None], dtype=object))
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        read_published(save(tmp_path, values))
    values["move_gt"] = np.zeros(3, dtype=[("a", "f4"), ("b", "O")])
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        read_published(save(tmp_path, values))


def test_a_file_that_grows_on_reading_is_refused(tmp_path: Path) -> None:
    plain = save(tmp_path, content("CRCL", parts(network("vse", 9)), filling=torch.zeros(100_000)))
    packed = tmp_path / "packed.pth.tar"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(InputError, match="unpacks to more than it holds"):
        read_published(packed)


def test_a_tensor_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    model = parts(network("vse", 9))
    model[0]["fc.weight"] = torch.zeros(1).expand(10**6, 10**6)
    with pytest.raises(InputError, match=r"fc\.weight: claims a shape of .* more than the file can hold"):
        read_published(save(tmp_path, content("CRCL", model)))
    model = parts(network("vse", 9))
    shared = torch.zeros(20_000)
    model[0] |= {f"w{n}": shared for n in range(100)}
    with pytest.raises(InputError, match="claims more numbers than the file can hold"):
        read_published(save(tmp_path, content("CRCL", model)))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_file_a_text_and_nothing_are_refused(crcl: Crcl, data: Path, tmp_path: Path, zipped: bool) -> None:
    path = save(tmp_path, content("CRCL", parts(network("vse", 9))), _use_new_zipfile_serialization=zipped)
    raw = path.read_bytes()
    for left in (
        raw[: len(raw) // 2],
        raw[:20],
        b"",
        b"model weights\nare here\n",
        b"PK\x03\x04 what",
        os.urandom(500),
    ):
        path.write_bytes(left)
        answer = crcl("import", path, "--data", data, "-o", tmp_path / "run")
        assert answer.code == 2, left[:20]
        assert f"{path}: not a checkpoint, or a damaged one" in answer.err
        assert "Traceback" not in answer.err
    answer = crcl("import", tmp_path / "model_bst.pth.tar", "--data", data, "-o", tmp_path / "run")
    assert answer.code == 2
    assert "did you mean 'model_best.pth.tar'?" in answer.err


def test_all_that_is_wrong_with_the_tensors_is_said_at_once(tmp_path: Path) -> None:
    model = parts(network("saf", 9))
    del model[1]["cap_rnn.bias_hh_l0"]
    model[0]["fc.scale"] = torch.ones(3)
    model[2]["sim_eval_w.weight"] = torch.ones(1, 7)
    model[2]["SAF_module.bn.num_batches_tracked"] = torch.tensor(0.5)
    with pytest.raises(InputError) as refused:
        read_published(save(tmp_path, content("SGRAF", model)))
    lines = [line.split(": model: ")[1] for line in str(refused.value).splitlines()]
    assert lines == [
        "txt.cap_rnn.bias_hh_l0 is missing (as in saf)",
        "img.fc.scale is not known in saf",
        "sim.sim_eval_w.weight has shape (1, 7), expected (1, 6)",
        "sim.SAF_module.bn.num_batches_tracked is torch.float32, expected torch.int64",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model[0].pop("fc.weight"), "img.fc.weight is missing"),
        (
            lambda model: model[0].update({"fc.weight": torch.ones(8)}),
            r"img.fc.weight has shape \(8,\), which gives no",
        ),
        (lambda model: model[1].update({"embed.weight": torch.ones(0, 5)}), r"txt.embed.weight has shape \(0, 5\)"),
        (lambda model: model[0].update({"fc.bias": torch.full((8,), torch.nan)}), "img.fc.bias: holds NaN"),
        (lambda model: model[0].update({"fc.bias": "words"}), "img.fc.bias: must be a tensor, is a str"),
        (lambda model: model[0].update({"fc.bias": torch.ones(8).to_sparse()}), "must be a plain tensor"),
        (lambda model: model[0].update({"fc.bias": torch.ones(8, device="meta")}), "must be a plain tensor"),
        (lambda model: model.append({"SAF_module.bn.weight": torch.ones(1)}), "is missing"),
        (lambda model: model.pop(), "must be a list of two to four dicts"),
        (lambda model: (model[1].clear(), model[1].update({"gru.x": torch.ones(1)})), "no matcher .* has such weights"),
        (
            lambda model: (model[1].clear(), model[1].update({"module.bert.embeddings.w": torch.ones(1)})),
            "text encoder is BERT",
        ),
    ],
)
def test_models_that_no_matcher_here_has_are_refused(
    tmp_path: Path, change: Callable[[list[Weights]], Any], message: str
) -> None:
    model = parts(network("vse", 9))
    change(model)
    with pytest.raises(InputError, match=message):
        read_published(save(tmp_path, content("CRCL", model)))


def test_other_layouts_are_refused_with_those_that_can_be_read(tmp_path: Path) -> None:
    for values, message in (
        ({"net_A": {}, "net_B": {}, "meta_net_A": {}}, "MSCN's layout"),
        ({"weights": {}}, "no 'model' in it, but weights"),
        ([1, 2], "holds a list"),
    ):
        with pytest.raises(
            InputError,
            match=f"{message}.*CRCL, SGRAF, RCL, SCAN, DECL, NCR, BiCro, L2RM, GSC, CHAN, VSRN, NAAF, IMRAM and GSMN",
        ):
            read_published(save(tmp_path, values))
    both = parts(network("saf", 9))
    both[2] |= parts(network("sgr", 9))[2]
    with pytest.raises(InputError, match="both SAF and SGR"):
        read_published(save(tmp_path, content("SGRAF", both)))


def test_no_checkpoint_is_one_of_mscn(data: Path, tmp_path: Path) -> None:
    path = save(tmp_path, content("CRCL", parts(network("vse", len(vocabulary_of(data))))))
    with pytest.raises(InputError, match="method mscn: its networks end in a meta-network"):
        import_checkpoint(path, Pairs.of(data), tmp_path / "run", method="mscn")
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_of_another_size_is_refused_with_both_numbers(data: Path, tmp_path: Path) -> None:
    words = len(vocabulary_of(data))
    path = save(tmp_path, content("CRCL", parts(network("vse", words + 1))))
    with pytest.raises(InputError, match=f"trained with {words + 1} words, .* has {words} with <mask> and {words - 1}"):
        import_checkpoint(path, Pairs.of(data), tmp_path / "run")


def test_a_checkpoint_without_a_mask_gets_the_mean_of_its_words_for_it(data: Path, tmp_path: Path) -> None:
    module = network("sgr", len(vocabulary_of(data)) - 1)
    run = import_checkpoint(save(tmp_path, content("SGRAF", parts(module))), Pairs.of(data), tmp_path / "run")
    rows = run.load_matcher()["txt.embed.weight"]
    words = module.state_dict()["txt.embed.weight"]
    torch.testing.assert_close(rows[:-1], words, atol=0, rtol=0)
    torch.testing.assert_close(rows[-1], words.mean(0))
    assert run.vocabulary().mask == len(rows) - 1


def test_the_vocabulary_is_found_where_there_is_but_one(tmp_path: Path) -> None:
    data = tmp_path / "f30k_precomp"
    data.mkdir()
    with pytest.raises(
        InputError, match="found no vocabulary near the data; pass the one the checkpoint was trained with as vocab="
    ):
        find_vocabulary(data)
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab/coco_precomp_vocab.json").touch()
    assert find_vocabulary(data).name == "coco_precomp_vocab.json"
    (data / "my_vocab.json").touch()
    with pytest.raises(InputError, match=r"found several vocabularies: .*my_vocab\.json, .*coco_precomp_vocab\.json"):
        find_vocabulary(data)
    (tmp_path / "vocab/f30k_precomp_vocab.json").touch()
    assert find_vocabulary(data) == tmp_path / "vocab/f30k_precomp_vocab.json"


@pytest.mark.parametrize(
    ("beliefs", "message"),
    [
        (np.ones(PAIRS - 1), f"correspondences of {PAIRS - 1} pairs, but .* has {PAIRS}"),
        (np.full(PAIRS, 1.5), f"{PAIRS} beliefs of move_gt are not from 0 to 1: entry 0 is 1.5"),
        (np.r_[np.ones(PAIRS - 1), np.nan], f"1 beliefs of move_gt are not from 0 to 1: entry {PAIRS - 1} is nan"),
        (np.ones((PAIRS, 2)), "one belief per pair"),
        ("ones", "one belief per pair"),
        (torch.ones(PAIRS, dtype=torch.int64), "one belief per pair"),
        (torch.ones(PAIRS, device="meta"), "one belief per pair"),
        (torch.ones(PAIRS).to_sparse(), "one belief per pair"),
        (torch.ones(PAIRS).to(torch.float8_e4m3fn), "one belief per pair"),
    ],
)
def test_beliefs_that_do_not_fit_are_refused(data: Path, tmp_path: Path, beliefs: Any, message: str) -> None:
    path = save(tmp_path, content("CRCL", parts(network("vse", len(vocabulary_of(data)))), move_gt=beliefs))
    with pytest.raises(InputError, match=message):
        import_checkpoint(path, Pairs.of(data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("beliefs", [nn.Parameter(torch.ones(PAIRS)), torch.ones(PAIRS, dtype=torch.bfloat16)])
def test_beliefs_may_be_a_parameter_or_of_half_the_precision(tmp_path: Path, beliefs: torch.Tensor) -> None:
    found = read_published(save(tmp_path, content("CRCL", parts(network("vse", 9)), move_gt=beliefs))).beliefs
    assert found is not None
    np.testing.assert_array_equal(found, np.ones(PAIRS))


@pytest.mark.parametrize("epoch", [2**2000, -(2**40), float("inf"), torch.ones((), device="meta"), "3", None, True])
def test_an_epoch_that_is_none_is_left_out(tmp_path: Path, epoch: Any) -> None:
    assert read_published(save(tmp_path, content("CRCL", parts(network("vse", 9))) | {"epoch": epoch})).epoch is None


@pytest.mark.parametrize("kind", [torch.float8_e5m2, torch.uint32])
def test_weights_without_arithmetic_are_refused_with_their_type(tmp_path: Path, kind: torch.dtype) -> None:
    model = parts(network("vse", 9))
    model[0]["fc.weight"] = model[0]["fc.weight"].to(kind)
    with pytest.raises(InputError, match=rf"fc\.weight: is {kind}, expected numbers of 16, 32 or 64 bits"):
        read_published(save(tmp_path, content("CRCL", model)))


def test_beliefs_are_kept_and_audited_against_the_noise_file(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    index = noise.mismatch(read(data).image_index, 0.5, 3)
    noise.write_index(tmp_path / "noise.npy", index)
    truth = noise.apply(read(data), index).truth
    assert truth is not None
    beliefs = np.where(truth, 0.9, 0.05)
    path = save(tmp_path, content("CRCL", parts(network("vse", len(vocabulary_of(data)))), move_gt=beliefs))
    answer = crcl("import", path, "--data", data, "-o", tmp_path / "run", "--noise-file", tmp_path / "noise.npy")
    assert answer.code == 0, answer.err
    np.testing.assert_array_equal(Run.open(tmp_path / "run").load_ledger(), beliefs.astype(np.float32))
    answer = crcl("audit", tmp_path / "run")
    assert f"{(~truth).sum()} of {PAIRS} pairs" in answer.out
    assert "auroc 1.000, average precision 1.000, precision 1.000, recall 1.000" in answer.out


def test_without_beliefs_the_audit_is_ordered_by_similarity_and_says_so(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    noise.write_index(tmp_path / "noise.npy", noise.mismatch(read(data).image_index, 0.5, 3))
    path = save(tmp_path, content("DECL", parts(network("saf", len(vocabulary_of(data)) - 1))))
    run = tmp_path / "run"
    assert crcl("import", path, "--data", data, "-o", run, "--noise-file", tmp_path / "noise.npy").code == 0
    assert dict(describe(run))["beliefs"] == "none"
    answer = crcl("audit", run, "-o", tmp_path / "audit.csv")
    assert answer.code == 0, answer.err
    assert "The run has no correspondences" in answer.out
    assert "are suspect" not in answer.out
    assert "against the injected noise: auroc 0." in answer.out
    assert "precision 0" not in answer.out.replace("average precision", "")
    table = pyarrow.csv.read_csv(tmp_path / "audit.csv")
    assert table.column("similarity").to_pylist() == sorted(table.column("similarity").to_pylist())
    assert table.column("correspondence").null_count == table.column("suspect").null_count == PAIRS
    with pytest.raises(InputError, match="imported without beliefs"):
        Run.open(run).load_ledger()


def test_data_of_another_shape_is_refused_with_both_numbers(data: Path, tmp_path: Path) -> None:
    sizes = SIZES | LOCAL | {"vocabulary": 9}
    for other, message in (({"regions": 5}, "4 regions .* on 5"), ({"features": 7}, "6 numbers per region.* on 7")):
        path = save(tmp_path, content("SGRAF", parts(SAF(**sizes | other))))
        with pytest.raises(InputError, match=message):
            import_checkpoint(path, Pairs.of(data), tmp_path / "run")


def test_the_method_can_be_named_and_an_existing_folder_is_kept(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    path = save(tmp_path, content("NCR", *(parts(network("saf", len(vocabulary_of(data)))) for _ in range(2))))
    words = ("import", path, "--data", data, "-o", tmp_path / "run")
    assert crcl(*words, "--method", "infonce").code == 0
    assert stored_config(Run.open(tmp_path / "run")).method == "infonce"
    answer = crcl(*words)
    assert (answer.code, "exists already" in answer.err) == (2, True)
    assert crcl(*words, "--overwrite").code == 0
    assert stored_config(Run.open(tmp_path / "run")).method != "infonce"
    answer = crcl(*words, "--overwrite", "--method", "bicrow")
    assert answer.code == 2
    assert "method: must be one of" in answer.err


@pytest.mark.parametrize("text", ["docs/import.md"])
def test_the_commands_of_the_documentation_run(
    crcl: Crcl, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    shutil.copytree(data, tmp_path / "data/f30k_precomp")
    (tmp_path / "data/f30k_precomp/tiny_precomp_vocab.json").rename(tmp_path / "f30k_precomp_vocab.json")
    save(tmp_path, content("CRCL", parts(network("vse", len(vocabulary_of(data))))))
    monkeypatch.chdir(tmp_path)
    small = ["train.pieces=[1,1]", "ledger.freeze_epochs=0", "matcher.embedding=8", "matcher.word=5"]
    body = (Path(__file__).parents[3] / text).read_text("utf-8").split("# Published checkpoints\n")[1].split("\n## ")[0]
    commands = [line.split(" # ")[0].split()[1:] for line in body.splitlines() if line.startswith("    crcl ")]
    assert (commands[0][0], commands[-1][0]) == ("import", "train")
    for words in commands:
        settings = [word for key in small for word in ("--set", key)] if words[0] == "train" else []
        answer = crcl(*words, *settings)
        assert answer.code == 0, (words, answer.err)


def test_the_data_may_be_a_table_with_other_names_of_columns(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    pairs = read(data)
    rows = [f"{pairs.image_ids[image]},{text}" for image, text in zip(pairs.image_index, pairs.captions, strict=True)]
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(["file,text,split", *(f"{row},train" for row in rows), f"{rows[0]},dev"]) + "\n")
    (tmp_path / "ids.txt").write_text("\n".join(pairs.image_ids))
    np.save(tmp_path / "features.npy", pairs.gather(np.arange(pairs.images)))
    path = save(tmp_path, content("CRCL", parts(network("vse", len(vocabulary_of(data))))))
    words = ("--vocab", data / "tiny_precomp_vocab.json", "--image-column", "file", "--caption-column", "text")
    answer = crcl("import", path, "--data", table, "-o", tmp_path / "run", *words)
    assert answer.code == 0, answer.err
    assert crcl("audit", tmp_path / "run", "-o", tmp_path / "audit.csv").code == 0


def test_from_the_file_to_a_run_trained_further(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    path = save(tmp_path, content("CRCL", parts(network("vse", len(vocabulary_of(data))))))
    run, new = tmp_path / "run", tmp_path / "new"
    answer = crcl("import", path, "--data", data, "-o", run)
    assert answer.code == 0, answer.err
    assert "vse imported from model_best.pth.tar (CRCL), epoch 7, dev rSum 400.2" in answer.out
    assert f"using the vocabulary {data / 'tiny_precomp_vocab.json'}" in answer.err
    answer = crcl("evaluate", run, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert "imported from model_best.pth.tar" in json.loads(answer.out)["runs"][0]
    answer = crcl("audit", run)
    assert (answer.code, answer.err) == (0, "")
    answer = crcl("train", data, "-o", run, "--resume")
    assert answer.code == 2
    assert "`crcl train` with --start" in answer.err
    small = ["--set", "train.pieces=[1,1]", "--set", "ledger.freeze_epochs=0", "--device", "cpu"]
    answer = crcl("train", data, "-o", new, "--start", run, *small)
    assert answer.code == 0, answer.err
    assert "start at 1" not in answer.err  # the beliefs are about these very pairs
    trained = stored_config(Run.open(new))
    assert (trained.matcher.embedding, trained.matcher.word, trained.train.start) == (8, 5, str(run))
    assert crcl("evaluate", new).code == 0
