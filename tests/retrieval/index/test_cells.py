"""Search in cells: the recall that is asked for, measured on captions; adding; and what is damaged or missing."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import SMALL, call, write_folder

import crcl
from crcl.data.cells import installed
from crcl.errors import InputError
from crcl.progress import SILENT
from crcl.retrieval.index import dividing
from crcl.retrieval.index.cells import Cells, choose, recall_of
from crcl.retrieval.index.dividing import remove_old_cells, update_cells
from crcl.retrieval.index.exact import nearest
from crcl.retrieval.index.folder import ABOUT, About, Index, about_json
from crcl.storage import write_json

pytestmark = pytest.mark.skipif(not installed(), reason="faiss is not installed")
ROWS, SIZE, CAPTIONS = 6000, 16, 1000


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_vectors(folder: Path, rows: int = ROWS) -> Index:
    """An index folder of images around centres, and of captions that lie off them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    gap = np.eye(SIZE, dtype=np.float32)[:1]
    centres = rng.standard_normal((60, SIZE))
    images = centres[rng.integers(0, 60, ROWS)] + rng.standard_normal((ROWS, SIZE))
    images = unit(images - images @ gap.T * gap)[:rows]
    shown = rng.choice(rows, CAPTIONS)
    captions = unit(images[shown] + 0.3 * rng.standard_normal((CAPTIONS, SIZE)) + 2.5 * gap)
    (folder / "images.f16").write_bytes(images.astype(np.float16).tobytes())
    (folder / "captions.f16").write_bytes(captions.astype(np.float16).tobytes())
    about = About("nowhere", "0", "vse", SIZE, images=rows, captions=CAPTIONS)
    write_json(folder / ABOUT, about_json(about))
    return Index(folder, about)


def divide(index: Index, recall: float | None = 0.9) -> Index:
    about = update_cells(index.path, index.about, recall, SILENT)
    write_json(index.path / ABOUT, about_json(about))
    remove_old_cells(index.path, about)
    return Index.open(index.path)


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return divide(write_vectors(tmp_path_factory.mktemp("cells") / "index"))


@pytest.fixture
def own(divided: Index, tmp_path: Path) -> Index:
    return Index.open(shutil.copytree(divided.path, tmp_path / "own"))


def captions(index: Index, step: int = 7) -> np.ndarray:
    return index.vectors("captions")[::step].astype(np.float32)


@pytest.mark.parametrize("asked", [0.6, 0.9, 0.99])
def test_captions_find_the_share_of_the_best_that_is_asked_for_with_few_cells(divided: Index, asked: float) -> None:
    index = Index(divided.path, update_cells(divided.path, divided.about, asked, SILENT))
    found = index.found()
    assert found is not None
    rows = index.search_vectors(captions(index))[1]
    right = index.search_vectors(captions(index), exact=True)[1]
    assert recall_of(rows, right) >= asked - 0.01
    assert found.recall >= asked
    assert found.recall == pytest.approx(recall_of(rows, right), abs=0.05)
    assert found.probe < found.cells / 2


def test_a_setting_chosen_with_images_as_queries_misses_what_captions_look_for(divided: Index) -> None:
    stored, found = divided.vectors(), divided.found()
    assert found is not None
    cells = Cells.open(divided.path / f"images-{ROWS}.cells", found, SIZE)
    by_images = choose(cells, stored, stored[::20].astype(np.float32), recall=0.9, trained=ROWS)
    right = nearest(stored, captions(divided), 10)[1]
    misses = recall_of(by_images.search(stored, captions(divided), 10)[1], right)
    assert misses < recall_of(divided.search_vectors(captions(divided))[1], right)


