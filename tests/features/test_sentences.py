"""Long captions are divided into sentences, in linear time whatever they contain."""

import time

import pytest

from crcl.errors import InputError
from crcl.features.sentences import check_way, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog runs. A cat sits down!", ["A dog runs.", "A cat sits down!"]),
        ('He asks "Is it so?" and waits. She nods at once.', ['He asks "Is it so?"', "and waits. She nods at once."]),
        ("Dr. Smith rides a bike. It is red.", ["Dr. Smith rides a bike.", "It is red."]),
        ("a first line of text\nand a second one", ["a first line of text", "and a second one"]),
        ("版本一很好。版本二也好！", ["版本一很好。", "版本二也好！"]),
        ("no end at all", ["no end at all"]),
        ("1.5 metres of rope. And 2.5 of wire.", ["1.5 metres of rope.", "And 2.5 of wire."]),
        ("", [""]),
    ],
)
def test_sentences_end_where_a_reader_sees_an_end(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_nothing_of_a_text_is_lost() -> None:
    text = "Dr. A. B. sees it... and so! (Or not.) \n\n Yes? No. 好。" * 20
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("piece", [".", "? ", "a.\n", "\n ", "。", '."', "a b. "])
def test_hostile_texts_take_no_longer_than_others(piece: str) -> None:
    started = time.perf_counter()
    sentences(piece * 200_000)
    assert time.perf_counter() - started < 10


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InputError, match="'most': expected cut, mean, least"):
        check_way("most")
