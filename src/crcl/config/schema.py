"""What can be set: one documented pydantic model per section of a config."""

import re
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

MatcherName = Literal["vse", "bow", "saf", "sgr", "scan", "dual", "clip"]
MethodName = Literal[
    "crcl", "triplet", "triplet-hardest", "infonce", "complementary", "decl", "ncr", "bicro", "mscn", "gsc", "l2rm"
]
MATCHER_NAMES: tuple[str, ...] = get_args(MatcherName)
METHOD_NAMES: tuple[str, ...] = get_args(MethodName)
DIVIDING = ("ncr", "bicro", "l2rm")
"""Methods that divide the pairs into clean and noisy ones after a warm-up."""

MATCHERS_OF: dict[str, tuple[tuple[str, ...], str]] = {
    "mscn": (
        ("vse", "bow", "saf", "sgr", "dual"),
        "its meta-network reads a similarity vector, which scan does not make, and would replace the cosine that a "
        "published model (clip) has learnt",
    ),
    "gsc": (
        ("vse", "bow", "saf", "sgr", "dual", "clip"),
        "it compares images with images and texts with texts as the matcher does, and scan cannot compare those",
    ),
    "l2rm": (
        ("vse", "bow", "saf", "sgr", "dual", "clip"),
        "its cost of a match is 1 - similarity and never below 0, and similarities of scan go beyond 1",
    ),
}
"""Methods that do not go with every matcher: those that they go with, and the reason."""

DEVICES = r"auto|cpu|mps|cuda(:\d+)?"

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
# TOML and `key=value` have no null: an empty text takes an optional value back.
OptionalText = Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)]


class Section(BaseModel):
    """Frozen, no unknown keys, no silent conversion ("3" is not 3); the text below a field documents it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class DataConfig(Section):
    """Which pairs, and how their words and features are read."""

    path: str = ""
    """Folder in the field's layout or of embeddings, or a table of images and captions."""
    features: OptionalText = None
    """Features file of a table (.npy)."""
    text_features: OptionalText = None
    """Vectors of a table's captions (.npy), one for each row (dual)."""
    ids: OptionalText = None
    """File with the image id of each row of the features, one per line."""
    vocab: OptionalText = None
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
    file: OptionalText = None
    """Index file of the field (.npy) to take the mismatches from instead of a rate."""

    @field_validator("file")
    @classmethod
    def _file_or_rate(cls, file: str | None, info: ValidationInfo) -> str | None:
        rate = info.data.get("rate", 0.0)
        if file is not None and rate > 0:
            raise ValueError(f"cannot go with noise.rate = {rate}: the file says already which pairs are mismatched")
        return file


class MatcherConfig(Section):
    """The network that turns images and texts into similarities."""

    name: MatcherName = "vse"
    """Kind of matcher."""
    embedding: Count = 1024
    """Size D of the shared embedding; for vectors of one size (dual) the number of hidden units instead."""
    word: Count = 300
    """Size of a word vector."""
    similarity: Count = 256
    """Size of a similarity vector (saf and sgr)."""
    direction: Literal["t2i", "i2t"] = "t2i"
    """Words attend to regions (t2i), or regions to words (scan)."""
    pooling: Literal["lse", "mean", "max", "sum"] = "lse"
    """How relevances become one similarity (scan)."""
    smooth: NotNegative = 0.0
    """Inverse temperature λ of the attention (scan); 0: 9 for t2i, 4 for i2t."""
    sharp: NotNegative = 0.0
    """Sharpness μ of the pooling lse (scan); 0: 6 for t2i, 5 for i2t."""
    model: OptionalText = None
    """Saved CLIP or SigLIP model to begin from: its folder, or its name on the hub (clip)."""


class LossConfig(Section):
    """Parameters of the losses; each method reads its own."""

    tau: Positive = 0.05
    """Temperature τ of the matching probabilities (Eq. 3); 0.03 to 0.07 is sensible."""
    scale: NotNegative = 5.0
    """Scale λ of the active complementary loss (Eq. 8)."""
    terms: Literal["both", "active", "complementary"] = "both"
    """Method crcl: the whole loss, L_d alone, or L_r alone with q = 1 - label (the paper's ablation)."""
    margin: NotNegative = 0.2
    """Margin of the triplet losses (Eq. 2)."""
    first_epochs: Annotated[int, Field(ge=0)] = 1
    """First epochs of triplet-hardest, which take all negatives; published: 1 for vse, 0 for scan, saf and sgr."""
    kind: Literal["log", "tan", "abs", "exp", "gce", "robust"] = "tan"
    """Method complementary: a member of RCL's family, or robust: L_r (Eq. 6) with the fixed q of loss.q."""
    q: Share = 0.2
    """Exponent q of gce (greater than 0 there) and of robust."""
    curve: Literal["exponential", "linear", "sine"] = "exponential"
    """How the margin grows with a pair's label (methods ncr and bicro)."""


class LedgerConfig(Section):
    """Self-refining correction of the correspondences (method crcl)."""

    momentum: ShareBelowOne = 0.8
    """Momentum β: weight of the old belief (Eq. 11)."""
    threshold: ShareBelowOne = 0.1
    """Threshold ε: a belief below it counts as 0 in the loss (Eq. 12)."""
    freeze_epochs: Annotated[int, Field(ge=0)] = 2
    """First epochs e_f of each piece in which the beliefs stay as they are."""
    correction: Literal["paper", "official", "none"] = "paper"
    """Eq. 10-12 to the letter, as the authors' code does it, or no memory (the current probability)."""
    probability: Literal["train", "eval"] = "train"
    """Take matching probabilities from the training steps, or from a pass in eval mode after each epoch."""


