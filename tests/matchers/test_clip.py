"""CLIP and SigLIP fine-tuned end to end and zero-shot: small models that are made and saved here, real image files."""

import json
import pickle
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import drawn
from PIL import Image
from reading import read
from safetensors.torch import load_file, save_file
from small_clip import LONGEST, SIDE, draw_scenes, save_clip
from tarred import write_tars
from tiny import Answer, Stop, StopAfter, assert_same_runs, call

from crcl import config
from crcl.data.pairs import Pairs
from crcl.data.text.subwords import Subwords
from crcl.errors import InputError
from crcl.matchers import Clip
from crcl.matchers.clip import load
from crcl.methods import METHODS
from crcl.metrics import retrieval
from crcl.retrieval.opening import open_scorer
from crcl.training import build, importing, session

transformers = pytest.importorskip("transformers")
KINDS = ("clip", "siglip")
QUICK = [
    "train.pieces=[1,2]",
    "train.batch_size=10",
    "train.lr=0.001",
    "train.device=cpu",
    "ledger.freeze_epochs=1",
    "decl.warmup=1",
    "division.warmup=1",
    "mscn.warmup=1",
]
Crcl = Callable[..., Answer]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_clip(folder / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_scenes(tmp_path_factory.mktemp("scenes") / "data")


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    return lambda *words: call(capsys, monkeypatch, *map(str, words))


@pytest.fixture(scope="module")
def pixels(models: dict[str, Path], table: Path) -> dict[str, Path]:
    """Folders of pixels, made by the real code."""
    from crcl.data.pairs import Pairs
    from crcl.features.extract import extract
    from crcl.features.vision import Pixels

    folders = {kind: table.parent / f"pixels-{kind}" for kind in KINDS}
    for kind, folder in folders.items():
        extract(Pairs.of(table, images=table.parent / "images").wanted_images(), Pixels(str(models[kind])), folder)
    return folders


@pytest.fixture(scope="module")
def imported(models: dict[str, Path], table: Path, pixels: dict[str, Path]) -> Path:
    places = {"features": pixels["clip"] / "features.npy", "ids": pixels["clip"] / "ids.txt"}
    pairs = Pairs.of(table, **places)
    return importing.import_model(str(models["clip"]), pairs, table.parent / "imported").path


def files(folder: Path) -> list[str]:
    return ["--features", str(folder / "features.npy"), "--ids", str(folder / "ids.txt")]


def chosen(models: dict[str, Path], table: Path, pixels: dict[str, Path], *settings: str, **base: Any) -> config.Config:
    kind = base.pop("kind", "clip")
    given = {
        "data.path": str(table),
        "data.features": str(pixels[kind] / "features.npy"),
        "data.ids": str(pixels[kind] / "ids.txt"),
        "matcher.model": str(models[kind]),
        "noise.rate": 0.4,
    }
    return config.load(preset="clip", base=given | base, settings=[*QUICK, *settings])


def plain_similarities(kind: str, folder: Path, table: Path, split: str) -> np.ndarray:
    """By transformers alone, from the image files and captions on; pixels in float16. (images, captions)"""
    rows = [line.split(",", 1) for line in table.read_text("utf-8").splitlines()[1:]]
    shown = [(name, rest.rsplit(",", 1)[0].strip('"')) for name, rest in rows if rest.endswith(f",{split}")]
    names = list(dict.fromkeys(name for name, _ in shown))
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    images = [Image.open(table.parent / "images" / name).convert("RGB") for name in names]
    seen = processor(images=images, return_tensors="pt")["pixel_values"].half().float()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>")
    padding = "max_length" if kind == "siglip" else True
    read_as = tokenizer(
        [caption for _, caption in shown], padding=padding, truncation=True, max_length=LONGEST, return_tensors="pt"
    )
    mask = {} if kind == "siglip" else {"attention_mask": read_as["attention_mask"]}
    with torch.inference_mode():
        image = model.get_image_features(pixel_values=seen).pooler_output
        text = model.get_text_features(input_ids=read_as["input_ids"], **mask).pooler_output
    return torch.nn.functional.cosine_similarity(image[:, None], text[None], dim=2).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_images_and_texts_are_encoded_as_by_transformers(models: dict[str, Path], kind: str) -> None:
    found = load(str(models[kind]))
    matcher = Clip(model=found.model, features=3 * SIDE**2, vocabulary=len(found.words))
    matcher.load_state_dict(found.weights)
    matcher.eval()
    reference = transformers.AutoModel.from_pretrained(models[kind]).eval()
    seen = torch.randn(5, 3, SIDE, SIDE)
    ids, real = found.words.encode(["a red dog", "x", "a long caption that has to be cut"]).side_by_side(np.arange(3))
    tokens = torch.from_numpy(ids)
    with torch.inference_mode():
        image = matcher.encode_images(seen.reshape(5, 1, -1), torch.ones(5, 1, dtype=torch.bool)).features
        text = matcher.encode_texts(tokens, torch.from_numpy(real.sum(1))).features
        masks = {"attention_mask": torch.from_numpy(real).long()} if kind == "clip" else {}
        expected = (
            reference.get_image_features(pixel_values=seen).pooler_output,
            reference.get_text_features(input_ids=tokens, **masks).pooler_output,
        )
    for ours, theirs in zip((image, text), expected, strict=True):
        torch.testing.assert_close(ours, torch.nn.functional.normalize(theirs, dim=1), atol=1e-5, rtol=0)


def test_captions_become_the_models_own_tokens(models: dict[str, Path]) -> None:
    for kind in KINDS:
        words = load(str(models[kind])).words
        captions = ["A dog", "a caption that is much too long for it", "half a \ud800 character", ""]
        tokens = words.encode(captions)
        assert tokens.cut == 2
        assert tokens.lengths.max() == LONGEST
        start, end = ([1], [54]) if kind == "clip" else ([], [54])
        letters = {"a</w>": 28, "d": 5, "o": 16, "g</w>": 34}
        expected = [*start, *letters.values(), *end]
        padding = [0] * (LONGEST - len(expected)) if kind == "siglip" else []
        assert tokens[0].tolist() == expected + padding
        again = Subwords(json.loads(json.dumps(words.to_json()))).encode(captions)
        np.testing.assert_array_equal(again.flat, tokens.flat)


def test_pixels_are_the_processors_own_in_half_precision(models: dict[str, Path], pixels: dict[str, Path]) -> None:
    stored = np.load(pixels["clip"] / "features.npy")
    names = (pixels["clip"] / "ids.txt").read_text().split()
    processor = transformers.AutoImageProcessor.from_pretrained(models["clip"], backend="pil")
    image = Image.open(pixels["clip"].parent / "images" / names[3]).convert("RGB")
    expected = processor(images=image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(stored[3, 0], expected.ravel().astype(np.float16))
    level = 1 / 255 / max(processor.image_std)
    assert np.abs(stored[3, 0].astype(np.float64) - expected.ravel()).max() < 0.1 * level
    assert stored.shape == (24, 1, 3 * SIDE**2)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_shot_scores_are_those_of_a_plain_computation(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], crcl: Crcl, tmp_path: Path, kind: str
) -> None:
    run, sims = tmp_path / "run", tmp_path / "sims.npy"
    made = crcl("import", models[kind], "--data", table, "-o", run, *files(pixels[kind]))
    assert made.code == 0, made.err
    answer = crcl("evaluate", run, "--json", "--save-sims", sims, "--device", "cpu")
    assert answer.code == 0, answer.err
    expected = plain_similarities(kind, models[kind], table, "test")
    np.testing.assert_allclose(np.load(sims), expected, atol=1e-5)
    scores = retrieval(expected, read(table, "test", features=pixels[kind] / "features.npy").image_index)
    assert json.loads(answer.out)["rsum"] == pytest.approx(scores.rsum)
    assert expected.std() > 0.01
    assert "not trained here" in crcl("info", run).out
    assert crcl("audit", run).code == 0


def test_only_a_test_split_is_enough_for_zero_shot(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], crcl: Crcl, tmp_path: Path
) -> None:
    rows = table.read_text("utf-8").splitlines()
    only = tmp_path / "test.csv"
    only.write_text("\n".join([rows[0], *(row for row in rows if row.endswith(",test"))]) + "\n", "utf-8")
    run = tmp_path / "run"
    assert crcl("import", models["clip"], "--data", only, "-o", run, *files(pixels["clip"])).code == 0
    assert crcl("evaluate", run, "--device", "cpu").code == 0


