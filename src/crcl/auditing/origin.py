"""Where an audit comes from, and what its matcher says of suspects: suggestions, and where their words are."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from crcl.auditing.findings import Findings
from crcl.auditing.partners import read_partners
from crcl.auditing.reasons import Reasons, find_reasons
from crcl.auditing.suggestions import Suggestions, join, suggest, suggest_believed
from crcl.auditing.thresholds import Correspondences
from crcl.data.duplicates import Copies
from crcl.data.pairs import Pairs
from crcl.data.pictures.base import Pictures, UnusableError
from crcl.data.pictures.files import Files
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.features.provenance import known_grid, open_encoder
from crcl.features.sentences import sentences
from crcl.features.texts import CUT, how_read, known_vectors
from crcl.matchers.base import reads_vectors
from crcl.progress import Progress
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.words import Told, told_of_sentences, told_of_words
from crcl.runs.folder import Run


@dataclass(frozen=True)
class Origin:
    """The run, data and scorer that an audit was made with."""

    run: Run
    conditions: str
    """Method, matcher, noise and seed in words."""
    method: str
    own_threshold: float | None
    """The method's own threshold, if it has one."""
    data: Pairs
    scorer: Scorer
    pictures: Pictures | None
    suggest: int
    """How many suspects, the worst first, get suggestions."""

    def not_judged(self, pairs: Split) -> list[str]:
        """How much of a table was not judged, in a sentence if anything; `pairs` are those that were."""
        if not self.data.is_table:
            return []
        held_out, empty, skipped = self.data.unjudged(pairs)
        parts = [
            (held_out, f"row{'' if held_out == 1 else 's'} held out"),
            (empty, "without an image or a caption"),
            (skipped, f"image{'' if skipped == 1 else 's'} skipped"),
        ]
        told = ", ".join(f"{count:,} {what}" for count, what in parts if count)
        return [f"Not judged: {told}."] if told else []

    def with_paths(self, table: pa.Table, path: Path) -> pa.Table:
        """The table of an audit for a file: Parquet, which other tools read, has the path of each image file too.

        Nothing is added where images are not files of their own, nor to CSV, which is for people.
        """
        if path.suffix != ".parquet" or not isinstance(self.pictures, Files):
            return table
        names = table["image"].to_pylist()
        paths = {name: _path_of(self.pictures, name) for name in dict.fromkeys(names)}
        column = pa.array([paths[name] for name in names], pa.string())
        return table.add_column(table.column_names.index("caption") + 2, "image_path", column)

    def refuse_data(self, output: Path, pairs: Split) -> None:
        """Refuse to write over the data."""
        location = self.data.location
        read = [pairs.source, "" if location is None else location.path]
        if any(output.exists() and name and Path(name).exists() and output.samefile(name) for name in read):
            raise InputError("that is the data itself", where=output, hint="name another file to write")


def _path_of(pictures: Files, name: str) -> str | None:
    """The path of an image file; None where there is none in the folder."""
    try:
        file = pictures.locate(name)
    except UnusableError:
        return None
    return str(file.absolute()) if file.is_file() else None


def suggest_more(origin: Origin, found: Findings, known: Suggestions | None, progress: Progress) -> Suggestions | None:
    """Suggestions for the worst suspects; only those that are not known yet are computed."""
    rows = found.suspects[: origin.suggest]
    new = rows if known is None else rows[~np.isin(rows, known.rows)]
    if not len(new):
        return known
    partners = read_partners(origin.run)
    if partners is not None:
        made = suggest_believed(partners, found.pairs, new)
    else:
        with progress.task("suggestions") as advance:
            made = suggest(origin.scorer, found.pairs, new, advance=advance)
    return made if known is None else join(known, made)


def explain(origin: Origin, found: Findings, known: Correspondences, copies: Copies) -> Reasons:
    """Why each suspect is one, and what the matcher says of the words and sentences of its caption."""
    read = _how_read(origin, found.pairs)
    if reads_vectors(origin.scorer.matcher):
        cut = None if read is None else read[found.pairs.rows[found.suspects]] == CUT
    else:
        cut = origin.scorer.cuts([found.pairs.captions[pair] for pair in found.suspects])
    why = find_reasons(found, known, copies, read_partners(origin.run), cut)
    grid = known_grid(origin.run.made, regions=found.pairs.features.shape[1])
    of_words = told_of_words(origin.scorer, found.pairs, found.suspects, grid=grid)
    of_sentences = _of_sentences(origin, found, read)
    return replace(why, said=tuple(told for told in (of_words, of_sentences) if told is not None))


def _how_read(origin: Origin, pairs: Split) -> np.ndarray | None:
    """How much of each row's caption the model of its vector read; None where that is not known."""
    location, made = origin.data.location, origin.run.made.get("text")
    path = None if location is None else location.text_features
    if path is None or not made or pairs.text_features is None:
        return None
    return how_read(Path(path), len(pairs.text_features))


def _of_sentences(origin: Origin, found: Findings, read: np.ndarray | None) -> Told | None:
    """The least fitting sentence of the worst suspects; with vectors, of captions that were read by sentences."""
    pairs, scorer, suspects = found.pairs, origin.scorer, found.suspects
    parts = [sentences(pairs.captions[pair]) for pair in suspects[: origin.suggest]]
    parts += [[] for _ in suspects[origin.suggest :]]
    if not reads_vectors(scorer.matcher):
        return told_of_sentences(scorer, pairs, suspects, parts)
    location, made = origin.data.location, origin.run.made.get("text")
    if read is None or location is None or location.text_features is None or not isinstance(made, dict):
        return None
    if made.get("long_captions", "cut") == "cut":
        return None
    long = read[pairs.rows[suspects]] > 0
    parts = [own if is_long else [] for own, is_long in zip(parts, long, strict=True)]
    vectors = partial(
        known_vectors,
        folder=Path(location.text_features).parent,
        settings=made.get("settings", {}),
        open_encoder=partial(open_encoder, made, where=origin.run.path),
    )
    try:
        return told_of_sentences(scorer, pairs, suspects, parts, vectors)
    except InputError:  # neither the vectors nor their model are at hand
        return None
