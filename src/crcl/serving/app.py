"""The app: what is answered to each request. JSON under `/api`, described in `/openapi.json`; images by number."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse

from crcl import __version__
from crcl.auditing.report.gallery import plain_name
from crcl.errors import InputError
from crcl.runs.verdicts import Step, Verdict
from crcl.serving import messages
from crcl.serving.guard import Door, Guard
from crcl.serving.messages import MOST_ROWS, Queue
from crcl.serving.pictures import Shown
from crcl.serving.review import Filter, Review, shown_text, told
from crcl.serving.search import Search
from crcl.serving.writer import Writer

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = ("page.css", "page.js", "review.js", "grid.js", "search.js", "tools.js", "docs.js", "icon.svg")
"""The files of the pages."""
PAGES = {"/": "index.html", "/docs": "docs.html"}
MOST_SHOWN = 200
"""Pairs of the grid, and results of a search, in one answer."""
AT_ONCE = 2
"""Images that are decoded, and sentences that are read, at the same time; others wait, and hold up nothing else."""

_TOLD = 5  # errors of one request

Number = Annotated[int, Path(ge=0, lt=2**31)]
Some = TypeVar("Some")


@dataclass(frozen=True)
class Site:
    """What the page shows."""

    title: str
    review: Review
    shown: Shown
    search: Search | None = None
    why_not: str = ""
    """Why there is no search, in a sentence."""


def make_app(site: Site, door: Door) -> FastAPI:
    """The app that serves a site.

    Args:
        site: The review, the images and the search.
        door: Address and token, which every request is checked against.
    """
    app = FastAPI(
        title="crcl",
        description=_DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={422: {"model": messages.Refused, "description": "A value is not allowed."}},
    )
    app.add_middleware(Guard, door=door)
    for kind in (InputError, RequestValidationError):
        app.add_exception_handler(kind, _refuse)
    _add_page(app, site)
    _add_queues(app, site)
    _add_verdicts(app, site)
    _add_grid(app, site)
    _add_search(app, site)
    return app


_DESCRIPTION = (
    "Review of an audit and search with its run. A pair is named by its row in the data or by its number in the "
    "training split, an image by its number. Where the page has a token, send it as `Authorization: Bearer TOKEN`."
)


class _Limited:
    """Runs work in threads, a few at a time, so that what waits takes no thread from other requests."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def run(self, work: Callable[[], Some]) -> Some:
        """The result of the work."""
        if self._limiter is None:  # made where the loop is
            self._limiter = CapacityLimiter(AT_ONCE)
        return await to_thread.run_sync(work, limiter=self._limiter)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """Input that the description, the store or the matcher refuses, in one sentence."""
    if isinstance(error, RequestValidationError):
        text = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()[:_TOLD])
    else:
        text = error.message() if isinstance(error, InputError) else str(error)
    return JSONResponse({"detail": text.encode("utf-8", "replace").decode()}, status_code=422)


_JPEG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}},
    304: {"description": "It has not changed since it was sent with this `ETag`."},
    404: {"model": messages.Refused, "description": "There is no such image, or it cannot be used."},
}