def test_the_commands_of_the_page_run_and_the_run_outlives_the_model(
    models: dict[str, Path], table: Path, crcl: Crcl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(table, "pairs.csv")
    shutil.copytree(table.parent / "images", "photos")
    shutil.copytree(models["clip"], "MODEL")
    write_tars(drawn(40, 1), tmp_path / "tars")
    page = (Path(__file__).parents[2] / "docs/clip.md").read_text("utf-8").replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in page.splitlines() if line.startswith("    crcl ")]
    told = [words[0] for words in commands]
    stored = ["features", "import", "evaluate", "audit", "train", "evaluate", "audit", "export"]
    assert told == [*stored, "train", "evaluate"]
    settings = [word for setting in QUICK for word in ("--set", setting)]
    for words in commands:
        answer = crcl(*words, *(settings if words[0] == "train" else []))
        assert answer.code == 0, (words, answer.err)
        if words[0] == "train":
            assert "captions are longer than the 12 tokens that the model reads" in answer.err
    assert len(Path("suspects.csv").read_text().splitlines()) == 1 + 24
    Path("MODEL").rename("gone")
    moved = shutil.copytree("runs/clip", "elsewhere")
    assert crcl("evaluate", moved).code == 0
    train = commands[told.index("train")]
    assert "finished already" in crcl(*train, *settings, "--resume").err


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "mscn"])
def test_every_method_but_mscn_trains_it(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], tmp_path: Path, method: str
) -> None:
    run = session.train(chosen(models, table, pixels, method=method), tmp_path / "run")
    _, _, scorer = open_scorer(run.path, device="cpu")
    before, after = load_file(run.path / "start.safetensors"), scorer.matcher.state_dict()  # type: ignore[attr-defined]
    prefix = "members.1." if run.networks == 2 else ""
    moved = [name for name, weight in before.items() if not torch.equal(weight, after[prefix + name])]
    assert len(moved) > 0.9 * len(before)
    assert torch.equal(before["model.logit_scale"], after[f"{prefix}model.logit_scale"])


