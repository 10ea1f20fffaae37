"""Karpathy's documents: images with their split and sentences, read, cleaned and refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from annotated import documented, features_of, judge, karpathy_document, refusal, write_json
from drawn import assert_same_audit, drawn
from tiny import call

import crcl
from crcl.auditing.clean import Cleaning
from crcl.data.sources import layout_of
from crcl.errors import InputError

STYLES: list[dict[str, Any]] = [{}, {"indent": 1}, {"separators": (",", ":")}]


def image(number: int, split: str, *raw: str, **more: Any) -> dict[str, Any]:
    """An image whose sentences have the numbers 10 * number, ..."""
    ids = [10 * number + place for place in range(len(raw))]
    sentences = [
        {"tokens": text.split(), "raw": text, "imgid": number, "sentid": one}
        for text, one in zip(raw, ids, strict=True)
    ]
    return {
        "sentids": ids,
        **more,
        "imgid": number,
        "sentences": sentences,
        "split": split,
        "filename": f"{number}.jpg",
    }


def document() -> dict[str, Any]:
    """Rows 0, 1 and 2 to 4 are of train, 5 of val, 6 of restval; one image has no sentence."""
    images = [
        image(0, "train", "a dog", " a cat ", filepath="train2014"),
        image(1, "train", "a red car", "ein Köter", "grass", filepath="train2014"),
        image(2, "train", filepath="train2014"),
        image(3, "val", "held out", filepath="val2014", cocoid=17),
        image(4, "restval", "the rest", filepath="val2014"),
    ]
    return {"images": images, "dataset": "coco"}


def test_the_drawn_scenes_give_the_same_audit_and_come_back_without_the_suspects(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dataset_flickr30k.json", karpathy_document(drawn(captions=2)))
    drawn(captions=2).write_images(tmp_path / "images")
    before = path.read_bytes()
    audit = assert_same_audit(path, tmp_path, captions=2)
    suspects = {int(row) for row in audit.suspects["row"].to_pylist()}
    assert suspects
    assert audit.clean(tmp_path / "cleaned.json").removed == len(suspects)
    assert path.read_bytes() == before
    expected = karpathy_document(drawn(captions=2))  # two sentences for each image
    for number, one in enumerate(expected["images"]):
        kept = [place for place in range(2) if 2 * number + place not in suspects]
        one["sentences"] = [one["sentences"][place] for place in kept]
        one["sentids"] = [one["sentids"][place] for place in kept]
    assert json.loads((tmp_path / "cleaned.json").read_text("utf-8")) == expected
    again = crcl.read(tmp_path / "cleaned.json")
    assert len(again) == 400 - len(suspects)
    lost = sum(not one["sentences"] for one in expected["images"])
    assert lost
    assert again.notes == (f"cleaned.json: {lost} images have no sentence and are left out",)


def test_splits_and_names_are_as_the_document_says_and_restval_is_train(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dataset_coco.json", document())
    assert layout_of(path) == "karpathy"
    pairs = features_of(
        path, tmp_path / "f", [f"train2014/{n}.jpg" for n in (0, 1)] + ["val2014/3.jpg", "val2014/4.jpg"]
    )
    assert pairs.splits == ["train", "dev"]
    assert list(pairs.split("train").image_ids) == ["train2014/0.jpg", "train2014/1.jpg", "val2014/4.jpg"]
    assert pairs.split("train").captions == ["a dog", "a cat", "a red car", "ein Köter", "grass", "the rest"]
    assert pairs.split("val").captions == ["held out"]
    assert pairs.notes == ("dataset_coco.json: 1 images have no sentence and are left out",)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_the_text_of_a_cleaned_document_is_as_its_author_would_have_written_it(
    tmp_path: Path, style: dict[str, Any]
) -> None:
    path = write_json(tmp_path / "dataset_coco.json", document(), **style)
    done = judge(path, tmp_path / "cleaned.json", suspects={0, 1, 3})
    assert (done.removed, done.kept, done.unjudged) == (3, 4, 1)
    expected = document()
    expected["images"][0] |= {"sentences": [], "sentids": []}
    for key in ("sentences", "sentids"):
        del expected["images"][1][key][1]
    assert (tmp_path / "cleaned.json").read_text("utf-8") == json.dumps(expected, **style)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_marked_sentences_all_stay_and_have_their_correspondence_last(tmp_path: Path, style: dict[str, Any]) -> None:
    path = write_json(tmp_path / "dataset_coco.json", document(), **style)
    judge(path, tmp_path / "marked.json", suspects={3}, how=Cleaning(mark=True))
    expected = document()
    beliefs = iter([0.75, 0.75, 0.75, 0.125, 0.75, None, 0.75])
    for one in expected["images"]:
        for sentence in one["sentences"]:
            sentence["correspondence"] = next(beliefs)
    assert (tmp_path / "marked.json").read_text("utf-8") == json.dumps(expected, **style)
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        judge(tmp_path / "marked.json", tmp_path / "again.json", how=Cleaning(mark=True))


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_moved_sentence_is_at_the_end_of_the_other_image_and_all_numbers_follow(
    tmp_path: Path, style: dict[str, Any]
) -> None:
    path = write_json(tmp_path / "dataset_coco.json", document(), **style)
    targets = {1: "train2014/1.jpg", 2: "train2014/0.jpg", 3: "val2014/4.jpg"}
    done = judge(path, tmp_path / "moved.json", moved=targets, suspects={6, 4})
    assert (done.moved, done.removed) == (3, 2)
    expected = document()
    images = expected["images"]
    cat, car, dog = images[0]["sentences"].pop(1), images[1]["sentences"][0], images[1]["sentences"][1]
    images[0]["sentences"].append(car | {"imgid": 0})
    images[1]["sentences"] = [cat | {"imgid": 1}]  # the last of its own is a suspect
    images[4]["sentences"] = [dog | {"imgid": 4}]
    images[0]["sentids"], images[1]["sentids"], images[4]["sentids"] = [0, 10], [1], [11]
    assert json.loads((tmp_path / "moved.json").read_text("utf-8")) == expected
    assert len(crcl.read(tmp_path / "moved.json")) == 5


def test_a_sentence_is_marked_where_it_is_moved_to(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dataset_coco.json", document())
    judge(path, tmp_path / "both.json", moved={1: "train2014/1.jpg"}, how=Cleaning(mark=True))
    found = json.loads((tmp_path / "both.json").read_text("utf-8"))["images"][1]["sentences"]
    assert [(one["raw"], one["imgid"], one["correspondence"]) for one in found[-2:]] == [
        ("grass", 1, 0.75),
        (" a cat ", 1, 0.75),
    ]


def test_numbers_of_sentences_in_another_order_are_removed_by_value(tmp_path: Path) -> None:
    given = document()
    given["images"][1]["sentids"] = [12, 10, 11]
    del given["images"][0]["sentids"]
    path = write_json(tmp_path / "dataset_coco.json", given)
    judge(path, tmp_path / "cleaned.json", suspects={0, 2})
    found = json.loads((tmp_path / "cleaned.json").read_text("utf-8"))["images"]
    assert found[1]["sentids"] == [12, 11]
    assert [one["sentid"] for one in found[1]["sentences"]] == [11, 12]
    assert "sentids" not in found[0]
    assert [one["raw"] for one in found[0]["sentences"]] == [" a cat "]


@pytest.mark.parametrize(
    "place", ["", "images", "flickr8k", "flickr8k-images", "flickr8k_images", "Flicker8k_Dataset", "../images"]
)
def test_images_are_found_in_the_usual_places(tmp_path: Path, place: str) -> None:
    path = write_json(tmp_path / "data/dataset_flickr8k.json", karpathy_document(drawn(10)))
    assert crcl.read(path).pictures is None
    drawn(10).write_images(tmp_path / "data" / place)
    pictures = crcl.read(path).pictures
    assert pictures is not None
    assert pictures.read("000003.png") == drawn(10).pictures[3]


def test_images_lie_in_the_folder_that_the_document_names(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dataset_coco.json", karpathy_document(drawn(10), filepath="val2014"))
    drawn(10).write_images(tmp_path / "images/val2014")
    assert crcl.read(path).wanted_images()[3].read() == drawn(10).pictures[3]


def changed(change: Any) -> dict[str, Any]:
    """The document with an image that is changed by a function."""
    found = document()
    change(found["images"][1])
    return found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([document()], 'the document is a list where an object belongs; expected {"images"'),
        ({"dataset": "coco"}, "no key 'images', expected"),
        ({"images": {"0": {}}}, "'images' is an object where a list belongs"),
        (changed(lambda one: one.pop("sentences")), "images[1]: no 'sentences', expected"),
        (changed(lambda one: one.update(split=None)), "images[1]: 'split' is null without a name"),
        (changed(lambda one: one.update(filename=" ")), "images[1]: 'filename' is text without a name"),
        (changed(lambda one: one.update(sentences="a dog")), "images[1]: 'sentences' is text, expected a list"),
        (changed(lambda one: one["sentences"][2].pop("raw")), "images[1].sentences[2]: no 'raw', expected"),
        (changed(lambda one: one["sentences"][2].update(raw=[1])), "images[1].sentences[2]: 'raw' is a list"),
        (changed(lambda one: one["sentences"].append("a dog")), "images[1].sentences[3]: text, expected"),
        ({"images": []}, "has no rows"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, given: Any, told: str) -> None:
    path = write_json(tmp_path / "dataset.json", given)
    message = refusal(path, layout="karpathy")
    assert message.startswith(str(path))
    assert told in message


@pytest.mark.slow
def test_a_hundred_thousand_sentences_of_one_image_are_read_and_cleaned(tmp_path: Path) -> None:
    given = document()
    given["images"][0] = image(0, "train", *(f"sentence {n}" for n in range(100_000)), filepath="train2014")
    path = write_json(tmp_path / "dataset_coco.json", given)
    assert layout_of(path) == "karpathy"
    judge(path, tmp_path / "cleaned.json", suspects=range(1, 100_000, 2))
    expected = copy.deepcopy(given)
    for key in ("sentences", "sentids"):
        expected["images"][0][key] = expected["images"][0][key][::2]
    assert json.loads((tmp_path / "cleaned.json").read_text("utf-8")) == expected


def test_a_document_is_recognised_by_its_beginning_alone(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dataset_coco.json", document())
    with path.open("r+b") as file:
        file.truncate(2**41)  # two terabytes of nothing: reading it all is not possible
    assert layout_of(path) == "karpathy"


def test_the_commands_of_the_page_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "flickr30k/dataset_flickr30k.json", karpathy_document(drawn()))
    drawn().write_images(tmp_path / "flickr30k/images")
    monkeypatch.chdir(tmp_path)
    for words in documented("Karpathy's splits"):
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "cleaned.json").read_text("utf-8"))
    assert len(found["images"]) == 200
    assert 0 < sum(len(one["sentences"]) for one in found["images"]) < 200
