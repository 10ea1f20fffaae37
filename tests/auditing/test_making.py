"""Vectors of both sides for audits and trainings: which models make them, when, and what a run remembers of them."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_clip import LONGEST, draw_scenes, save_clip
from small_encoder import save_dinov2, save_encoder
from tiny import Noting, call

import crcl
from crcl.auditing.making import Models, wants_vectors
from crcl.data.pairs import Pairs
from crcl.errors import InputError
from crcl.features.language import LanguageModel
from crcl.features.vision import VisionModel
from crcl.progress import SILENT

QUICK: dict[str, Any] = {"train.pieces": [2], "ledger.freeze_epochs": 1, "train.device": "cpu", "matcher.embedding": 8}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty drawn scenes as a table, a CLIP, a SigLIP, a DINOv2 and a sentence encoder."""
    folder = tmp_path_factory.mktemp("making")
    draw_scenes(folder / "scenes", train=60)
    for kind in ("clip", "siglip"):
        save_clip(folder / kind, kind)
    save_encoder(folder / "bert", size=16, positions=80)
    save_dinov2(folder / "dino")
    return folder


def table(home: Path) -> Path:
    return home / "scenes/pairs.csv"


def images(home: Path) -> Path:
    return home / "scenes/images"


@pytest.fixture(scope="module")
def audited(home: Path) -> crcl.Audit:
    return crcl.audit(table(home), home / "by-clip", images=images(home), model=str(home / "clip"), device="cpu")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_an_audit_by_a_clip_reads_images_and_captions_as_its_vectors(home: Path, audited: crcl.Audit) -> None:
    config = audited.run.config
    assert (config["method"], config["matcher"]["name"]) == ("relink", "linear-vectors")  # few pairs
    assert audited.run.sizes["regions"] == 1
    features, texts = (np.load(home / "by-clip/features" / name) for name in ("features.npy", "text_features.npy"))
    told, names = rows(table(home)), (home / "by-clip/features/ids.txt").read_text().splitlines()
    assert (features.shape, texts.shape) == ((72, 8), (len(told), 8))
    see, read = VisionModel(str(home / "clip"), whole=True), LanguageModel(str(home / "clip"))
    for row in (0, 50, 100):
        image = Image.open(images(home) / told[row]["image"]).convert("RGB")
        vector = see.compute([see.prepare(image)])[0]
        np.testing.assert_allclose(features[names.index(told[row]["image"])], vector, atol=2e-3 * np.abs(vector).max())
        vector = read.compute([read.tokenize([told[row]["caption"]])[0][0]])[0]
        np.testing.assert_allclose(texts[row], vector, atol=2e-3)


def test_the_share_that_is_cut_is_in_the_record_the_caveats_and_the_card(home: Path, audited: crcl.Audit) -> None:
    text = json.loads((home / "by-clip/features/about.json").read_text())["text"]
    captions = [row["caption"] for row in rows(table(home))]
    long = sum(len("".join(caption.split())) + 2 > LONGEST for caption in captions)  # a token for each letter
    assert (text["captions"], text["long"], text["cut"]) == (len(captions), long, long)
    assert any("longer than the 12 tokens" in sentence for sentence in audited.caveats())
    assert "captions as vectors of 8 numbers by clip, 100.0 % of them cut" in crcl.load(audited.run).card()


def test_the_run_scores_new_photos_and_sentences_as_those_of_the_training(home: Path, audited: crcl.Audit) -> None:
    model = crcl.load(audited.run)
    assert "reads photos and sentences" in repr(model)
    pairs = audited.findings.pairs
    photos = [images(home) / pairs.image_ids[number] for number in range(4)]
    first = [int(np.flatnonzero(pairs.image_index == number)[0]) for number in range(4)]
    found = model.similarity(photos, [pairs.captions[row] for row in first])
    stored = model.similarity(pairs.gather(np.arange(4)), pairs.gather_texts(np.array(first)))
    np.testing.assert_allclose(found, stored, atol=5e-3)
    with pytest.raises(InputError, match="got an empty text"):
        model.similarity(photos, [""])
    with pytest.raises(InputError, match="expected sentences, got int"):
        model.similarity(photos, ["a", 3])


