"""What a search found: a table, JSON and a sheet of thumbnails; and two stages."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_clip import draw_scenes
from tiny import SMALL, Answer, call

import crcl
from crcl.errors import InputError

HOSTILE = '<script>alert(1)</script> \x1b[31m \u202e & "quoted"'
LOCAL = [*SMALL, "matcher.name=sgr", "matcher.similarity=4"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn scenes, one with a hostile caption; runs `bow` and `sgr` on them, and an index of the first."""
    folder = tmp_path_factory.mktemp("found")
    table = draw_scenes(folder / "scenes")
    lines = table.read_text("utf-8").splitlines()
    image, _, split = lines[1].partition(",")[0], None, lines[1].rpartition(",")[2]
    quoted = HOSTILE.replace('"', '""')
    table.write_text("\n".join([*lines, f'{image},"{quoted}",{split}']) + "\n", "utf-8")
    pairs = crcl.read(table, images=folder / "scenes/images")
    crcl.train(pairs, folder / "bow", settings=SMALL)
    crcl.train(pairs, folder / "sgr", settings=LOCAL)
    crcl.index(folder / "bow", folder / "made")
    return folder


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: call(capsys, monkeypatch, *words)


def first_image(home: Path) -> str:
    return crcl.Index.open(home / "made").images[0]


def test_a_sheet_shows_thumbnails_and_captions_as_text(home: Path, tmp_path: Path) -> None:
    hits = crcl.search(home / "made", "a red circle", k=24)
    hits.sheet(tmp_path / "found.html")
    page = hits.sheet(tmp_path / "found.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 24
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "Content-Security-Policy" in page
    assert not re.search(r"https?://", page)
    assert all(hit.key in page for hit in hits)


def test_a_sheet_says_why_an_image_is_not_shown(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    hits = crcl.search(home / "made", "a red circle", k=2)
    page = hits.sheet(tmp_path / "found.html", images=tmp_path / "empty").read_text("utf-8")
    assert page.count('class="none">not found') == 2
    with pytest.raises(InputError, match="no such folder"):
        hits.sheet(tmp_path / "found.html", images=tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be written"):
        hits.sheet(home / "made/index.json/found.html")


def test_the_command_opens_the_sheet_in_the_browser(command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    answer: Answer = command("search", "made", "a red circle", "--open", "-k", "3")
    assert answer.code == 0, answer.err
    (address,) = opened
    written = Path(address.removeprefix("file://"))
    assert written.read_text("utf-8").count("<figure>") == 3
    shutil.rmtree(written.parent)
    assert command("search", "made", "a red circle", "--sheet", "sheet.html", "--json").code == 0
    assert (home / "sheet.html").is_file()


def test_the_table_escapes_control_characters_and_shows_scores(command, home: Path) -> None:
    answer = command("search", "made", "a red circle", "-k", "24")
    assert "alert(1)" in answer.out
    assert "\x1b" not in answer.out
    assert "\u202e" not in answer.out
    assert re.search(r"│ 1 +│ -?\d\.\d{3} │", answer.out)


def test_json_has_what_is_needed_to_find_the_image(command, home: Path) -> None:
    found = json.loads(command("search", "made", "--like", first_image(home), "-k", "4", "--json").out)
    assert [set(hit) for hit in found] == [{"rank", "key", "score", "captions"}] * 4
    assert all((home / "scenes/images" / hit["key"]).is_file() for hit in found)


def test_a_photo_finds_captions_and_images(command, home: Path) -> None:
    photo = str(home / "scenes/images" / first_image(home))
    captions = json.loads(command("search", "made", "--image", photo, "--json").out)
    assert all(len(hit["captions"]) == 1 for hit in captions)
    images = json.loads(command("search", "made", "--image", photo, "--what", "images", "--json", "-k", "24").out)
    assert first_image(home) in {hit["key"] for hit in images}


def test_info_tells_of_an_index(command) -> None:
    answer = command("info", "made")
    assert answer.code == 0, answer.err
    assert "24 images, 49 captions" in answer.out
    assert "exact" in answer.out
    assert "p99" in answer.out


def test_an_index_of_other_data_records_where_it_was(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "scenes", tmp_path / "moved")
    index = crcl.index(home / "bow", tmp_path / "made", data=tmp_path / "moved")
    assert index.about.data == str(tmp_path / "moved")
    hits = crcl.search(index, "a red circle", k=2)
    page = hits.sheet(tmp_path / "found.html", images=tmp_path / "moved/images").read_text("utf-8")
    assert page.count("data:image/jpeg") == 2


def test_images_without_features_are_added_as_the_run_would_read_them(command, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "made", tmp_path / "grown")
    more = draw_scenes(tmp_path / "more", train=5, held_out=2)
    shutil.copy(more, tmp_path / "more.csv")
    for old in [*(tmp_path / "more/images").iterdir()]:
        old.rename(old.with_name(f"new-{old.name}"))
    rows = (tmp_path / "more.csv").read_text("utf-8").splitlines()
    (tmp_path / "more.csv").write_text("\n".join([rows[0], *(f"new-{row}" for row in rows[1:])]) + "\n", "utf-8")
    shutil.move(tmp_path / "more/images", tmp_path / "photos")
    (tmp_path / "photos" / rows[-1].partition(",")[0].join(("new-", ""))).write_bytes(b"broken")
    words = ["index", "bow", str(tmp_path / "more.csv"), "--images", str(tmp_path / "photos")]
    answer = command(*words, "-o", str(tmp_path / "grown"), "--add")
    assert answer.code == 0, answer.err
    assert "1 images cannot be used and are left out" in answer.err
    index = crcl.Index.open(tmp_path / "grown")
    assert len(index.images) == 24 + 8
    photo = tmp_path / "photos" / index.images[-1]
    vector = crcl.load(home / "bow").encode_images([photo])[0]
    np.testing.assert_allclose(index.vectors()[-1], vector, atol=2e-3)


def test_two_stages_give_the_second_runs_order_and_scores(home: Path) -> None:
    sentence = "a red circle above a blue square"
    hits = crcl.search(home / "made", sentence, k=5, rerank=home / "sgr", candidates=24)
    pairs = crcl.read(home / "scenes/pairs.csv", images=home / "scenes/images")
    first = crcl.search(home / "made", sentence, k=24)
    model = crcl.load(home / "sgr")
    files = [home / "scenes/images" / hit.key for hit in first]
    scores = model.similarity(files, [sentence])[:, 0]
    best = np.argsort(-scores, kind="stable")[:5]
    assert [hit.key for hit in hits] == [first[at].key for at in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=2e-3)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert len(pairs) == 49


def test_only_candidates_are_ranked_again(home: Path) -> None:
    first = {hit.key for hit in crcl.search(home / "made", "a red circle", k=3)}
    assert {h.key for h in crcl.search(home / "made", "a red circle", k=3, rerank=home / "sgr", candidates=3)} == first


def test_captions_of_an_image_are_ranked_again(home: Path) -> None:
    key, model = first_image(home), crcl.load(home / "sgr")
    hits = crcl.search(home / "made", like=key, what="captions", k=4, rerank=home / "sgr", candidates=49)
    scores = model.similarity([home / "scenes/images" / key], [hit.captions[0] for hit in hits])[0]
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    photo = crcl.search(home / "made", image=home / "scenes/images" / key, k=4, rerank=home / "sgr", candidates=49)
    assert [hit.captions for hit in photo] == [hit.captions for hit in hits]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a dog", "--rerank", "nowhere"], "nowhere"),
        (["a dog", "--rerank", "sgr", "--candidates", "3"], "set --candidates to at least 10, or -k to less"),
        (["a dog", "--candidates", "20"], "candidates: there is no second run to rank them again; name it as --rerank"),
        (["--like", "FIRST", "--rerank", "sgr"], "cannot rank images for an image"),
        (["a dog", "--what", "captions", "--rerank", "sgr"], "cannot rank captions for a sentence"),
        (["a dog", "--rerank", "sgr", "--data", "other"], "no features of image"),
        (["a dog", "--sheet", "made/index.json/x.html"], "cannot be written"),
        (["a dog", "--sheet", "absent/x.html"], "cannot be written (there is no folder absent)"),
        (["a dog", "--sheet", "scenes/pairs.csv"], "written as .html"),
        (["a dog", "--sheet", "page.html"], "exists and is no sheet, so it is not replaced"),
    ],
)
def test_bad_input_is_a_message(command, home: Path, words: list[str], expected: str) -> None:
    if "other" in words and not (home / "other").exists():
        draw_scenes(home / "other", train=2, held_out=1)
        for split, count in (("train", 2), ("dev", 1), ("test", 1)):
            names = "".join(f"{split}-unknown-{row}.png\n" for row in range(count))
            (home / f"other/{split}_ids.txt").write_text(names)
        (home / "other/pairs.csv").unlink()
    (home / "page.html").write_text("<!doctype html>")
    answer = command("search", "made", *(first_image(home) if word == "FIRST" else word for word in words))
    assert answer.code == 2
    assert expected in answer.err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"query": 5}, "query: expected a sentence, got 5"),
        ({"like": 3}, "no image 3"),
        ({"query": "a dog", "k": "3", "rerank": "sgr"}, "k: '3': expected a whole number"),
        ({"query": "a dog", "candidates": "all", "rerank": "sgr"}, "candidates: 'all': expected a whole number"),
        ({"query": "a dog", "candidates": 20}, "candidates: there is no second run"),
    ],
)
def test_values_of_a_wrong_type_are_messages(home: Path, given: dict[str, object], expected: str) -> None:
    given = given | ({"rerank": home / "sgr"} if "rerank" in given else {})
    with pytest.raises(InputError, match=re.escape(expected)):
        crcl.search(home / "made", **given)  # type: ignore[arg-type]


