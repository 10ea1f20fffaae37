"""The public function that serves the page: review of an audit, and search with its run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crcl.api.auditing import audit as audit_of
from crcl.api.common import AnyRun, Shown, check_whole, open_model, receiver
from crcl.auditing.result import Audit
from crcl.errors import InputError

if TYPE_CHECKING:  # FastAPI and uvicorn are an extra
    from crcl.serving.server import Server

EXTRA = "pip install 'crcl[serve]'"
PORT = 8765


def serve(
    run: AnyRun | Audit,
    *,
    data: Any = None,
    images: str | Path | None = None,
    threshold: float | None = None,
    precision: float | None = None,
    score: str | None = None,
    sample: int = 100,
    search: bool = True,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    device: str = "auto",
    memory: float | None = None,
    wait: bool = True,
    ready: Callable[[str], None] | None = None,
    progress: Shown = False,
) -> "Server":
    """Serve a page to review an audit and to search with its run, until Ctrl-C.

    Verdicts are stored in the run folder at once. The page loads nothing from elsewhere, and only this machine can
    open it, unless another `host` is named; that needs a `token`.

    Args:
        run: An audit; or a run, or the folder of an audit, whose run is audited first.
        data: The run's data, if it has moved: a path or pairs.
        images: The folder of the image files; where the data says, if not given.
        threshold: Flag all pairs with a lower correspondence.
        precision: Or flag as many as possible at this estimated precision, such as 0.95.
        score: What to judge by, as in `audit`.
        sample: How many flagged and how many unflagged pairs the random sample has, which measures precision and
            recall.
        search: Encode images and captions for search, where the run can and the images are not too many.
        host: The address to listen at.
        port: The port; 0 is a free one.
        token: Letters and digits that a browser must know to open the page.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        wait: Serve until Ctrl-C; if False, serve from a thread, until `stop` of what is returned is called.
        ready: Called with the address when the page can be opened.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The server, with its `url` and its `app`; a context manager that stops it.

    Example:
        >>> with crcl.serve("pairs-audit", port=0, wait=False) as page:
        ...     page.url
        'http://127.0.0.1:49213/'
    """
    try:
        from crcl.serving import server as serving
        from crcl.serving.app import Site
        from crcl.serving.pictures import Shown as Images
        from crcl.serving.review import Review
        from crcl.serving.search import Search, why_not
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise InputError(f"the page needs the package {error.name}", hint=EXTRA) from error
    shown = receiver(progress)
    serving.check_address(host, token)
    check_whole(sample, "sample")
    if sample < 1:
        raise InputError(f"a sample has at least one pair, got {sample}", where="sample")
    check_whole(port, "port")
    listening = serving.listen(host, port)
    try:
        opened = None if isinstance(run, Audit) else open_model(run, device=device, memory=memory)
        if isinstance(run, Audit):
            given = {"data": data, "images": images, "threshold": threshold, "precision": precision, "score": score}
            found = _unchanged(run, given)
        else:
            found = audit_of(
                opened,
                images=images,
                data=data,
                threshold=threshold,
                precision=precision,
                score=score,
                progress=shown,
            )
        model = opened or open_model(found.run, device=device, memory=memory)
        pairs = found.findings.pairs
        reason = why_not(model, pairs) if search else "Search is switched off."
        site = Site(
            title=found.name,
            review=Review(found, each=sample),
            shown=Images(found.pictures, pairs.image_ids),
            search=None if reason else Search(model, pairs, progress=shown),
            why_not=reason,
        )
        made = serving.Server(site, listening, host=host, token=token)
    except BaseException:
        listening.close()
        raise
    if wait:
        made.wait(ready)
        return made
    made.start()
    if ready is not None:
        ready(made.url)
    return made


def _unchanged(audit: Audit, given: dict[str, Any]) -> Audit:
    named = ", ".join(f"{{{name}}}" for name, value in given.items() if value is not None)
    if named:
        raise InputError("an audit, which is made already", where=audit.run.path, hint=f"leave {named} out")
    return audit