def test_a_run_does_not_fetch_its_text_model_and_notices_another(home: Path, audited: crcl.Audit, monkeypatch) -> None:
    import socket

    def refused(*given: object, **options: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    run = shutil.copytree(audited.run.path, home / "copied")
    about = json.loads((run / "config.json").read_text())
    for name, message in (
        ("someone/else", "someone/else: cannot be loaded"),
        (str(home / "bert"), "has changed since"),
    ):
        about["made"]["text"]["extractor"] = name
        (run / "config.json").write_text(json.dumps(about))
        with pytest.raises(InputError, match=message):
            crcl.load(run).similarity(np.zeros((1, 8), np.float32), ["a dog"])
    about["made"]["text"]["settings"] = {"encoder": "a stranger's"}
    (run / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="of unknown origin, so it cannot read sentences"):
        crcl.load(run).similarity(np.zeros((1, 8), np.float32), ["a dog"])


def test_given_again_nothing_is_made_again_and_changed_captions_are_refused(home: Path, audited: crcl.Audit) -> None:
    before = {path: path.stat().st_mtime_ns for path in (home / "by-clip/features").glob("*.npy")}
    options: dict[str, Any] = {"images": images(home), "model": str(home / "clip"), "device": "cpu"}
    crcl.audit(table(home), home / "by-clip", **options)
    assert before == {path: path.stat().st_mtime_ns for path in (home / "by-clip/features").glob("*.npy")}
    with pytest.raises(InputError, match=r"other settings"):
        crcl.audit(table(home), home / "by-clip", matcher="vse", **options)
    old = table(home).read_text()
    table(home).write_text(old.replace("red", "blue", 1))
    try:
        with pytest.raises(InputError, match="the captions are not those that the vectors were made of"):
            crcl.audit(table(home), home / "by-clip", **options)
    finally:
        table(home).write_text(old)


def test_dual_starts_as_the_cosine_of_the_models_vectors(home: Path, tmp_path: Path) -> None:
    for kind in ("clip", "siglip"):
        run = crcl.train(
            crcl.read(table(home), images=images(home)),
            tmp_path / kind,
            model=str(home / kind),
            matcher="dual",
            settings=QUICK | {"train.lr": 1e-12, "train.weight_decay": 0},
        )
        made = tmp_path / f"{kind}-features"
        features, texts = (np.load(made / name).astype("f4") for name in ("features.npy", "text_features.npy"))
        cosine = (
            features[:5]
            @ texts[:7].T
            / np.outer(np.linalg.norm(features[:5], axis=1), np.linalg.norm(texts[:7], axis=1))
        )
        found = crcl.load(run).similarity(features[:5], texts[:7])
        np.testing.assert_allclose(found, cosine, atol=1e-4)
        names = (made / "ids.txt").read_text().splitlines()[:2]
        captions = [row["caption"] for row in rows(table(home))[:2]]
        new = crcl.load(run).similarity([images(home) / name for name in names], captions)
        np.testing.assert_allclose(new, cosine[:2, :2], atol=5e-3)


def test_vectors_of_two_models_do_not_start_as_their_cosine(home: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": str(home / "dino"), "text_model": str(home / "bert"), "settings": QUICK}
    pairs = crcl.read(table(home), images=images(home))
    run = crcl.train(pairs, tmp_path / "run", matcher="dual", **options)
    assert run.config["matcher"]["aligned"] is False  # both have 16 numbers
    assert (run.sizes["features"], run.sizes["text_features"]) == (16, 16)
    assert any("skip" in name for name in run.load_matcher())
    audited = crcl.audit(pairs, tmp_path / "audit", matcher="dual", device="cpu", **options)
    assert audited.run.config["matcher"]["aligned"] is False
    assert crcl.load(audited.run).similarity([images(home) / "000000.png"], ["a dog", "a cat"]).shape == (1, 2)


def test_a_matcher_of_words_gets_regions_as_before(home: Path, tmp_path: Path) -> None:
    pairs = crcl.read(table(home), images=images(home))
    options: dict[str, Any] = {"model": str(home / "clip"), "settings": QUICK, "device": "cpu"}
    audited = crcl.audit(pairs, tmp_path / "audit", matcher="bow", **options)
    assert audited.run.config["matcher"]["name"] == "bow"
    assert audited.run.sizes["regions"] == 16  # 4 x 4 patches
    assert "text_features" not in audited.run.sizes
    assert not (tmp_path / "audit/features/text_features.npy").exists()
    run = crcl.train(pairs, tmp_path / "run", matcher="bow", model=str(home / "clip"), settings=QUICK)
    assert run.sizes["regions"] == 16


def test_features_that_are_there_are_kept_if_only_a_text_model_is_given(home: Path, tmp_path: Path) -> None:
    made = crcl.extract_features(table(home), tmp_path / "f", images=images(home), grid=1)
    pairs = crcl.read(table(home), features=tmp_path / "f/features.npy", ids=tmp_path / "f/ids.txt")
    audited = crcl.audit(pairs, tmp_path / "audit", text_model=str(home / "bert"), device="cpu")
    assert audited.run.sizes["features"] == made.shape[1]
    assert audited.run.sizes["text_features"] == 16
    assert audited.run.made["extractor"] == "pixel grid"
    assert audited.run.made["text"]["extractor"] == str(home / "bert")
    assert not (tmp_path / "audit/features/features.npy").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"matcher": "vse", "text_model": "bert"}, "matcher vse reads words"),
        ({"matcher": "dual", "model": "dino"}, "has no text side, but matcher dual reads vectors"),
        ({"model": "dino", "text_model": "bert", "long_captions": "least"}, "only if one model reads both"),
        ({"model": "clip", "long_captions": "most"}, "'most': expected cut, mean, least"),
        ({"model": "clip", "matcher": "dial"}, "matcher.name"),
        ({"model": "clip", "text_model": "dino"}, r"has no tokenizer\.json"),
    ],
)
def test_models_and_matchers_that_do_not_fit_are_refused_before_long_work(
    home: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    named = {key: str(home / value) if "model" in key else value for key, value in options.items()}
    with pytest.raises(InputError, match=message):
        crcl.audit(table(home), tmp_path / "audit", images=images(home), device="cpu", **named)
    assert not (tmp_path / "audit/run").exists()


def test_a_model_without_a_text_side_reads_words_and_says_so(home: Path) -> None:
    pairs, told = Pairs.of(table(home)), []
    assert not wants_vectors(pairs, Models(str(home / "dino")), None, Noting(told))
    assert "has no text side: captions are read word by word" in told[0]
    assert wants_vectors(pairs, Models(str(home / "clip")), None, SILENT)
    assert not wants_vectors(pairs, Models(str(home / "clip")), "vse", SILENT)
    assert not wants_vectors(pairs, Models(), None, SILENT)


LONG = "a red dog here. a blue cat there. the sun is low."


def test_long_captions_are_scored_by_sentences(home: Path, tmp_path: Path) -> None:
    lines = [row | {"caption": LONG if number % 3 else row["caption"]} for number, row in enumerate(rows(table(home)))]
    with (tmp_path / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    options: dict[str, Any] = {"images": images(home), "model": str(home / "clip"), "device": "cpu"}
    photos = [images(home) / lines[row]["image"] for row in (0, 4)]
    found = {}
    for way in ("cut", "mean", "least"):
        audited = crcl.audit(
            tmp_path / "pairs.csv", tmp_path / way, long_captions=way, matcher="dual", settings=QUICK, **options
        )
        assert audited.run.made["text"]["long_captions"] == way
        model = crcl.load(audited.run)
        found[way] = model.similarity(photos, [LONG, *LONG.replace(". ", ".|").split("|")])
    assert found["least"].shape == (2, 4)
    np.testing.assert_array_equal(found["least"][:, 0], found["least"][:, 1:].min(axis=1))
    cut, mean, least = (np.load(tmp_path / way / "features/text_features.npy").astype("f4") for way in found)
    sentences = LanguageModel(str(home / "clip"))
    parts = sentences.compute([ids for ids, _ in sentences.tokenize(LONG.replace(". ", ".|").split("|"))])
    total = parts.sum(0) / np.linalg.norm(parts.sum(0))
    np.testing.assert_allclose(mean[4], total, atol=2e-3)
    features = np.load(tmp_path / "least/features/features.npy").astype("f4")
    names = (tmp_path / "least/features/ids.txt").read_text().splitlines()
    for row in (1, 4, 5, 100):
        if row % 3:
            shown = features[names.index(lines[row]["image"])]
            np.testing.assert_allclose(least[row], parts[np.argmin(parts @ shown)], atol=2e-3)
    assert np.abs(cut[4] - mean[4]).max() > 0.01
    for way in ("mean", "least"):
        shown = crcl.audit(tmp_path / way / "run", device="cpu").at(keep=0.2)
        told = shown.suspects.to_pylist()
        assert {row["least_sentence"] for row in told if row["caption"] == LONG} <= {
            *LONG.replace(". ", ".|").split("|")
        }
        assert all(row["least_sentence"] is None for row in told if row["caption"] != LONG)
        assert shown.suspects["least_sentence"].null_count < shown.suspect_count
        page = shown.report(tmp_path / way / "page").read_text("utf-8")
        assert "Fits the picture least: " in page
    cut_ones = crcl.audit(tmp_path / "cut/run", device="cpu").at(keep=0.2)
    assert cut_ones.reasons["caption cut"] == cut_ones.suspect_count  # a token for each letter: all are longer
    assert "least_sentence" not in cut_ones.table.column_names


def test_by_the_command_line(home: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = [str(table(home)), "--images", str(images(home))]
    clip, device = ["--model", str(home / "clip")], ["--device", "cpu"]
    answer = call(capsys, monkeypatch, "audit", *where, *clip, "--long-captions", "mean", *device)
    assert answer.code == 0, answer.err
    assert "captions (100.0 %) are longer than the 12 tokens that" in answer.err
    assert "read by sentences (mean)" in answer.err
    answer = call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv", "--threshold", "0.5")
    assert answer.code == 0, answer.err
    assert rows(tmp_path / "cleaned.csv")
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run", "--text-model", "x", "--matcher", "dual")
    assert (answer.code, "leave --text-model, --matcher out" in answer.err) == (2, True)
    made = ["-o", "vectors", *clip, *device]
    assert call(capsys, monkeypatch, "features", *where, "--global", "--workers", "1", *made).code == 0
    answer = call(capsys, monkeypatch, "features", *where, "--texts", "--long-captions", "least", *made)
    assert answer.code == 0, answer.err
    assert "144 captions, 8 numbers each" in answer.out
    files = ["--features", "vectors/features.npy", "--text-features", "vectors/text_features.npy"]
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    answer = call(capsys, monkeypatch, "train", *where, "-o", "run", *files, "--matcher", "dual", *settings)
    assert answer.code == 0, answer.err
    assert crcl.load("run").similarity([images(home) / "000000.png"], [LONG]).shape == (1, 1)
    for words, message in (
        (["features", str(images(home)), "--texts", *made], "has no captions; give a table with --texts"),
        (["features", *where, "--texts", "-o", "x"], "give --model with --texts"),
        (["features", *where, "--texts", "--long-captions", "least", "-o", "x", *clip], "has no vectors of the images"),
        (["audit", *where, "--folder", "x", *clip, "--long-captions", "all"], "--long-captions"),
    ):
        answer = call(capsys, monkeypatch, *words)
        assert (answer.code, message in answer.err) == (2, True), answer.err
