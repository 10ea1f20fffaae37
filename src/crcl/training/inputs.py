"""From a config to what is read: training pairs with their mismatches, words, scales, trusted pairs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crcl.config import Config
from crcl.data import decoys, noise
from crcl.data.batches import Batches, Standardize, Trusted
from crcl.data.files import open_array
from crcl.data.pairs import Pairs
from crcl.data.sources.base import Location
from crcl.data.split import Split
from crcl.data.text.subwords import Subwords, Words
from crcl.data.text.vectors import Texts, TextVectors
from crcl.data.text.vocabulary import SPECIALS, Tokens, Vocabulary
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.matchers.clip import Pretrained, image_side
from crcl.runs.folder import Run

_TRUSTED = 0x7205  # sets the random numbers of the trusted pairs apart from others of the same seed


@dataclass(frozen=True)
class TrainingData:
    """What a training reads: noisy train pairs with their truth (for measuring), dev pairs, words, features' scale."""

    train: Split
    clean: Split
    """The training pairs as they were read, before any noise: for what is known of them, never for training."""
    dev: Split
    vocabulary: Words
    tokens: Texts
    dev_tokens: Texts
    noise: np.ndarray | None
    standardize: Standardize | None
    trusted: np.ndarray | None
    """Rows of the training pairs that are known to match, where the user names some."""
    decoys: np.ndarray | None = None
    """(decoys, 2), caption and image of each known mismatch at the end of `train`, behind the pairs."""
    model: dict[str, Any] | None = None
    """What is known of the published model that the matcher begins as, if it does."""

    @property
    def fingerprint(self) -> str:
        """Of the training pairs as they were read, before any noise."""
        return self.clean.fingerprint()

    @property
    def held_out(self) -> np.ndarray:
        """Rows of trusted training pairs and, as in MSCN's experiments on COCO, of all pairs that show their images."""
        if self.trusted is None:
            return np.empty(0, dtype=np.int64)
        shown = np.isin(self.train.image_index, self.clean.image_index[self.trusted])
        return np.union1d(np.flatnonzero(shown), self.trusted)

    @property
    def sizes(self) -> dict[str, int]:
        _, regions, features = self.train.features.shape
        texts = self.train.text_features
        return {
            "pairs": len(self.clean),
            "images": self.train.images,
            "regions": regions,
            "features": features,
            "vocabulary": len(self.vocabulary),
            **({"text_features": texts.shape[1]} if isinstance(self.tokens, TextVectors) and texts is not None else {}),
        }


def read_data(
    config: Config,
    run: Run | None = None,
    *,
    pairs: Pairs | None = None,
    start: Run | None = None,
    published: Pretrained | None = None,
) -> TrainingData:
    """Read the pairs; words, mismatches and scale come from the run where there is one, else they are made.

    Words and scale of a new run come from the run that it starts from, if any; words of a published model are its own.
    Pairs that are opened already are not read from the disk again.
    """
    pairs = pairs or open_pairs(config)
    clean, dev = pairs.split("train"), pairs.split("dev")
    if len(clean) < 2:
        raise InputError(f"{config.data.path}: {len(clean)} training pair; a pair is learnt from others, so give more")
    if clean.features.shape[1:] != dev.features.shape[1:]:
        raise InputError(
            f"features of train have shape {clean.features.shape[1:]} per image, those of dev {dev.features.shape[1:]}"
        )
    vectors = MATCHERS[config.matcher.name].reads_vectors
    if vectors:
        require_vectors(config, clean)
    known = run or start
    model = known.model() if known is not None else published.model if published is not None else None
    if published is not None:
        require_pixels(config, clean, published)
    if run is not None:
        check_training_pairs(run, clean, config.data.path)
        index, vocabulary, standardize = run.noise(), run.vocabulary(), run.standardize()
        trusted, drawn = run.trusted(), run.decoys()
    else:
        index, trusted = _noise_index(config, clean), _trusted_rows(config, clean)
        drawn = _decoys(config, with_noise(clean, index))
        if start is not None:
            check_features(start, clean)
            vocabulary = start.vocabulary()
        elif published is not None:
            vocabulary = published.words
        elif vectors:
            vocabulary = Vocabulary(SPECIALS)
        elif config.data.vocab is not None:
            vocabulary = Vocabulary.load(config.data.vocab)
        else:
            vocabulary = Vocabulary.build([*clean.captions, *dev.captions], minimum=config.data.min_count)
        if start is not None:
            standardize = start.standardize()
        else:
            standardize = Standardize.measure(clean) if config.data.standardize else None
    train = with_noise(clean, index)
    if drawn is not None:
        train = decoys.add(train, drawn)
    data = TrainingData(
        train,
        clean,
        dev,
        vocabulary,
        TextVectors(train) if vectors else vocabulary.encode(train.captions, max_words=config.data.max_words),
        TextVectors(dev) if vectors else vocabulary.encode(dev.captions, max_words=config.data.max_words),
        index,
        standardize,
        trusted,
        drawn,
        model,
    )
    if config.record.trusted is not None:
        _check_trusted(config, data)
    return data


