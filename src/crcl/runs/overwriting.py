"""Checks before a new run replaces a folder: only with `overwrite`, and only another run."""

from pathlib import Path
from typing import Any

from crcl.errors import InputError
from crcl.runs.files import read_json

_OF_A_RUN = ("vocab.json", "metrics.jsonl", "training.pt", "ledger.npz")


def refuse_existing(path: str | Path, *, overwrite: bool) -> None:
    """Raise an error if a folder exists that may not be replaced."""
    path = Path(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise InputError("is the current folder, or one above it", where=path, hint="name a folder below it")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError(
            "exists already", where=path, hint="pass {resume} to continue it, or {overwrite} to replace it"
        )
    if not _is_run(path):
        raise InputError("not a run folder, so it is not overwritten", where=path, hint="give another name")


def refuse_inputs_within(path: Path, config: dict[str, Any]) -> None:
    """Raise an error if the run to replace contains files that the new training reads."""
    for section in config.values():
        for value in section.values() if isinstance(section, dict) else ():
            if isinstance(value, str) and path.resolve() in Path(value).resolve().parents and Path(value).exists():
                raise InputError(
                    f"holds {value}, which is read, so it is not overwritten", where=path, hint="give another name"
                )


def _is_run(path: Path) -> bool:
    """Whether a folder is a run, possibly damaged, rather than another folder with a config.json."""
    if not (path / "config.json").is_file():
        return False
    try:
        content = read_json(path / "config.json")
    except InputError:
        return any((path / name).is_file() for name in _OF_A_RUN)
    return isinstance(content, dict) and "format" in content and "sizes" in content