def _add_page(app: FastAPI, site: Site) -> None:
    home = files("crcl.serving") / "static"
    pages = {path: (home / name).read_bytes() for path, name in PAGES.items()}
    static = {name: (home / name).read_bytes() for name in FILES}
    limited = _Limited()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    def page(request: Request) -> Response:
        return Response(pages[request.url.path], media_type="text/html")

    @app.get("/static/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "no such file")
        return Response(static[name], media_type=_TYPES[name.rpartition(".")[2]])

    @app.get("/images/{number}", response_class=Response, responses=_JPEG)
    async def image(number: Number, request: Request, size: Literal["small", "large"] = "small") -> Response:
        """An image of the data as JPEG."""
        known = number < len(site.shown.names)
        made = await limited.run(lambda: site.shown.jpeg(number, size)) if known else None
        if made is None:
            raise HTTPException(404, "no such image")
        tag = f'"{hashlib.sha256(made).hexdigest()[:24]}"'
        headers = {"etag": tag, "cache-control": "private, max-age=60"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(made, media_type="image/jpeg", headers=headers)

    @app.get("/api/about", response_model=messages.About)
    def about() -> dict[str, Any]:
        """The data, what the audit found, and what the page can do."""
        audit = site.review.audit
        return {
            "title": shown_text(site.title),
            "pairs": len(site.review.pairs),
            "suspects": audit.suspect_count,
            "threshold": audit.threshold,
            "summary": [shown_text(sentence) for sentence in audit.summary()],
            "reasons": audit.reasons if audit.suspect_count else {},
            "search": site.search is not None,
            "why_not": site.why_not,
            "fit": "similarity" if audit.findings.suggestions is None else audit.findings.suggestions.fit,
        }


def _add_queues(app: FastAPI, site: Site) -> None:
    review = site.review

    @app.get("/api/progress", response_model=messages.Progress)
    def progress() -> dict[str, Any]:
        """How much of each queue is done; precision and recall as measured and as estimated by decoys."""
        return review.progress()

    @app.get("/api/queues/{queue}/next", response_model=messages.Place)
    def next_place(queue: Queue, after: Annotated[int, Query(ge=-1, lt=2**31)] = -1) -> dict[str, int | None]:
        """The next place of a queue without a verdict; null where all have one."""
        return {"place": review.next_place(queue, after), "total": len(review.queues[queue])}

    @app.get(
        "/api/queues/{queue}/{place}",
        response_model=messages.PlacedPair,
        responses={404: {"model": messages.Refused, "description": "The queue has no such place."}},
    )
    def place(queue: Queue, place: Number) -> dict[str, Any]:
        """The pair at a place of a queue."""
        if place >= len(review.queues[queue]):
            raise HTTPException(404, "no such place")
        return review.place(queue, place)

    @app.get(
        "/api/pairs/{number}",
        response_model=messages.FullPair,
        responses={404: {"model": messages.Refused, "description": "There is no such pair."}},
    )
    def pair(number: Number) -> dict[str, Any]:
        """A pair by number."""
        if number >= len(review.pairs):
            raise HTTPException(404, "no such pair")
        return review.full(number)


def _add_verdicts(app: FastAPI, site: Site) -> None:
    review = site.review
    writer = Writer(review.judge)

    @app.post("/api/verdicts", response_model=messages.Stored)
    async def judge(step: messages.Step) -> dict[str, Any]:
        """Store verdicts as one step. They are on disk when this answers."""
        verdicts = tuple(_verdict(review, said, step.queue) for said in step.verdicts)
        stored = await writer.add(Step(step.reviewer, verdicts))
        return {"step": stored, "saved": len(step.verdicts)}

    @app.post("/api/undo", response_model=messages.UndoneStep)
    async def undo(who: messages.Who) -> dict[str, Any]:
        """Take back the reviewer's newest step that is not yet undone."""
        undone = await writer.alone(lambda: review.undo(who.reviewer))
        return {
            "undone": [
                {
                    "row": verdict.row,
                    "number": review.numbers.get(verdict.row),
                    "queue": verdict.queue,
                    "place": review.place_of(verdict.queue, verdict.row) if verdict.queue in review.queues else None,
                    **told(verdict),
                }
                for verdict in (undone or [])[:MOST_SHOWN]
            ],
            "count": len(undone or []),
        }

    @app.get("/api/disagreements", response_model=messages.Disagreements)
    def disagreements() -> dict[str, Any]:
        """Pairs on which reviewers differ, with what each said."""
        found = review.disagreements()
        return {"total": len(found), "pairs": found[:MOST_SHOWN]}


def _verdict(review: Review, said: messages.Said, queue: str) -> Verdict:
    caption, image = said.caption, None
    if said.take is not None:
        if said.take >= len(review.pairs):
            raise InputError(f"there is no pair {said.take}")
        caption = review.pairs.captions[said.take]
    if said.image is not None:
        if said.image >= review.pairs.images:
            raise InputError(f"there is no image {said.image}")
        image = str(review.pairs.image_ids[said.image])
    return Verdict(said.row, said.verdict, caption=caption, image=image, queue=queue)


def _add_grid(app: FastAPI, site: Site) -> None:
    review = site.review

    @app.get("/api/pairs", response_model=messages.Grid)
    def pairs(
        queue: Literal["worst", "sample", "all"] = "worst",
        reason: Annotated[str, Query(max_length=200)] = "",
        text: Annotated[str, Query(max_length=500)] = "",
        below: Annotated[float, Query(ge=0, le=1)] | None = None,
        verdict: Literal["", "none", "right", "wrong", "unsure", "disagreement"] = "",
        start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        count: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = 60,
    ) -> dict[str, Any]:
        """The pairs that a filter leaves, a page at a time; and the rows of all of them, for bulk verdicts."""
        numbers = review.matching(Filter(queue, reason, text, verdict, below))
        shown = [review.brief(number, blind=queue == "sample") for number in numbers[start : start + count]]
        return {"total": len(numbers), "pairs": shown, "rows": review.rows[numbers[:MOST_ROWS]].tolist()}


def _add_search(app: FastAPI, site: Site) -> None:
    review, search, limited = site.review, site.search, _Limited()

    @app.get(
        "/api/search",
        response_model=messages.Results,
        responses={404: {"model": messages.Refused, "description": "This run cannot search."}},
    )
    async def find(
        q: Annotated[str, Query(min_length=1, max_length=1000, pattern=r"\S")],
        k: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = 48,
    ) -> dict[str, Any]:
        """The images that fit a sentence best."""
        if search is None:
            raise HTTPException(404, site.why_not or "no search")
        text = q.encode("utf-8", "replace").decode()
        found = await limited.run(lambda: search.by_text(text, k))
        return {"images": [_image(review, image, fit) for image, fit in found]}

    @app.get(
        "/api/images/{number}",
        response_model=messages.Neighbourhood,
        responses={404: {"model": messages.Refused, "description": "There is no such image."}},
    )
    def image(number: Number, k: Annotated[int, Query(ge=1, le=50)] = 12) -> dict[str, Any]:
        """An image's captions; and, where the run can search, captions that match it and images near it."""
        if number >= review.pairs.images:
            raise HTTPException(404, "no such image")
        matching = [] if search is None else search.captions_for(number, k)
        near = [] if search is None else search.near_to(number, k)
        return _image(review, number, None) | {
            "captions": review.of_image(number),
            "matching": [review.fitting(pair, fit) for pair, fit in matching],
            "near": [_image(review, other, fit) for other, fit in near],
        }


def _image(review: Review, number: int, fit: float | None) -> dict[str, Any]:
    name = plain_name(str(review.pairs.image_ids[number]))
    first = review.of_image(number, most=1)
    return {"image": number, "name": name, "fit": fit, "caption": first[0]["caption"] if first else ""}
