"""Reads the data of a training: pairs with injected mismatches and decoys, vocabulary, scale of the features."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from crcl.config import Config
from crcl.data import decoys, noise
from crcl.data.batches import Standardize
from crcl.data.decoys import Decoys
from crcl.data.pairs import Pairs
from crcl.data.rows.tables import Columns
from crcl.data.sources.base import Location
from crcl.data.split import Split
from crcl.data.text.subwords import Words
from crcl.data.text.vectors import Texts, TextVectors
from crcl.data.text.vocabulary import SPECIALS, Vocabulary
from crcl.errors import InputError
from crcl.features.provenance import open_encoder, read_about
from crcl.features.sentences import check_way
from crcl.features.texts import new_vectors
from crcl.matchers import MATCHERS
from crcl.matchers.clip import Pretrained
from crcl.runs.exchange.known import Known
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device
from crcl.training.checks import check_features, check_training_pairs, require_pixels, require_vectors
from crcl.training.training_data import TrainingData
from crcl.training.trusted import check_trusted, trusted_rows
from crcl.training.verdicts import read_given


def read_data(
    config: Config,
    run: Run | None = None,
    *,
    pairs: Pairs | None = None,
    start: Run | None = None,
    published: Pretrained | None = None,
) -> TrainingData:
    """Read the data that a config names.

    Args:
        config: The config of the training.
        run: A run to resume, which already has a vocabulary, mismatches and a scale; without it these are created.
        pairs: The data of the config, if it is already open.
        start: A run to start from, which determines vocabulary and scale.
        published: A published model to start from, which has its own tokens.
    """
    pairs = pairs or open_pairs(config)
    clean, dev = pairs.split("train"), pairs.split("dev")
    _check_splits(config, clean, dev)
    if published is not None:
        require_pixels(config, clean, published)
    if run is not None:
        check_training_pairs(run, clean, config.data.path)
        index, trusted, drawn = run.noise(), run.trusted(), run.drawn_decoys()
        known, given = Known.read(run.path, pairs=len(clean), images=clean.images), None
        vocabulary, standardize = run.vocabulary(), run.standardize()
    else:
        index, trusted = _noise_index(config, clean), trusted_rows(config, clean)
        given = read_given(config, clean, with_noise(clean, index))
        known = None if given is None else given.known
        drawn = _decoys(config, with_noise(clean, index))
        if start is not None:
            check_features(start, clean)
        vocabulary = _vocabulary(config, clean, dev, start=start, published=published)
        standardize = _scale(config, clean) if start is None else start.standardize()
    train = with_noise(clean, index)
    if known is not None:
        train = known.repair(train)
    if drawn is not None:
        train = decoys.add(train, drawn)
    before = run or start
    data = TrainingData(
        train,
        clean,
        dev,
        vocabulary,
        _texts(config, vocabulary, train),
        _texts(config, vocabulary, dev),
        index,
        standardize,
        trusted,
        drawn,
        known,
        given,
        before.model() if before is not None else published.model if published is not None else None,
    )
    check_trusted(config, data)
    return data


def _check_splits(config: Config, clean: Split, dev: Split) -> None:
    """Refuse splits that are too small to train on, or whose features differ in shape."""
    if len(clean) < 2:
        raise InputError(
            f"{len(clean)} training pair", where=config.data.path, hint="a pair is learnt from others, so give more"
        )
    if clean.features.shape[1:] != dev.features.shape[1:]:
        raise InputError(
            f"features of train have shape {clean.features.shape[1:]} per image, those of dev {dev.features.shape[1:]}"
        )
    if MATCHERS[config.matcher.name].reads_vectors:
        require_vectors(config, clean)


def _vocabulary(config: Config, clean: Split, dev: Split, *, start: Run | None, published: Pretrained | None) -> Words:
    """The vocabulary of a new run: from the run or model that it starts from, a file, or its captions."""
    if start is not None:
        return start.vocabulary()
    if published is not None:
        return published.words
    if MATCHERS[config.matcher.name].reads_vectors:
        return Vocabulary(SPECIALS)
    if config.data.vocab is not None:
        return Vocabulary.load(config.data.vocab)
    return Vocabulary.build([*clean.captions, *dev.captions], minimum=config.data.min_count)


def _scale(config: Config, clean: Split) -> Standardize | None:
    return Standardize.measure(clean) if config.data.standardize else None


def _texts(config: Config, vocabulary: Words, split: Split) -> Texts:
    """The captions as the matcher reads them: vectors, or token ids."""
    if MATCHERS[config.matcher.name].reads_vectors:
        return TextVectors(split)
    return vocabulary.encode(split.captions, max_words=config.data.max_words)


def open_pairs(config: Config, *, images: Path | None = None) -> Pairs:
    """Open the data that a config names; `images` is the folder of a table's images, if it is not the table's own."""
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
            layout=where.layout,
        ),
        images=images,
    )


def open_run_data(config: Config, *, images: Path | None = None) -> Pairs:
    """Open the data that a run was trained on; refuses a path that no longer exists."""
    if not Path(config.data.path).exists():
        raise InputError("the run's data no longer exists", where=config.data.path, hint="pass {data} if it has moved")
    return open_pairs(config, images=images)


def moved_data(
    config: Config,
    path: str | Path | None = None,
    *,
    images: Path | None = None,
    features: str | Path | None = None,
    ids: str | Path | None = None,
    text_features: str | Path | None = None,
) -> Pairs:
    """The data of a run at another place, or with other features; it is read with the run's columns.

    Args:
        config: The config of the run.
        path: Where the data is now; None if it has not moved.
        images: The folder of a table's images.
        features: Features of a table's images.
        ids: The image of each row of these features.
        text_features: Vectors of a table's captions.
    """
    if path is None:
        return open_run_data(config, images=images).with_features(features, ids, text_features)
    columns = Columns(config.data.image_column, config.data.caption_column)
    pairs = Pairs.of(
        path,
        images=images,
        features=features,
        ids=ids,
        text_features=text_features,
        columns=columns,
        layout=config.data.layout,
    )
    return pairs.without_empty() if config.data.skip_empty and pairs.is_table else pairs


def audited_pairs(run: Run, config: Config, pairs: Pairs | None = None) -> Split:
    """The training pairs of a run, with its injected mismatches and their truth."""
    clean = (pairs or open_pairs(config)).split("train")
    check_training_pairs(run, clean, config.data.path)
    return with_noise(clean, run.noise())


def with_noise(pairs: Split, index: np.ndarray | None) -> Split:
    """The pairs with the mismatches of a noise index, if there is one."""
    return pairs if index is None else noise.apply(pairs, index)


def _noise_index(config: Config, pairs: Split) -> np.ndarray | None:
    if config.noise.file is not None:
        return noise.read_index(config.noise.file)
    if config.noise.rate > 0:
        return noise.mismatch(
            pairs.image_index, config.noise.rate, config.noise.seed, level=config.noise.level, images=pairs.images
        )
    return None


def _decoys(config: Config, pairs: Split) -> Decoys | None:
    """Draw the decoys of a training; None if none are requested or possible."""
    if not config.data.decoys:
        return None
    if pairs.images < 2:
        raise InputError("all training pairs show one image; decoys need wrong images too", where=config.data.path)
    drawn = decoys.draw_kinds(
        pairs,
        config.data.decoys,
        config.train.seed,
        kinds=config.data.decoy_kinds,
        near=config.data.near_copies,
        fewest=config.data.min_count,
        longest=min(config.data.max_words, decoys.READ),
    )
    if MATCHERS[config.matcher.name].reads_vectors and drawn.texts:
        drawn = _with_vectors(config, pairs, drawn)
    return drawn if len(drawn) else None


def _with_vectors(config: Config, pairs: Split, drawn: Decoys) -> Decoys:
    """The decoys with vectors of exchanged texts, by the model that made those of the captions; else without these."""
    made = read_about(pairs.source, config.data.text_features).get("text", {})
    try:
        encoder = open_encoder(made, device=str(choose_device(config.train.device)))
    except InputError:  # data_notes says so
        return drawn.keep_swaps(np.zeros(len(drawn.texts), dtype=bool))
    way = check_way(str(made.get("long_captions", "cut")))
    if way == "cut":  # a word behind the last that is read changes nothing
        before = [pairs.captions[caption] for caption in drawn.drawn[drawn.kinds == "swap", 0]]
        old, new = (encoder.tokenize(texts) for texts in (before, drawn.texts))
        drawn = drawn.keep_swaps(np.array([was[0] != now[0] for was, now in zip(old, new, strict=True)], dtype=bool))
    if not drawn.texts:
        return drawn
    images = drawn.drawn[drawn.kinds == "swap", 1]

    def shown(rows: np.ndarray) -> np.ndarray:
        found = pairs.gather(images[rows]).mean(axis=1)
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))

    return replace(drawn, vectors=new_vectors(drawn.texts, encoder, way=way, shown=shown))
