"""One command from a table and images, or from embeddings, to suspects, how sure that is, a page, a clean table."""

import csv
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from embedded import write_embeddings
from PIL import Image
from tiny import LEARNING, SMALL, Answer, Noting, call, command, write_folder

import crcl
from crcl.auditing.prepare import FEW, KINDS_FROM, MANY, Preparation, _report_slower, plan_training, suited
from crcl.config import Config, load
from crcl.data import scenes
from crcl.data.pairs import Pairs
from crcl.progress import Progress
from crcl.runs.folder import Run

pytestmark = pytest.mark.slow  # nearly all of them need the audit that the first one makes

QUICK = [word for setting in LEARNING for word in ("--set", setting)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 60 drawn scenes with five captions each, some of others, other columns, and unusable images."""
    folder = tmp_path_factory.mktemp("drawn")
    scenes.write(folder / "scenes", describe=lambda image: np.zeros((1, 1), np.float32), train=60, dev=1, test=1)
    captions = (folder / "scenes" / "train_caps.txt").read_text("utf-8").splitlines()
    photos = folder / "scenes" / "images"
    (photos / "broken.png").write_bytes(b"not an image")
    Image.new("CMYK", (8, 8)).save(photos / "print.jpg")
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "text", "licence"))
        for image in range(60):
            own = captions[5 * image : 5 * image + 5]
            for caption in own if image % 3 else (*own[:3], captions[(5 * image + 50) % 300], own[4]):
                writer.writerow((f"{image:06}.png", caption, "cc0"))
        writer.writerow(("broken.png", "a broken picture of a red square", "cc0"))
        writer.writerow(("missing.png", "a missing picture of a red square", "cc0"))
        writer.writerow(("print.jpg", "<script>alert(1)</script> in four colours", "cc0"))
    return folder


def audit_of(folder: Path, *words: str) -> list[str]:
    columns = ["--image-column", "file", "--caption-column", "text"]
    return ["audit", "pairs.csv", "--images", str(folder / "scenes" / "images"), *columns, *QUICK, *words]


@pytest.fixture(scope="module")
def audited(drawn: Path) -> Answer:
    answer = command(*audit_of(drawn), cwd=drawn)
    assert answer.code == 0, answer.err
    return answer


def test_one_command_makes_features_a_run_a_table_and_a_page(drawn: Path, audited: Answer) -> None:
    made = drawn / "pairs-audit"
    assert "estimated" in audited.out
    look, clean = "crcl serve pairs-audit/run --open", "crcl clean pairs-audit/run -o CLEANED.csv"
    assert audited.out.endswith(f"next:\n  {look}\n  {clean}\n")
    assert "2 images were skipped" in audited.err
    assert "decoys (known mismatches)" in audited.err
    assert "broken.png" in (made / "features" / "skipped.csv").read_text("utf-8")
    run = Run.open(made / "run")
    judged = run.sizes["pairs"]
    assert 260 < judged < 301  # a tenth of the images is held out
    assert len(run.load_decoy_ledger()) == 50
    table = pyarrow.csv.read_csv(made / "audit.csv")
    assert table.num_rows == judged
    assert {"row", "image", "caption", "correspondence", "suspect", "caption_1", "image_3_similarity"} <= set(
        table.column_names
    )
    page = (made / "report" / "index.html").read_text("utf-8")
    assert "<script>alert(1)" not in page
    assert any((made / "report" / "thumbs").iterdir())


def test_the_page_counts_what_was_not_judged_and_names_the_next_command(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    words = ["audit", "pairs-audit/run", "-o", "again.csv", "--report", "again", "--threshold", "0.5"]
    answer = call(capsys, monkeypatch, *words)
    assert answer.code == 0, answer.err
    page = (drawn / "again" / "index.html").read_text("utf-8")
    held_out = 301 - Run.open(drawn / "pairs-audit" / "run").sizes["pairs"]
    assert f"Not judged: {held_out} rows held out, 2 images skipped." in page
    assert "crcl clean pairs-audit/run -o CLEANED.csv --threshold 0.5</code>" in page
    assert "no noise injected" in page
    assert '<dt>data</dt><dd dir="auto">pairs.csv</dd>' in page


def test_a_report_of_the_run_has_pictures_without_the_folder_being_given_again(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    words = ["audit", "pairs-audit/run", "-o", "again.csv", "--report", "pictures"]
    assert call(capsys, monkeypatch, *words).code == 0
    assert any((drawn / "pictures" / "thumbs").iterdir())
    about = drawn / "pairs-audit" / "features" / "about.json"
    known = json.loads(about.read_text("utf-8"))
    about.write_text(json.dumps(known | {"folder": "gone"}), "utf-8")
    try:
        assert call(capsys, monkeypatch, *words).code == 0
    finally:
        about.write_text(json.dumps(known), "utf-8")
    assert "Name the folder that holds the images" in (drawn / "pictures" / "index.html").read_text("utf-8")


def test_the_rows_of_the_audit_are_rows_of_the_table(drawn: Path, audited: Answer) -> None:
    pairs = pyarrow.csv.read_csv(drawn / "pairs.csv").to_pylist()
    for found in pyarrow.csv.read_csv(drawn / "pairs-audit" / "audit.csv").to_pylist():
        row = pairs[found["row"]]
        assert (found["image"], found["caption"]) == (row["file"], row["text"])


class Sample(dict[str, float]):
    """A sample as FiftyOne has them, as far as the tutorial goes."""

    def __init__(self, filepath: Path) -> None:
        super().__init__()
        self.filepath, self.saved = str(filepath), False

    def save(self) -> None:
        self.saved = True


def test_the_tutorials_code_for_pandas_and_fiftyone_runs_on_an_audit(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text[text.index("## With other tools") :], re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(drawn)
    photos = drawn / "scenes" / "images"
    names = {"dataset": [Sample(photos / f"{image:06}.png") for image in range(60)] + [Sample(photos / "broken.png")]}
    for block in blocks:
        code = block.replace("scenes/pairs.csv", "pairs.csv").replace("scenes/drawn/images", "scenes/images")
        exec(code, names)
    audit = pyarrow.csv.read_csv(drawn / "pairs-audit" / "audit.csv").to_pylist()
    assert len(names["keep"]) == 303 - sum(row["suspect"] for row in audit)
    for sample in names["dataset"]:
        own = [row["correspondence"] for row in audit if row["image"] == Path(sample.filepath).name]
        assert sample.saved == bool(own)
        assert sample.get("correspondence") == (pytest.approx(min(own)) if own else None)


def test_given_again_nothing_is_trained_again(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (drawn / "pairs-audit" / "run" / "training.pt").stat().st_mtime_ns
    monkeypatch.chdir(drawn)
    answer = call(capsys, monkeypatch, *audit_of(drawn, "--precision", "0.2"))
    assert answer.code == 0, answer.err
    assert "epoch" not in answer.err
    assert (drawn / "pairs-audit" / "run" / "training.pt").stat().st_mtime_ns == before


def test_suggestions_are_for_suspects_only(drawn: Path, audited: Answer) -> None:
    rows = pyarrow.csv.read_csv(drawn / "pairs-audit" / "audit.csv").to_pylist()
    for row in rows:
        assert (row["caption_1"] not in (None, "")) == row["suspect"]
        assert row["caption_1"] != row["caption"]
        assert row["image_1"] != row["image"]


def test_the_clean_table_has_the_columns_of_the_table(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    for words in (("clean", "-o", "cleaned.csv"), ("audit", "-o", "sure.csv")):
        answer = call(capsys, monkeypatch, words[0], "pairs-audit/run", *words[1:], "--precision", "0.2")
        assert answer.code == 0, answer.err
    cleaned = pyarrow.csv.read_csv(drawn / "cleaned.csv")
    assert cleaned.column_names == ["file", "text", "licence"]
    flagged = sum(row["suspect"] for row in pyarrow.csv.read_csv(drawn / "sure.csv").to_pylist())
    assert cleaned.num_rows == 303 - flagged


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "0.1", "--precision", "0.9"], "give --threshold or --precision"),
        (["--precision", "1.5"], "precision must be above 0"),
        (["-o", "suspects.xlsx"], ".csv or .parquet"),
        (["--report", "scenes"], "not a report"),
        (["--decoys", "0.7"], "data.decoys"),
    ],
)
def test_what_cannot_be_done_is_said_before_long_work(
    drawn: Path,
    audited: Answer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(drawn)
    answer = call(capsys, monkeypatch, *audit_of(drawn, *words))
    assert answer.code == 2
    assert message in answer.err


def test_a_table_with_no_usable_image_says_where_they_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("image,caption\na.jpg,a dog\nb.jpg,a cat\nc.jpg,a car\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, "audit", "pairs.csv", *QUICK)
    assert answer.code == 2
    assert "--images" in answer.err
    answer = call(capsys, monkeypatch, "audit", "pairs.csv", "--image-column", "caption", *QUICK)
    assert answer.code == 2
    assert "two columns" in answer.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,caption\na.png,a dog\na.png,a cat\n", "only one image, 'a.png'"),
        ("image,caption\na.png,a dog\nb.png,a cat\n", "only one training pair"),
        ("image,caption,split\na.png,a dog,train\na.png,a cat,train\nb.png,a car,dev\n", "show one image"),
        ("image,caption,split\na.png,a dog,train\nb.png,a cat,test\n", "only one image"),
        ("image,caption,split\na.png,a dog,train\nb.png,a cat,\n", "row 2 (the first is 1): empty split"),
        ("image,caption\na.png,\nb.png,\n", "no row has both"),
        ("image,text\na.png,a dog\n", "no column 'caption'"),
    ],
)
def test_a_table_that_cannot_be_learnt_from_is_refused_before_its_images_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    message: str,
) -> None:
    (tmp_path / "pairs.csv").write_text(content, "utf-8")
    for name in "ab":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, "audit", "pairs.csv", *QUICK)
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "pairs-audit").exists()


def test_rows_without_an_image_or_a_caption_are_told_and_left_out_and_stay_in_the_clean_table(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (drawn / "pairs.csv").read_text("utf-8").splitlines()[:121]
    lines[3:3] = ["000001.png,,cc0", ",no image here,cc0"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, *audit_of(drawn))
    assert answer.code == 0, answer.err
    assert "2 rows without an image or a caption are left out and not judged: 3, 4 (the first is 1)" in answer.err
    assert "skipped" not in answer.err
    judged = set(pyarrow.csv.read_csv("pairs-audit/audit.csv")["row"].to_pylist())
    assert not judged & {2, 3}
    page = Path("pairs-audit/report/index.html").read_text("utf-8")
    held_out = 120 - Run.open(Path("pairs-audit/run")).sizes["pairs"]
    assert f"Not judged: {held_out} rows held out, 2 without an image or a caption." in page
    answer = call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv", "--threshold", "1")
    assert answer.code == 0, answer.err
    assert f"{122 - len(judged)} rows were not judged" in answer.out
    assert set(lines[3:5]) < set((tmp_path / "cleaned.csv").read_text("utf-8").splitlines())


def test_embeddings_and_the_fields_layout_are_audited_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_embeddings(tmp_path / "vectors")
    write_folder(tmp_path / "field", train=60)
    for data, settings in (("vectors", ["--set", "matcher.name=dual"]), ("field", [])):
        answer = call(capsys, monkeypatch, "audit", data, "--folder", f"of-{data}", *QUICK, *settings)
        assert answer.code == 0, answer.err
        assert "next:" not in answer.out  # only tables can be cleaned
        assert (tmp_path / f"of-{data}" / "report" / "index.html").is_file()
        assert (tmp_path / f"of-{data}" / "audit.csv").is_file()


def test_a_precision_needs_decoys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")
    words = [word for setting in SMALL for word in ("--set", setting)]
    assert call(capsys, monkeypatch, "train", str(data), "-o", str(tmp_path / "run"), *words).code == 0
    answer = call(capsys, monkeypatch, "audit", str(tmp_path / "run"), "--precision", "0.9")
    assert answer.code == 2
    assert "--decoys" in answer.err


def test_a_precision_that_nothing_has_flags_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = write_folder(tmp_path / "data", train=100), tmp_path / "run"  # all match
    assert call(capsys, monkeypatch, "train", str(data), "-o", str(run), *QUICK, "--decoys", "0.05").code == 0
    answer = call(capsys, monkeypatch, "audit", str(run), "--precision", "1", "-o", str(tmp_path / "audit.csv"))
    assert answer.code == 0, answer.err
    assert "no threshold has an estimated precision of 100%" in answer.err
    assert "none is flagged" in answer.out
    assert not any(pyarrow.csv.read_csv(tmp_path / "audit.csv")["suspect"].to_pylist())


def test_few_decoys_estimate_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")  # 48 pairs, 12 decoys
    words = [*(word for setting in SMALL for word in ("--set", setting)), "--decoys", "0.05"]
    assert call(capsys, monkeypatch, "train", str(data), "-o", str(tmp_path / "run"), *words).code == 0
    answer = call(capsys, monkeypatch, "audit", str(tmp_path / "run"))
    assert answer.code == 0
    assert "too few" in answer.err
    assert "None of the 48 pairs is flagged" in answer.out
    assert not any(pyarrow.csv.read_csv(tmp_path / "run" / "audit.csv")["suspect"].to_pylist())
    answer = call(capsys, monkeypatch, "audit", str(tmp_path / "run"), "--threshold", "0.1")
    assert "At threshold 0.1, " in answer.out
    assert json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))["config"]["data"]["decoys"] == 0.05


def test_by_default_few_pairs_are_judged_by_the_linear_model_which_says_where_captions_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data", train=150)
    lines = (data / "train_caps.txt").read_text("utf-8").splitlines()
    shown = np.repeat(np.arange(150), 2)
    wrong = np.random.default_rng(0).permutation(300)[:60]
    shown[wrong] = np.roll(shown[wrong], 1)
    (data / "train_ims.npy").rename(tmp_path / "features.npy")
    (tmp_path / "ids.txt").write_text("".join(f"{image}.jpg\n" for image in range(150)))
    rows = [f"{image}.jpg,{line},{row:03}" for row, (image, line) in enumerate(zip(shown, lines, strict=True))]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,caption,code", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, "audit", "pairs.csv", "--images", ".", "--set", "train.device=cpu")
    assert answer.code == 0, answer.err
    run = Run.open(tmp_path / "pairs-audit" / "run")
    assert (run.config["method"], run.config["matcher"]["name"]) == ("relink", "linear")
    table = pyarrow.csv.read_csv("pairs-audit/audit.csv")
    assert {"p_wrong", "image_1_row", "image_1_belief", "caption_1_belief"} <= set(table.column_names)
    found = table.to_pylist()
    assert np.isin([row["row"] for row in found[:20]], wrong).mean() > 0.8
    for row in found:
        assert 0 <= row["p_wrong"] <= 1
        assert not row["suspect"] or row["image_1"] == f"{shown[row['image_1_row']]}.jpg"
    answer = call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv", "--relink", "0.1")
    assert answer.code == 0, answer.err
    assert "of these moved to another image, at threshold" in answer.out
    kept = {line.rpartition(",")[2]: line for line in (tmp_path / "cleaned.csv").read_text().splitlines()[1:]}
    before = {line.rpartition(",")[2]: line for line in rows}
    changed = [code for code, line in kept.items() if line != before[code]]
    assert f"{len(changed)} of these moved" in answer.out
    assert all(kept[code].partition(",")[2] == before[code].partition(",")[2] for code in changed)


@pytest.mark.parametrize(
    ("pairs", "vectors", "method", "matcher", "epochs"),
    [
        (None, False, "relink", "vse", (13,)),
        (2, False, "relink", "linear", (1,)),
        (FEW - 1, False, "relink", "linear", (1,)),
        (FEW - 1, True, "relink", "linear-vectors", (1,)),
        (FEW, False, "relink", "vse", (13,)),
        (MANY, True, "relink", "dual", (7,)),
        (MANY + 1, False, "crcl", "vse", (3, 3, 10)),
        (1_000_000, True, "relink", "linear-vectors", (1,)),
    ],
)
def test_the_number_of_pairs_decides_how_an_audit_trains(
    pairs: int | None,
    vectors: bool,
    method: str,
    matcher: str,
    epochs: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crcl.methods.relink.search.installed", lambda: True)
    preset = "embeddings" if vectors else "cpu"
    chosen = load(preset=preset, base=suited({}, pairs=pairs, vectors=vectors))
    assert (chosen.method, chosen.matcher.name, chosen.schedule_pieces()) == (method, matcher, epochs)
    assert all(chosen.ledger.freeze_epochs < length for length in chosen.train.pieces)


def test_without_a_package_to_search_many_pairs_of_vectors_are_trained_by_crcl_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    chosen = load(preset="embeddings", base=suited({}, pairs=MANY + 1, vectors=True))
    assert (chosen.method, chosen.matcher.name, chosen.schedule_pieces()) == ("crcl", "dual", (2, 5))
    notes: list[str] = []

    class Notes(Progress):
        def note(self, message: str) -> None:
            notes.append(message)

    for pairs, settings in ((MANY, {}), (MANY + 1, {"method": "crcl"}), (MANY + 1, {})):
        _report_slower(settings, pairs, "crcl", Notes())
    assert len(notes) == 1
    assert notes[0].startswith("150,001 pairs are trained by crcl;")
    assert notes[0].endswith("pip install 'crcl[search]'")


def test_an_audit_is_trained_by_the_number_of_its_pairs_unless_it_is_told_how(tmp_path: Path) -> None:
    data = Pairs.of(write_folder(tmp_path / "data", train=60))

    def plan(*settings: str, preset: str | None = None) -> Config:
        return plan_training(data, Preparation(settings=settings, preset=preset), pairs=len(data.split("train")))

    assert (plan().method, plan().matcher.name, plan("train.lr=0.01").train.lr) == ("relink", "linear", 0.01)
    own = plan("method=crcl")
    assert (own.method, own.matcher.name, own.train.pieces, own.train.batch_size) == ("crcl", "vse", (3, 3, 13), 128)
    assert (plan("matcher.name=bow").method, plan("matcher.name=bow").matcher.name) == ("relink", "bow")
    assert (plan(preset="cpu").method, plan(preset="cpu").matcher.name) == ("crcl", "vse")
    assert plan("method=crcl", "train.pieces=[3,4]").train.pieces == (3, 4)


def test_a_quick_audit_fits_the_linear_model_whatever_the_training_is_told(tmp_path: Path) -> None:
    data = Pairs.of(write_folder(tmp_path / "data", train=60))
    told = Preparation(
        settings=("matcher.name=bow", "train.lr=0.01", "data.near_copies=0.9"), quick=True, preset="demo"
    )
    config = plan_training(data, told, pairs=30_000)
    assert (config.method, config.matcher.name, config.data.near_copies) == ("relink", "linear", 0.9)
    more = ("train.lr=1", "noise.rate=0.4", "noise.rate=0.3", "relink.folds=3", "train.seed=5")
    config = plan_training(data, Preparation(settings=more, quick=True), pairs=100)
    assert (config.noise.rate, config.get("relink.folds"), config.train.seed) == (0.3, 3, 5)
    assert config.train.lr != 1


def test_kinds_of_decoys_are_drawn_where_there_are_enough_pairs(tmp_path: Path) -> None:
    data = Pairs.of(write_folder(tmp_path / "data", train=60))

    def kinds(pairs: int, **given: Any) -> list[str]:
        return list(plan_training(data, Preparation(**given), pairs=pairs).data.decoy_kinds)

    assert kinds(KINDS_FROM - 1) == ["random"]
    assert kinds(KINDS_FROM) == kinds(KINDS_FROM, quick=True) == ["random", "near", "swap"]
    assert kinds(KINDS_FROM, decoy_kinds=["random"]) == ["random"]
    assert kinds(KINDS_FROM, settings=('data.decoy_kinds=["random","near"]',)) == ["random", "near"]


def test_a_quick_look_comes_first_and_what_training_adds_is_told(tmp_path: Path) -> None:
    data = write_embeddings(tmp_path / "data", 400, image=24, text=24, shards=1)
    lines: list[str] = []
    options: dict[str, Any] = {"matcher": "dual", "settings": {"train.pieces": [2]}}
    audit = crcl.audit(data, tmp_path / "audit", progress=Noting(lines), **options)
    assert [line for line in lines if line.startswith("quick look: an estimated")]
    assert audit.run.path == tmp_path / "audit" / "run"
    assert {"belief", "linear", "cosine"} <= set(audit.scores["score"].to_pylist())  # type: ignore[index]
    assert sum("the AUROC of the quick audit" in line for line in audit.summary()) == 1
    quick = crcl.audit(data, tmp_path / "audit", quick=True)
    assert quick.run.path == tmp_path / "audit" / "quick"
    np.testing.assert_array_equal(
        quick.table["score_linear"].to_numpy()[np.argsort(quick.table["row"].to_numpy())],
        audit.table["score_linear"].to_numpy()[np.argsort(audit.table["row"].to_numpy())],
    )


def test_two_tables_of_one_name_do_not_share_a_folder(
    drawn: Path, audited: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    before = (drawn / "pairs-audit" / "features" / "ids.txt").read_bytes()
    other = tmp_path / "pairs.csv"
    other.write_text("image,caption\n000000.png,a dog\n000001.png,a cat\n", "utf-8")
    answer = call(capsys, monkeypatch, "audit", str(other), "--images", str(drawn / "scenes" / "images"), *QUICK)
    assert answer.code == 2
    assert "--folder" in answer.err
    assert (drawn / "pairs-audit" / "features" / "ids.txt").read_bytes() == before


def test_a_changed_question_says_how_to_begin_anew(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    answer = call(capsys, monkeypatch, *audit_of(drawn, "--seed", "3"))
    assert answer.code == 2
    assert "--overwrite to train again" in answer.err


def test_photos_that_are_lost_new_or_changed_are_named_and_what_was_found_stays(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, made = tmp_path / "scenes" / "images", tmp_path / "pairs-audit"
    shutil.copytree(drawn / "scenes" / "images", photos)
    shutil.copy(drawn / "pairs.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call(capsys, monkeypatch, *audit_of(tmp_path)).code == 0
    before = {file: file.read_bytes() for file in (made / "features").iterdir() if file.is_file()}
    photo, good = photos / "000007.png", (photos / "000007.png").read_bytes()
    photo.unlink()
    shutil.copy(photos / "000001.png", photos / "missing.png")
    answer = call(capsys, monkeypatch, *audit_of(tmp_path))
    assert answer.code == 2
    assert "1 missing or no longer usable: 000007.png" in answer.err
    assert "1 new: missing.png" in answer.err
    assert "--overwrite to train again" in answer.err
    shutil.copy(photos / "000001.png", photo)
    (photos / "missing.png").unlink()
    assert "1 changed: 000007.png" in call(capsys, monkeypatch, *audit_of(tmp_path)).err
    assert {file: file.read_bytes() for file in before} == before
    assert call(capsys, monkeypatch, "audit", "pairs-audit/run").code == 0
    assert call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv").code == 0
    photo.write_bytes(good)
    assert call(capsys, monkeypatch, *audit_of(tmp_path)).code == 0
    photo.unlink()
    assert call(capsys, monkeypatch, *audit_of(tmp_path, "--overwrite")).code == 0


def test_where_a_run_itself_is_needed_the_folder_of_an_audit_is_answered_with_its_run(
    drawn: Path, audited: Answer
) -> None:
    with pytest.raises(crcl.InputError, match=r"did you mean .*pairs-audit/run\?"):
        Run.open(drawn / "pairs-audit")


def test_ctrl_c_after_training_never_advises_to_train_anew(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    shutil.copy(drawn / "pairs.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crcl.auditing.result.write_report", interrupted)
    answer = call(capsys, monkeypatch, *audit_of(drawn, "--overwrite"))
    assert answer.code == 130
    assert shlex.split(answer.err.rstrip().rpartition("\n")[2]) == ["crcl", *audit_of(drawn)]


def test_a_file_that_is_no_audit_is_not_replaced(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    precious = drawn / "precious.csv"
    precious.write_text("mine\n", "utf-8")
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run", "-o", "precious.csv")
    assert answer.code == 2
    assert precious.read_text("utf-8") == "mine\n"


def test_what_belongs_to_data_is_refused_with_a_run(
    drawn: Path, audited: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run", "--model", "x", "--decoys", "0.4")
    assert answer.code == 2
    assert "leave --model, --decoys out" in answer.err
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run", "--folder", "x", "--overwrite")
    assert answer.code == 2
    assert "leave --folder, --overwrite out" in answer.err


def test_what_belongs_to_a_run_is_refused_with_data_before_it_is_trained_on(
    drawn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(drawn)
    for words, told in (
        (("--data", "elsewhere.csv"), "pairs.csv: this is data, not a run; leave --data out"),
        (("--memory", "-1"), "memory"),
        (("--dtype", "int8"), "dtype 'int8': must be float32 or bfloat16"),
    ):
        columns = ("--image-column", "file", "--caption-column", "text")
        answer = call(capsys, monkeypatch, "audit", "pairs.csv", "--folder", "new", *columns, *words)
        assert answer.code == 2
        assert told in answer.err
        assert not (drawn / "new").exists()


def test_a_run_that_knows_nothing_estimates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "data", train=60)
    monkeypatch.chdir(tmp_path)
    words = ("audit", "data", *QUICK, "--set", "train.lr=1e-12")
    answer = call(capsys, monkeypatch, *words, "--score", "belief")
    assert answer.code == 0
    assert "nothing can be estimated" in answer.err
    assert "An estimated" not in answer.out
    assert "An estimated" in call(capsys, monkeypatch, *words).out  # the scores without training know more


def test_where_decoys_say_nothing_no_row_is_removed_unless_a_threshold_is_given(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(drawn / "pairs.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["--set", "train.lr=1e-12", "--score", "belief"]
    answer = call(capsys, monkeypatch, *audit_of(drawn, *words))
    assert answer.code == 0, answer.err
    assert "pairs is flagged" in answer.out
    assert "next:" not in answer.out
    assert not any(pyarrow.csv.read_csv("pairs-audit/audit.csv")["suspect"].to_pylist())
    answer = call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv", "--score", "belief")
    assert answer.code == 2
    assert "nothing can be estimated" in answer.err
    assert "--threshold" in answer.err
    assert not (tmp_path / "cleaned.csv").exists()
    for more in (["--mark"], ["--threshold", "0.2", "--overwrite"]):
        answer = call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv", "--score", "belief", *more)
        assert answer.code == 0, answer.err
    answer = call(capsys, monkeypatch, *audit_of(drawn, *words, "--threshold", "0.2"))
    assert "crcl clean pairs-audit/run -o CLEANED.csv --threshold 0.2 --score belief" in answer.out


def test_endings_in_capitals_are_tables_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "PAIRS.CSV").write_text("image,caption\na.jpg,a dog\nb.jpg,a cat\n", "utf-8")
    (tmp_path / "notes.txt").write_text("a", "utf-8")
    monkeypatch.chdir(tmp_path)
    told = call(capsys, monkeypatch, "info", "PAIRS.CSV")
    assert "1 pairs, 1 images" in told.out
    assert "none yet" in told.out
    refused = call(capsys, monkeypatch, "audit", "notes.txt").err
    assert "a file that ends in .txt, neither a run folder nor data" in refused


@pytest.mark.parametrize("alike", ["all captions are the same", "all images have the same features", "nothing"])
def test_where_all_pairs_are_alike_that_is_said_and_no_number_is_told(tmp_path: Path, alike: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(120, 6)).astype(np.float32)
    captions = [" ".join(rng.choice(["dog", "cat", "car", "red", "big"], 3)) for _ in range(240)]
    if alike.startswith("all captions"):
        captions = ["a photo"] * 240
    if alike.startswith("all images"):
        features[:] = 1
    pairs = crcl.read(features, captions)
    audit = crcl.audit(pairs, tmp_path / "audit", quick=True, decoys=0.2, seed=3)
    assert audit.unsure.endswith(f": {alike}") == (alike != "nothing")
    assert (audit.rate, audit.precision, audit.recall, audit.p_wrong, audit.kept) == (None,) * 5
    assert audit.suspect_count == 0
    said = " ".join(audit.summary())
    assert said.startswith(f"None of the {len(audit.findings.pairs)} pairs is flagged: the decoys have correspondences")
    assert "No score tells decoys from pairs: the best AUROC is 0." in said
    assert "Judged by" not in said
