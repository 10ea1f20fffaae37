"""Trusted pairs, known to match, for methods that need some."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crcl.config import Config
from crcl.data.batches import Batches, Trusted
from crcl.data.files import open_array
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.training.training_data import TrainingData

_TRUSTED = 0x7205  # separates the random numbers of the trusted pairs from others with the same seed


def trusted_rows(config: Config, pairs: Split) -> np.ndarray | None:
    """Rows of the pairs known to match from the user's file, checked; None without a file."""
    path = _trusted_file(config)
    if path is None:
        return None
    rows = open_array(Path(path), purpose="row numbers of training pairs known to match")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InputError(
            f"{rows.dtype} of shape {rows.shape}, expected a one-dimensional array of row numbers", where=path
        )
    rows = np.unique(rows.astype(np.int64))
    if rows[0] < 0 or rows[-1] >= len(pairs):
        raise InputError(f"rows {rows[0]} to {rows[-1]}, but the training pairs are 0 to {len(pairs) - 1}", where=path)
    return rows


def _trusted_file(config: Config) -> str | None:
    keys = config.record.trusted
    return None if keys is None else config.get(keys.rows)


def check_trusted(config: Config, data: TrainingData) -> None:
    """Refuse data without enough pairs to train on besides the trusted ones, or without images for wrong pairs."""
    if config.record.trusted is None:
        return
    if data.train.images < 2:
        raise InputError(
            f"all training pairs have the same image; {config.method} needs at least two images", where=config.data.path
        )
    if len(data.train) - len(data.held_out) < 2:
        raise InputError(
            "no pairs are left to train on besides those with trusted images", where=_trusted_file(config) or ""
        )


def trusted_pairs(config: Config, data: TrainingData, make_batches: Callable[..., Batches]) -> Trusted | None:
    """Pairs known to match: the training pairs that the user names, or else a random share of the dev pairs.

    None if the method needs none.
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