def test_mscn_is_refused_with_what_it_goes_with(models: dict[str, Path], table: Path, pixels: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"does not go with matcher clip: .* it goes with vse, bow, saf, sgr, dual"):
        chosen(models, table, pixels, method="mscn")


def test_every_piece_begins_as_the_published_model(
    models: dict[str, Path], table: Path, pixels: dict[str, Path]
) -> None:
    settings = chosen(models, table, pixels)
    found = load(str(models["clip"]))
    data = session.read_data(settings, published=found)
    method, _ = build.prepare(settings, data, start=build.Learnt(found.weights))
    for piece in (0, 1):
        method.begin_piece(piece)
        for name, weight in method.matcher.state_dict().items():  # type: ignore[attr-defined]
            assert torch.equal(weight, found.weights[name]), (piece, name)
            weight.add_(1)  # what the piece learns is not kept


def test_training_batches_show_captions_and_pixels_as_they_are(
    models: dict[str, Path], table: Path, pixels: dict[str, Path]
) -> None:
    settings = chosen(models, table, pixels, "train.augment=true")
    data = session.read_data(settings, published=load(str(models["clip"])))
    _, batches = build.prepare(settings, data)
    for batch in batches.epoch(0):
        ids, real = data.tokens.side_by_side(batch.pairs.numpy())
        np.testing.assert_array_equal(batch.tokens.numpy(), ids)
        np.testing.assert_array_equal(batch.lengths.numpy(), real.sum(1))
        np.testing.assert_array_equal(batch.regions.numpy(), data.train.gather(data.train.image_index[batch.pairs]))


