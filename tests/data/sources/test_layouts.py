"""The page about data tells of every layout, and of the names that are looked for."""

import re

from annotated import PAGE

from crcl.data.rows.splits import SPLIT_OF
from crcl.data.rows.tables import CAPTIONS
from crcl.data.sources import LAYOUTS


def test_every_layout_has_a_section_that_the_page_links_to() -> None:
    page = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| .* \| \[.*\]\(#(.*)\) \| (.*)\|$", page, re.MULTILINE)
    assert {name for _, names in rows for name in re.findall(r"`(.*?)`", names)} == set(LAYOUTS)
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert [anchor for anchor, _ in rows] == [
        re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles
    ]


def test_names_of_splits_and_captions_on_the_page_are_those_of_the_code() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    splits = page.split("**Splits.**")[1].split("**")[0]
    assert {name for name in SPLIT_OF if f"`{name}`" in splits} == SPLIT_OF.keys() - {"train", "dev", "test"}
    columns = page.split("the first of these columns is taken: ")[1].split(". ")[0]
    assert tuple(re.findall(r"`(\w+)`", columns)) == CAPTIONS
