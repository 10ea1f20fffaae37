"""The commands of the guides run as they stand there, one after the other, on tiny data."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from embedded import made_up, write_embeddings
from pages import ROOT, commands, read, section, snippets
from small_clip import draw_scenes, save_clip
from small_encoder import save_dinov2, save_encoder
from tiny import LEARNING, call, environment, write_folder

SMALLEST = {"matcher.embedding": 8, "matcher.word": 6, "train.pieces": [1, 1], "ledger.freeze_epochs": 0}
LEARNT = {"train.pieces": [4, 10], "train.lr": 0.002, "ledger.freeze_epochs": 2, "matcher.embedding": 128}
TINY = ["matcher.embedding=8", "matcher.word=6", "train.pieces=[1,1]", "ledger.freeze_epochs=0", "train.device=cpu"]


def run_snippet(code: str) -> dict[str, object]:
    """Run a page's Python, with tiny sizes for what trains; gives its names."""
    import crcl

    def sized(function: Callable[..., object], smaller: dict[str, object]) -> Callable[..., object]:
        return lambda *given, settings=None, **others: function(
            *given, settings={**smaller, **(settings or {})}, **others
        )

    scope: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crcl, "train", sized(crcl.train, SMALLEST))
        patch.setattr(crcl, "audit", sized(crcl.audit, LEARNT))
        exec(code, scope)
    return scope


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Shell:
    """Runs a page's commands in this process, with tiny sizes for what trains."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def run(self, words: list[str], *, sized: list[str] = TINY) -> str:
        trains = words[1] in ("train", "demo") or (words[1] == "audit" and not Path(words[2], "config.json").exists())
        settings = [word for setting in (sized if trains else []) for word in ("--set", setting)]
        answer = call(self.capsys, self.monkeypatch, *words[1:], *settings)
        assert answer.code == 0, (words, answer.err)
        return answer.out


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


def write_table(folder: Path, images: int = 100) -> None:
    """pairs.csv of two captions per image, of which 40 % are with another image; features.npy and ids.txt beside it."""
    write_folder(folder / "folder", train=images)
    ids = (folder / "folder/train_ids.txt").read_text().split()
    captions = (folder / "folder/train_caps.txt").read_text().splitlines()
    wrong = len(captions) * 2 // 5
    captions[:wrong] = captions[2:wrong] + captions[:2]
    rows = [f"{ids[row // 2]},{caption}" for row, caption in enumerate(captions)]
    (folder / "pairs.csv").write_text("image,caption\n" + "\n".join(rows) + "\n")
    (folder / "ids.txt").write_text("\n".join(ids) + "\n")
    np.save(folder / "features.npy", np.load(folder / "folder/train_ims.npy"))


def write_precomp(folder: Path) -> None:
    """Both data sets of the research commands, and a noise index."""
    for name in ("f30k_precomp", "coco_precomp"):
        write_folder(folder / "data" / name, held_out=10)
    for ending in ("ims.npy", "caps.txt", "ids.txt"):
        source = folder / "data/coco_precomp" / f"test_{ending}"
        source.with_name(f"testall_{ending}").write_bytes(source.read_bytes())
    np.save(folder / "noise_inx_0.4.npy", np.roll(np.arange(24), 1))


@pytest.mark.slow
def test_the_commands_for_training_and_evaluating_run(folder: Path, shell: Shell) -> None:
    write_table(folder, images=30)
    write_precomp(folder)
    write_embeddings(folder / "embeddings")
    (folder / "clip").mkdir()
    shutil.copy("pairs.csv", "clip")
    for name, vectors in zip(("images", "texts"), made_up(60), strict=True):
        np.save(folder / f"clip/{name}.npy", vectors)
    done = [shell.run(words) for page in ("train", "evaluate") for words in commands(read(f"docs/{page}.md"))]
    assert len(done) > 15
    assert np.load("similarities.npy").shape == (10, 20)
    for page in ("train", "evaluate"):
        scope = run_snippet(snippets(read(f"docs/{page}.md"))[0])
        assert any(getattr(value, "rsum", 0) > 0 or hasattr(value, "similarity") for value in scope.values())
    assert len(Path("suspects.csv").read_text().splitlines()) == 1 + 54


def test_the_commands_and_the_snippet_of_the_search_run(
    folder: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import crcl

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    pairs = crcl.read(draw_scenes(folder / "scenes", train=20, held_out=10), images=folder / "scenes/images")
    for name in ("vse", "sgr"):
        crcl.train(pairs, f"runs/{name}", settings=[*TINY, f"matcher.name={name}", "matcher.similarity=4"])
    photos = sorted((folder / "scenes/images").iterdir())
    key = photos[1].name
    shutil.copy(photos[0], "a.jpg")
    shutil.copytree("scenes", "more")
    done = [
        shell.run([key if word == "b.jpg" else word for word in words]) for words in commands(read("docs/search.md"))
    ]
    assert len(done) > 10
    assert len(opened) == 1
    scope = run_snippet(snippets(read("docs/search.md"))[0])
    assert [hit.rank for hit in scope["hits"]] == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]
    assert Path("dogs.html").is_file()


def draw_wrong_pairs(page: str, images: str) -> None:
    """Make the table of drawn scenes as the page does, with fewer of them."""
    shutil.copytree(ROOT / "examples", "examples")
    draw = commands(page, "python")[0]
    draw[draw.index("--images") + 1] = images
    subprocess.run([sys.executable, *draw[1:]], check=True, env=environment(), capture_output=True)


@pytest.mark.slow
def test_the_quickstart_runs(folder: Path, shell: Shell) -> None:
    page = read("docs/quickstart.md")
    draw_wrong_pairs(page, "40")
    small, audit, clean, *_ = commands(page)
    small[small.index("200")] = "20"
    shell.run(small)
    shell.run(audit)
    shell.run([*clean, "--threshold", "0.01"])
    assert 1 < len(Path("cleaned.csv").read_text().splitlines()) <= 201


@pytest.mark.slow
def test_the_snippets_of_an_audit_print_what_the_readme_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme, page = read("README.md"), read("docs/audit.md")
    (code,) = snippets(readme)
    assert code == snippets(read("docs/quickstart.md"))[0]
    draw_wrong_pairs(page, "200")
    run_snippet(code)
    printed = re.findall(r"```text\n(.*?)```", readme, flags=re.DOTALL)[0]
    assert shape_of(same_lines(capsys.readouterr().out)) == shape_of(same_lines(printed))
    Path("cleaned.csv").unlink()
    scope = run_snippet(snippets(section(page, "From Python"))[0])
    assert len(scope["frame"]) == 5 * 180  # type: ignore[arg-type]
    assert Path("report/index.html").is_file()
    assert Path("sure.csv").is_file()


def same_lines(text: str) -> str:
    """The text without lines that are others with fewer pairs: which scores come first, and what decoys tell."""
    others = ("Judged by", "Of decoys", "More decoys")
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith(others))


def shape_of(text: str) -> list[str]:
    """The words of a text, with every number the same; an interval alone, as fewer pairs may lead to, is one too."""
    text = re.sub(r"between ([\d.]+) and ([\d.]+) %", r"\1 % (\1–\2)", text)
    return re.sub(r"-?\d[\d.,]*(e-\d+)?", "#", text).split()


@pytest.mark.slow
def test_the_next_steps_of_an_audit_run(folder: Path, shell: Shell) -> None:
    write_table(folder)
    shell.run(["crcl", "audit", "pairs.csv"], sized=[*LEARNING, "method=relink"])
    steps = commands(section(read("docs/audit.md"), "Next steps"))
    assert [words[1] for words in steps] == ["audit", "clean", "clean", "evaluate"]
    for words in steps:
        shell.run([word.replace("0.95", "0.2") for word in words])


@pytest.mark.slow
def test_the_commands_for_verdicts_run(folder: Path, shell: Shell) -> None:
    write_table(folder)
    settings = ["method=relink", "matcher.name=linear"]
    shell.run(["crcl", "audit", "pairs.csv"], sized=settings)
    lines = [line.split(",") for line in Path("pairs.csv").read_text().splitlines()[1:4]]
    said = [f"{image},{caption},wrong,{new}" for (image, caption), new in zip(lines, ("", "a lion", ""), strict=True)]
    Path("said.csv").write_text("\n".join(["image,caption,verdict,new_caption", *said]) + "\n")
    page = read("docs/verdicts.md")
    shell.run(["crcl", "verdicts", "import", "pairs-audit", "said.csv"])
    done = commands(page)
    assert [words[1] for words in done] == ["clean", "clean", "audit", "train", "verdicts", "verdicts"]
    for words in done:
        shell.run(words if words[1] != "clean" else [*words, "--overwrite"], sized=settings)
    assert "a lion" in Path("reviewed.csv").read_text()
    Path("cleaned.csv").unlink()
    exec("import crcl\n" + "\n".join(snippets(page)), {})
    assert Path("cleaned.csv").is_file()
    assert Path("second-audit/run/trained_verdicts.json").is_file()


@pytest.mark.slow
def test_the_walk_through_a_review_runs(folder: Path, shell: Shell) -> None:
    import crcl
    from crcl.runs.verdicts import Verdict, Verdicts

    page = read("docs/review.md")
    draw_wrong_pairs(page, "40")
    audit, look, clean, again, elsewhere = commands(page)
    assert [words[1] for words in (look, elsewhere)] == ["serve", "serve"]  # tests/serving runs it
    settings = ["method=relink", "matcher.name=linear"]
    shell.run(audit, sized=settings)
    rows = crcl.audit("pairs-audit/run").table["row"].to_pylist()
    said = [Verdict(rows[0], "wrong", caption="a new caption"), Verdict(rows[1], "wrong")]
    Verdicts.open("pairs-audit/run").add(said, reviewer="Ana")
    shell.run(clean)
    written = Path("cleaned.csv").read_text("utf-8")
    assert "a new caption" in written
    run_snippet(snippets(page)[0])
    shell.run(again, sized=settings)
    assert Verdicts.open("pairs-audit/run").current().keys() == {rows[0], rows[1]}


def test_the_commands_for_features_run(folder: Path, shell: Shell) -> None:
    pytest.importorskip("transformers")
    table = draw_scenes(folder / "drawn")
    table.rename("pairs.csv")
    (folder / "drawn/images").rename("photos")
    models = {"clip-vit": save_clip(folder / "models/clip"), "dinov2": save_dinov2(folder / "models/dinov2")}
    models["MiniLM"] = save_encoder(folder / "models/encoder", positions=80)
    for words in commands(read("docs/features.md").split("## What is written")[0]):
        shell.run([next((str(path) for name, path in models.items() if name in word), word) for word in words])
    assert Path("runs/mine/matcher.safetensors").exists()
    assert Path("runs/vectors/matcher.safetensors").exists()
    assert Path("pairs-audit/features/text_features.npy").exists()
    shutil.rmtree("features")
    scope = run_snippet(snippets(read("docs/features.md"))[0])
    assert scope["made"].images == 24  # type: ignore[attr-defined]
    assert scope["texts"].captions == 48  # type: ignore[attr-defined]


def test_the_snippet_of_a_loop_of_your_own_gives_a_belief_per_pair() -> None:
    (snippet,) = snippets(section(read("docs/train.md"), "Your own training loop"))
    sims = torch.randn(6, 6, requires_grad=True)
    scope = {"pairs": range(6), "epochs": 4, "your_batches": lambda: [(torch.arange(6), sims / 10)]}
    exec(snippet, scope)
    assert sims.grad is not None
    assert scope["ledger"].correspondence.shape == (6,)
    assert (scope["ledger"].correspondence < 1).all()


def test_the_metrics_snippet_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [one for one in snippets(read("docs/evaluate.md")) if "crcl.metrics" in one]
    exec(snippet, {})
    assert capsys.readouterr().out.strip() == re.findall(r"# ([\d.]+)$", snippet, flags=re.MULTILINE)[0]


def test_the_figures_of_the_concepts_are_drawn_by_the_script() -> None:
    drawn = set(re.findall(r"images/(concept-\w+)\.png", read("docs/concepts.md")))
    script = (ROOT / "docs/figures.py").read_text("utf-8")
    assert drawn
    assert all(f'"{name.removeprefix("concept-")}":' in script for name in drawn)
    assert all((ROOT / f"docs/images/{name}.png").is_file() for name in drawn)


def test_every_internal_setting_named_in_a_page_exists() -> None:
    from crcl import config

    known = set(config.all_keys())
    for page in (ROOT / "docs").rglob("*.md"):
        for key in re.findall(r"--set '?([\w.]+)=", page.read_text("utf-8")):
            assert key in known or key == "key", (page.name, key)