def open_pairs(config: Config, *, images: Path | None = None) -> Pairs:
    """The data that a config names; `images` is the folder of a table's images, where it is not the table's own."""
    where = config.data
    return Pairs.at(
        Location(
            where.path,
            features=where.features,
            text_features=where.text_features,
            ids=where.ids,
            image_column=where.image_column,
            caption_column=where.caption_column,
            skip_empty=where.skip_empty,
        ),
        images=images,
    )


def audited_pairs(run: Run, config: Config, pairs: Pairs | None = None) -> Split:
    """The training pairs as the run saw them, with the truth where noise was injected."""
    clean = (pairs or open_pairs(config)).split("train")
    check_training_pairs(run, clean, config.data.path)
    return with_noise(clean, run.noise())


def require_vectors(config: Config, pairs: Split) -> None:
    """Refuse captions without the vectors that the matcher reads."""
    if pairs.text_features is None:
        raise InputError(
            f"{config.data.path}: matcher {config.matcher.name} reads vectors of captions, and there are none; give "
            "them with a table (--text-features), give a folder of embeddings, or choose another matcher"
        )


def require_pixels(config: Config, pairs: Split, published: Pretrained) -> None:
    """Refuse features that are not the pixels which a published model reads, and what would change them."""
    side, name = image_side(published.model), config.matcher.model
    if pairs.features.shape[1:] != (1, 3 * side * side):
        regions, size = pairs.features.shape[1:]
        raise InputError(
            f"{pairs.source}: {regions} regions of {size} numbers, but {name} reads 3 x {side} x {side} pixels; "
            f"`crcl features TABLE --images FOLDER -o pixels --model {name} --pixels` makes them"
        )
    if config.data.standardize or config.data.vocab is not None:
        key = "data.standardize" if config.data.standardize else "data.vocab"
        raise InputError(f"{key}: {name} has its own pixels and tokens; leave it out")


def with_noise(pairs: Split, index: np.ndarray | None) -> Split:
    """The pairs with the mismatches of an index, if there is one."""
    return pairs if index is None else noise.apply(pairs, index)


def _noise_index(config: Config, pairs: Split) -> np.ndarray | None:
    if config.noise.file is not None:
        return noise.read_index(config.noise.file)
    if config.noise.rate > 0:
        return noise.mismatch(
            pairs.image_index, config.noise.rate, config.noise.seed, level=config.noise.level, images=pairs.images
        )
    return None


def _decoys(config: Config, pairs: Split) -> np.ndarray | None:
    if not config.data.decoys:
        return None
    if pairs.images < 2:
        raise InputError(f"{config.data.path}: all training pairs show one image; decoys need wrong images too")
    return decoys.draw(pairs, config.data.decoys, config.train.seed)


def _trusted_rows(config: Config, pairs: Split) -> np.ndarray | None:
    """The user's rows of pairs known to match, checked."""
    path = _trusted_file(config)
    if path is None:
        return None
    rows = open_array(Path(path), purpose="row numbers of training pairs known to match")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}, expected row numbers, whole and in one dimension"
        )
    rows = np.unique(rows.astype(np.int64))
    if rows[0] < 0 or rows[-1] >= len(pairs):
        raise InputError(f"{path}: rows {rows[0]} to {rows[-1]}, but the training pairs are 0 to {len(pairs) - 1}")
    return rows


def _trusted_file(config: Config) -> str | None:
    keys = config.record.trusted
    return None if keys is None else config.get(keys.rows)


def _check_trusted(config: Config, data: TrainingData) -> None:
    """Refuse data that leaves nothing to train on, or no wrong pairs to compare the trusted ones with."""
    if data.train.images < 2:
        raise InputError(
            f"{config.data.path}: all training pairs show one image; {config.method} needs wrong images too"
        )
    if len(data.train) - len(data.held_out) < 2:
        raise InputError(f"{_trusted_file(config)}: no pairs are left to train on without those of the trusted images")


