"""Tar files for tests."""

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drawn import Drawn

Named = Iterable[tuple[str, bytes]]


def write_tar(path: Path, members: Named, *, kind: int = tarfile.USTAR_FORMAT, **about: Any) -> Path:
    """A tar of these members; `about` are attributes of their headers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in about.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return path


def read_tar(path: Path) -> list[tuple[str, bytes]]:
    """All plain files of a tar."""
    with tarfile.open(path) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar if info.isreg()]  # type: ignore[union-attr]


def sample(key: str, caption: str | None = "a dog", /, *, image: bytes = b"\xff\xd8 no image", **record: Any) -> Named:
    """The members of a sample as img2dataset writes them."""
    yield f"{key}.jpg", image
    if caption is not None:
        yield f"{key}.txt", caption.encode()
    if record:
        yield f"{key}.json", json.dumps(record).encode()


def write_tars(data: Drawn, folder: Path, *, each: int = 50) -> Path:
    """Scenes as tars of `each` images in folders of splits; a caption is a text, several are JSON."""
    for split in dict.fromkeys(data.splits):
        chosen = [number for number, of in enumerate(data.splits) if of == split]
        for shard, start in enumerate(range(0, len(chosen), each)):
            members: list[tuple[str, bytes]] = []
            for number in chosen[start : start + each]:
                key, captions = data.names[number].removesuffix(".png"), data.captions[number]
                members.append((data.names[number], data.pictures[number]))
                if len(captions) == 1:
                    members.append((f"{key}.txt", captions[0].encode()))
                record = {"key": key, "url": "http://é"} | ({"captions": captions} if len(captions) > 1 else {})
                members.append((f"{key}.json", json.dumps(record, ensure_ascii=False).encode()))
            write_tar(folder / split / f"{shard:05}.tar", members, mtime=1.5, kind=tarfile.PAX_FORMAT)
    return folder
