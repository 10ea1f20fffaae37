"""`import crcl`: the public names, their documentation, and that they do what the commands do."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image
from tiny import LEARNING, SMALL, Noting, small_config, write_folder

import crcl
from crcl.auditing import origin
from crcl.auditing.suggestions import Suggestions
from crcl.data.split import Split
from crcl.progress import Clock, StepLog
from crcl.retrieval.scoring import Scorer

FUNCTIONS = [name for name in crcl.__all__ if inspect.isfunction(getattr(crcl, name))]


def test_every_public_name_is_there_and_listed() -> None:
    assert sorted(crcl.__all__) == crcl.__all__
    assert set(crcl.__all__) <= set(dir(crcl))
    for name in crcl.__all__:
        assert getattr(crcl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        crcl.nothing  # noqa: B018


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_tells_its_arguments_and_shows_an_example(name: str) -> None:
    function = getattr(crcl, name)
    text = inspect.getdoc(function) or ""
    assert "Example:\n" in text
    for argument, parameter in inspect.signature(function).parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty, argument
        assert f"\n    {argument}: " in text, f"{name} does not say what {argument} is"
    if inspect.signature(function).return_annotation is not None:
        assert "Returns:\n" in text or "Example:" in text


def test_importing_the_package_takes_a_fraction_of_a_second() -> None:
    program = "import time; begun = time.process_time(); import crcl; print(time.process_time() - begun)"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert float(told.stdout) < 0.2


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small demonstration, with its data and runs."""
    folder = tmp_path_factory.mktemp("front") / "demo"
    crcl.demo(folder, images=64, settings={"train.pieces": [1, 2], "ledger.freeze_epochs": 0, "train.device": "cpu"})
    return folder


@pytest.fixture(scope="module")
def table(scenes: Path) -> pandas.DataFrame:
    """The drawn training scenes with four captions each, one of which is of another scene."""
    names = (scenes / "data/train_ids.txt").read_text().split()
    captions = (scenes / "data/train_caps.txt").read_text().splitlines()
    others = captions[50:] + captions[:50]
    rows = [(name, (captions if k < 3 else others)[5 * row + k]) for row, name in enumerate(names) for k in range(4)]
    return pandas.DataFrame(rows, columns=["image", "caption"])


