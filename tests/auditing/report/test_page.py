"""The report: what it says, what it shows, and that nothing from the data is more than text in it."""

import base64
import hashlib
import html
import io
import json
import re
import struct
import zlib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_audits import HOSTILE, NAMES, hostile_audit, made_audit, made_estimate, made_reasons, suggestions_of
from PIL import Image

from crcl import __version__
from crcl.auditing import summary as summaries
from crcl.auditing.estimate import estimate
from crcl.auditing.report import page as report
from crcl.auditing.scores.interval import Interval
from crcl.auditing.suggestions import Suggestions
from crcl.data.pictures.files import Files
from crcl.errors import InputError, TrainingError

TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "main", "section", "footer", "template"),
    *("script", "noscript", "h1", "h2", "h3", "p", "dl", "dt", "dd", "ol", "li", "div", "span", "b", "figure", "img"),
    *("figcaption", "label", "input", "select", "option", "output", "button", "code", "details", "summary", "ul"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
"""What the template is made of."""


def open_run_data(page: Path) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """All that opens in a page, outside of figures."""
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))
    return found


def bomb() -> bytes:
    """A PNG that says it has 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def picture(colour: str, kind: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(stream, format=kind)
    return stream.getvalue()


def test_the_summary_says_how_many_and_how_sure() -> None:
    found = made_audit(np.concatenate([np.linspace(0.01, 0.09, 487), np.linspace(0.8, 1, 2513)]))
    decoyed = np.concatenate([np.linspace(0.01, 0.09, 910), np.linspace(0.4, 0.6, 90)])
    (sentence,) = summaries.summary(
        found, replace(made_estimate(), correspondence=found.correspondence, decoys=decoyed)
    )
    assert re.sub(r"\(\d+–\d+\)", "(LOW–HIGH)", sentence) == (
        "An estimated 17.2 % (15.9–18.6) of 3,000 pairs are mismatched. At threshold 0.1, 487 are flagged: "
        "estimated precision 96 % (LOW–HIGH), recall 91 % (LOW–HIGH)."
    )
    assert summaries.summary(found) == ["At threshold 0.1, 487 of 3,000 pairs (16.2 %) are flagged."]


def test_the_summary_has_the_interval_of_precision_where_it_can_be_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    found = made_audit(np.concatenate([rng.beta(1, 40, 400), rng.beta(6, 2, 1600)]))
    known = estimate(found.correspondence, rng.beta(1, 40, 100))
    sure = re.search(r"estimated precision (\d+) % \((\d+)–(\d+)\), recall", summaries.summary(found, known)[0])
    assert sure is not None
    precision, low, high = map(int, sure.groups())
    assert low <= precision <= high
    text = report.write_report(tmp_path / "report", found, title="audit", estimate=known).read_text("utf-8")
    assert f'<span class="note">{low}–{high} %, estimated</span>' in text


def test_the_summary_tells_the_truth_where_it_is_known() -> None:
    truth = np.repeat([False, True, False], [400, 2500, 100])
    found = made_audit(np.repeat([0.05, 0.9], [500, 2500]), truth=truth)
    assert summaries.summary(found, made_estimate())[1] == (
        "The truth is known from injected noise: 16.7 % are mismatched; precision is 80.0 %, recall 80.0 %."
    )


def test_the_true_curves_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    correspondence, truth = rng.random(200).astype(np.float32).round(2), rng.random(200) < 0.7
    thresholds = np.linspace(0, 1, 51)
    precision, recall = summaries.true_curves(correspondence, truth, thresholds)
    for place, threshold in enumerate(thresholds):
        flagged = correspondence < np.float32(threshold)
        if flagged.any():
            assert precision[place] == (flagged & ~truth).sum() / flagged.sum()
        else:
            assert np.isnan(precision[place])
        assert recall[place] == (flagged & ~truth).sum() / (~truth).sum()


def test_small_beliefs_are_shown_with_three_digits_that_count(tmp_path: Path) -> None:
    correspondence = np.array([0, 3e-8, 4.126e-5, 0.0009996, 0.02078, 0.09999, 0.9])
    text = report.write_report(tmp_path / "report", made_audit(correspondence), title="audit").read_text("utf-8")
    shown = re.findall(r'<b class="correspondence">(.+?)</b>', text)
    assert shown == ["0", "&lt;0.000001", "0.0000413", "0.00100", "0.0208", "0.100", "0.900"]


def test_the_page_says_what_decoys_are_what_is_next_and_what_made_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "title": "audit",
        "remarks": ["150 rows held out."],
        "next_step": ("crcl clean <x>", "cleans."),
    }
    found = made_audit(np.linspace(0, 1, 300))
    text = report.write_report(tmp_path / "report", found, estimate=made_estimate(), **given).read_text("utf-8")
    assert '<p class="more">150 rows held out.</p>' in text
    assert 'Next: <code dir="auto">crcl clean &lt;x&gt;</code> cleans.' in text
    assert report.DECOYS in text
    assert f'<dt>crcl</dt><dd dir="auto">{__version__}</dd>' in text
    text = report.write_report(tmp_path / "report", found, title="audit").read_text("utf-8")
    assert "Decoys are" not in text
    assert "Next:" not in text


def test_missing_pictures_are_explained_with_what_to_do(tmp_path: Path) -> None:
    found = made_audit(np.array([0.01, 0.02]))
    text = report.write_report(tmp_path / "a", found, title="audit").read_text("utf-8")
    assert "This page has no pictures: the folder of the images is not known." in text
    text = report.write_report(tmp_path / "b", found, title="audit", pictures=Files(tmp_path)).read_text("utf-8")
    assert "2 images have no picture here: 2 × not found. Name the folder that holds the images." in text


def test_an_audit_without_beliefs_is_shown_by_similarity(tmp_path: Path) -> None:
    found = made_audit(np.full(30, np.nan))
    page = report.write_report(tmp_path / "report", found, title="imported")
    text = page.read_text("utf-8")
    assert "The run has no correspondences: its 30 pairs are ordered by similarity" in text
    assert "<svg" not in text
    assert 'id="most"' not in text
    assert [pair[0] for pair in open_run_data(page)["pairs"]] == list(range(29, -1, -1))
    assert all(pair[3] is None for pair in open_run_data(page)["pairs"])


def test_the_gallery_has_the_suspects_and_a_few_more_worst_first(tmp_path: Path) -> None:
    correspondence = np.concatenate([np.linspace(0.5, 1, 700), np.linspace(0, 0.099, 300)])
    page = report.write_report(tmp_path / "a", made_audit(correspondence), title="audit")
    assert [pair[0] for pair in open_run_data(page)["pairs"]] == list(range(700, 1000))
    assert "All 300 flagged pairs, the lowest correspondence first." in page.read_text("utf-8")
    page = report.write_report(tmp_path / "b", made_audit(correspondence), title="audit", most=50)
    assert [pair[0] for pair in open_run_data(page)["pairs"]] == list(range(700, 750))
    assert "The 50 of 300 flagged pairs with the lowest correspondence." in page.read_text("utf-8")
    page = report.write_report(tmp_path / "c", made_audit(correspondence[:990]), title="audit")
    few = made_audit(np.concatenate([correspondence[:700], correspondence[-10:]]))
    page = report.write_report(tmp_path / "c", few, title="audit")
    assert [pair[5] for pair in open_run_data(page)["pairs"]] == [True] * 10 + [False] * (report.LEAST - 10)
    assert "The 200 pairs with the lowest correspondence; 10 of them are flagged." in page.read_text("utf-8")


def test_the_first_cards_are_there_without_javascript(tmp_path: Path) -> None:
    found = made_audit(np.linspace(0, 0.09, 300), caption_rows=np.arange(300) + 1000)
    page = report.write_report(tmp_path / "report", replace(found, suggestions=suggestions_of(found)), title="audit")
    text = page.read_text("utf-8")
    body = text[: text.index("<template")]
    assert re.findall(r'<p class="caption" dir="auto">(.*?)</p>', body) == [f"caption {row}" for row in range(24)]
    assert "row 1023<" in body
    assert '<span class="text" dir="auto">caption 24</span> <span class="fit">0.900</span>' in body
    assert "enable JavaScript to see all 300" in text
    assert [pair[7] for pair in open_run_data(page)["pairs"][:1]] == [[[1, 0.9], [2, 0.7]]]  # -1: no third one


def test_believed_suggestions_say_where_a_caption_belongs(tmp_path: Path) -> None:
    found = made_audit(np.linspace(0, 0.5, 30))
    believed = replace(suggestions_of(found), fit="belief")
    page = report.write_report(tmp_path / "report", replace(found, suggestions=believed), title="t")
    text = page.read_text("utf-8")
    assert "Images that this caption is believed to belong to" in text
    assert "Captions believed to belong to this image" in text
    assert re.search(r'<span class="fit">0.800</span>\s*<span class="fit shown-in">row 1</span>', text)
    assert open_run_data(page)["pairs"][0][8] == [[1, 0.8, "row 1"], [2, 0.6, "row 2"]]
    plain = report.write_report(tmp_path / "plain", replace(found, suggestions=suggestions_of(found)), title="t")
    assert "believed" not in plain.read_text("utf-8")


def test_cards_say_why_and_what_would_repair_the_pair_and_reasons_are_counted(tmp_path: Path) -> None:
    found = made_audit(np.linspace(0, 1, 300), caption_rows=np.arange(300) + 1000)
    details = report.Details(reasons=made_reasons(found))
    page = report.write_report(tmp_path / "report", found, title="audit", details=details)
    text = page.read_text("utf-8")
    body = text[: text.index("<template")]
    assert "<li>no neighbour agrees</li><li>fits the image of row 1001 far better</li>" in body
    assert "<li>copy of the image of row 1002 with another caption</li>" in body
    fixes = re.findall(r'<span class="fix-text" dir="auto">(.*?)</span>', body)
    assert fixes[:4] == ["relink to 1.jpg (row 1001)", "replace by caption 2", "drop", "relink to 4.jpg (row 1004)"]
    buttons = re.findall(r'<button type="button" data-reason="(-?\d)".*?>(.*?) <span>(\d+)</span>', body)
    assert buttons == [
        ("1", "no neighbour agrees", "10"),
        ("3", "fits another image far better", "10"),
        ("4", "copy of an image with another caption", "10"),
        ("-1", "none of these", "10"),
    ]
    data = open_run_data(page)
    assert data["pairs"][0][9] == [[1, None], [3, 1001]]
    assert data["fixes"][data["pairs"][1][10]] == "replace by caption 2"
    assert data["pairs"][0][11] == "The words “caption 0” fit nothing in the picture."
    assert data["pairs"][50][9:] == [[], None, ""]  # not flagged
    text = report.write_report(tmp_path / "report", found, title="audit").read_text("utf-8")
    assert "data-reason=" not in text


def test_the_page_has_the_scores_the_kinds_of_decoys_and_what_cleaning_keeps_as_tables(tmp_path: Path) -> None:
    found = made_audit(np.linspace(0, 1, 300))
    scores = pa.table({"score": ["linear"], "meaning": ["<b>"], "taken": [True], "auroc": [0.9], "error": [0.01]})
    shares = [f"{name}{end}" for name in ("rate", "precision", "recall") for end in ("", "_low", "_high")]
    for name in ("suspects", *shares):
        scores = scores.append_column(name, pa.array([None], pa.float64()))
    details = report.Details(
        scores=scores, recalls={"random": Interval(0.9, 0.8, 0.95), "near": Interval(0.5, 0.3, 0.7)}
    )
    page = report.write_report(tmp_path / "report", found, title="a", estimate=made_estimate(), details=details)
    text = page.read_text("utf-8")
    assert re.findall(r"<summary>(.*?)</summary>", text) == [
        "How much is wrong among the kept pairs",
        "Scores that were compared",
        "Recall by kind of decoy",
    ]
    assert '<th scope="row">linear: &lt;b&gt; <b class="mark">taken</b></th><td>0.900 ± 0.010</td>' in text
    assert '<th scope="row">near: captions of similar images</th><td>50 % (30–70)</td>' in text
    assert report.OTHER_KINDS in text
    assert re.findall("<h2>(.*?)</h2>", text)[:3] == ["Correspondence", "Precision and recall", "What cleaning keeps"]


def test_nothing_of_the_data_is_more_than_text(tmp_path: Path) -> None:
    found = hostile_audit()
    page = report.write_report(
        tmp_path / "report",
        replace(found, suggestions=suggestions_of(found)),
        title=HOSTILE[2],
        about=[("data", HOSTILE[1]), ("run", NAMES[1])],
        remarks=[HOSTILE[0], "1 image of te\x1b[31mst\u202e is a copy.", "x" * 600],
        next_step=(HOSTILE[2], HOSTILE[1]),
        estimate=made_estimate(),
        details=report.Details(reasons=made_reasons(found)),
    )
    text = page.read_text("utf-8")
    assert len(re.findall(r"<script", text, re.IGNORECASE)) == 2  # the data and our own
    assert len(re.findall(r"</script", text, re.IGNORECASE)) == 2
    found_tags = tags(text)
    assert {name for name, _ in found_tags} <= TAGS
    assert not [name for _, attributes in found_tags for name in attributes if name.startswith("on")]
    assert all(
        value.startswith("thumbs/") for _, attributes in found_tags for value in [attributes.get("src")] if value
    )
    assert "49" not in text[: text.index("<style>")]  # {{7*7}} in the title
    assert html.escape(HOSTILE[0]) in text
    assert "1 image of te\\x1b[31mst\\u202e is a copy." in text
    assert "x" * 600 in text  # sentences are not cut
    data = open_run_data(page)
    assert data["captions"][:7] == HOSTILE[:7]
    assert data["captions"][11] == "a" * 499 + "…"
    assert data["images"][2][0] == "a\\nb.jpg"  # in sight
    assert data["images"][5][0] == "\\u202egpj.exe"
    block = text[text.index('<script id="data"') :]
    block = block[block.index(">") + 1 : block.index("</script>")]
    assert block.isascii()
    assert not set(block) & set("<>&")


def test_the_page_allows_its_own_script_only_and_nothing_from_the_network(tmp_path: Path) -> None:
    page = report.write_report(tmp_path / "report", hostile_audit(), title="audit", estimate=made_estimate())
    text = page.read_text("utf-8")
    script = text[text.rindex("<script>") + len("<script>") : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy[1]).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert "http" not in policy[1]
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not addresses
    assert "innerHTML" not in script


def test_the_same_audit_gives_the_same_page(tmp_path: Path) -> None:
    truth = np.arange(300) % 3 > 0
    found = made_audit(np.linspace(0, 1, 300), truth=truth)
    found = replace(found, suggestions=suggestions_of(found))
    pages = [report.write_report(tmp_path / name, found, title="audit", estimate=made_estimate()) for name in "ab"]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    ids = re.findall(r'\sid="([^"]+)"', pages[0].read_text("utf-8"))
    assert [name for name, count in Counter(ids).items() if count > 1] == []  # of both figures and the page
    assert "<dc:date>" not in pages[0].read_text("utf-8")


def test_each_image_has_one_thumbnail_named_by_its_content(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "deep").mkdir(parents=True)
    contents = {
        "red.png": picture("red", size=(900, 600)),
        "deep/green.gif": picture("green", "GIF", "P"),
        "cmyk.jpg": picture("blue", "JPEG", "CMYK", size=(2000, 400)),
        "again.png": picture("red", size=(900, 600)),  # the same content
        "empty.png": b"",
        "cut.jpg": picture("white", "JPEG", size=(300, 300))[:200],
        "bomb.png": bomb(),
        "text.jpg": b"no image",
    }
    for name, content in contents.items():
        (photos / name).write_bytes(content)
    (tmp_path / "secret.png").write_bytes(picture("black"))
    names = [*contents, "missing.png", "../secret.png", "a\nb.png"]
    found = made_audit(np.linspace(0, 0.09, 22), images=11, image_ids=names)  # each image with two captions
    page = report.write_report(tmp_path / "report", found, title="audit", pictures=Files(photos))
    images = {name: thumb for name, *thumb in open_run_data(page)["images"]}
    thumbs = sorted(path.name for path in (tmp_path / "report" / "thumbs").iterdir())
    assert len(thumbs) == 3
    assert all(re.fullmatch(r"[0-9a-f]{24}-320\.jpg", name) for name in thumbs)
    assert images["red.png"] == images["again.png"] == [images["red.png"][0], 320, 213]
    assert images["cmyk.jpg"][1:] == [320, 64]
    assert images["deep/green.gif"][1:] == [64, 48]  # never enlarged
    for name in [*list(contents)[4:], "missing.png", "../secret.png", "a\\nb.png"]:
        assert images[name] == [None, 0, 0], name
    for name in thumbs:
        with Image.open(tmp_path / "report" / "thumbs" / name) as image:
            image.load()
    text = page.read_text("utf-8")
    assert "7 images have no picture here: " in text
    assert 'loading="lazy"' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "report", "secret.png"]


def test_suggested_images_have_a_smaller_thumbnail(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(picture(["red", "green", "blue", "white"][number], size=(500, 500)))
    found = made_audit(np.linspace(0.01, 0.09, 4))
    rows = np.array([0])
    given = Suggestions(rows, np.array([[-1]]), np.array([[0.0]]), np.array([[3]]), np.array([[0.7]]))
    shown: list[tuple[int, int]] = []
    page = report.write_report(
        tmp_path / "report",
        replace(found, suggestions=given),
        title="audit",
        pictures=Files(tmp_path),
        most=1,
        advance=lambda done, all_: shown.append((done, all_)),
    )
    data = open_run_data(page)
    assert [(name, width) for name, _, width, _ in data["images"]] == [("0.jpg", 320), ("3.jpg", 128)]
    assert data["pairs"][0][7:9] == [[], [[1, 0.7]]]
    assert shown == [(1, 2), (2, 2)]


def test_an_older_report_is_replaced_and_its_thumbnails_removed(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(3):
        (photos / f"{number}.jpg").write_bytes(picture(["red", "green", "blue"][number]))
    first = made_audit(np.array([0.01, 0.02, 0.03]))
    given: dict[str, Any] = {"title": "audit", "pictures": Files(photos), "most": 2}
    page = report.write_report(tmp_path / "report", first, **given)
    thumbs = tmp_path / "report" / "thumbs"
    before = {path.name: path.stat().st_mtime_ns for path in thumbs.iterdir()}
    (thumbs / "mine.txt").write_text("not a thumbnail of ours")
    report.write_report(tmp_path / "report", made_audit(np.array([0.03, 0.02, 0.01])), **given)
    assert [name for name, *_ in open_run_data(page)["images"]] == ["2.jpg", "1.jpg"]
    after = {path.name: path.stat().st_mtime_ns for path in thumbs.iterdir()}
    assert after.pop("mine.txt")
    assert len(after) == 2
    assert len(before.items() & after.items()) == 1  # that of 1.jpg, as it was


def test_a_report_that_cannot_be_finished_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(2):
        (photos / f"{number}.jpg").write_bytes(picture(["red", "green"][number]))
    given: dict[str, Any] = {"title": "audit", "pictures": Files(photos), "most": 1}
    page = report.write_report(tmp_path / "report", made_audit(np.array([0.01, 0.02])), **given)
    before, thumb = page.read_bytes(), open_run_data(page)["images"][0][1]

    def fail(*_: Any, **__: Any) -> None:
        raise TrainingError("no room")

    monkeypatch.setattr(report, "write_bytes", fail)
    with pytest.raises(TrainingError, match="no room"):
        report.write_report(tmp_path / "report", made_audit(np.array([0.02, 0.01])), **given)
    assert page.read_bytes() == before
    assert (tmp_path / "report" / "thumbs" / thumb).is_file()


@pytest.mark.parametrize("name", ["photo.jpg", "index.html", "config.json"])
def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("<!doctype html>\nprecious")
    with pytest.raises(InputError, match=f"not a report, it holds {name}"):
        report.write_report(tmp_path, made_audit(np.array([0.01])), title="audit")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_looking_at_a_folder_leaves_there_is_no_hindrance(tmp_path: Path) -> None:
    found = made_audit(np.array([0.01]))
    report.write_report(tmp_path, found, title="audit")
    (tmp_path / ".DS_Store").write_text("theirs")
    report.write_report(tmp_path, found, title="audit")
    assert (tmp_path / ".DS_Store").read_text() == "theirs"


def test_a_page_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").mkdir()
    with pytest.raises(InputError, match=r"not a report, it holds index\.html"):
        report.write_report(tmp_path, made_audit(np.array([0.01])), title="audit")


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "report"):
        with pytest.raises(InputError, match=r"expected a folder|cannot be written"):
            report.write_report(folder, made_audit(np.array([0.01])), title="audit")
