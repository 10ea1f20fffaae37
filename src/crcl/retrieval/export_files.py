"""Common parts of all exports: their format, output folders, and protection of other files."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crcl.config import file_keys
from crcl.errors import InputError, TrainingError
from crcl.storage import replacing_folder

FORMAT = 1
ADVICE = "make room and export again"
_FOLDERS = ("data.path", "matcher.model", "train.start")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, which replaces `output` when it is complete."""
    make_folder(output.parent)
    try:
        with replacing_folder(output, busy="another process is writing there") as fresh:
            yield fresh
    except OSError as error:
        raise TrainingError(f"could not save {output}: {error.strerror or error}; {ADVICE}") from error


def refuse_folder(output: Path, *, overwrite: bool) -> None:
    """Refuse to overwrite a folder that is not an export."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise InputError("exists already", where=output, hint="pass {overwrite}, or name another folder")
    try:
        about = json.loads((output / "about.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or "crcl_export" not in about:
        raise InputError("not an export, so it is not overwritten", where=output, hint="name another folder")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=folder) from error


def without_folders(config: dict[str, Any]) -> dict[str, Any]:
    """The config with file names instead of paths, so that an export does not contain folders of this machine."""
    plain = dict(config)
    for key in (*file_keys(), *_FOLDERS):
        section, _, leaf = key.partition(".")
        values = plain.get(section, {})
        if values.get(leaf):
            plain[section] = values | {leaf: Path(values[leaf]).name}
    return plain


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
