"""Opens the trained matcher of a run."""

from pathlib import Path
from typing import cast

import torch

from crcl.config import Config, from_dict, to_dict
from crcl.data.text.subwords import Subwords
from crcl.errors import InputError
from crcl.matchers import Matcher
from crcl.matchers.clip import check_caption_length
from crcl.retrieval.scoring import Scorer
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device, restored_matcher

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def open_scorer(
    path: str | Path, *, device: str = "auto", memory: float | None = None, dtype: str | None = None
) -> tuple[Run, Config, Scorer]:
    """Open a run folder with its trained matcher, ready to score; `memory` in GiB overrides the run's setting.

    `dtype` is the number type of the matrix products, by default float32, whatever the run was trained with.
    """
    chosen = scoring_dtype(dtype)
    run = Run.open(path)
    config = stored_config(run)
    if memory is not None:
        config = from_dict(to_dict(config) | {"train": to_dict(config)["train"] | {"memory": memory}}, source="memory")
    vocabulary = run.vocabulary()
    weights = run.load_matcher()
    matcher = restored_matcher(config, run.sizes, weights, f"{run.path}/matcher.safetensors", model=run.model())
    if isinstance(vocabulary, Subwords):
        check_caption_length(run.model(), vocabulary, source=f"{run.path / vocabulary.file}")
    matcher.to(choose_device(device))
    scorer = Scorer(
        cast(Matcher, matcher),
        vocabulary,
        run.standardize(),
        config.data.max_words,
        memory=config.train.memory,
        dtype=chosen,
    )
    return run, config, scorer


def scoring_dtype(name: str | None) -> torch.dtype:
    """The number type of this name for scoring; None is float32."""
    if name is not None and name not in DTYPES:
        raise InputError("must be float32 or bfloat16", where=f"dtype {name!r}")
    return DTYPES[name or "float32"]
