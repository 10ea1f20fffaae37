"""COCO captions: documents and folders of them, read, cleaned and refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from annotated import coco_document, documented, features_of, judge, refusal, write_coco, write_json
from drawn import assert_same_audit, drawn
from tiny import call

import crcl
from crcl.auditing.clean import Cleaned, Cleaning, clean
from crcl.data.pictures.files import Files
from crcl.data.pictures.folders import Folders
from crcl.data.sources import layout_of
from crcl.data.sources.base import Location
from crcl.errors import InputError

DOCUMENT: dict[str, Any] = {
    "info": {"weight": 1.0, "é": "ü"},
    "annotations": [
        {"image_id": 7, "id": 1, "caption": "a dög"},
        {"image_id": 8, "id": 2, "caption": " two\ncats "},
        {"image_id": 7, "id": 2, "caption": "a cat", "more": [1, {"caption": "no"}]},
        {"image_id": 9, "id": 4, "caption": "a red ball"},
        {"image_id": 8, "id": 5, "caption": "a car"},
        {"image_id": 9, "id": 6, "caption": "grass"},
    ],
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}, {"id": 9, "file_name": "c/d.jpg"}],
    "licenses": [],
}
STYLES: list[dict[str, Any]] = [
    {},
    {"indent": 2},
    {"indent": "\t", "ensure_ascii": False},
    {"separators": (",", ":"), "ensure_ascii": False},
]


def reduced(**changes: Any) -> dict[str, Any]:
    """The document with other members."""
    return copy.deepcopy(DOCUMENT) | changes


def rows_of(path: Path) -> list[int]:
    """The rows of the training pairs of a document without splits."""
    return [int(row) for row in features_of(path, path.parent / "f", ["a.jpg", "b.jpg", "c/d.jpg"]).split("train").rows]


def test_the_drawn_scenes_give_the_same_audit_and_come_back_without_the_suspects(tmp_path: Path) -> None:
    folder = write_coco(drawn(captions=2), tmp_path / "coco")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    audit = assert_same_audit(folder, tmp_path, captions=2)
    suspects = {int(row) for row in audit.suspects["row"].to_pylist()}
    assert suspects
    assert audit.clean(tmp_path / "cleaned").removed == len(suspects)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert {file.name for file in (tmp_path / "cleaned").iterdir()} == set(before)
    for split in ("train", "val"):
        found = json.loads((tmp_path / f"cleaned/captions_{split}2017.json").read_text("utf-8"))
        expected = coco_document(drawn(captions=2), split)
        gone = suspects if split == "train" else set()
        kept = [one for row, one in enumerate(expected["annotations"]) if row not in gone]
        assert found == expected | {"annotations": kept}
    again = crcl.read(tmp_path / "cleaned")
    assert len(again) == 400 - len(suspects)
    assert again.splits == ["train", "dev"]


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_the_text_of_a_cleaned_document_is_as_its_author_would_have_written_it(
    tmp_path: Path, style: dict[str, Any]
) -> None:
    path = write_json(tmp_path / "captions.json", DOCUMENT, **style)
    rows = rows_of(path)
    for number, suspects in enumerate([rows[:1], rows[-1:], rows[:2], rows]):
        output = tmp_path / f"{number}.json"
        assert judge(path, output, suspects=suspects) == Cleaned(len(suspects), 6 - len(suspects), 6 - len(rows))
        kept = [one for row, one in enumerate(DOCUMENT["annotations"]) if row not in suspects]
        assert output.read_text("utf-8") == json.dumps(reduced(annotations=kept), **style)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_marked_annotations_all_stay_and_have_their_correspondence_last(tmp_path: Path, style: dict[str, Any]) -> None:
    path = write_json(tmp_path / "captions.json", DOCUMENT, **style)
    rows = rows_of(path)
    assert 0 < len(rows) < 6
    judge(path, tmp_path / "marked.json", suspects=rows[:1], how=Cleaning(mark=True))
    marked = copy.deepcopy(DOCUMENT)
    for row, annotation in enumerate(marked["annotations"]):
        annotation["correspondence"] = (0.125 if row == rows[0] else 0.75) if row in rows else None
    assert (tmp_path / "marked.json").read_text("utf-8") == json.dumps(marked, **style)
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        judge(tmp_path / "marked.json", tmp_path / "again.json", how=Cleaning(mark=True))


def test_a_moved_annotation_gets_the_id_of_the_other_image(tmp_path: Path) -> None:
    path = write_json(tmp_path / "captions.json", DOCUMENT, indent=1)
    row, other = rows_of(path)[0], rows_of(path)[-1]
    ids = {image["id"]: image["file_name"] for image in DOCUMENT["images"]}
    target = DOCUMENT["annotations"][other]["image_id"]
    done = judge(path, tmp_path / "moved.json", moved={row: ids[target]})
    assert (done.removed, done.moved) == (0, 1)
    expected = copy.deepcopy(DOCUMENT)
    expected["annotations"][row]["image_id"] = target
    assert (tmp_path / "moved.json").read_text("utf-8") == json.dumps(expected, indent=1)


def test_images_are_not_linked_since_the_document_only_names_them(tmp_path: Path) -> None:
    path = write_json(tmp_path / "captions.json", DOCUMENT)
    with pytest.raises(InputError, match="its images stay where they are"):
        judge(path, tmp_path / "cleaned.json", how=Cleaning(images="copy"))
    assert not (tmp_path / "cleaned.json").exists()


def test_documents_of_a_folder_are_splits_and_one_alone_has_none(tmp_path: Path) -> None:
    folder = write_coco(drawn(10), tmp_path)
    assert layout_of(tmp_path) == layout_of(folder) == layout_of(folder / "captions_val2017.json") == "coco"
    assert crcl.read(tmp_path).images == crcl.read(folder).images == drawn(10).names
    names = [f"{number:06d}.png" for number in range(10)]
    dev = features_of(folder, tmp_path / "f", names).split("dev")
    assert list(dev.image_ids) == drawn(10).names[8:]
    alone = crcl.read(folder / "captions_val2017.json")
    assert "split" not in alone.source.rows().column_names
    assert alone.splits == ["train", "dev"]
    (tmp_path / "config.json").write_text("{}")
    assert layout_of(tmp_path) is None


def test_a_folder_above_the_annotations_comes_back_with_the_same_shape(tmp_path: Path) -> None:
    write_coco(drawn(10), tmp_path / "coco")
    judge(tmp_path / "coco", tmp_path / "cleaned", suspects={3})
    found = json.loads((tmp_path / "cleaned/annotations/captions_train2017.json").read_text("utf-8"))
    assert [one["id"] for one in found["annotations"]] == [1000, 1001, 1002, 1004, 1005, 1006, 1007]
    assert crcl.read(tmp_path / "cleaned").images == [*drawn(10).names[:3], *drawn(10).names[4:]]


@pytest.mark.parametrize(
    "place", ["annotations", "images", "train2017", "images/train2017", "train", "annotations/images", ""]
)
def test_images_are_found_in_the_usual_places(tmp_path: Path, place: str) -> None:
    path = write_json(tmp_path / "annotations/captions_train2017.json", coco_document(drawn(10), "train"))
    assert crcl.read(path).pictures is None
    drawn(10).write_images(tmp_path / place)
    pictures = crcl.read(path).pictures
    assert isinstance(pictures, Files)
    assert pictures.read("000003.png") == drawn(10).pictures[3]
    elsewhere = drawn(10).write_images(tmp_path / "elsewhere")
    assert crcl.read(path, images=elsewhere).pictures == Files(elsewhere)


def test_where_no_images_are_found_the_audit_asks_for_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_json(tmp_path / "captions_train2017.json", coco_document(drawn(10), "train"))
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, "audit", str(path))
    assert answer.code == 2
    assert "its images were not found; pass --images, the folder that they lie in, or --features" in answer.err


def test_images_of_two_splits_with_one_name_are_refused(tmp_path: Path) -> None:
    folder = write_coco(drawn(10), tmp_path)
    pictures = crcl.read(folder).pictures
    assert isinstance(pictures, Folders)
    (tmp_path / "train2017/000009.png").write_bytes(b"another image")
    assert "captions_val2017.json names 000009.png, of which there is one in" in refusal(folder)


def test_names_that_lead_out_of_the_folder_of_images_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(drawn(10).pictures[0])
    document = coco_document(drawn(10), "train")
    for number, name in enumerate(["../secret.png", str(tmp_path / "secret.png"), "link.png"]):
        document["images"][number]["file_name"] = name
    path = write_json(tmp_path / "data/in/captions_train2017.json", document)
    drawn(10).write_images(tmp_path / "data/in")
    (tmp_path / "data/in/link.png").symlink_to(tmp_path / "secret.png")
    pairs = crcl.read(path)
    for wanted in pairs.wanted_images()[:3]:
        with pytest.raises(ValueError, match="outside the folder of images"):
            wanted.read()
    assert pairs.wanted_images()[3].read() == drawn(10).pictures[3]


def test_annotations_without_image_and_images_without_annotation_are_counted_and_stay(tmp_path: Path) -> None:
    document = reduced()
    document["annotations"].insert(1, {"image_id": 70, "id": 70, "caption": "nowhere"})
    document["annotations"].append({"image_id": "8", "id": 71, "caption": "text is no number"})
    document["images"] += [{"id": 100, "file_name": "e.jpg"}, {"id": 7, "file_name": "a.jpg"}]
    path = write_json(tmp_path / "captions.json", document)
    pairs = crcl.read(path)
    assert len(pairs) == 6
    assert pairs.notes == (
        "captions.json: 2 annotations name no image of the document and are left out; their image_id is 70, '8'",
        "captions.json: 1 images have no caption and are left out",
    )
    rows = rows_of(path)
    assert judge(path, tmp_path / "cleaned.json", suspects=rows).kept == 6 - len(rows)
    found = json.loads((tmp_path / "cleaned.json").read_text("utf-8"))
    of_row = [one for one in document["annotations"] if one["id"] < 70]
    gone = [of_row[row] for row in rows]
    assert found == document | {"annotations": [one for one in document["annotations"] if one not in gone]}


@pytest.mark.slow
def test_a_hundred_thousand_captions_of_one_image_are_read_and_cleaned(tmp_path: Path) -> None:
    document = reduced()
    document["annotations"] += [{"image_id": 7, "id": n, "caption": f"caption {n}"} for n in range(100_000)]
    path = write_json(tmp_path / "captions.json", document)
    assert len(crcl.read(path)) == 100_006
    rows = range(7, 100_006, 2)
    done = judge(path, tmp_path / "cleaned.json", suspects=rows)
    found = json.loads((tmp_path / "cleaned.json").read_text("utf-8"))["annotations"]
    assert len(found) == done.kept == 100_006 - done.removed
    assert done.removed in (0, 50_000)  # one of three images is held out
    with pytest.raises(InputError, match="is not the pair that was judged"):
        _clean_changed(path, tmp_path / "other.json", document)


def _clean_changed(path: Path, output: Path, document: dict[str, Any]) -> None:
    """Clean a document that is another one since it was audited."""
    pairs = features_of(path, path.parent / "f", ["a.jpg", "b.jpg", "c/d.jpg"]).split("train")
    for annotation in document["annotations"]:
        annotation["caption"] += "!"
    write_json(path, document)
    clean(Location(str(path)), output, pairs, pairs.image_index * 0 + 0.75)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([1, 2], 'the document is a list where an object belongs; expected {"images"'),
        ({"images": {}, "annotations": []}, "'images' is an object where a list belongs"),
        ({"images": []}, "no key 'annotations', expected"),
        ({"images": [], "annotations": []}, "has no rows"),
        (reduced(images=[{"id": 7}, 3]), 'images[0]: no \'file_name\', expected {"id": ..., "file_name": ...}'),
        (reduced(images=[{"id": 7}, 3]), "images[1]: a number, expected"),
        (reduced(images=[{"id": [7], "file_name": "a.jpg"}]), "images[0]: the id of the image is neither"),
        (reduced(images=[{"id": 7, "file_name": None}]), "images[0]: 'file_name' is not the name of a file"),
        (
            reduced(images=[{"id": 7, "file_name": "a.jpg"}, {"id": 7, "file_name": "b.jpg"}]),
            "images[1]: the id 7 is that of another image, a.jpg",
        ),
        (reduced(images=[{"id": 1, "file_name": "a.jpg"}]), "no annotation names an image of the document"),
        (reduced(annotations=[{"image_id": 7}]), "annotations[0]: no 'caption', expected"),
        (reduced(annotations=[{"image_id": 7, "caption": 3}]), "annotations[0]: 'caption' is a number, expected text"),
        (reduced(annotations=[{"image_id": 7, "caption": float("nan")}]), "'caption' is a number, expected text"),
        (
            reduced(annotations=[{"image_id": 7, "caption": "half \ud800"}]),
            "pair 1: the caption 'half \\ud800' has half of a character",
        ),
        (reduced(annotations=[{"image_id": True, "caption": "x"}]), "annotations[0]: the id of the image is neither"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, document: Any, told: str) -> None:
    path = write_json(tmp_path / "captions.json", document)
    message = refusal(path, layout="coco")
    assert message.startswith(str(path))
    assert told in message


def test_the_first_ten_entries_without_a_key_are_named(tmp_path: Path) -> None:
    path = write_json(tmp_path / "captions.json", reduced(annotations=[{"image_id": 7, "bbox": []}] * 25))
    message = refusal(path)
    assert "annotations[9]: no 'caption'" in message
    assert "annotations[10]" not in message
    assert "... and 15 more" in message


def test_nan_in_other_values_stays_as_it_is(tmp_path: Path) -> None:
    path = write_json(tmp_path / "captions.json", reduced(info={"score": float("nan")}))
    rows = rows_of(path)
    judge(path, tmp_path / "cleaned.json", suspects=rows[:1])
    assert '"score": NaN' in (tmp_path / "cleaned.json").read_text("utf-8")


def test_two_years_in_one_folder_are_refused(tmp_path: Path) -> None:
    for year in (2014, 2017):
        write_json(tmp_path / f"captions_train{year}.json", DOCUMENT)
    assert "several documents of split 'train': captions_train2014.json, captions_train2017.json" in refusal(tmp_path)


def test_a_document_is_recognised_by_its_beginning_alone(tmp_path: Path) -> None:
    path = write_json(tmp_path / "captions.json", DOCUMENT)
    with path.open("r+b") as file:
        file.truncate(2**41)  # two terabytes of nothing: reading it all is not possible
    assert layout_of(path) == "coco"


def test_an_empty_caption_is_a_row_that_is_not_judged(tmp_path: Path) -> None:
    document = reduced()
    document["annotations"][2]["caption"] = None
    pairs = crcl.read(write_json(tmp_path / "captions.json", document))
    assert pairs.captions[2] == ""
    assert len(pairs.without_empty()) == 5


def test_the_commands_of_the_page_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_coco(drawn(), tmp_path / "coco")
    monkeypatch.chdir(tmp_path)
    for words in documented("COCO captions"):
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "cleaned/captions_train2017.json").read_text("utf-8"))
    assert 0 < len(found["annotations"]) < 160
    (tmp_path / "coco/annotations/captions_train2017.json").write_text('{"images": [{"id": 1, "file_name": "a')
    answer = call(capsys, monkeypatch, "audit", "coco/annotations")
    assert answer.code == 2
    assert "not complete JSON (Unterminated string starting at: line 1 column 36 (char 35))" in answer.err
