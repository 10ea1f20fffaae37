"""Loading models of Hugging Face `transformers` safely: weights from safetensors files only, no code of a model."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crcl.errors import InputError, TrainingError

EXTRA = "pip install 'crcl[transformers]'"


def library(*, needed_by: str) -> Any:
    """Import `transformers`, an optional dependency, and silence its log and progress bars."""
    try:
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        raise InputError(f"{needed_by} needs the package transformers", hint=EXTRA) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def safe_options(name: str, *, download: bool = True) -> dict[str, Any]:
    """Arguments for every `from_pretrained` of a folder or of a name on the hub; they never run code.

    Without `download` a name on the hub is read from the local cache, and nothing goes over the network.
    """
    local = Path(name).is_dir()
    if not local and (Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise InputError("no such folder", where=name, hint="name the folder of a saved model, or a model on the hub")
    return {"trust_remote_code": False, "local_files_only": local or not download}


@contextmanager
def loading(name: str, *, needed: str) -> Iterator[None]:
    """Turn any error that `transformers` raises for a bad folder into an InputError; `needed` is its hint."""
    try:
        yield
    except (InputError, TrainingError):
        raise
    except MemoryError as error:
        raise TrainingError(f"{name}: not enough memory for the model") from error
    except Exception as error:
        raise InputError(f"cannot be loaded ({short(error)})", where=name, hint=needed) from error


def refuse_missing(name: str, info: dict[str, Any]) -> None:
    """Raise an error if weights are missing, which would be random; `info` is the loading info of `from_pretrained`."""
    if missing := sorted([*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])]):
        more = ", ..." if len(missing) > 3 else ""
        raise InputError(f"weights are missing or misshapen: {', '.join(missing[:3])}{more}", where=name)


def fingerprint(model: Any, *others: Any, without: str | None = None) -> str:
    """A hash of all that a model's output depends on: class, config and weights, and plain values of other parts.

    Weights whose names begin with `without` are left out.
    """
    config = model.config.to_dict()
    for key in ("_name_or_path", "transformers_version", "architectures", "dtype"):
        config.pop(key, None)
    about = [type(model).__name__, config, *others]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for key, value in sorted(model.state_dict().items()):
        if without is None or not key.startswith(without):
            digest.update(f"{key} {tuple(value.shape)}\n".encode())
            digest.update(value.contiguous().numpy())
    return digest.hexdigest()


def read_json(name: str, file: str, safe: dict[str, Any]) -> Any:
    """The content of a JSON file of a model, by its folder or its name on the hub; None if it has no such file."""
    transformers = library(needed_by="a model")
    try:
        path = transformers.utils.cached_file(name, file, local_files_only=safe["local_files_only"])
    except OSError:
        return None
    try:
        return None if path is None else json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"not a JSON file ({short(error)})", where=f"{name}: {file}") from error


LARGEST, DEEPEST = 2**24, 1000
"""The largest number in a model's config, and the most layers; no published model is near either."""


def read_config(name: str, safe: dict[str, Any]) -> Any:
    """The config of a model; refuses sizes that no model has, before `transformers` makes room for them."""
    content = read_json(name, "config.json", safe)
    sections = [content] if isinstance(content, dict) else []
    for section in sections:  # grows by what is nested in it
        for key, value in section.items():
            if isinstance(value, dict):
                sections.append(value)
            most = DEEPEST if key.endswith("layers") or key == "depth" else LARGEST
            if isinstance(value, int) and value > most:
                what = f"config.json: {key[:60]} is {str(value)[:20]}, expected at most {most:,}"
                raise InputError(what, where=name)
    return library(needed_by="a model").AutoConfig.from_pretrained(name, **safe)


def short(error: Exception) -> str:
    """The message of an error in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
