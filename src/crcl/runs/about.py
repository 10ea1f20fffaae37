"""Reading and checking `config.json` of a run folder."""

from pathlib import Path
from typing import Any

from crcl.data.sources import layout_of
from crcl.data.sources.unknown import READABLE, inside, not_recognised
from crcl.errors import InputError
from crcl.runs.files import read_json

FORMAT = 1
SIZES = ("pairs", "images", "regions", "features", "vocabulary", "networks")
NEEDED: dict[str, type] = {"config": dict, "files": list, "fingerprint": str}
OPTIONAL: dict[str, type] = {"imported": str, "features": str, "made": dict}


def read_about(path: Path) -> dict[str, Any]:
    """The content of a run's config.json; raises an error if it has another format or is incomplete."""
    if not path.is_dir():
        if path.exists():
            if layout_of(path) is not None:
                hint = f"name a run, such as that of its audit, {path.stem}-audit/run"
                raise InputError("data, expected a run folder", where=path, hint=hint)
            raise not_recognised(path)
        raise InputError("no such run folder", where=path)
    if not (path / "config.json").is_file():
        if (path / "run" / "config.json").is_file():
            raise InputError(f"not a run folder (it has no config.json); did you mean {path / 'run'}?", where=path)
        if layout_of(path) is not None:
            raise InputError("not a run folder (it has no config.json)", where=path, hint="{train()} makes one")
        what = f"not a run folder (it has no config.json), nor data that is recognised; {inside(path)}"
        raise InputError(what, where=path, hint=f"{{train()}} makes a run; {READABLE} are read as data")
    about = read_json(path / "config.json")
    found = about.get("format") if isinstance(about, dict) else None
    if found != FORMAT:
        raise InputError(
            f"a run folder of format {found}, this version reads format {FORMAT}",
            where=path,
            hint="use the version of crcl that wrote it, or train again",
        )
    if not _is_complete(about):
        raise InputError("incomplete", where=path / "config.json", hint="train again with {overwrite}")
    return dict(about)


def _is_complete(about: dict[str, Any]) -> bool:
    there = all(isinstance(about.get(name), kind) for name, kind in NEEDED.items())
    right = all(isinstance(about.get(name, kind()), kind) for name, kind in OPTIONAL.items())
    return there and right and all(isinstance(name, str) for name in about["files"]) and valid_sizes(about.get("sizes"))


def valid_sizes(sizes: Any) -> bool:
    """Whether all sizes exist and are positive, as a matcher needs them."""
    if not isinstance(sizes, dict):
        return False
    known = {"text_features": 1} | sizes  # optional: only for matchers that read text vectors
    return all(type(known.get(name)) is int and 0 < known[name] < 2**31 for name in (*SIZES, "text_features"))
