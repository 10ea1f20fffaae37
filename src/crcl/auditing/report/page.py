"""An audit as a page to look at: what was found, how sure it is, and the worst pairs with their images.

FOLDER/index.html     the page: no network, no script but its own, all words of the data as plain text
FOLDER/thumbs/        small images, named by content

The page is replaced in one step after the thumbnails that it shows are there, and others are removed after it: a kill
at any moment leaves the old report or the new.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from crcl import __version__, plots
from crcl.auditing.estimate import Estimate
from crcl.auditing.findings import Findings
from crcl.auditing.report.gallery import Gallery, blank_card, plain_caption
from crcl.auditing.report.thumbnails import FindImage, Thumbnails
from crcl.auditing.suggestions import Suggestions
from crcl.auditing.thresholds import LOW_BELIEF
from crcl.data.files import read_bytes
from crcl.errors import InputError
from crcl.storage import locked, require_writable, write_bytes

MOST = 10_000
"""Pairs in the gallery at the most."""
LEAST = 200
"""Pairs in the gallery where fewer are flagged: one wants to see what is just not."""
FIRST = 24
"""Cards that are there without JavaScript."""
PRINTED = 12
"""Cards on paper; as many are not hidden by report.css."""
FEW = 20
"""Pairs flagged, or decoys among what would be, below which a precision is chance, and not drawn."""
CHART = (4.6, 2.9)
"""Inches: letters stay large enough on a phone."""
DECOYS = (
    "Decoys are captions of the data with a random other image each, which were trained on like any pair: what is "
    "believed of them tells what is believed of mismatches. This assumes that real mismatches look like random ones; "
    "wrong captions that are nearly right are missed, and not counted."
)
_HEAD = b"<!doctype html>\n<!-- crcl report -->\n"
_OURS = {"index.html", ".index.html.tmp", "thumbs", ".lock"}
_LEFT_BY_LOOKING = {".DS_Store", "Thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Tile:
    """A number that is shown large, and what is said of it."""

    label: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A figure with its heading."""

    title: str
    text: str
    svg: Markup


def write_report(
    folder: str | Path,
    audit: Findings,
    *,
    title: str,
    estimate: Estimate | None = None,
    suggestions: Suggestions | None = None,
    find_image: FindImage | None = None,
    told: Sequence[str] = (),
    next_step: tuple[str, str] | None = None,
    about: Sequence[tuple[str, str]] = (),
    most: int = MOST,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the page and its thumbnails; gives the page. Without `find_image` there are no pictures.

    `told` are further sentences of the summary, `next_step` is a command with what it does, `about` names with values.
    An older report is replaced. A folder with anything else in it is refused.
    """
    folder = Path(folder)
    refuse_foreign(folder)
    path = folder / "index.html"
    try:
        (folder / "thumbs").mkdir(parents=True, exist_ok=True)
        with locked(folder, busy="another process is writing a report here"):
            thumbnails = None if find_image is None else Thumbnails(folder / "thumbs", find_image)
            gallery = Gallery(audit, suggestions, _shown_rows(audit, most))
            gallery.add_pictures(thumbnails, progress)
            page = _page(audit, estimate, gallery, thumbnails, title=title, told=told, next_step=next_step, about=about)
            write_bytes(path, page, advice="make room and write the report again")
            (thumbnails or Thumbnails(folder / "thumbs", lambda name: None)).forget_others()
    except OSError as error:
        raise InputError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error}); give another folder"
        ) from error
    return path


def refuse_foreign(folder: Path) -> None:
    """Stop, before long work, if something else than a report would be lost, or none could be written."""
    require_writable(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: a file, expected a folder for the report")
    others = sorted({path.name for path in folder.iterdir()} - _OURS - _LEFT_BY_LOOKING)
    page = folder / "index.html"
    if page.exists() and not (page.is_file() and read_bytes(page).startswith(_HEAD)):
        others.append(page.name)
    if others:
        raise InputError(f"{folder}: not a report, it holds {', '.join(others[:5])}; give a new or an empty folder")


def _shown_rows(audit: Findings, most: int) -> np.ndarray:
    """Pairs of the gallery, worst first: the suspects, and a few more where these are few."""
    return audit.rows[: min(max(len(audit.suspects), LEAST), most)]


def _page(
    audit: Findings,
    estimate: Estimate | None,
    gallery: Gallery,
    thumbnails: Thumbnails | None,
    *,
    title: str,
    told: Sequence[str],
    next_step: tuple[str, str] | None,
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
    sentences = (*summary(audit, estimate), *told, *_remarks(audit, thumbnails))
    page = environment.get_template("report.html").render(
        title=plain_caption(title),
        policy=_policy(script),
        style=style,
        script=script,
        summary=[line.replace(" %", "\u00a0%") for line in sentences],
        next_step=next_step,
        decoys=DECOYS if estimate is not None else "",
        tiles=_tiles(audit, estimate),
        charts=_charts(audit, estimate),
        gallery=_about_gallery(audit, len(gallery.pairs)),
        pictures=thumbnails is not None,
        believes=audit.believes,
        first=gallery.cards(FIRST),
        shown=len(gallery.pairs),
        printed=PRINTED,
        blank=blank_card(),
        data=gallery.data(),
        about=[(name, plain_caption(value)) for name, value in (*about, ("crcl", __version__))],
    )
    return page.encode("utf-8")


def _policy(script: str) -> str:
    """Nothing runs but this script, and nothing is loaded but images beside the page."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src 'self' file: data:; "
        "base-uri 'none'; form-action 'none'"  # file: for browsers to which a page on disk has no 'self'
    )


