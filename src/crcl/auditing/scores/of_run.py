"""The scores of a run's pairs and decoys: its beliefs, its similarities, and those that need no training."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch

from crcl import distributed
from crcl.auditing.scores.combined import as_belief, combined
from crcl.auditing.scores.consistency import consistency
from crcl.auditing.scores.contrast import PASSES, TEMPERATURE, contrast
from crcl.auditing.scores.cosine import cosine
from crcl.auditing.scores.neighbours import neighbours
from crcl.auditing.scores.offsets import offsets
from crcl.auditing.scores.rating import BY_NAME_ONLY, Rating, best, rate_all
from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.data.text.vectors import TextVectors
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.methods.base import Space
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.runs.beliefs import JUDGED, read_beliefs
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.training.build import prepare
from crcl.training.inputs import read_data
from crcl.training.training_data import TrainingData

MEANINGS = {
    "belief": "belief of the trained run",
    "linear": "belief of the linear model, without a network",
    "combined": "sum of these scores, with weights learnt from decoys",
    "contrast": "cosine less that of random pairs",
    "cosine": "cosine of the pair's vectors",
    "neighbours": "agreement with pairs of similar images and captions",
    "similarity": "similarity of the trained matcher",
    "consistency": "likeness to the other captions of the image",
}
"""Every score by its name."""
OFFSETS = ("image_offset", "caption_offset")
"""Kept beside the scores: how well a pair's image fits any caption, and its caption any image."""
BELIEFS = ("belief", "linear")
"""Scores that are beliefs as they are."""
MANY = 100_000
"""With more pairs than this, neighbours and consistency are left out, and random pairs are drawn once instead of five
times."""
_PART = 65_536  # pairs at a time, of many
_STREAM = 0x5C0E  # keeps the random numbers of parts apart from others
_WIDER = 0.05  # temperature of contrast between vectors of the linear model, whose cosines differ more than CLIP's


@dataclass(frozen=True)
class Scores:
    """Scores of N pairs, followed by D decoys; all are low for suspects."""

    values: dict[str, np.ndarray]
    """(N + D,) each, by name"""
    kinds: np.ndarray
    """(D,) the kind of each decoy"""
    own: str
    """The name of the run's own."""
    offsets: dict[str, np.ndarray] = field(default_factory=dict)
    """(N + D,) each, by the names of `OFFSETS`; empty where an audit computed none. High ones fit everything."""
    wrong: np.ndarray | None = None
    """(N,) bool, pairs that people said are wrong: real decoys, which the combined score learns from too."""

    @property
    def pairs(self) -> int:
        """N."""
        return len(self.values[self.own]) - len(self.kinds)

    @cached_property
    def names(self) -> list[str]:
        """The scores that there are; `combined` too, where there are several to combine."""
        several = sum(name not in BY_NAME_ONLY for name in self.values) > 1
        return [name for name in MEANINGS if name in self.values or (name == "combined" and several)]

    def of(self, name: str) -> np.ndarray:
        """A score of all pairs and decoys, as it is. (N + D,)"""
        return self._combined if name == "combined" else self.values[name]

    @cached_property
    def _combined(self) -> np.ndarray:
        parts = [value for part, value in self.values.items() if part not in BY_NAME_ONLY]
        return combined(parts, len(self.kinds), judged=self.kinds != "random", wrong=self.wrong)

    def belief(self, name: str) -> np.ndarray:
        """A score as a number between 0 and 1. (N + D,)"""
        found = self.of(name)
        if name in BELIEFS or name == "combined":
            return found
        return as_belief(found, len(self.kinds), judged=self.kinds != "random")

    def ratings(self, kind: str = "random") -> dict[str, Rating]:
        """How well each score tells decoys of a kind from pairs, the best first."""
        decoys = np.flatnonzero(self.kinds == kind) + self.pairs
        divided = {name: _without_gaps(self.of(name)) for name in self.names}
        return rate_all({name: (of[: self.pairs], of[decoys]) for name, of in divided.items()}, self.own)

    def choose(self, name: str | None, ratings: dict[str, Rating]) -> str:
        """The named score, or the best; refuses a name that there is not."""
        if name is None:
            near = self.ratings("near") if (self.kinds == "near").any() else {}
            return best(ratings, self.own, near) if ratings else self.own
        check_score(name)
        if name not in self.names:
            raise InputError(f"this run has no score {name}", hint=f"it has {', '.join(self.names)}")
        return name