class DeclConfig(Section):
    """Evidence instead of similarities (method decl)."""

    warmup: Count = 5
    """First epochs, in which every pair counts as matched; published: 5, and 2 from 60 % mismatches on."""
    evidence_tau: Annotated[float, Field(ge=0.05)] = 0.1
    """Temperature τ of the evidence; lower ones make more evidence than can be counted exactly."""
    divergence: NotNegative = 0.1
    """Scale λ₂ of the divergence of the wrong candidates' evidence from none."""
    hinge: NotNegative = 0.8
    """Scale λ₁ of the hinge."""
    most_negatives: Count = 128
    """Hardest negatives in the hinge of the first step."""
    least_negatives: Count = 5
    """Fewest hardest negatives in the hinge."""
    shrink: NotNegative = 0.025
    """Negatives that the hinge loses per step; small data take few steps and need more."""


class DivisionConfig(Section):
    """Division into clean and noisy pairs (methods ncr, bicro and l2rm)."""

    warmup: Count = 5
    """First epochs, on all pairs alike; the decay of the learning rate does not count them."""
    threshold: ShareBelowOne = 0.5
    """A pair is clean if the mixture's posterior is above this."""
    kept: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Share of each batch, that with the smallest losses, which the warm-up of bicro learns from."""
    cut: ShareBelowOne = 0.5
    """A label of bicro that is not above this becomes 0."""


class MscnConfig(Section):
    """Meta-network, and the pairs known to match that it learns from (method mscn)."""

    warmup: Annotated[int, Field(ge=0)] = 5
    """First epochs, in which every pair counts as matched; the decay of the learning rate does not count them."""
    hidden: Count = 64
    """Hidden units of the meta-network."""
    meta_lr: Positive = 1.7e-5
    """Learning rate of the meta-network after the warm-up; small data take few steps and may need a larger one."""
    trusted: OptionalText = None
    """Row numbers (.npy) of training pairs known to match, before any noise; empty: pairs of the dev split."""
    trusted_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the dev pairs that the meta-network learns from where no file of rows is given."""


class GscConfig(Section):
    """Beliefs by probability and by structure (method gsc)."""

    structure: NotNegative = 0.01
    """Scale γ of the structural loss; the published script for COCO leaves it at 1."""
    momentum: ShareBelowOne = 0.3
    """Weight of the old beliefs after each epoch."""


class L2rmConfig(Section):
    """Rematching of noisy pairs by partial optimal transport (method l2rm)."""

    mass: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share ρ of a noisy batch that is moved to a match."""
    regularisation: Positive = 0.07
    """How much the plan is blurred by its entropy; published: 0.01 for Flickr30K."""
    own: bool = False
    """Let a pair called noisy be matched with itself: true for real mismatches, false for injected ones."""
    rematched: NotNegative = 0.01
    """Weight of the noisy pairs' mean loss beside the mean hinge of the clean ones."""
    planted: Count = 12
    """Most clean pairs that the cost of a match learns from in each step."""
    cost_lr: Positive = 2e-6
    """Learning rate of the cost of a match."""


class TrainConfig(Section):
    """Schedule, optimizer and machine."""

    pieces: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (7, 7, 7, 32)
    """Epochs of each piece, frozen ones included; methods other than crcl train the last piece only."""
    lr: Positive = 5e-4
    """Learning rate at the start of a piece."""
    lr_update: Count = 15
    """The learning rate decays after each so many epochs of the last piece."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.1
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
    """A whole training."""

    method: MethodName = "crcl"
    """How the matcher is trained: crcl, another robust method or one plain loss for comparison."""
    data: DataConfig = DataConfig()
    """Which pairs."""
    noise: NoiseConfig = NoiseConfig()
    """Mismatches put in."""
    matcher: MatcherConfig = MatcherConfig()
    """The network."""
    loss: LossConfig = LossConfig()
    """Parameters of the losses."""
    ledger: LedgerConfig = LedgerConfig()
    """Correction of the correspondences."""
    decl: DeclConfig = DeclConfig()
    """Evidence of method decl."""
    division: DivisionConfig = DivisionConfig()
    """Clean and noisy pairs."""
    mscn: MscnConfig = MscnConfig()
    """Meta-network of method mscn."""
    gsc: GscConfig = GscConfig()
    """Beliefs of method gsc."""
    l2rm: L2rmConfig = L2rmConfig()
    """Rematching of method l2rm."""
    train: TrainConfig = TrainConfig()
    """Schedule, optimizer and machine."""

    def schedule_pieces(self) -> tuple[int, ...]:
        """Epochs of each piece that is trained: all of them for crcl, the last one otherwise."""
        return self.train.pieces if self.method == "crcl" else self.train.pieces[-1:]

    def own_threshold(self) -> float | None:
        """Below which belief the method itself takes a pair as mismatched; None where it takes none so.

        Method gsc only weighs pairs by their beliefs; these are made as those of crcl are, and so is the threshold.
        """
        if self.method in ("crcl", "gsc"):
            return self.ledger.threshold
        if self.method in DIVIDING:
            return self.division.threshold
        return 0.5 if self.method in ("decl", "mscn") else None