def summary(audit: Findings, estimate: Estimate | None = None) -> list[str]:
    """What was found, in sentences: of all pairs, and of the truth where it is known."""
    pairs, flagged, at = len(audit.pairs), len(audit.suspects), f"{audit.threshold:g}"
    if not audit.believes:
        return [f"There are no beliefs: the {pairs:,} pairs are in the order of their similarity, and none is flagged."]
    if estimate is None:
        found = [f"At threshold {at}, {flagged:,} of {pairs:,} pairs ({_percent(flagged / pairs, 1)}) are flagged."]
    else:
        low, high = (f"{100 * bound:.1f}" for bound in (estimate.low, estimate.high))
        at_threshold = estimate.at(audit.threshold)
        interval = _precision_interval(audit, estimate)
        sure = (
            f"estimated precision {_percent(at_threshold.precision)}{interval and f' ({interval})'}, "
            f"recall {_percent(at_threshold.recall)}"
        )
        found = [
            f"An estimated {_percent(estimate.rate, 1)} ({low}–{high}) of {pairs:,} pairs are mismatched. At threshold "
            + (f"{at}, {flagged:,} are flagged: {sure}." if flagged else f"{at}, none is flagged.")
        ]
    truth = _true_numbers(audit)
    if truth is not None:
        rate, precision, recall = (_percent(value, 1) for value in truth)
        found.append(
            f"The truth is known from injected noise: {rate} are mismatched; precision is {precision}, recall {recall}."
        )
    return found


def _precision_interval(audit: Findings, estimate: Estimate) -> str:
    """That of the flagged in percent, the estimate within it; nothing where it is not known."""
    interval = estimate.precision_interval(audit.threshold)
    if interval is None:
        return ""
    precision = estimate.at(audit.threshold).precision
    return f"{100 * np.fmin(interval[0], precision):.0f}–{100 * np.fmax(interval[1], precision):.0f}"


def _remarks(audit: Findings, thumbnails: Thumbnails | None) -> list[str]:
    remarks = []
    if audit.believes and audit.correspondence.mean() < LOW_BELIEF:
        remarks.append(
            f"The mean belief is {audit.correspondence.mean():.3f}, which is low. Trust the order of the pairs more "
            "than the threshold, and choose one by looking at the pairs around it."
        )
    if thumbnails is None:
        remarks.append("There are no pictures here: the folder of the images is not known.")
    elif thumbnails.reasons:
        common = ", ".join(f"{count:,} × {why}" for why, count in thumbnails.reasons.most_common(4))
        where = " Give the folder that holds the images." if thumbnails.reasons["not found"] else ""
        remarks.append(f"{thumbnails.reasons.total():,} images have no picture here: {common}.{where}")
    return remarks


