"""The sections of a config that belong to no method and no matcher, and what a whole config is."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from crcl.matchers import MatcherSettings
from crcl.methods import METHODS, MethodRecord
from crcl.settings import (
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
    """Which pairs, and how their words and features are read."""

    path: str = ""
    """Folder in the field's layout or of embeddings, or a table of images and captions."""
    features: OptionalFile = None
    """Features file of a table (.npy)."""
    text_features: OptionalFile = None
    """Vectors of a table's captions (.npy), one for each row (dual)."""
    ids: OptionalFile = None
    """File with the image id of each row of the features, one per line."""
    vocab: OptionalFile = None
    """Vocabulary in the field's JSON; empty: built from the train and dev captions."""
    image_column: str = "image"
    """What a table calls the column of image names."""
    caption_column: str = "caption"
    """What a table calls the column of captions."""
    skip_empty: bool = False
    """Leave out a table's rows without an image or a caption, instead of refusing them."""
    min_count: Count = 4
    """How often a word must be seen to enter a built vocabulary."""
    max_words: Count = 128
    """Longer captions are cut to so many words; clip reads as many tokens as its model."""
    standardize: bool = False
    """Centre the features by the train mean per channel and divide them by one global deviation."""
    decoys: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Known mismatches to train on beside the pairs, as a share of these: an audit then says how sure it is."""


class NoiseConfig(Section):
    """Mismatches put into the training pairs, to measure robustness."""

    rate: Share = 0.0
    """Share of the training pairs whose images are permuted."""
    level: Literal["caption", "image"] = "caption"
    """Permute the images of single captions, or of all captions of an image together."""
    seed: Seed = 0
    """Seed of the permutation."""
    file: OptionalFile = None
    """Index file of the field (.npy) to take the mismatches from instead of a rate."""

    @field_validator("file")
    @classmethod
    def _file_or_rate(cls, file: str | None, info: ValidationInfo) -> str | None:
        rate = info.data.get("rate", 0.0)
        if file is not None and rate > 0:
            raise ValueError(f"cannot go with noise.rate = {rate}: the file says already which pairs are mismatched")
        return file


class MatcherName(Section):
    """What comes first in the section of the matcher; its type, the choices, is in the table of matchers."""

    name: str
    """Kind of matcher."""


class MatcherModel(Section):
    """What comes last in the section of the matcher."""

    model: OptionalText = None
    """Saved CLIP or SigLIP model to begin from: its folder, or its name on the hub (clip)."""


class TrainConfig(Section):
    """Schedule, optimizer and machine."""

    pieces: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (7, 7, 7, 32)
    """Epochs of each piece, frozen ones included; methods other than crcl train the last piece only."""
    lr: Positive = 5e-4
    """Learning rate at the start of a piece."""
    lr_update: Count = 15
    """The learning rate decays after each so many epochs of the last piece."""
    lr_decay: ShareAboveZero = 0.1
    """Factor of that decay."""
    weight_decay: NotNegative = 0.01
    """Weight decay of AdamW."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Pairs per step; the others of the batch are a pair's negatives."""
    clip: NotNegative = 2.0
    """Largest norm of the gradient of all parameters; 0: not clipped."""
    seed: Seed = 0
    """Seed of weights, batches and augmentation."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare batches; 0: the training process itself."""
    augment: bool = True
    """Drop and replace words, drop regions, in training only."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type of the matcher's products; losses are always float32."""
    memory: Positive = 4.0
    """GiB that the intermediate results of saf, sgr or scan may take; with less, a step computes them twice."""
    save_minutes: NotNegative = 10.0
    """Minutes between saves within an epoch, beside the save after each epoch."""
    start: OptionalText = None
    """Run folder whose matcher, words and beliefs to begin from; empty: from fresh weights, or matcher.model."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(DEVICES, device):
            raise ValueError(f"must be auto, cpu, cuda, cuda:N or mps, got {device!r}")
        return device


class Config(Section):
    """A whole training. Its fields are composed from the tables of methods and matchers (`config.composing`)."""

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
        """What the package knows of the method."""
        return METHODS[self.method]

    def get(self, key: str) -> Any:
        """The value of a setting, e.g. `division.warmup`."""
        section, _, leaf = key.rpartition(".")
        return getattr(getattr(self, section), leaf)

    def of_method(self) -> dict[str, Section]:
        """The sections that the method declares."""
        return {name: getattr(self, name) for name in self.record.sections}

    def schedule_pieces(self) -> tuple[int, ...]:
        """Epochs of each piece that is trained."""
        return self.train.pieces if self.record.pieces == "all" else self.train.pieces[-1:]

    def own_threshold(self) -> float | None:
        """Below which belief the method itself takes a pair as mismatched; None where it takes none so."""
        threshold = self.record.threshold
        return self.get(threshold) if isinstance(threshold, str) else threshold