@pytest.fixture(scope="module")
def audit(scenes: Path, table: pandas.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> crcl.Audit:
    folder = tmp_path_factory.mktemp("audited")
    table.to_csv(folder / "pairs.csv", index=False)
    return crcl.audit(folder / "pairs.csv", folder / "made", images=scenes / "data/images", settings=LEARNING)


def test_nothing_is_printed_unasked(scenes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    crcl.evaluate(scenes / "crcl", split="dev")
    crcl.audit(scenes / "crcl", suggest=3)
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_whom_it_is_given(scenes: Path, tmp_path: Path) -> None:
    steps: list[Clock] = []

    class Counting(crcl.Progress):
        def step_done(self, clock: Clock, log: StepLog) -> None:
            steps.append(clock)

    crcl.train(scenes / "data", tmp_path / "run", settings=SMALL, progress=Counting())
    assert steps


def test_a_run_of_the_scenes_scores_photos_and_sentences_as_its_evaluation_does(scenes: Path) -> None:
    model = crcl.load(scenes / "crcl")
    assert model.takes_photos
    assert "photos and sentences" in repr(model)
    pairs = crcl.read(scenes / "data").split("test")
    photos = [scenes / "data/images" / name for name in pairs.image_ids]
    by_photo = model.similarity(photos, pairs.captions)
    assert by_photo.shape == (pairs.images, len(pairs))
    np.testing.assert_allclose(by_photo, model.scorer.similarities(pairs), atol=1e-5)
    opened = model.similarity([Image.open(photos[0])], ["a red square"])
    np.testing.assert_array_equal(opened, model.similarity(photos[:1], ["a red square"]))
    features = np.stack([pairs.gather(np.array([0]))[0]])
    np.testing.assert_allclose(model.similarity(features, pairs.captions), by_photo[:1], atol=1e-5)


def test_a_run_on_given_features_takes_features_and_says_so(tmp_path: Path) -> None:
    run = crcl.train(write_folder(tmp_path / "data"), tmp_path / "run", settings=SMALL)
    model = crcl.load(run)
    assert not model.takes_photos
    with pytest.raises(crcl.InputError, match="given features of unknown origin"):
        model.similarity(["a.jpg"], ["a red dog"])
    assert model.similarity(np.ones((2, 4, 6), np.float32), ["a red dog"]).shape == (2, 1)
    with pytest.raises(crcl.InputError, match="6 numbers per region"):
        model.similarity(np.ones((2, 4, 5), np.float32), ["a red dog"])
    with pytest.raises(crcl.InputError, match="at least one sentence"):
        model.similarity(np.ones((2, 4, 6), np.float32), "a red dog")


def test_an_audit_has_estimates_with_intervals_and_a_table(audit: crcl.Audit) -> None:
    assert audit.rate is not None
    assert audit.rate.low <= audit.rate <= audit.rate.high
    assert audit.recall is not None
    assert audit.table.column_names[:6] == ["row", "image", "caption", "correspondence", "suspect", "similarity"]
    assert audit.to_pandas()["correspondence"].is_monotonic_increasing
    assert audit.suspects.num_rows == audit.suspect_count == int(audit.to_pandas()["suspect"].sum())
    assert "mismatched" in repr(audit)


def test_another_threshold_computes_only_what_is_new(audit: crcl.Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    before = audit.at(threshold=0.2)
    asked: list[int] = []

    real = origin.suggest

    def counted(scorer: Scorer, pairs: Split, rows: np.ndarray, **rest: Any) -> Suggestions:
        asked.append(len(rows))
        return real(scorer, pairs, rows, **rest)

    monkeypatch.setattr(origin, "suggest", counted)
    more = before.at(threshold=1.0)
    known = before.findings.suggestions
    assert asked == [more.suspect_count - (0 if known is None else len(known.rows))]
    fewer = more.at(threshold=0.1)
    assert len(asked) == 1
    assert fewer.suspect_count <= before.suspect_count
    assert audit.at().threshold == audit.threshold


def test_an_audit_writes_a_table_a_report_and_a_cleaned_copy(audit: crcl.Audit, tmp_path: Path) -> None:
    found = audit.at(threshold=0.5)
    assert pandas.read_csv(found.write(tmp_path / "audit.csv")).shape[0] == found.table.num_rows
    assert found.report(tmp_path / "report").read_text("utf-8").startswith("<!doctype html>")
    done = found.clean(tmp_path / "cleaned.csv")
    assert done.removed == found.suspect_count > 0
    assert len(pandas.read_csv(tmp_path / "cleaned.csv")) == done.kept
    with pytest.raises(crcl.InputError, match="overwrite=True"):
        found.clean(tmp_path / "cleaned.csv")


def test_the_functions_and_the_objects_clean_alike(audit: crcl.Audit, tmp_path: Path) -> None:
    audit.at(threshold=0.5).clean(tmp_path / "one.csv")
    crcl.clean(audit.run, tmp_path / "other.csv", threshold=0.5)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "other.csv").read_bytes()


def test_the_same_call_resumes_and_another_audit_there_is_refused(
    audit: crcl.Audit, scenes: Path, table: pandas.DataFrame, tmp_path: Path
) -> None:
    home = audit.run.path.parent
    again = crcl.audit(home.parent / "pairs.csv", home, images=scenes / "data/images", settings=LEARNING)
    np.testing.assert_array_equal(again.correspondence, audit.correspondence)
    table.to_csv(tmp_path / "pairs.csv", index=False)
    with pytest.raises(crcl.InputError, match=r"other data.*folder=.*overwrite=True"):
        crcl.audit(tmp_path / "pairs.csv", home, images=scenes / "data/images", settings=LEARNING)


def test_a_dataframe_gives_the_same_correspondences_as_its_file(
    audit: crcl.Audit, scenes: Path, table: pandas.DataFrame, tmp_path: Path
) -> None:
    pairs = crcl.read(table, images=scenes / "data/images")
    found = crcl.audit(pairs, tmp_path / "made", settings=LEARNING)
    np.testing.assert_array_equal(found.correspondence, audit.correspondence)


def test_other_columns_of_a_dataframe_survive_cleaning(scenes: Path, table: pandas.DataFrame, tmp_path: Path) -> None:
    named = table.rename(columns={"image": "file"}).assign(image=range(len(table)), licence="cc0")
    pairs = crcl.read(named, images=scenes / "data/images", image_column="file")
    found = crcl.audit(pairs, tmp_path / "made", settings=SMALL)
    found.at(threshold=0.5).clean(tmp_path / "cleaned.parquet", mark=True)
    cleaned = pandas.read_parquet(tmp_path / "cleaned.parquet")
    assert cleaned[list(named.columns)].sort_index(axis=1).equals(named.sort_index(axis=1))
    kept = found.at(threshold=0.5).clean(tmp_path / "cleaned.csv").kept
    written = pandas.read_csv(tmp_path / "cleaned.csv")
    assert len(written) == kept < len(named)
    assert sorted(written.columns) == sorted(named.columns)
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_columns_of_a_dataframe_are_lists_too(scenes: Path, table: pandas.DataFrame) -> None:
    assert len(crcl.read(table.image, table.caption, images=scenes / "data/images")) == len(table)
    with pytest.raises(crcl.InputError, match="expected a list of texts"):
        crcl.read(["a.png", "b.png"], "xy")
    with pytest.raises(crcl.InputError, match=r"captions=\.\.\. to crcl\.read"):
        crcl.read(["a.png", "b.png"])


def test_lists_of_pictures_with_captions_are_trained_and_evaluated(scenes: Path, tmp_path: Path) -> None:
    names = (scenes / "data/train_ids.txt").read_text().split()[:20]
    captions = (scenes / "data/train_caps.txt").read_text().splitlines()[:100:5]
    pictures = [Image.open(scenes / "data/images" / name) for name in names]
    notes: list[str] = []
    run = crcl.train(crcl.read(pictures, captions), tmp_path / "run", settings=SMALL, progress=Noting(notes))
    assert any("pixel grid" in note for note in notes)
    assert crcl.evaluate(run, split="dev").rsum > 0
    assert crcl.load(run).similarity(pictures[:2], captions[:3]).shape == (2, 3)


def test_arrays_of_embeddings_are_audited(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(80, 8)).astype(np.float32)
    pairs = crcl.read(vectors, [f"caption {row}" for row in range(80)], text_features=vectors[::-1].copy())
    found = crcl.audit(pairs, tmp_path / "made", settings={"train.pieces": [1, 2], "train.device": "cpu"})
    assert found.table.num_rows == len(found.correspondence)
    assert crcl.load(found.run).similarity(vectors[:2], vectors[:3]).shape == (2, 3)
    with pytest.raises(crcl.InputError, match="vectors of captions"):
        crcl.load(found.run).similarity(vectors[:2], ["a dog"])


def test_several_runs_are_one_ensemble_whose_members_are_told(scenes: Path) -> None:
    scores = crcl.evaluate([scenes / "crcl", scenes / "infonce"], split="dev")
    assert [member.rsum for member in scores.members] == [
        crcl.evaluate(scenes / name, split="dev").rsum for name in ("crcl", "infonce")
    ]
    assert len(scores.conditions) == 2


def test_whatever_can_be_read_has_facts_and_features(
    scenes: Path, table: pandas.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenes / "data/images")
    for number, source in enumerate((table, table.to_dict("list"), crcl.read(table))):
        made = crcl.extract_features(source, tmp_path / str(number), images=scenes / "data/images")
        assert made.images == table["image"].nunique()
        assert dict(crcl.info(source))["train"]
    pictures = [Image.open(name) for name in table["image"][:4]]
    assert crcl.extract_features(crcl.read(pictures, ["a", "b", "c", "d"]), tmp_path / "pictures").images == 4
    for wrong in (5, pictures, []):
        with pytest.raises(crcl.InputError, match="expected pairs, a table, a folder of images or a list of image"):
            crcl.extract_features(wrong, tmp_path / "wrong")
    with pytest.raises(crcl.InputError, match="int: expected a path, a table"):
        crcl.info(5)


def test_what_the_other_commands_do_is_one_call(scenes: Path, tmp_path: Path) -> None:
    truth = crcl.inject_noise(scenes / "data", tmp_path / "noise.npy", rate=0.5)
    assert 0.3 < (~truth).mean() <= 0.5
    assert {path.stem for path in crcl.plot(scenes / "crcl", tmp_path / "plots")} >= {"curves", "ridge", "ranks"}
    assert crcl.export(scenes / "crcl", tmp_path / "weights.safetensors").is_file()
    made = crcl.extract_features(scenes / "data/images", tmp_path / "features")
    assert made.images == 64 + 6 + 6
    assert dict(crcl.info(scenes / "crcl"))["progress"] == "3 of 3 epochs"
    assert crcl.info(crcl.read(scenes / "data"))[0][0] == "data"


def test_errors_speak_of_parameters_and_not_of_options(scenes: Path, tmp_path: Path) -> None:
    crcl.train(scenes / "data", tmp_path / "run", settings=SMALL)
    with pytest.raises(crcl.InputError) as refused:
        crcl.train(scenes / "data", tmp_path / "run", settings=SMALL)
    assert "overwrite=True" in str(refused.value)
    assert "--" not in str(refused.value)
    assert refused.value.where == str(tmp_path / "run")


def test_a_config_of_the_tests_is_what_the_api_trains(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = crcl.train(data, tmp_path / "run", noise=0.4, settings=SMALL)
    assert run.config == small_config(data).model_dump(mode="json")


def test_tables_are_reproduced_on_pairs_in_any_layout_with_features(tmp_path: Path) -> None:
    splits = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    images = [
        {"filename": f"{number}.jpg", "split": split, "sentences": [{"raw": f"picture {number}"}]}
        for number, split in enumerate(splits)
    ]
    document = tmp_path / "dataset_flickr8k.json"
    document.write_text(json.dumps({"images": images}))
    np.save(tmp_path / "f.npy", np.random.default_rng(0).normal(size=(10, 2, 4)).astype(np.float32))
    (tmp_path / "names.txt").write_text("".join(f"{number}.jpg\n" for number in range(10)))
    options: dict[str, Any] = {"out": tmp_path / "out", "seeds": 1, "matcher": "bow", "print_jobs": True}
    pairs = crcl.read(document, features=tmp_path / "f.npy", ids=tmp_path / "names.txt", layout="karpathy")
    words = " ".join(crcl.reproduce("table4", data=pairs, **options).commands[0])
    assert str(document) in words
    for setting in ("features", "ids", "layout"):
        assert f"--set data.{setting}=" in words
    assert "column" not in words
    with pytest.raises(
        crcl.InputError, match=r"no features of its images; .* by settings=...: data.features and data.id"
    ):
        crcl.reproduce("table4", data=document, **options)
    with pytest.raises(crcl.InputError, match="not on disk, where every run reads them"):
        crcl.reproduce("table4", data=crcl.read({"image": ["a"], "caption": ["b"]}), **options)
