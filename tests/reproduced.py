"""What the tests of `crcl reproduce` share: how it is called at a tiny size, and its tables."""

import csv
from collections.abc import Callable
from pathlib import Path

from tiny import SMALL, Answer

TINY = (*(setting for setting in SMALL if not setting.startswith("matcher.name")), "matcher.similarity=8")
RATES = {"table1": ["0.6"], "supp-table2": ["0.6"], "fig2": ["0.6"]}
"""One rate of those that have four."""
SEEDS = {"supp-fig-params": 1}
Crcl = Callable[..., Answer]


def words(name: str, data: Path, out: Path, *more: str) -> list[str]:
    size = ["--matcher", "bow", "--seeds", str(SEEDS.get(name, 2))]
    rates = [word for rate in RATES.get(name, []) for word in ("--noise", rate)]
    given = [word for setting in TINY for word in ("--set", setting)]
    return ["reproduce", name, "--data", str(data), "-o", str(out), *size, *rates, *given, *more]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
