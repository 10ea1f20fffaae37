"""The README is short, its commands exist, and its links and those of all pages lead somewhere."""

import re
from pathlib import Path

import pytest
from pages import ROOT, read

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]


def test_its_make_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for page in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"^    make ([\w -]+?)(?: +#|$)", read(page), flags=re.MULTILINE)
        assert named
        assert {target for line in named for target in line.split()} <= set(targets)


def test_it_is_read_in_a_minute() -> None:
    assert len(read("README.md").split()) < 650


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    folder = page.parents[1] if page.parent.name == "snippets" else page.parent
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (folder / target).exists(), target