def check_score(name: str | None) -> None:
    """Refuse, before long work, a score that is not known."""
    if name is not None and name not in MEANINGS:
        raise InputError(f"no score is called {name!r}", hint=f"scores: {', '.join(MEANINGS)}")


def _without_gaps(score: np.ndarray) -> np.ndarray:
    """Where a pair has no score, the middle one."""
    there = ~np.isnan(score)
    return score if there.all() else np.where(there, score, np.median(score[there]) if there.any() else 0)


def stored_scores(run: Run) -> Scores:
    """The scores in a run folder: its beliefs, and what the last audit of it added."""
    own = own_score(stored_config(run))
    beliefs = np.concatenate([run.load_ledger(), run.load_decoy_ledger()])
    if (run.path / JUDGED).is_file():  # what verdicts say is no score
        pairs = len(run.load_ledger())
        beliefs = np.concatenate(read_beliefs(run.path / JUDGED, pairs=pairs, decoys=len(beliefs) - pairs))
    kept = run.load_scores()
    if own not in kept or not np.array_equal(kept[own], beliefs):  # made before the training went on
        kept = {}
    beside = {name: kept.pop(name) for name in OFFSETS if name in kept}
    return Scores(kept | {own: beliefs}, run.decoy_kinds(), own, beside)


def own_score(config: Config) -> str:
    """The name of the beliefs of a run."""
    return "linear" if MATCHERS[config.matcher.name].closed_form else "belief"


def score_run(model: Model, data: Pairs, *, beside: Run | None = None, progress: Progress = SILENT) -> Scores:
    """Compute all scores of a run's pairs and decoys, and keep them in its folder.

    Several processes share the similarities; the other scores are made by the first one, which keeps them.

    Args:
        model: The run's matcher.
        data: Its training data.
        beside: A run on the same pairs and decoys whose scores count too.
        progress: Receives progress.
    """
    similarity, read = stored_scores(model.run).values.get("similarity"), None
    distributed.meet()  # none writes before all have looked
    if similarity is None:
        read = read_data(model.config, model.run, pairs=data)
        with progress.task("similarities") as advance:
            similarity = model.scorer.pair_similarities(read.train, advance=advance)
    with distributed.first_process_first():
        return _score_run(model, data, read, similarity, beside, progress)


def _score_run(
    model: Model,
    data: Pairs,
    read: TrainingData | None,
    similarity: np.ndarray,
    beside: Run | None,
    progress: Progress,
) -> Scores:
    known = stored_scores(model.run)
    values, fitting = dict(known.values), known.offsets
    if beside is not None and _same_decoys(beside, model.run):
        quick = stored_scores(beside)
        values = {name: of for name, of in quick.values.items() if name != "similarity"} | values
        fitting = known.offsets or quick.offsets
    more = len(known.kinds) > 0 and not {"cosine", "contrast"} & set(values)
    values.setdefault("similarity", similarity)
    if more:
        read = read_data(model.config, model.run, pairs=data) if read is None else read
        values |= _without_training(model, read, progress)
        fitting = {name: values.pop(name) for name in OFFSETS if name in values}
    if set(values) != set(known.values):
        model.run.save_scores(values | fitting)
    return Scores(values, known.kinds, known.own, fitting)


def _same_decoys(one: Run, other: Run) -> bool:
    first, second = one.drawn_decoys(), other.drawn_decoys()
    return first is not None and second is not None and first.equals(second)


