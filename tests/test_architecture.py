"""The page on the architecture shows the package as it is, and no part of it outgrows its reader."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crcl import cli

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/crcl"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({module.parent for module in MODULES})
LONGEST = 350


def test_the_tree_of_the_page_is_that_of_the_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    words = [sys.executable, str(ROOT / "docs/tree.py")]
    tree = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert tree in page, "python docs/tree.py --write brings it up to date"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE.parent)))
def test_a_package_has_fifteen_modules_at_most_beside_one_per_command_and_says_what_it_is_for(folder: Path) -> None:
    commands = {f"{name}.py" for name in cli.COMMANDS} if folder.name == "cli" else set()
    assert len({module.name for module in folder.glob("*.py")} - commands) <= 15
    assert docstring(folder / "__init__.py")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_a_long_module_says_why_it_is_one(module: Path) -> None:
    length = len(module.read_text("utf-8").splitlines())
    assert length <= LONGEST or re.search(r"\bone (file|module)\b", docstring(module)), length


def docstring(module: Path) -> str:
    return ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
