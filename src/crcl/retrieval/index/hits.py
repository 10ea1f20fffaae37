"""What a search found: images or captions with rank and score, as a list that can write a sheet of thumbnails."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from crcl.data.pictures.base import Pictures
from crcl.data.pictures.files import Files, require_folder
from crcl.errors import InputError
from crcl.retrieval.index.sheet import is_sheet, sheet_html
from crcl.storage import require_writable, write_bytes


@dataclass(frozen=True)
class Hit:
    """An image or a caption that a search found.

    Attributes:
        rank: 1 is the best.
        key: The image's name in the data; of a caption, that of its image.
        score: The run's similarity; larger fits better.
        captions: The image's captions; or the caption that was found, alone.
    """

    rank: int
    key: str
    score: float
    captions: tuple[str, ...] = ()


class Hits(list[Hit]):
    """What `crcl.search` found, best first: a list of `Hit`.

    Attributes:
        query: What was searched for, in words.
    """

    def __init__(self, hits: Iterable[Hit], *, query: str, pictures: Callable[[], Pictures | None]) -> None:
        super().__init__(hits)
        self.query = query
        self._pictures = pictures

    def sheet(self, path: str | Path, *, images: str | Path | None = None) -> Path:
        """Write a page of thumbnails with scores and captions: one HTML file that loads nothing else.

        Args:
            path: The file to write (.html); an earlier sheet is replaced.
            images: The folder of the image files; where the data says, if not given.

        Returns:
            The file.

        Example:
            >>> crcl.search("photos.index", "two dogs", k=3).sheet("dogs.html").name
            'dogs.html'
        """
        path = Path(path)
        check_sheet(path)
        pictures = self._pictures() if images is None else Files(require_folder(Path(images)))
        content = sheet_html(self.query, [(hit.rank, hit.key, hit.score, hit.captions) for hit in self], pictures)
        write_bytes(path, content.encode("utf-8", "replace"), advice="free some disk space and search again")
        return path


def check_sheet(path: Path) -> None:
    """Refuse, before long work, a file that cannot be written, or that exists and is no sheet."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError("a sheet of thumbnails is written as .html", where=path, hint="name a file that ends in .html")
    require_writable(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot be written (there is no folder {path.parent})", where=path)
    if path.is_dir():
        raise InputError("a folder, not a file", where=path)
    if path.exists() and not is_sheet(path):
        raise InputError("exists and is no sheet, so it is not replaced", where=path, hint="name another file")
