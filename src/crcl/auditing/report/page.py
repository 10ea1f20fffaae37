"""The report page of an audit: what was found, how sure that is, and the worst pairs with their images.

FOLDER/index.html     the page: no network, no script but its own, text of the data escaped
FOLDER/thumbs/        small images, named by content

Thumbnails are written first, then the page is replaced in one step, then unused thumbnails are removed: a kill at any
moment leaves the old report or the new one.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
import pyarrow as pa
from markupsafe import Markup

from crcl import __version__
from crcl.auditing.copies import Duplicates
from crcl.auditing.estimate import Estimate
from crcl.auditing.findings import Findings
from crcl.auditing.reasons import Reasons
from crcl.auditing.report.charts import charts
from crcl.auditing.report.copies import kinds_of_copies
from crcl.auditing.report.gallery import Gallery, blank_card, plain_caption, plain_sentence
from crcl.auditing.report.tables import tables
from crcl.auditing.report.thumbnails import Thumbnails
from crcl.auditing.scores.interval import Interval, bounds, percent
from crcl.auditing.summary import caveats, precision_at, rate_of, recall_at, summary, true_numbers
from crcl.data.files import read_bytes
from crcl.data.pictures.base import Pictures
from crcl.errors import InputError
from crcl.progress import Advance
from crcl.storage import locked, require_writable, write_bytes

MOST = 10_000
"""The largest number of pairs in the gallery."""
LEAST = 200
"""The smallest number of pairs in the gallery: where fewer are flagged, the next ones are shown too."""
FIRST = 24
"""Cards in the HTML itself, which readers without JavaScript see."""
PRINTED = 12
"""Cards on paper; report.css hides the others when printing."""
DECOYS = (
    "Decoys are known mismatches, made of the images and captions of the data and judged like any pair. The numbers "
    "above are estimated from random ones, each a caption with a random other image, and assume that real mismatches "
    "look like these: captions that are only slightly wrong are missed and not counted."
)
OTHER_KINDS = (
    "How many of those are found is told by the other kinds of decoys: captions of similar images, and captions with "
    "one word exchanged."
)
_HEAD = b"<!doctype html>\n<!-- crcl report -->\n"
_OURS = {"index.html", ".index.html.tmp", "thumbs", ".lock"}
_LEFT_BY_FILE_MANAGERS = {".DS_Store", "Thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Tile:
    """A number in large print, with its label and notes."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Details:
    """What the report shows beside the pairs and the estimate, where it is known."""

    duplicates: Duplicates | None = None
    """Images and captions that occur more than once."""
    reasons: Reasons | None = None
    """Why pairs are suspect."""
    scores: pa.Table | None = None
    """The scores that were compared, as `Audit.scores`."""
    recalls: Mapping[str, Interval] = field(default_factory=dict)
    """Share of decoys that are flagged, by their kind, with intervals."""


NOTHING_MORE = Details()


def write_report(
    folder: str | Path,
    audit: Findings,
    *,
    title: str,
    estimate: Estimate | None = None,
    unsure: str = "",
    pictures: Pictures | None = None,
    remarks: Sequence[str] = (),
    next_step: tuple[str, str] | None = None,
    details: Details = NOTHING_MORE,
    about: Sequence[tuple[str, str]] = (),
    most: int = MOST,
    advance: Advance | None = None,
) -> Path:
    """Write the page and its thumbnails into a folder, in place of an older report; other folders are refused.

    Args:
        folder: Where to write.
        audit: The pairs with their correspondences, the threshold and suggestions.
        title: The heading.
        estimate: The estimate by decoys, if there is one.
        unsure: Why the decoys allow no estimate, where they do not.
        pictures: Where the images lie; without it the page has no pictures.
        remarks: More sentences for the summary.
        next_step: A command to show, and what it does.
        details: Copies, reasons, scores and kinds of decoys.
        about: Names and values for the foot of the page.
        most: The largest number of pairs in the gallery.
        advance: Receives how many thumbnails are made.

    Returns:
        The page.
    """
    folder = Path(folder)
    check_report_folder(folder)
    path = folder / "index.html"
    try:
        (folder / "thumbs").mkdir(parents=True, exist_ok=True)
        with locked(folder, busy="another process is writing a report here"):
            thumbnails = None if pictures is None else Thumbnails(folder / "thumbs", pictures)
            gallery = Gallery(audit, _shown_rows(audit, most), details.reasons)
            gallery.add_pictures(thumbnails, advance)
            sentences = [*summary(audit, estimate, unsure=unsure), *remarks, *caveats(audit, estimate)]
            page = _page(
                audit,
                estimate,
                gallery,
                thumbnails,
                title=title,
                sentences=sentences,
                next_step=next_step,
                details=details,
                about=about,
            )
            write_bytes(path, page, advice="make room and write the report again")
            (thumbnails or Thumbnails(folder / "thumbs", None)).remove_unused()
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror or error})",
            where=error.filename or folder,
            hint="name another folder for the report",
        ) from error
    return path


