"""What requests and answers of the JSON API hold, as `/openapi.json` describes it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from crcl.runs.verdicts import Said as Word

MOST_ROWS = 10_000
"""Pairs of one bulk verdict."""

Queue = Literal["worst", "sample"]
Reviewer = Annotated[str, Field(min_length=1, max_length=200)]
Large = Annotated[int, Field(ge=0, lt=2**31)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Said(_Request):
    """A verdict on one pair. With another caption or another image the verdict is wrong."""

    row: Annotated[int, Field(ge=0, lt=2**63, description="Row of the data.")]
    verdict: Word
    caption: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    take: Annotated[Large | None, Field(description="Number of the pair whose caption is taken.")] = None
    image: Annotated[Large | None, Field(description="Number of the image that the caption belongs to.")] = None


class Step(_Request):
    """Verdicts that are given, and undone, together."""

    reviewer: Reviewer
    queue: Literal["worst", "sample", "grid"]
    verdicts: Annotated[list[Said], Field(min_length=1, max_length=MOST_ROWS)]


class Who(_Request):
    """The reviewer whose newest step is taken back."""

    reviewer: Reviewer


class Refused(BaseModel):
    """Why a request is refused."""

    detail: str


class Told(BaseModel):
    """A verdict."""

    verdict: Word
    caption: str | None
    image: str | None


class ToldBy(Told):
    """A verdict, and who gave it."""

    reviewer: str


class Undone(Told):
    """A verdict that was taken back, and where its pair is."""

    row: int
    number: int | None
    queue: str
    place: int | None


class UndoneStep(BaseModel):
    """The step that was taken back; `count` is 0 where there was none."""

    undone: list[Undone]
    count: int


class Stored(BaseModel):
    """The number of a step that is on disk, and how many verdicts it has."""

    step: int
    saved: int


class Pair(BaseModel):
    """A pair as the grid shows it. What would sway a reviewer is null in the random sample."""

    number: int
    row: int
    image: int
    name: str
    caption: str
    blind: bool
    correspondence: float | None
    p_wrong: float | None
    suspect: bool | None
    verdict: Told | None
    disagreement: bool


class Caption(BaseModel):
    """A caption of the data by the number of its pair."""

    number: int
    row: int
    caption: str


class Fitting(BaseModel):
    """A caption that fits an image, and the image that it is shown with."""

    number: int
    caption: str
    image: int
    fit: float | None


class Image(BaseModel):
    """An image of the data by number, and how well it fits what was asked for."""

    image: int
    name: str
    fit: float | None


class FoundImage(Image):
    """An image that a search found, with its first caption."""

    caption: str


class FullPair(Pair):
    """A pair as the review shows it: with reasons, the image's other captions, and suggestions."""

    similarity: float | None
    reasons: list[str]
    fix: str | None
    words: str
    siblings: list[Caption]
    said: list[ToldBy]
    captions: list[Fitting]
    images: list[Image]


class PlacedPair(FullPair):
    """The pair at a place of a queue."""

    queue: Queue
    place: int
    total: int
    next_image: int | None


class Place(BaseModel):
    """A place of a queue without a verdict; null where all have one."""

    place: int | None
    total: int


class Grid(BaseModel):
    """A page of the pairs that a filter leaves, and the rows of all of them, for bulk verdicts."""

    total: int
    pairs: list[Pair]
    rows: list[int]


class DifferingPair(Pair):
    """A pair on which reviewers differ."""

    said: list[ToldBy]


class Disagreements(BaseModel):
    """Pairs on which reviewers differ."""

    total: int
    pairs: list[DifferingPair]


class Done(BaseModel):
    """How much of a queue is done."""

    total: int
    done: int


class Bounds(BaseModel):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class Estimated(BaseModel):
    """How good an audit is; null where that is not known."""

    precision: Bounds | None
    recall: Bounds | None
    rate: Bounds | None


class Measured(Estimated):
    """The same as verdicts on the random sample measure it, and how many count."""

    flagged: int
    unflagged: int


class Progress(BaseModel):
    """How much is done, and what that measured, beside the estimate by decoys."""

    queues: dict[Queue, Done]
    verdicts: dict[Word, int]
    disagreements: int
    measured: Measured
    estimated: Estimated


class About(BaseModel):
    """The data, what the audit found, and what the page can do."""

    title: str
    pairs: int
    suspects: int
    threshold: float
    summary: list[str]
    reasons: dict[str, int]
    search: bool
    why_not: str
    fit: str


class Results(BaseModel):
    """The images that a search found, best first."""

    images: list[FoundImage]


class Neighbourhood(FoundImage):
    """An image with its captions, captions that match it, and images near it."""

    captions: list[Caption]
    matching: list[Fitting]
    near: list[FoundImage]
