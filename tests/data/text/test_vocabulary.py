"""Vocabulary and token ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize.destructive import NLTKWordTokenizer

from crcl.data.text.vocabulary import END, MOST_CHARACTERS, START, UNK, Vocabulary, tokenize
from crcl.errors import InputError

FIELD = Path(__file__).parents[2] / "fixtures" / "field" / "f30k_precomp_vocab.json"
SPECIALS = ["<pad>", "<start>", "<end>", "<unk>"]
PIECES = ["a", "dog", "cannot", "gonna", "wanna", "7", " ", "  ", ",", ", ", ".", " .", "...", "-", "'s", '"', "(", "Ü"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=30))
def test_words_are_those_of_nltks_tokenizer_class(caption: str) -> None:
    assert tokenize(caption) == NLTKWordTokenizer().tokenize(caption.lower())


def test_tokens_are_lower_case_with_punctuation_apart() -> None:
    words = ["two", "dogs", ",", "one", "man", "'s", "t-shirt", "."]
    assert tokenize("Two dogs, one man's t-shirt.") == words


def test_the_fields_vocabulary_loads_and_gains_mask() -> None:
    content = json.loads(FIELD.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.load(FIELD)
    assert len(vocabulary) == 8_482
    assert vocabulary.mask == 8_481
    assert all(vocabulary.words[number] == word for word, number in content["word2idx"].items())


def test_a_vocabulary_survives_saving_and_loading(tmp_path: Path) -> None:
    vocabulary = Vocabulary([*SPECIALS, "dog", "übergröße"])
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json").words == vocabulary.words
    content = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert content["idx2word"]["4"] == "dog"
    assert content["idx"] == len(vocabulary)


def test_built_words_are_frequent_ones_in_order_of_first_appearance() -> None:
    vocabulary = Vocabulary.build(["a zebra and a dog", "a dog, a cat", "zebra"], minimum=2)
    assert vocabulary.words == [*SPECIALS, "a", "zebra", "dog", "<mask>"]
    assert vocabulary.mask == len(vocabulary) - 1


def test_captions_are_encoded_between_start_and_end() -> None:
    tokens = Vocabulary([*SPECIALS, "a", "dog"]).encode(["A dog", "a blue dog", "blue cat"])
    assert [tokens[i].tolist() for i in range(3)] == [
        [START, 4, 5, END],
        [START, 4, UNK, 5, END],
        [START, UNK, UNK, END],
    ]
    assert tokens.lengths.tolist() == [4, 5, 4]
    assert len(tokens) == 3
    assert (tokens.flat.dtype, tokens.offsets.dtype) == (np.int32, np.int64)
    assert (tokens.cut, tokens.unknown) == (0, 1)
    with pytest.raises(IndexError):
        tokens[3]


def test_a_caption_of_ten_thousand_words_is_cut_and_counted() -> None:
    tokens = Vocabulary([*SPECIALS, "dog"]).encode(["dog " * 10_000, "it's a dog! " * 10_000, "dog"], max_words=20)
    assert tokens.lengths.tolist() == [22, 22, 3]
    assert tokens.cut == 2
    assert tokens[0][-1] == END


def test_no_captions_give_no_tokens() -> None:
    assert len(Vocabulary(SPECIALS).encode([])) == 0


def test_fewer_than_one_word_is_refused() -> None:
    with pytest.raises(InputError, match="max_words must be at least 1"):
        Vocabulary(SPECIALS).encode(["a"], max_words=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a JSON file"),
        (["a"], "no 'word2idx' .* found list"),
        ({"words": {}}, "no 'word2idx' .* found words"),
        ({"word2idx": {word: i for i, word in enumerate([*SPECIALS, "a"])} | {"b": 9}}, "the ids 0 to 5"),
        ({"word2idx": {word: i for i, word in enumerate(SPECIALS)} | {"b": "4"}}, "the ids 0 to 4"),
        ({"word2idx": {word: i for i, word in enumerate(SPECIALS)} | {"b": 3}}, "each once"),
        (
            {"word2idx": {word: i for i, word in enumerate(["a", *SPECIALS])}},
            "must start with <pad> <start> <end> <unk>",
        ),
        ({"word2idx": {word: i for i, word in enumerate(SPECIALS)}, "idx2word": {"0": "x"}}, "not the inverse"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused_by_name(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "vocab.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=rf"vocab\.json: .*{message}"):
        Vocabulary.load(tmp_path / "vocab.json")


def test_repeated_words_are_refused() -> None:
    with pytest.raises(InputError, match="duplicate words in the vocabulary: dog"):
        Vocabulary([*SPECIALS, "dog", "dog"])


def test_a_missing_vocabulary_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").touch()
    with pytest.raises(InputError, match=r"vocabs.json: not found \(did you mean 'vocab.json'\?\)"):
        Vocabulary.load(tmp_path / "vocabs.json")


def test_of_an_endless_caption_only_the_beginning_is_read() -> None:
    assert len(tokenize("a " * 10_000_000)) == MOST_CHARACTERS // 2
    tokens = Vocabulary.build(["dog " * 10_000_000]).encode(["dog " * 10_000_000], max_words=3)
    assert (len(tokens[0]), tokens.cut) == (5, 1)


def test_captions_with_more_words_than_are_read_are_told() -> None:
    words = Vocabulary.build(["a dog runs"], minimum=1)
    captions = ["a dog", "a dog runs.", "incomprehensibilities", ""]
    assert words.cuts(captions, max_words=3).tolist() == [False, True, False, False]
    assert words.encode(captions, max_words=3).cut == 1