def check_report_folder(folder: Path) -> None:
    """Refuse, before long work, a folder that cannot be written to or that holds something other than a report."""
    require_writable(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError("a file, expected a folder for the report", where=folder, hint="name a folder")
    others = sorted({path.name for path in folder.iterdir()} - _OURS - _LEFT_BY_FILE_MANAGERS)
    page = folder / "index.html"
    if page.exists() and not (page.is_file() and read_bytes(page).startswith(_HEAD)):
        others.append(page.name)
    if others:
        what = f"not a report, it holds {', '.join(others[:5])}"
        raise InputError(what, where=folder, hint="name a new or an empty folder")


def _shown_rows(audit: Findings, most: int) -> np.ndarray:
    """Pairs of the gallery, worst first: the suspects, or the worst `LEAST` where fewer are suspect."""
    return audit.rows[: min(max(len(audit.suspects), LEAST), most)]


def _page(
    audit: Findings,
    estimate: Estimate | None,
    gallery: Gallery,
    thumbnails: Thumbnails | None,
    *,
    title: str,
    sentences: Sequence[str],
    next_step: tuple[str, str] | None,
    details: Details,
    about: Sequence[tuple[str, str]],
) -> bytes:
    files = resources.files("crcl.auditing.report") / "templates"
    style, script = (Markup((files / name).read_text("utf-8")) for name in ("report.css", "report.js"))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("crcl.auditing.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,
    )
    sentences = [*sentences, *_about_pictures(thumbnails)]
    page = environment.get_template("report.html").render(
        title=plain_caption(title),
        policy=_policy(script),
        style=style,
        script=script,
        summary=[plain_sentence(line).replace(" %", "\u00a0%") for line in sentences],
        next_step=next_step,
        decoys=[] if estimate is None else [DECOYS, OTHER_KINDS][: 1 + (len(details.recalls) > 1)],
        tiles=_tiles(audit, estimate),
        charts=charts(audit, estimate),
        tables=tables(estimate, audit.threshold, details.scores, details.recalls),
        copies=kinds_of_copies(details.duplicates),
        reasons=gallery.counts(),
        gallery=_about_gallery(audit, len(gallery.pairs)),
        pictures=thumbnails is not None,
        has_correspondence=audit.has_correspondence,
        believed=audit.suggestions is not None and audit.suggestions.fit == "belief",
        first=gallery.cards(FIRST),
        shown=len(gallery.pairs),
        printed=PRINTED,
        blank=blank_card(),
        data=gallery.data(),
        about=[(name, plain_caption(value)) for name, value in (*about, ("crcl", __version__))],
    )
    return page.encode("utf-8")


def _policy(script: str) -> str:
    """Content security policy: only this script runs, and only images beside the page are loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src 'self' file: data:; "
        "base-uri 'none'; form-action 'none'"  # file: because 'self' does not cover pages on disk in some browsers
    )


def _about_pictures(thumbnails: Thumbnails | None) -> list[str]:
    """Why the page lacks some or all pictures."""
    if thumbnails is None:
        return ["This page has no pictures: the folder of the images is not known."]
    if not thumbnails.reasons:
        return []
    common = ", ".join(f"{count:,} × {why}" for why, count in thumbnails.reasons.most_common(4))
    where = " Name the folder that holds the images." if thumbnails.reasons["not found"] else ""
    return [f"{thumbnails.reasons.total():,} images have no picture here: {common}.{where}"]


def _tiles(audit: Findings, estimate: Estimate | None) -> list[Tile]:
    pairs, flagged = len(audit.pairs), len(audit.suspects)
    tiles = [Tile("Flagged", f"{flagged:,}", (f"of {pairs:,} pairs", f"at threshold {audit.threshold:g}"))]
    if not audit.has_correspondence:
        tiles = [Tile("Pairs", f"{pairs:,}"), Tile("Images", f"{audit.pairs.images:,}")]
    truth = true_numbers(audit)
    sure = ["estimated" if truth is None else f"estimated; truth: {percent(value, 1)}" for value in truth or (0, 0, 0)]
    if estimate is not None:
        rate, recall = rate_of(estimate), recall_at(estimate, audit.threshold)
        precision = precision_at(estimate, audit.threshold)
        return [
            Tile("Mismatched", percent(rate, 1), (f"{bounds(rate, 1)} %, by {len(estimate.decoys):,} decoys", sure[0])),
            *tiles,
            _estimated("Precision", precision, "of the flagged are mismatched", sure[1]),
            _estimated("Recall", recall, "of the mismatched are flagged", sure[2]),
        ]
    if truth is not None:
        return [
            Tile("Mismatched", percent(truth[0], 1), ("injected, so the truth is known",)),
            *tiles,
            Tile("Precision", percent(truth[1], 1), ("of the flagged are mismatched",)),
            Tile("Recall", percent(truth[2], 1), ("of the mismatched are flagged",)),
        ]
    return (
        tiles
        if not audit.has_correspondence
        else [Tile("Pairs", f"{pairs:,}", (f"{audit.pairs.images:,} images",)), *tiles]
    )


def _estimated(label: str, found: Interval | None, of: str, sure: str) -> Tile:
    """The tile of an estimate; where its interval is so wide that it says nothing, the interval alone."""
    if found is None or found.vague:
        return Tile(label, "unknown" if found is None else f"{bounds(found)} %", (of, sure))
    return Tile(label, percent(found), (of, f"{bounds(found)} %, {sure}"))


def _about_gallery(audit: Findings, shown: int) -> str:
    flagged = len(audit.suspects)
    if not audit.has_correspondence:
        return f"The {shown:,} pairs with the lowest similarity."
    if shown < flagged:
        return f"The {shown:,} of {flagged:,} flagged pairs with the lowest correspondence."
    if shown > flagged:
        return f"The {shown:,} pairs with the lowest correspondence; {flagged:,} of them are flagged."
    return f"All {flagged:,} flagged pairs, the lowest correspondence first."
