"""docs/methods.md tells every method as it is, and its commands run."""

import importlib
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from tiny import SMALL, call, write_folder

from crcl import config, methods
from crcl.matchers import MATCHERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/methods.md").read_text("utf-8")
TINY = [setting for setting in SMALL if not setting.startswith("matcher.name")]


def tables(text: str) -> list[dict[str, list[str]]]:
    """The rows of each table, by their first cell."""
    found: list[dict[str, list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()[2:]]
        found.append({row[0].strip("`"): row[1:] for row in rows})
    return found


def commands() -> list[list[str]]:
    joined = PAGE.replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.startswith("    crcl ")]


METHODS, FUNCTIONS, OTHER_DATA = tables(PAGE)


def test_every_method_is_told():
    assert list(METHODS) == list(FUNCTIONS) == list(methods.METHODS)
    assert set(OTHER_DATA) <= set(methods.METHODS)


def test_networks_matchers_and_clean_data_are_those_of_the_code():
    for method, (_, networks, matchers, clean, *_) in METHODS.items():
        record = methods.METHODS[method]
        assert int(networks) == record.networks
        told = tuple(MATCHERS) if matchers == "all" else tuple(re.findall(r"`([\w-]+)`", matchers))
        assert told == record.matchers
        assert clean == ("no" if record.trusted is None else "yes")


def test_costs_are_those_that_were_measured():
    bow, vse = tables((ROOT / "docs/results/cost.md").read_text("utf-8"))
    for method, cells in METHODS.items():
        assert cells[4:] == [bow[method][1], vse[method][1]], method


def test_every_function_named_is_there():
    named = {name for cells in FUNCTIONS.values() for name in re.findall(r"`((?:\w+\.)+\w+)`", " ".join(cells))}
    assert len(named) > 20
    for name in named:
        module, *path = name.split(".")
        if module in ("methods", "matchers"):
            module = f"{module}.{path.pop(0)}"
        found = importlib.import_module(f"crcl.{module}")
        for part in path:
            found = getattr(found, part)


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[4])
def test_the_published_schedule_is_accepted_as_it_stands(words):
    options = {one: other for one, other in pairwise(words) if one.startswith("--")}
    settings = [other for one, other in pairwise(words) if one == "--set"]
    given = {"method": options.get("--method"), "matcher.name": options.get("--matcher")}
    chosen = config.load(
        preset=options.get("--preset"),
        base={key: value for key, value in given.items() if value is not None},
        settings=settings,
    )
    assert chosen.method in METHODS
    assert len(chosen.train.pieces) == 1 or chosen.method == "crcl"


def test_robust_methods_have_a_command_with_their_schedule():
    told = {words[words.index("--method") + 1] for words in commands() if "--method" in words}
    assert told == set(methods.METHODS) - {"crcl", "triplet", "infonce"}


def test_every_setting_named_is_accepted():
    settings = set(re.findall(r"`(\w+\.\w+=[^`]+)`", PAGE))
    assert len(settings) > 15
    for setting in settings:
        config.load(settings=[setting])
    for key in re.findall(
        r"`((?:decl|division|gsc|l2rm|ledger|loss|mscn|relink|train)\.\w+)`", PAGE.split("## As published")[1]
    ):
        assert key in config.all_keys()


@pytest.mark.slow
def test_the_commands_run(tmp_path, monkeypatch, capsys):
    for name in ("f30k_precomp", "coco_precomp"):
        write_folder(tmp_path / "data" / name, held_out=10)
    monkeypatch.chdir(tmp_path)
    for words in commands():
        tiny = [word for setting in [*TINY, "matcher.similarity=8"] for word in ("--set", setting)]
        answer = call(capsys, monkeypatch, *words[1:], *tiny)
        assert answer.code == 0, (words, answer.err)


def test_the_guide_to_training_names_every_method_and_matcher():
    page = (ROOT / "docs/train.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in [*methods.METHODS, *MATCHERS])
