"""The README's snippets and commands run as they stand there, on tiny data."""

import re
import shlex
from pathlib import Path

import numpy as np
import torch
from embedded import made_up, write_embeddings
from tiny import LEARNING, call, write_folder

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
TINY = ["matcher.embedding=8", "matcher.word=6", "train.pieces=[1,1]", "ledger.freeze_epochs=0", "train.device=cpu"]


def section(title: str) -> list[str]:
    """The commands of a section, without comments."""
    body = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line.split(" # ")[0].strip() for line in body.splitlines() if line.startswith("    crcl ")]


def test_the_snippet_runs_and_gives_a_belief_per_pair():
    snippet = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    sims = torch.randn(6, 6, requires_grad=True)
    scope = {"pairs": range(6), "epochs": 4, "your_batches": lambda: [(torch.arange(6), sims / 10)]}
    exec(snippet, scope)
    assert sims.grad is not None
    assert scope["ledger"].correspondence.shape == (6,)
    assert (scope["ledger"].correspondence < 1).all()


def test_the_commands_for_your_own_pairs_run(tmp_path, monkeypatch, capsys):
    write_folder(tmp_path / "folder", train=100)
    (tmp_path / "photos").mkdir()
    ids = (tmp_path / "folder/train_ids.txt").read_text().split()
    captions = (tmp_path / "folder/train_caps.txt").read_text().splitlines()
    captions[:80] = captions[2:80] + captions[:2]  # 40 % are with another image
    rows = [f"{ids[row // 2]},{caption}" for row, caption in enumerate(captions)]
    (tmp_path / "pairs.csv").write_text("image,caption\n" + "\n".join(rows) + "\n")
    (tmp_path / "ids.txt").write_text("\n".join(ids) + "\n")
    np.save(tmp_path / "features.npy", np.load(tmp_path / "folder/train_ims.npy"))
    monkeypatch.chdir(tmp_path)
    commands = section("Your own pairs")
    assert [line.split()[1] for line in commands] == ["audit", "audit", "clean", "evaluate", "info", "train", "audit"]
    for line in commands:
        words = shlex.split(line.replace(" --model openai/clip-vit-base-patch32", "").replace("0.95", "0.2"))[1:]
        given = LEARNING if words[:2] == ["audit", "pairs.csv"] else sized(line)
        answer = call(capsys, monkeypatch, *words, *as_words(given))
        assert answer.code == 0, (line, answer.err)
    header = (tmp_path / "suspects.csv").read_text().splitlines()[0].replace('"', "")
    assert header.startswith("row,image,caption,correspondence,suspect,similarity")


def test_the_commands_for_embeddings_run(tmp_path, monkeypatch, capsys):
    write_embeddings(tmp_path / "embeddings")
    rows = [f"{row}.jpg,what {row} shows" for row in range(30)]
    (tmp_path / "pairs.csv").write_text("image,caption\n" + "\n".join(rows) + "\n")
    for name, vectors in zip(("images", "texts"), made_up(30), strict=True):
        np.save(tmp_path / f"{name}.npy", vectors)
    monkeypatch.chdir(tmp_path)
    for line in section("Embeddings"):
        answer = call(capsys, monkeypatch, *shlex.split(line)[1:], *as_words(sized(line)))
        assert answer.code == 0, (line, answer.err)
    assert len((tmp_path / "suspects.csv").read_text().splitlines()) == 1 + 54


def test_the_commands_for_research_run(tmp_path, monkeypatch, capsys):
    for name in ("f30k_precomp", "coco_precomp"):
        write_folder(tmp_path / "data" / name, held_out=10)
    for ending in ("ims.npy", "caps.txt", "ids.txt"):
        source = tmp_path / "data/coco_precomp" / f"test_{ending}"
        source.with_name(f"testall_{ending}").write_bytes(source.read_bytes())
    np.save(tmp_path / "noise_inx_0.4.npy", np.roll(np.arange(24), 1))
    monkeypatch.chdir(tmp_path)
    for line in section("Research"):
        words = shlex.split(line)[1:]
        if words[:2] == ["evaluate", "runs/a"]:
            words = ["evaluate", "runs/vse", "runs/nce"]
        answer = call(capsys, monkeypatch, *words, *as_words(sized(line)))
        assert answer.code == 0, (line, answer.err)


def sized(line: str) -> list[str]:
    """Tiny sizes for trainings, nothing for other commands."""
    return TINY if line.startswith(("crcl train", "crcl reproduce", "crcl audit embeddings")) else []


def as_words(given: list[str]) -> list[str]:
    return [word for setting in given for word in ("--set", setting)]
