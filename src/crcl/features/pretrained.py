"""Saved models of Hugging Face `transformers`: weights from safetensors files only, and no code that comes with one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crcl.errors import InputError, TrainingError

EXTRA = "pip install 'crcl[transformers]'"


def library(*, needed_by: str) -> Any:
    """`transformers`, which is an extra, told to be quiet."""
    try:
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        raise InputError(f"{needed_by} needs the package transformers", hint=EXTRA) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def safe_options(name: str) -> dict[str, Any]:
    """What every `from_pretrained` of this folder, or name on the hub, is told."""
    local = Path(name).is_dir()
    if not local and (Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise InputError("no such folder", where=name, hint="give the folder of a saved model, or its name on the hub")
    return {"trust_remote_code": False, "local_files_only": local}


@contextmanager
def loading(name: str, *, needed: str) -> Iterator[None]:
    """A strange folder makes transformers raise anything; here it becomes a message."""
    try:
        yield
    except (InputError, TrainingError):
        raise
    except MemoryError as error:
        raise TrainingError(f"{name}: not enough memory for the model") from error
    except Exception as error:
        raise InputError(f"cannot be loaded ({short(error)})", where=name, hint=needed) from error


def refuse_missing(name: str, told: dict[str, Any]) -> None:
    """Stop where weights would be random; `told` is the loading info of `from_pretrained`."""
    if missing := sorted([*told["missing_keys"], *(str(key) for key in told["mismatched_keys"])]):
        raise InputError(f"weights are missing, {', '.join(missing[:3])} and so on; they would be random", where=name)


def short(error: Exception) -> str:
    """An error in one line, not too long."""
    return " ".join(str(error).split())[:300] or type(error).__name__
