"""The pages on how to extend the package are followed literally: their code runs, block after block."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pages import read, snippets
from tiny import write_folder

from crcl.data.sources import LAYOUTS
from crcl.matchers import MATCHERS
from crcl.methods import METHODS

TINY = {"train.pieces": [1, 2], "ledger.freeze_epochs": 0, "matcher.embedding": 8, "matcher.word": 6}
TABLES = {"loss": METHODS, "method": METHODS, "matcher": MATCHERS, "source": LAYOUTS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Tiny data where the pages have theirs, tiny trainings, and tables that are put back afterwards."""
    import crcl

    train = crcl.train

    def tiny(*given, settings=None, **options):
        return train(*given, settings={**TINY, **(settings or {})}, **options)

    monkeypatch.setattr(crcl, "train", tiny)
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data/f30k_precomp")
    before = [dict(table) for table in (METHODS, MATCHERS, LAYOUTS)]
    yield tmp_path
    for table, entries in zip((METHODS, MATCHERS, LAYOUTS), before, strict=True):
        table.clear()
        table.update(entries)


def write_archive(folder: Path) -> None:
    arrays = {}
    for split in ("train", "dev", "test"):
        captions = (folder / f"data/f30k_precomp/{split}_caps.txt").read_text("utf-8").splitlines()
        arrays[f"{split}_features"] = np.load(folder / f"data/f30k_precomp/{split}_ims.npy")
        arrays[f"{split}_captions"] = np.array(captions)
        arrays[f"{split}_images"] = np.arange(len(captions)) // 2
    np.savez(folder / "pairs.npz", **arrays)


@pytest.mark.parametrize("page", TABLES)
def test_the_page_can_be_followed_literally(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_archive(folder)
    known = set(TABLES[page])
    scope: dict[str, object] = {}
    blocks = snippets(read(f"docs/extend/{page}.md"))
    assert len(blocks) == 3
    for block in blocks:
        exec(block, scope)
    assert len(set(TABLES[page]) - known) == 1
    printed = capsys.readouterr().out.split()
    assert any(0 < float(word) <= 600 for word in printed if word.replace(".", "").isdigit())
    assert (Path(scope["run"].path) / "matcher.safetensors").is_file()  # type: ignore[attr-defined]
