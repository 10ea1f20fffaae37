"""Vectors of captions: what is written, what is kept, what becomes of long captions."""

import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import Noting

from crcl.errors import InputError
from crcl.features.encoder import divide, encode
from crcl.features.extract import extract
from crcl.features.grid import PixelGrid
from crcl.features.texts import (
    CUT,
    DIVIDED,
    FILE,
    READ,
    ExtractedTexts,
    extract_texts,
    how_read,
    known_vectors,
    long_note,
)

SIZE, LONGEST = 6, 8


class Letters:
    """An encoder that reads eight letters; vectors depend on the longest text of their batch, as rounding does."""

    title = "letters"
    longest = LONGEST

    def __init__(self, seed: int = 0, batches: int = 10**9) -> None:
        self.table = np.random.default_rng(seed).normal(size=(256, SIZE)).astype(np.float32)
        self.settings: dict[str, Any] = {"encoder": "letters", "seed": seed}
        self.left, self.seen = batches, []

    def tokenize(self, texts: Sequence[str]) -> list[tuple[list[int], bool]]:
        found = [[ord(letter) % 256 for letter in text] for text in texts]
        return [(ids[:LONGEST], len(ids) > LONGEST) for ids in found]

    def compute(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.seen.append([len(ids) for ids in tokens])
        width = max(map(len, tokens))
        vectors = np.stack([self.table[list(ids)].sum(0) for ids in tokens]) + 0.001 * width
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def expected(text: str) -> NDArray[np.float32]:
    """The vector of a text alone."""
    encoder = Letters()
    return encoder.compute([encoder.tokenize([text])[0][0]])[0]


def make(captions: Sequence[str], folder: Path, encoder: Letters | None = None, **options: Any) -> ExtractedTexts:
    return extract_texts(captions, encoder or Letters(), folder, **options)


CAPTIONS = ["dog", "a cat", "dog", "", "hi", "a long caption of a dog"]


def test_each_row_has_the_vector_of_its_caption_in_float16(tmp_path: Path) -> None:
    made = make(CAPTIONS, tmp_path, batch_size=1)
    found = np.load(tmp_path / "text_features.npy")
    assert (found.dtype, found.shape) == (np.dtype("float16"), (6, SIZE))
    assert made == ExtractedTexts(captions=5, size=SIZE, computed=4, long=1, cut=1)
    assert not found[3].any()
    for row, caption in enumerate(CAPTIONS):
        if caption:
            np.testing.assert_array_equal(found[row], expected(caption[:LONGEST]).astype(np.float16))
    text = json.loads((tmp_path / "about.json").read_text())["text"]
    assert (text["extractor"], text["reads"], text["long"], text["cut"], text["captions"]) == ("letters", 8, 1, 1, 5)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "about.json", "cache", FILE, READ}