def test_the_command_ranks_again(command) -> None:
    answer = command("search", "made", "a red circle", "--rerank", "sgr", "--candidates", "12", "-k", "2", "--json")
    assert [hit["rank"] for hit in json.loads(answer.out)] == [1, 2]


def test_evaluation_in_two_stages_tells_both(command, home: Path) -> None:
    answer = command("evaluate", "bow", "--rerank", "sgr", "--candidates", "3")
    assert answer.code == 0, answer.err
    assert "two stages, 3 candidates; rSum" in answer.out
    assert "first stage: bow: crcl on bow" in answer.out
    assert "second stage: sgr: crcl on sgr" in answer.out
    told = json.loads(command("evaluate", "bow", "--rerank", "sgr", "--candidates", "99", "--json").out)
    assert told["rsum"] == pytest.approx(crcl.evaluate(home / "sgr").rsum)
    assert told["first"]["rsum"] == pytest.approx(crcl.evaluate(home / "bow").rsum)
    assert told["t2i_found"] == told["compared"] == 100
    assert told["reranked_by"] == ["sgr"]


def test_evaluation_refuses_candidates_without_a_second_run(command) -> None:
    answer = command("evaluate", "bow", "--candidates", "3")
    assert (answer.code, answer.out) == (2, "")
    assert "candidates: there is no second run to rank them again; name it as --rerank" in answer.err


def test_similarities_of_two_stages_cannot_be_written(command) -> None:
    answer = command("evaluate", "bow", "--rerank", "sgr", "--save-sims", "sims.npy")
    assert answer.code == 2
    assert "leave --save-sims out" in answer.err