@pytest.mark.parametrize("method", ["crcl", "relink"])  # relink starts from the vectors of the published model
def test_a_training_that_was_stopped_ends_as_if_it_had_not_been_without_the_model(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], tmp_path: Path, method: str
) -> None:
    model = shutil.copytree(models["clip"], tmp_path / "model")
    settings = chosen({"clip": model}, table, pixels, "train.save_minutes=0", method=method)
    session.train(settings, tmp_path / "whole")
    with pytest.raises(Stop):
        session.train(settings, tmp_path / "stopped", progress=StopAfter(6))
    shutil.rmtree(model)
    session.train(settings, tmp_path / "stopped", resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")


def test_an_imported_model_is_trained_further_as_if_named_in_the_command(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], imported: Path, tmp_path: Path
) -> None:
    base = {
        f"data.{key}": str(pixels["clip"] / name) for key, name in (("features", "features.npy"), ("ids", "ids.txt"))
    }
    base |= {"data.path": str(table), "noise.rate": 0.4, "train.start": str(imported)}
    further = session.train(session.new_config(preset="clip", base=base, settings=QUICK), tmp_path / "further")
    direct = session.train(chosen(models, table, pixels), tmp_path / "direct")
    for name in ("matcher.safetensors", "tokenizer.json", "model.json", "metrics.jsonl"):
        assert (further.path / name).read_bytes() == (direct.path / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_is_read_by_transformers_and_imported_again(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], crcl: Crcl, tmp_path: Path, kind: str
) -> None:
    run = session.train(chosen(models, table, pixels, kind=kind, method="infonce"), tmp_path / "run")
    answer = crcl("export", run.path, "-o", tmp_path / "model")
    assert answer.code == 0, answer.err
    shutil.copy(models[kind] / "preprocessor_config.json", tmp_path / "model")
    pairs = read(table, "test", features=pixels[kind] / "features.npy")
    ours = open_scorer(run.path, device="cpu")[2].similarities(pairs)
    np.testing.assert_allclose(plain_similarities(kind, tmp_path / "model", table, "test"), ours, atol=1e-5)
    again = crcl("import", tmp_path / "model", "--data", table, "-o", tmp_path / "again", *files(pixels[kind]))
    assert again.code == 0, again.err
    np.testing.assert_array_equal(open_scorer(tmp_path / "again", device="cpu")[2].similarities(pairs), ours)
    for words, message in (
        (["--onnx", "-o", tmp_path / "graphs"], "clip is a model of transformers"),
        (["-o", tmp_path / "model"], "exists already"),
    ):
        refused = crcl("export", run.path, *words)
        assert (refused.code, message in refused.err) == (2, True)


class Trap:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def change(folder: Path, name: str, part: str = "", **values: object) -> None:
    content = json.loads((folder / name).read_text())
    (content[part] if part else content).update(values)
    (folder / name).write_text(json.dumps(content))


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(folder.parent / "trace")))


def without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def without_an_end(folder: Path) -> None:
    change(folder, "tokenizer.json", post_processor=None)


FOREIGN = {token: {"id": token, "ids": [10**6], "tokens": [token]} for token in ("<start>", "<end>")}
HOSTILE: list[tuple[Callable[[Path], object], str]] = [
    (only_pickled, "safetensors"),
    (without_a_weight, "weights are missing or misshapen: text_projection.weight"),
    (lambda folder: change(folder, "config.json", model_type="bert"), "type 'bert', expected clip or siglip"),
    (
        lambda folder: change(folder, "config.json", "text_config", hidden_size=2**20),
        "claims .* weights, but",
    ),
    (lambda folder: change(folder, "config.json", "text_config", vocab_size=2**40), "vocab_size is 1099511627776"),
    (lambda folder: change(folder, "config.json", "vision_config", num_hidden_layers=10**9), "num_hidden_layers is"),
    (lambda folder: change(folder, "config.json", "text_config", hidden_act="evil"), "cannot be loaded"),
    (
        lambda folder: change(folder, "config.json", "text_config", vocab_size=20),
        "tokens up to 54, but the model knows 20",
    ),
    (lambda folder: (folder / "tokenizer.json").write_text("{"), "not a JSON file"),
    (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not a tokenizer"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    (
        lambda folder: change(folder, "tokenizer.json", "post_processor", special_tokens=FOREIGN),
        "produced token id 1000000",
    ),
    (without_an_end, "adds no end token"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "claims|cannot be loaded"),
    (lambda folder: (folder / "config.json").write_text("[]"), "cannot be loaded"),
]


@pytest.mark.parametrize(("spoil", "message"), HOSTILE, ids=lambda part: part if isinstance(part, str) else "")
def test_a_strange_folder_ends_with_a_message_and_leaves_nothing(
    models: dict[str, Path],
    table: Path,
    pixels: dict[str, Path],
    crcl: Crcl,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    message: str,
) -> None:
    model = shutil.copytree(models["clip"], tmp_path / "model")
    spoil(model)
    answer = crcl("import", model, "--data", table, "-o", tmp_path / "run", *files(pixels["clip"]))
    assert answer.code == 2, answer.err
    assert re.search(message, answer.err)
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "trace").exists()


