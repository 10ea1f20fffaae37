"""The config class, and its sections that belong to no method or matcher."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from crcl.data.decoys import KINDS, Kind
from crcl.matchers import MATCHERS, MatcherSettings
from crcl.methods import METHODS, MethodRecord
from crcl.settings import (
    MOST,
    Count,
    NotNegative,
    OptionalFile,
    OptionalText,
    Positive,
    Section,
    Seed,
    Share,
    ShareAboveZero,
)

DEVICES = r"auto|cpu|mps|cuda(:\d+)?"


class DataConfig(Section):
    """The pairs, and how their words and features are read."""

    path: str = ""
    """Data: a folder in the field's precomp layout, a folder of embeddings, or a table of images and captions."""
    features: OptionalFile = None
    """Features file of a table (.npy)."""
    text_features: OptionalFile = None
    """File with the vectors of a table's captions (.npy), one per row (matcher dual)."""
    ids: OptionalFile = None
    """File with the image id of each row of the features, one per line."""
    vocab: OptionalFile = None
    """Vocabulary in the field's JSON; empty: built from the train and dev captions."""
    image_column: str = "image"
    """Name of a table's column of image names."""
    caption_column: str = "caption"
    """Name of a table's column of captions."""
    skip_empty: bool = False
    """Leave out rows of a table that lack an image or a caption, instead of raising an error."""
    layout: OptionalText = None
    """Name of the layout of the data; empty: recognised by looking."""
    min_count: Count = 4
    """Fewest occurrences of a word to enter a built vocabulary."""
    max_words: Count = 128
    """Longer captions are truncated to this many words; for matcher clip the model sets the length."""
    standardize: bool = False
    """Standardise the features by the mean of each channel and one standard deviation for all, over train."""
    decoys: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Decoys to train on besides the pairs, as a share of the pairs; an audit estimates its precision from them."""
    decoy_kinds: Annotated[tuple[Kind, ...], Field(strict=False, min_length=1)] = ("random",)
    """Kinds of decoys: `random`; `near`, with the caption of a similar image; `swap`, with one word exchanged. Near and
    swap ones are each a fifth of the random ones in number: 25 to 2,000, but at most a twelfth of the pairs."""
    verdicts: OptionalText = None
    """Run folder or file (.csv, .jsonl) of verdicts: right pairs keep belief 1, wrong ones 0 (methods crcl, relink)."""
    near_copies: Annotated[float, Field(gt=0, le=1)] = 0.97
    """Cosine of centred features from which images are near copies: an audit lists them, and none is a decoy for the
    caption of the other. 1: only exact copies count."""

    @field_validator("decoy_kinds")
    @classmethod
    def _in_order(cls, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        return tuple(kind for kind in KINDS if kind in kinds)


class NoiseConfig(Section):
    """Mismatches injected into the training pairs, to measure robustness."""

    rate: Share = 0.0
    """Share of the training pairs whose images are permuted."""
    level: Literal["caption", "image"] = "caption"
    """Permute the images of single captions, or of all captions of an image together."""
    seed: Seed = 0
    """Seed of the permutation."""
    file: OptionalFile = None
    """Noise index file of the field (.npy) with the mismatches, instead of a rate."""

    @field_validator("file")
    @classmethod
    def _file_or_rate(cls, file: str | None, info: ValidationInfo) -> str | None:
        rate = info.data.get("rate", 0.0)
        if file is not None and rate > 0:
            raise ValueError(
                f"cannot be combined with noise.rate = {rate}: the file already sets which pairs are mismatched"
            )
        return file


class MatcherName(Section):
    """First field of the matcher section; the composed config restricts it to the names of the matchers."""

    name: str
    """Kind of matcher."""


class MatcherModel(Section):
    """Last field of the matcher section."""

    model: OptionalText = None
    """CLIP or SigLIP model to start from: its folder, or its name on the hub (matcher clip)."""


class TrainConfig(Section):
    """Schedule, optimizer and machine."""

    pieces: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (7, 7, 7, 32)
    """Epochs of each piece, frozen ones included; methods other than crcl train the last piece only."""
    lr: Positive = 5e-4
    """Learning rate at the start of a piece."""
    lr_update: Count = 15
    """Epochs of the last piece between two decays of the learning rate."""
    lr_decay: ShareAboveZero = 0.1
    """Factor of each decay of the learning rate."""
    weight_decay: NotNegative = 0.01
    """Weight decay of AdamW."""
    batch_size: Annotated[int, Field(ge=2, le=MOST)] = 128
    """Pairs per step; the negatives of a pair are the other pairs of its batch."""
    chunk: Annotated[int, Field(ge=0)] = 0
    """Pairs of a batch that are encoded at a time, each chunk twice (GradCache), so that memory does not grow with the
    batch; 0: all at once. For matchers with one vector for each image and text."""
    clip: NotNegative = 2.0
    """Gradients are clipped to this norm over all parameters; 0: no clipping."""
    seed: Seed = 0
    """Seed of weights, batches and augmentation."""
    shuffle_block: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Images that lie next to each other and are read together, for features larger than memory: an epoch goes through
    such blocks in random order, `shuffle_mixed` at a time; 0: all pairs are shuffled as a whole."""
    shuffle_mixed: Count = 64
    """Blocks whose pairs are shuffled together, while as many are read ahead."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Worker processes that prepare batches; 0: the training process prepares them."""
    augment: bool = True
    """Augment training batches: mask, replace and drop words, drop regions."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type of the matcher's matrix products, also when dev is scored. On CPUs that have bfloat16
    (AVX512-BF16, AMX) it is about twice as fast at the paper's sizes, and not at small ones; losses are always float32.
    auto: float32 on a CPU, 16 bits on a CUDA GPU."""
    memory: Positive = 4.0
    """GiB for intermediate results of saf, sgr and scan; if they need more, a step computes them twice."""
    save_minutes: NotNegative = 10.0
    """Minutes between checkpoints within an epoch; one is saved after each epoch in any case."""
    start: OptionalText = None
    """Run folder to start from with its weights, words and beliefs; empty: fresh weights, or matcher.model."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(DEVICES, device):
            raise ValueError(f"must be auto, cpu, cuda, cuda:N or mps, got {device!r}")
        return device


class Config(Section):
    """All settings of a training. `config.composing` adds the sections of methods and matchers."""

    if TYPE_CHECKING:  # all others are sections that methods declare

        class _Matcher(MatcherName, MatcherSettings, MatcherModel):
            pass

        method: str
        data: DataConfig
        noise: NoiseConfig
        matcher: _Matcher
        train: TrainConfig

        def __getattr__(self, name: str) -> Any: ...

    @property
    def record(self) -> MethodRecord:
        """The record of the method."""
        return METHODS[self.method]

    def get(self, key: str) -> Any:
        """The value of a setting, e.g. `division.warmup`."""
        section, _, leaf = key.rpartition(".")
        return getattr(getattr(self, section), leaf)

    def of_method(self) -> dict[str, Section]:
        """The sections that the method declares."""
        return {name: getattr(self, name) for name in self.record.sections}

    def members(self) -> tuple[str, ...]:
        """The matchers whose similarities are averaged: one for each network, and the method's companion if any."""
        companion = self.record.companion(MATCHERS[self.matcher.name], **self.of_method())
        networks = (self.matcher.name,) * self.record.networks
        return networks if companion is None else (*networks, companion)

    def schedule_pieces(self) -> tuple[int, ...]:
        """Epochs of each piece that is trained."""
        if self.record.fits_closed_form and MATCHERS[self.matcher.name].closed_form:
            return (1,)
        return self.train.pieces if self.record.pieces == "all" else self.train.pieces[-1:]

    def own_threshold(self) -> float | None:
        """The correspondence below which the method treats a pair as mismatched; None if it has no such threshold."""
        threshold = self.record.threshold
        return self.get(threshold) if isinstance(threshold, str) else threshold
