"""Opens the trained matcher of a run."""

from pathlib import Path
from typing import cast

from crcl.config import Config, from_dict, to_dict
from crcl.data.text.subwords import Subwords
from crcl.matchers import Matcher
from crcl.matchers.clip import check_caption_length
from crcl.retrieval.scoring import Scorer
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device, restored_matcher


def open_scorer(path: str | Path, *, device: str = "auto", memory: float | None = None) -> tuple[Run, Config, Scorer]:
    """Open a run folder with its trained matcher, ready to score; `memory` in GiB overrides the run's setting."""
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
    )
    return run, config, scorer