def test_scores_are_those_of_exact_search(divided: Index) -> None:
    queries = captions(divided)
    scores, rows = divided.search_vectors(queries)
    sims = queries @ divided.vectors().astype(np.float32).T
    np.testing.assert_allclose(scores, np.take_along_axis(sims, rows, 1), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("k", [1, 300, 5999, 10**6])
def test_as_many_are_found_as_are_asked_for(divided: Index, k: int) -> None:
    scores, rows = divided.search_vectors(captions(divided, 400), k=k)
    assert rows.shape[1] == min(k, ROWS)
    assert all(len(set(row)) == len(row) and min(row) >= 0 for row in rows.tolist())
    assert np.isfinite(scores).all()


def test_items_are_added_to_the_cells_that_are_there(tmp_path: Path) -> None:
    before = divide(write_vectors(tmp_path / "index", rows=4000))
    whole = write_vectors(tmp_path / "index", rows=ROWS)
    after = divide(Index(whole.path, replace(whole.about, cells=before.about.cells)), recall=None)
    found = after.found()
    assert found is not None
    assert (found.rows, found.trained, found.asked) == (ROWS, 4000, 0.9)
    rows, right = (after.search_vectors(captions(after), exact=exact)[1] for exact in (False, True))
    assert recall_of(rows, right) >= 0.89
    assert (rows >= 4000).any()
    assert [file.name for file in after.path.glob("images-*.cells")] == [f"images-{ROWS}.cells"]


def test_cells_are_made_anew_when_the_index_has_doubled(tmp_path: Path) -> None:
    before = divide(write_vectors(tmp_path / "index", rows=2000))
    whole = write_vectors(tmp_path / "index", rows=ROWS)
    after = divide(Index(whole.path, replace(whole.about, cells=before.about.cells)), recall=None)
    assert after.found().trained == ROWS  # type: ignore[union-attr]


def test_nothing_is_done_where_nothing_is_new(own: Index) -> None:
    written = (own.path / f"images-{ROWS}.cells").stat().st_mtime_ns
    assert divide(own, recall=None).about == own.about
    assert (own.path / f"images-{ROWS}.cells").stat().st_mtime_ns == written
    assert not divide(own, recall=1.0).about.cells  # exact again
    assert not list(own.path.glob("*.cells"))


@pytest.mark.parametrize("content", [b"", b"IwSqgarbage" * 100])
def test_damaged_cells_are_refused_and_made_anew(own: Index, content: bytes) -> None:
    (own.path / f"images-{ROWS}.cells").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        own.search_vectors(captions(own))
    again = divide(Index(own.path, own.about), recall=0.8)
    assert again.search_vectors(captions(own))[1].shape[1] == 10


@pytest.mark.parametrize(
    "wrong", [{"rows": "../../x"}, {"probe": 0}, {"recall": "high"}, {"again": 1.5}, {"recall": 2}, {"unknown": 1}]
)
def test_facts_of_cells_that_cannot_be_are_refused(own: Index, wrong: dict[str, object]) -> None:
    content = about_json(own.about)
    content["cells"]["images"] |= wrong
    write_json(own.path / ABOUT, content)
    with pytest.raises(InputError, match="damaged"):
        Index.open(own.path)


def test_cells_of_other_vectors_are_refused(own: Index, tmp_path: Path) -> None:
    other = divide(write_vectors(tmp_path / "other", rows=3000))
    shutil.copy(other.path / "images-3000.cells", own.path / f"images-{ROWS}.cells")
    with pytest.raises(InputError, match="index of other vectors"):
        own.search_vectors(captions(own))


def test_facts_tell_recall_cells_and_sizes(divided: Index) -> None:
    facts = dict(divided.facts())
    assert "recall@10 0.9" in facts["images"]
    assert "on 200 captions" in facts["images"]
    assert "on 200 images" in facts["captions"]
    assert "recall 0.9" in repr(divided)
    assert divided.bytes > 2 * SIZE * (ROWS + CAPTIONS)


def test_a_recall_that_is_not_reached_is_told(divided: Index) -> None:
    found = replace(divided.found(), asked=0.99, recall=0.97)  # type: ignore[type-var]
    index = Index(divided.path, replace(divided.about, cells={"images": vars(found)}))
    assert "less than the 0.99 asked for" in dict(index.facts())["images"]


def test_very_many_are_divided_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = write_vectors(tmp_path / "index")
    assert not update_cells(index.path, index.about, None, SILENT).cells
    monkeypatch.setattr(dividing, "MOST_EXACT", 5000)
    assert set(update_cells(index.path, index.about, None, SILENT).cells) == {"images"}
    assert not update_cells(index.path, index.about, 1.0, SILENT).cells


def test_without_the_package_search_is_exact_and_asking_for_recall_names_it(
    own: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    right = nearest(own.vectors(), captions(own), 10)[1]
    np.testing.assert_array_equal(own.search_vectors(captions(own))[1], right)
    with pytest.raises(InputError, match=r"needs the package faiss; pip install 'crcl\[search\]'"):
        dividing.check_recall(0.95)


@pytest.mark.parametrize("recall", [0.0, -1.0, 1.1, float("nan")])
def test_a_recall_that_is_none_is_refused(recall: float) -> None:
    with pytest.raises(InputError, match="more than 0 and at most 1"):
        dividing.check_recall(recall)


def test_the_command_indexes_by_recall_and_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dividing, "FEWEST", 10)
    monkeypatch.chdir(tmp_path)
    crcl.train(write_folder(tmp_path / "data"), "run", settings=SMALL)
    answer = call(capsys, monkeypatch, "index", "run", "-o", "made", "--split", "train", "--recall", "0.8")
    assert answer.code == 0, answer.err
    assert "recall" in answer.out
    assert call(capsys, monkeypatch, "index", "run", "-o", "made", "--add").code == 0
    index = crcl.Index.open("made")
    assert (index.found().rows, index.found().asked) == (40, 0.8)  # type: ignore[union-attr]
    assert index.found("captions").rows == len(index.captions)  # type: ignore[union-attr]
    assert "recall@10" in call(capsys, monkeypatch, "info", "made").out
    assert len(crcl.search("made", "a red dog", k=5)) == 5
    assert len(crcl.search("made", like="test3.jpg", k=3)) == 3
    assert call(capsys, monkeypatch, "index", "run", "-o", "new", "--recall", "2").code == 2