def test_training_opens_a_model_by_the_same_door(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], crcl: Crcl, tmp_path: Path
) -> None:
    model = shutil.copytree(models["clip"], tmp_path / "model")
    only_pickled(model)
    words = ["--set", f"matcher.model={model}", "--preset", "clip", *files(pixels["clip"])]
    answer = crcl("train", table, "-o", tmp_path / "run", *words)
    assert (answer.code, "safetensors" in answer.err) == (2, True)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "trace").exists()


def test_what_a_config_names_is_never_fetched_or_run(models: dict[str, Path], tmp_path: Path) -> None:
    model = shutil.copytree(models["clip"], tmp_path / "model")
    (model / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    change(model, "config.json", auto_map={"AutoConfig": "evil.Config"}, attn_implementation="evil/kernel")
    found = load(str(model))
    assert "evil" not in json.dumps(found.model)
    Clip(model=found.model, features=3 * SIDE**2, vocabulary=len(found.words)).load_state_dict(found.weights)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("name", "part", "values"),
    [
        ("model.json", "text_config", {"hidden_size": 2**19}),
        ("model.json", "text_config", {"num_hidden_layers": 10**9}),
        ("model.json", "vision_config", {"image_size": 32}),
        ("model.json", "", {"model_type": "evil"}),
        ("model.json", "", {"text_config": 7}),
        ("tokenizer.json", "truncation", {"max_length": 10**9}),
        ("tokenizer.json", "truncation", {"max_length": LONGEST + 1}),
        ("tokenizer.json", "post_processor", {"special_tokens": FOREIGN}),
        ("model.json", "vision_config", {"patch_size": SIDE + 1}),
        ("model.json", "vision_config", {"attention_dropout": 7}),
        ("tokenizer.json", "", {"truncation": None}),
        ("tokenizer.json", "", {"model": {"type": "evil"}}),
    ],
)
def test_a_spoilt_run_ends_with_a_message(
    imported: Path, crcl: Crcl, tmp_path: Path, name: str, part: str, values: dict[str, object]
) -> None:
    run = shutil.copytree(imported, tmp_path / "run")
    change(run, name, part, **values)
    answer = crcl("evaluate", run, "--device", "cpu")
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["matcher.model="], "matcher clip starts from a published model; give the setting matcher.model="),
        (["matcher.name=vse"], "matcher.model: matcher vse starts from fresh weights"),
        (["data.standardize=true"], "data.standardize: .* has its own pixels and tokens"),
        (["data.vocab=words.json"], "data.vocab: .* has its own pixels and tokens"),
        (["matcher.model=./nowhere"], "no such folder"),
    ],
)
def test_settings_that_do_not_go_with_it_are_told(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        session.train(chosen(models, table, pixels, *settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_that_are_no_pixels_are_refused_with_the_command_that_makes_them(
    models: dict[str, Path], table: Path, pixels: dict[str, Path], tmp_path: Path
) -> None:
    np.save(tmp_path / "features.npy", np.zeros((24, 36, 7), np.float16))
    with pytest.raises(InputError, match=r"36 regions of 7 numbers, but .* reads 3 x 16 x 16 pixels; crcl.extract"):
        session.train(chosen(models, table, pixels, f"data.features={tmp_path}/features.npy"), tmp_path / "run")


def test_pixels_need_a_model_that_reads_them(models: dict[str, Path], table: Path, crcl: Crcl, tmp_path: Path) -> None:
    other = shutil.copytree(models["clip"], tmp_path / "other")
    change(other, "preprocessor_config.json", crop_size={"height": 8, "width": 8})
    for words, message in (
        ([], "pass --model with --pixels"),
        (["--model", models["clip"], "--global"], "and leave out --global"),
        (["--model", other], "but the model reads (3, 16, 16)"),
    ):
        answer = crcl("features", table, "--images", table.parent / "images", "-o", tmp_path / "x", "--pixels", *words)
        assert (answer.code, message in answer.err) == (2, True), answer.err


def test_without_transformers_the_extra_is_named(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"matcher clip needs the package transformers; pip install"):
        load(str(models["clip"]))
