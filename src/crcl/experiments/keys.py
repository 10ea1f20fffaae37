"""What a run is known by: a hash of all that determines it, so that tables share runs."""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crcl.config import Config, file_keys, given, to_dict
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.training import session

AT_ONCE = 64  # images or captions whose features are read at once


def is_read(key: str, method: str, matcher: str) -> bool:
    """Whether a training by this method on this matcher reads a setting; all read what no record declares."""
    section, _, leaf = key.partition(".")
    if section == "matcher":
        owned = any(leaf in record.settings.model_fields for record in MATCHERS.values())
        return not owned or any(leaf in MATCHERS[name].settings.model_fields for name in _built(method, matcher))
    owned = any(section in record.sections for record in METHODS.values())
    return not owned or section in METHODS[method].sections


def _built(method: str, matcher: str) -> list[str]:
    """The matcher of a run, and the one that its method fits besides, if any."""
    record = METHODS[method]
    sections = {name: section() for name, section in record.sections.items()}
    companion = record.companion(MATCHERS[matcher], **sections)
    return [matcher] if companion is None else [matcher, companion]


def job_key(config: Config, fingerprint: str) -> str:
    """A hash of what determines a run: the settings it reads and the content of its data and files, not their paths."""
    sections = to_dict(config)
    settings = {"method": sections.pop("method")}
    settings |= {
        key: value
        for section, part in sections.items()
        for leaf, value in part.items()
        if is_read(key := f"{section}.{leaf}", config.method, config.matcher.name)
    }
    files = {key: settings[key] for key in file_keys() if settings.get(key) is not None}
    contents = {key: _content(Path(path)) for key, path in files.items()}
    if (model := settings["matcher.model"]) is not None and Path(model).is_dir():
        weights = sorted(path for path in Path(model).iterdir() if path.suffix in (".json", ".safetensors"))
        contents["matcher.model"] = hashed({path.name: _content(path) for path in weights})
    free = session.changeable_keys()
    kept = {key: value for key, value in settings.items() if key not in free}
    return hashed([kept, contents, fingerprint])


def _content(path: Path) -> str:
    """A hash of a file's content, computed once per file."""
    try:
        about = path.stat()
        return _digest(path, about.st_mtime_ns, about.st_size)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=path) from error


@cache
def _digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashed(content: Any) -> str:
    """A short hash of plain values."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def split_digests(split: Split) -> list[str]:
    """Digests of a split: captions and images, all features, and text features if there are any."""
    known = [
        split.fingerprint(),
        f"{split.images} x {split.features.shape[1:]}",
        _digest_of(split.gather, split.images),
    ]
    return known if split.text_features is None else [*known, _digest_of(split.gather_texts, len(split))]


def _digest_of(gather: Callable[[np.ndarray], np.ndarray], count: int) -> str:
    digest = hashlib.sha256()
    for first in range(0, count, AT_ONCE):
        digest.update(gather(np.arange(first, min(first + AT_ONCE, count))).data)
    return digest.hexdigest()


def absolute_setting(setting: str) -> str:
    """A setting that names a file, with an absolute path."""
    key = key_of(setting)
    where = given([setting]).get(key) if key in file_keys() else None
    return f"{key}={Path(str(where)).absolute()}" if where else setting


def key_of(setting: str) -> str:
    """The key of a setting `key=value`."""
    return setting.partition("=")[0].strip()