def _tiles(audit: Findings, estimate: Estimate | None) -> list[Tile]:
    pairs, flagged = len(audit.pairs), len(audit.suspects)
    tiles = [Tile("Flagged", f"{flagged:,}", (f"of {pairs:,} pairs", f"at threshold {audit.threshold:g}"))]
    if not audit.believes:
        tiles = [Tile("Pairs", f"{pairs:,}"), Tile("Images", f"{audit.pairs.images:,}")]
    truth = _true_numbers(audit)
    sure = ["estimated" if truth is None else f"estimated; truth: {_percent(value, 1)}" for value in truth or (0, 0, 0)]
    if estimate is not None:
        interval = f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f} %, by {len(estimate.decoys):,} decoys"
        expected = estimate.at(audit.threshold)
        if between := _precision_interval(audit, estimate):
            sure[1] = f"{between} %, {sure[1]}"
        return [
            Tile("Mismatched", _percent(estimate.rate, 1), (interval, sure[0])),
            *tiles,
            Tile("Precision", _percent(expected.precision), ("of the flagged are mismatched", sure[1])),
            Tile("Recall", _percent(expected.recall), ("of the mismatched are flagged", sure[2])),
        ]
    if truth is not None:
        return [
            Tile("Mismatched", _percent(truth[0], 1), ("injected, so the truth is known",)),
            *tiles,
            Tile("Precision", _percent(truth[1], 1), ("of the flagged are mismatched",)),
            Tile("Recall", _percent(truth[2], 1), ("of the mismatched are flagged",)),
        ]
    return tiles if not audit.believes else [Tile("Pairs", f"{pairs:,}", (f"{audit.pairs.images:,} images",)), *tiles]


def _charts(audit: Findings, estimate: Estimate | None) -> list[Chart]:
    if not audit.believes:
        return []
    pairs, threshold = audit.pairs, audit.threshold
    decoys, expected = (None, None) if estimate is None else (estimate.decoys, estimate.rate * len(pairs))
    beliefs = plots.beliefs(
        audit.correspondence,
        pairs.truth,
        threshold=threshold,
        decoys=decoys,
        expected=expected,
        title="",
        size=CHART,
    )
    curves = _precision_recall(audit, estimate)
    plots.align([beliefs] if curves is None else [beliefs, curves])
    text = "How many pairs are believed in how much."
    if estimate is not None:
        text += " The outline is that of decoys, known mismatches, as if they were as many as the estimated ones."
    charts = [Chart("Beliefs", text, Markup(plots.svg(beliefs, "beliefs")))]
    if curves is None:
        return charts
    text = "A higher threshold flags more: more of the mismatches are found, and more good pairs with them."
    return [*charts, Chart("Precision and recall", text, Markup(plots.svg(curves, "precision")))]


def _precision_recall(audit: Findings, estimate: Estimate | None) -> Figure | None:
    """Both against the threshold, as estimated and as they are; None where neither is known."""
    truth = audit.pairs.truth
    thresholds = np.linspace(0, 1, 201) if estimate is None else estimate.thresholds
    true = None if truth is None else _true_curves(audit.correspondence, truth, thresholds)
    if estimate is not None:
        precision, recall, label = estimate.precision, estimate.recall, "estimated"
    elif true is not None:
        precision, recall, label, true = *true, "true", None
    else:
        return None
    flagged = np.searchsorted(np.sort(audit.correspondence), thresholds.astype(audit.correspondence.dtype))
    few = flagged < FEW if estimate is None else (flagged < FEW) | (recall * len(estimate.decoys) < FEW)
    precision = np.where(few, np.nan, precision)
    true_precision, true_recall = (None, None) if true is None else (np.where(flagged < FEW, np.nan, true[0]), true[1])
    return plots.precision_recall(
        thresholds,
        precision,
        recall,
        true_precision=true_precision,
        true_recall=true_recall,
        threshold=audit.threshold,
        label=label,
        size=CHART,
    )


def _about_gallery(audit: Findings, shown: int) -> str:
    flagged = len(audit.suspects)
    if not audit.believes:
        return f"The {shown:,} pairs of the lowest similarity."
    if shown < flagged:
        return f"The {shown:,} least believed of {flagged:,} flagged pairs."
    if shown > flagged:
        return f"The {shown:,} least believed pairs; {flagged:,} of them are flagged."
    return f"All {flagged:,} flagged pairs, the least believed first."


def _true_numbers(audit: Findings) -> tuple[float, float, float] | None:
    """Share of mismatched pairs, precision and recall at the threshold; None where the truth is not known."""
    truth = audit.pairs.truth
    if truth is None or not audit.believes:
        return None
    precision, recall = _true_curves(audit.correspondence, truth, np.array([audit.threshold]))
    return float(1 - truth.mean()), float(precision[0]), float(recall[0])


def _true_curves(beliefs: np.ndarray, truth: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at thresholds (T,); NaN where there is nothing to share."""
    at = thresholds.astype(beliefs.dtype)
    flagged = np.searchsorted(np.sort(beliefs), at).astype(np.float64)
    found = np.searchsorted(np.sort(beliefs[~truth]), at).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return found / flagged, found / (~truth).sum()


def _percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %" if np.isfinite(share) else "unknown"