def _without_training(model: Model, data: TrainingData, progress: Progress) -> dict[str, np.ndarray]:
    """Scores and offsets from vectors of one space: those of the data, if one model made them, or the method's."""
    originals = np.empty(0, np.int64) if data.decoys is None else data.decoys[:, 0]
    pairs = len(data.clean)
    of_one_model = _of_one_model(model.config, data)
    names: dict[str, Callable[[Space, torch.Tensor], torch.Tensor]] = {
        "cosine": _cosine,
        "contrast": partial(
            _contrast, temperature=TEMPERATURE if of_one_model else _WIDER, passes=PASSES if pairs <= MANY else 1
        ),
        "neighbours": _neighbours,
        "consistency": _consistency,
    }
    if pairs > MANY:
        del names["neighbours"], names["consistency"]
    found = {name: np.full(len(data.train), np.nan, dtype=np.float32) for name in (*names, *OFFSETS)}
    done = 0
    with progress.task("scores") as advance:
        for space in _given(data) if of_one_model else _spaces(model, data):
            repeated = _repeated(space, originals, pairs)
            for name, score in names.items():
                found[name][space.rows] = score(space, repeated).numpy()
            everything = offsets(space.images, space.texts, space.image_index, decoys=len(repeated))
            for name, values in zip(OFFSETS, everything, strict=True):
                found[name][space.rows] = values.numpy()
            done += len(space.rows)
            advance(done, len(data.train))
    # most images with a single caption: the others' consistency says little, and nothing of most pairs
    return {name: score for name, score in found.items() if np.isnan(score[:pairs]).mean() < 0.5}


def _cosine(space: Space, repeated: torch.Tensor) -> torch.Tensor:
    return cosine(space.images, space.texts, space.image_index)


def _contrast(space: Space, repeated: torch.Tensor, *, temperature: float, passes: int) -> torch.Tensor:
    return contrast(space.images, space.texts, space.image_index, temperature=temperature, passes=passes)


def _neighbours(space: Space, repeated: torch.Tensor) -> torch.Tensor:
    return neighbours(space.images, space.texts, space.image_index, originals=repeated)


def _consistency(space: Space, repeated: torch.Tensor) -> torch.Tensor:
    return consistency(space.texts, space.image_index, decoys=len(repeated))


def _repeated(space: Space, originals: np.ndarray, pairs: int) -> torch.Tensor:
    """For the decoys of a space, which are its last pairs, the place of the pair whose caption each repeats, or -1."""
    place = np.full(pairs, -1)
    real = space.rows < pairs
    place[space.rows[real]] = np.flatnonzero(real)
    return torch.from_numpy(place[originals[space.rows[~real] - pairs]])


def _spaces(model: Model, data: TrainingData) -> Iterable[Space]:
    """The vectors by which the run's method judges; none where it has none."""
    method, batches = prepare(model.config, data)
    spaces: Callable[..., Iterator[Space]] | None = getattr(method, "spaces", None)
    state = None if spaces is None else model.run.load_state()
    if spaces is None or state is None:
        return []
    method.begin_piece(0)
    method.load_state_dict(state["method"])
    return spaces(batches)


def _of_one_model(config: Config, data: TrainingData) -> bool:
    """Whether the data's vectors of images and captions can be compared as they are."""
    texts, features = data.train.text_features, data.train.features
    same = texts is not None and features.shape[1] == 1 and texts.shape[1] == features.shape[2]
    return same and isinstance(data.tokens, TextVectors) and bool(config.get("matcher.aligned"))


def _given(data: TrainingData) -> Iterator[Space]:
    """The vectors of the data; many pairs in random parts, so that never all of them are in memory."""
    train = data.train

    def vectors(values: np.ndarray) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.from_numpy(values), dim=1)

    for rows in _parts(len(train)):
        yield Space.of(
            rows,
            train.image_index,
            lambda numbers: vectors(train.gather(numbers)[:, 0]),
            lambda captions: vectors(train.gather_texts(captions)),
        )


def _parts(count: int) -> list[np.ndarray]:
    """All pairs, or random parts of them if they are many; each in ascending order, so that decoys are last."""
    if count <= MANY:
        return [np.arange(count)]
    order = np.random.default_rng(_STREAM).permutation(count)
    return [np.sort(part) for part in np.array_split(order, math.ceil(count / _PART))]
