"""Words that find nothing in their image are named, for suspects of an audit too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import SMALL, write_folder

import crcl
from crcl.data.text.vocabulary import Vocabulary, tokenize
from crcl.matchers import NAAF, Bow
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.words import lacking_words

SIZES = {"embedding": 8, "word": 6}


def test_words_are_named_as_the_matcher_judges_them_one_pair_at_a_time(tiny) -> None:
    torch.manual_seed(0)
    pairs = tiny(images=40)
    words = Vocabulary.build(pairs.captions, minimum=1)
    matcher = NAAF(features=5, vocabulary=len(words), **SIZES).eval()
    matcher.safe_threshold.fill_(0.3)
    scorer, numbers = Scorer(matcher, words), np.arange(79, -1, -2)
    found = lacking_words(scorer, pairs, numbers)
    assert len(found) == 40
    assert 0 < sum(map(len, found)) < sum(len(tokenize(pairs.captions[row])) for row in numbers)
    for row, named in zip(numbers, found, strict=True):
        (alone,) = lacking_words(scorer, pairs, np.array([row]))
        assert named == alone
        assert set(named) <= set(tokenize(pairs.captions[row]))
    matcher.safe_threshold.fill_(1.0)
    assert lacking_words(scorer, pairs, numbers[:3]) == [tokenize(pairs.captions[row]) for row in numbers[:3]]
    matcher.safe_threshold.fill_(-1.0)
    assert lacking_words(scorer, pairs, numbers[:3]) == [[], [], []]


def test_punctuation_and_the_marks_of_a_caption_are_no_words(tiny) -> None:
    pairs = tiny(images=1, captions=1)
    pairs.captions[0] = "a dog, a ball."
    words = Vocabulary.build(pairs.captions, minimum=1)
    matcher = NAAF(features=5, vocabulary=len(words), **SIZES).eval()
    matcher.safe_threshold.fill_(1.0)
    assert lacking_words(Scorer(matcher, words), pairs, np.array([0])) == [["a", "dog", "a", "ball"]]


def test_a_matcher_that_does_not_judge_words_names_none(tiny) -> None:
    pairs = tiny()
    words = Vocabulary.build(pairs.captions, minimum=1)
    assert lacking_words(Scorer(Bow(features=5, vocabulary=len(words), **SIZES), words), pairs, np.arange(3)) is None


@pytest.mark.slow
def test_an_audit_names_them_for_suspects_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NAAF, "lacking", lambda self, images, texts: texts.mask.expand(len(images), -1, -1))
    data = write_folder(tmp_path / "data")
    run = crcl.train(data, tmp_path / "run", matcher="naaf", noise=0.4, settings=SMALL[1:])
    table = crcl.audit(run).at(keep=0.5).table
    suspect, lacking = table["suspect"].to_pylist(), table["lacking"].to_pylist()
    assert {True, False} == set(suspect)
    assert [bool(words) for words in lacking] == suspect
    assert lacking[0] == " ".join(tokenize(table["caption"][0].as_py()))
