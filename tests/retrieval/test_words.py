"""Words that find nothing in their image are named, and regions that words fit best, for suspects of an audit too."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import drawn, write_table
from tiny import SMALL, write_folder

import crcl
from crcl.data.text.vocabulary import Vocabulary, tokenize
from crcl.features.provenance import known_grid
from crcl.features.sentences import sentences
from crcl.matchers import CHAN, NAAF, Bow
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.words import lacking_words, told_of_sentences, told_of_words, words_by_region

SIZES = {"embedding": 8, "word": 6}
TRAINING = {"method": "infonce", "matcher.embedding": 8, "matcher.word": 6, "train.pieces": [1]}


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


def test_neighbouring_words_of_one_region_are_named_together_with_the_region_that_each_fits_best(tiny) -> None:
    torch.manual_seed(0)
    pairs = tiny(images=40)
    words = Vocabulary.build(pairs.captions, minimum=1)
    matcher = CHAN(features=5, vocabulary=len(words), **SIZES).eval()
    scorer = Scorer(matcher, words)
    found = words_by_region(scorer, pairs, np.arange(80))
    tokens = words.encode(pairs.captions)
    for row, named in enumerate(found):
        ids = torch.from_numpy(tokens.side_by_side(np.array([row]))[0])
        features = torch.from_numpy(pairs.gather(pairs.image_index[row : row + 1]))
        with torch.no_grad():
            regions = matcher.encode_images(features, torch.ones(features.shape[:2], dtype=torch.bool)).features[0]
            of_words = matcher.encode_texts(ids, torch.tensor([ids.shape[1]])).features[0][1:-1]
        expected = [max(range(len(regions)), key=lambda r, w=word: float(regions[r] @ w)) for word in of_words]
        assert [region for words_, region in named for _ in words_.split()] == expected
        assert " ".join(words_ for words_, _ in named).split() == tokenize(pairs.captions[row])
        assert all(one != next_ for (_, one), (_, next_) in pairwise(named))
    assert len({region for named in found for _, region in named}) > 1


def test_what_is_told_of_words_reads_as_a_sentence_and_places_regions_on_a_known_grid(tiny, monkeypatch) -> None:
    pairs = tiny(images=3, captions=1)
    pairs.captions[:] = ["a red bicycle", "dog", "snow falls"]
    words = Vocabulary.build(pairs.captions, minimum=1)
    naaf = Scorer(NAAF(features=5, vocabulary=len(words), **SIZES), words)
    flags = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    monkeypatch.setattr(NAAF, "lacking", lambda self, images, texts: flags.expand(len(images), -1, -1))
    told = told_of_words(naaf, pairs, np.arange(3))
    assert (told.column, told.cells) == ("lacking", ["red bicycle", "dog", ""])
    assert told.sentences[0] == "The words “red bicycle” fit nothing in the picture."
    assert told.sentences[1:] == ["The word “dog” fits nothing in the picture.", ""]
    chan = Scorer(CHAN(features=5, vocabulary=len(words), **SIZES), words)
    numbers = torch.tensor([[0, 14, 14, 3, 0], [0, 8, 0, 0, 0], [0, 0, 1, 0, 0]])
    monkeypatch.setattr(CHAN, "best_regions", lambda self, images, texts: numbers.expand(len(images), -1, -1))
    told = told_of_words(chan, pairs, np.arange(3), grid=6)
    place = "a red → region 14 (row 3, column 3); bicycle → region 3 (row 1, column 4)"
    assert (told.column, told.cells[0]) == ("regions", place)
    assert told.sentences[0] == f"Words and where they fit best: {place}."
    assert told_of_words(chan, pairs, np.arange(3)).cells[2] == "snow → region 0; falls → region 1"


def test_a_grid_is_known_only_where_its_cells_are_as_many_as_the_regions() -> None:
    made = {"settings": {"extractor": "pixel grid", "grid": 6}}
    assert (known_grid(made, regions=36), known_grid(made, regions=30), known_grid({}, regions=36)) == (6, 0, 0)
    assert known_grid({"settings": {"grid": "6"}}, regions=36) == 0


def test_of_a_matcher_that_does_not_judge_words_nothing_is_told(tiny) -> None:
    pairs = tiny()
    words = Vocabulary.build(pairs.captions, minimum=1)
    assert told_of_words(Scorer(Bow(features=5, vocabulary=len(words), **SIZES), words), pairs, np.arange(3)) is None


def test_of_captions_with_several_sentences_the_one_that_fits_least_is_told(tiny) -> None:
    pairs = tiny(images=3, captions=1)
    pairs.captions[:] = ["a red dog. a big cat runs.", "a dog", "a dog sits. red cats run here. a big dog."]
    words = Vocabulary.build(pairs.captions, minimum=1)
    torch.manual_seed(0)
    scorer = Scorer(Bow(features=5, vocabulary=len(words), **SIZES).eval(), words)
    numbers = np.array([2, 1, 0])
    told = told_of_sentences(scorer, pairs, numbers, [sentences(pairs.captions[row]) for row in numbers])
    for place, row in ((0, 2), (2, 0)):
        parts = sentences(pairs.captions[row])
        alone = [replace(pairs, captions=[part], image_index=pairs.image_index[row : row + 1]) for part in parts]
        fits = [float(scorer.pair_similarities(one)[0]) for one in alone]
        assert told.cells[place] == parts[int(np.argmin(fits))]
        assert told.sentences[place] == f"Fits the picture least: “{told.cells[place]}”"
    assert (told.column, told.cells[1], told.sentences[1]) == ("least_sentence", "", "")
    assert told_of_sentences(scorer, pairs, np.array([1]), [["a dog"]]) is None


@pytest.mark.slow
def test_an_audit_names_words_that_find_nothing_for_suspects_only(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(NAAF, "lacking", lambda self, images, texts: texts.mask.expand(len(images), -1, -1))
    data = write_folder(tmp_path / "data")
    run = crcl.train(data, tmp_path / "run", matcher="naaf", noise=0.4, settings=SMALL[1:])
    table = crcl.audit(run).at(keep=0.5).table
    suspect, lacking = table["suspect"].to_pylist(), table["lacking"].to_pylist()
    assert {True, False} == set(suspect)
    assert [bool(words) for words in lacking] == suspect
    assert lacking[0] == " ".join(tokenize(table["caption"][0].as_py()))


@pytest.mark.slow
def test_an_audit_and_its_report_say_where_the_words_of_suspects_fit_best(tmp_path: Path) -> None:
    made = write_table(drawn(60), tmp_path)
    audit = crcl.audit(made, tmp_path / "audit", keep=0.5, settings=TRAINING | {"matcher.name": "chan"})
    suspect, regions = audit.table["suspect"].to_pylist(), audit.table["regions"].to_pylist()
    assert [bool(words) for words in regions] == suspect
    page = audit.report(tmp_path / "report").read_text("utf-8")
    assert f"Words and where they fit best: {regions[0]}." in page