def check_features(run: Run, pairs: Split) -> None:
    """Refuse images that this run's matcher cannot read."""
    size = pairs.features.shape[2]
    if size != run.sizes["features"]:
        raise InputError(
            f"{pairs.source}: {size} numbers per region, but {run.path} was trained on {run.sizes['features']}"
        )
    if "text_features" in run.sizes:
        _check_texts(run, pairs)
    regions = pairs.features.shape[1]
    name = run.config["matcher"]["name"]
    if MATCHERS[name].fixed_regions and regions != run.sizes["regions"]:
        raise InputError(
            f"{pairs.source}: {regions} regions per image, but {run.path} was trained on {run.sizes['regions']}, and "
            f"its matcher ({name}) knows no other number"
        )


def _check_texts(run: Run, pairs: Split) -> None:
    size, texts = run.sizes["text_features"], pairs.text_features
    if texts is None or texts.shape[1] != size:
        there = "the captions come without vectors" if texts is None else f"vectors of {texts.shape[1]} numbers"
        raise InputError(f"{pairs.source}: {there}, but {run.path} was trained on vectors of {size} numbers")


def check_training_pairs(run: Run, pairs: Split, data: str) -> None:
    """Refuse pairs that are not the ones, in the order, that this run's beliefs are about."""
    check_features(run, pairs)
    regions = pairs.features.shape[1]
    if (len(pairs), regions) != (run.sizes["pairs"], run.sizes["regions"]):
        raise InputError(
            f"{data}: {len(pairs)} training pairs of {regions} regions, but {run.path} was trained on "
            f"{run.sizes['pairs']} pairs of {run.sizes['regions']}"
        )
    if pairs.fingerprint() != run.fingerprint:
        raise InputError(
            f"{data}: as many training pairs as {run.path} was trained on, but not the same captions and images in the "
            "same order: its beliefs would be put on other pairs"
        )
    if run.features and pairs.features_digest() != run.features:
        raise InputError(
            f"{pairs.source}: the same images as {run.path} was trained on, by name, but other features: images, or "
            "how their features are made, have changed since. Give the old ones by --features, or train again"
        )


def remarks(data: TrainingData, config: Config) -> list[str]:
    """What happened to the pairs that one would not see otherwise."""
    cut, unknown = data.tokens.cut + data.dev_tokens.cut, data.tokens.unknown + data.dev_tokens.unknown
    lines = []
    if data.decoys is not None:
        lines.append(
            f"{len(data.decoys):,} known mismatches are trained on beside {len(data.clean):,} pairs, as decoys"
        )
    if cut and isinstance(data.vocabulary, Subwords):
        lines.append(f"{cut} captions are longer than the {data.vocabulary.longest} tokens that the model reads: cut")
    elif cut:
        lines.append(f"{cut} captions are longer than {config.data.max_words} words and were cut (data.max_words)")
    if unknown:
        rare = f"that is seen {config.data.min_count} times or more (data.min_count)"
        known = rare if config.data.vocab is None else f"of the vocabulary {config.data.vocab}"
        lines.append(f"{unknown} captions have no word {known}: nothing can be learnt from them")
    if several := [row for row, caption in zip(data.clean.rows, data.clean.captions, strict=True) if "\n" in caption]:
        lines.append(
            f"{len(several)} captions have several lines, the first in row {several[0] + 1}: if they should not, look "
            "for a quotation mark that is not closed"
        )
    return lines


def trusted_pairs(config: Config, data: TrainingData, make_batches: Callable[..., Batches]) -> Trusted | None:
    """Pairs known to match: rows of the training pairs that the user names, or else some of the dev split.

    None where the method needs none.
    """
    keys = config.record.trusted
    if keys is None:
        return None
    if data.trusted is not None:
        return Trusted(make_batches(data.clean.blind(), data.tokens), data.trusted, data.held_out)
    share = config.get(keys.share)
    rng = np.random.default_rng([_TRUSTED, config.train.seed])
    count = math.ceil(share * len(data.dev))
    rows = np.sort(rng.permutation(len(data.dev))[:count])
    return Trusted(make_batches(data.dev.blind(), data.dev_tokens), rows, data.held_out)


def inverse_document_frequency(data: TrainingData) -> torch.Tensor | None:
    """How rare each word is in the training captions, where these are read. (vocabulary,)"""
    if not isinstance(data.tokens, Tokens):
        return None
    captions = np.repeat(np.arange(len(data.tokens)), data.tokens.lengths)
    seen = np.unique(captions * len(data.vocabulary) + data.tokens.flat) % len(data.vocabulary)
    documents = np.bincount(seen, minlength=len(data.vocabulary))
    weights = np.log((1 + len(data.tokens)) / (1 + documents)).astype(np.float32) + 1
    weights[documents == 0] = weights[documents > 0].mean()  # <mask> is in no caption, but in many augmented ones
    return torch.from_numpy(weights)