def test_batches_hold_texts_of_similar_length(tmp_path: Path) -> None:
    encoder = Letters()
    captions = ["abcdefgh"[: 1 + row % 8] + "." * 0 + chr(97 + row // 8) for row in range(56)]
    make(captions, tmp_path, encoder, batch_size=7)
    assert all(max(lengths) - min(lengths) <= 1 for lengths in encoder.seen)


def numbered(count: int) -> list[str]:
    return [f"{row % 1000:x}{'z' * (row % 5)}" for row in range(count)]


def test_killed_in_the_middle_it_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    captions = numbered(900)
    make(captions, tmp_path / "whole", batch_size=16)
    target = lambda: make(captions, tmp_path / "killed", Letters(batches=40), batch_size=16)  # noqa: E731
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed/text_features.npy").exists()
    distinct = len(set(captions))
    assert make(captions, tmp_path / "killed", batch_size=16).computed == distinct - 2 * 16 * 16
    for name in ("text_features.npy", "about.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
    whole, killed = (sorted(file.name for file in (tmp_path / name).rglob("*")) for name in ("whole", "killed"))
    assert whole == killed


def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    make(CAPTIONS, tmp_path / "a")
    before = (tmp_path / "a/text_features.npy").read_bytes()
    nobody = Letters(batches=0)  # is killed if it is asked
    assert make(CAPTIONS, tmp_path / "a", nobody).computed == 0
    assert make([*CAPTIONS, "dog"], tmp_path / "b", nobody, cache=tmp_path / "a/cache").computed == 0
    assert make([*CAPTIONS, "new"], tmp_path / "a").computed == 1
    assert make(CAPTIONS, tmp_path / "a").computed == 0
    assert (tmp_path / "a/text_features.npy").read_bytes() == before


def test_vectors_of_another_model_are_never_replaced_unasked(tmp_path: Path) -> None:
    make(CAPTIONS, tmp_path / "a")
    for other in ({"encoder": Letters(1)}, {"way": "mean"}):
        with pytest.raises(InputError, match=r"vectors of another text model or other settings; name another folder"):
            make(CAPTIONS, tmp_path / "a", **other)
    assert make(CAPTIONS, tmp_path / "a", Letters(1), overwrite=True).computed == 4
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own/text_features.npy", np.zeros((6, 2), np.float16))
    with pytest.raises(InputError, match="not made by crcl"):
        make(CAPTIONS, tmp_path / "own")


def test_what_a_run_uses_is_not_changed(tmp_path: Path) -> None:
    make(CAPTIONS, tmp_path)
    assert make(CAPTIONS, tmp_path, Letters(batches=0), settled=True).computed == 0
    with pytest.raises(InputError, match="the captions are not those that the vectors were made of"):
        make([*CAPTIONS, "new"], tmp_path, settled=True)


def test_a_long_caption_is_the_mean_of_its_sentences(tmp_path: Path) -> None:
    captions = ["a b c. d e f.", "a b c. d e f. g h and more.", "a b c.", "short"]
    made = make(captions, tmp_path, way="mean", batch_size=1)
    found = np.load(tmp_path / "text_features.npy").astype(np.float32)
    assert (made.long, made.cut) == (2, 1)
    first, second = (expected(text).astype(np.float16).astype(np.float32) for text in ("a b c.", "d e f."))
    mean = (first + second) / np.linalg.norm(first + second)
    np.testing.assert_allclose(found[0], mean, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=2e-3)
    np.testing.assert_array_equal(found[2], first)


def test_a_long_caption_is_the_sentence_that_fits_its_image_least(tmp_path: Path) -> None:
    captions = ["a b c. d e f."] * 2 + ["short"]
    sides = [expected(text) for text in ("a b c.", "d e f.")]

    def shown(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.stack([sides[row] for row in rows])  # row 0 shows what the first sentence says, row 1 the second

    make(captions, tmp_path, way="least", shown=shown, batch_size=1)
    found = np.load(tmp_path / "text_features.npy")
    np.testing.assert_array_equal(found[0], sides[1].astype(np.float16))
    np.testing.assert_array_equal(found[1], sides[0].astype(np.float16))
    with pytest.raises(InputError, match="needs vectors of images"):
        make(captions, tmp_path / "other", way="least")


def test_of_each_row_is_kept_whether_its_caption_was_read_by_sentences_or_cut(tmp_path: Path) -> None:
    captions = ["a b c. d e f.", "a b c. d e f. g h and more.", "", "short"]
    make(captions, tmp_path / "mean", way="mean")
    make(captions, tmp_path / "cut")
    assert np.load(tmp_path / "mean" / READ).tolist() == [DIVIDED, CUT, 0, 0]
    assert np.load(tmp_path / "cut" / READ).tolist() == [CUT, CUT, 0, 0]
    (tmp_path / "cut" / READ).unlink()  # as an earlier version left the folder
    assert make(captions, tmp_path / "cut", Letters(batches=0), settled=True).computed == 0
    assert how_read(tmp_path / "cut" / FILE, 4).tolist() == [CUT, CUT, 0, 0]


def test_how_captions_were_read_is_not_told_of_other_vectors(tmp_path: Path) -> None:
    make(CAPTIONS, tmp_path)
    assert how_read(tmp_path / FILE, len(CAPTIONS)) is not None
    assert how_read(tmp_path / FILE, 5) is None
    assert how_read(tmp_path / "other.npy", len(CAPTIONS)) is None
    (tmp_path / READ).write_bytes(b"damaged")
    assert how_read(tmp_path / FILE, len(CAPTIONS)) is None


def test_vectors_of_sentences_come_from_the_cache_or_else_from_the_model(tmp_path: Path) -> None:
    make(["a b c. d e f."], tmp_path, way="mean", batch_size=1)
    parts, settings = ["d e f.", "a b c."], Letters().settings
    kept = known_vectors(parts, tmp_path, settings, lambda: Letters(batches=0))
    np.testing.assert_array_equal(kept, np.stack([expected(text) for text in parts]).astype(np.float16))
    (tmp_path / "cache").rename(tmp_path / "gone")
    np.testing.assert_allclose(known_vectors(parts, tmp_path, settings, Letters), kept, atol=1e-3)


def test_vectors_of_sentences_come_from_the_model_if_a_file_of_the_cache_is_damaged(tmp_path: Path) -> None:
    make(["a b c. d e f."], tmp_path, way="mean", batch_size=1)
    (file,) = tmp_path.glob("cache/*/*.npz")
    with np.load(file) as arrays:
        np.savez(file, **(dict(arrays) | {"features": np.zeros(3)}))
    found = known_vectors(["d e f."], tmp_path, Letters().settings, Letters)
    np.testing.assert_allclose(found, [expected("d e f.")], atol=1e-3)
    assert not file.exists()


def test_the_share_that_is_cut_is_told() -> None:
    encoder = Letters()
    assert not long_note(ExtractedTexts(5, SIZE, 4, 0, 0), encoder, "cut")
    note = long_note(ExtractedTexts(2000, SIZE, 4, 500, 500), encoder, "cut")
    assert note.startswith(
        "500 of 2,000 captions (25.0 %) are longer than the 8 tokens that letters reads, and are cut"
    )
    note = long_note(ExtractedTexts(2000, SIZE, 4, 500, 3), encoder, "mean")
    assert note.endswith("are read by sentences (mean); of 3 of these a sentence is still too long, and cut")


def test_new_sentences_are_encoded_as_those_on_disk(tmp_path: Path) -> None:
    make(["dog"], tmp_path)
    np.testing.assert_array_equal(encode(Letters(), ["dog"]), np.load(tmp_path / "text_features.npy").astype("f4"))
    divided = divide(["a b c. d e f.", "", "dog"], Letters(), "mean")
    assert (divided.texts, divided.parts) == (["a b c.", "d e f.", "dog"], [(0, 1), (), (2,)])


def test_vectors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    class Broken(Letters):
        def compute(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
            return np.full((len(tokens), SIZE), np.nan, np.float32)

    with pytest.raises(InputError, match="letters: gives vectors that are not finite, for 4 captions, such as"):
        make(CAPTIONS, tmp_path, Broken())
    assert not (tmp_path / "text_features.npy").exists()
    with pytest.raises(InputError, match="there are no captions"):
        make([""], tmp_path / "empty")


def test_features_of_images_and_vectors_of_captions_share_a_folder(tmp_path: Path) -> None:
    from extraction import draw_folder

    from crcl.data.pictures.files import wanted_files

    images = wanted_files([draw_folder(tmp_path / "images", 3)])
    make(CAPTIONS, tmp_path / "out")
    extract(images, PixelGrid(grid=2), tmp_path / "out")
    about = json.loads((tmp_path / "out/about.json").read_text())
    assert about["text"]["extractor"] == "letters"
    assert about["extractor"] == "pixel grid"
    make(CAPTIONS, tmp_path / "out", Letters(1), overwrite=True)
    assert json.loads((tmp_path / "out/about.json").read_text())["images"] == 3


def test_any_text_is_a_caption(tmp_path: Path) -> None:
    captions = ["\ud800 lone", "nul \0", "🙂" * 1000, " ", "a\nb"]
    assert make(captions, tmp_path).captions == 5
    assert np.isfinite(np.load(tmp_path / "text_features.npy")).all()


def test_progress_counts_texts(tmp_path: Path) -> None:
    from contextlib import contextmanager

    told: list[tuple[int, int]] = []

    class Counting(Noting):
        @contextmanager
        def task(self, name: str):
            assert name == "text vectors"
            yield lambda done, total: told.append((done, total))

    make(numbered(50), tmp_path, batch_size=16, progress=Counting([]))
    assert told == [(16, 50), (32, 50), (48, 50), (50, 50)]
