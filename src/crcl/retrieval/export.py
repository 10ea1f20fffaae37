"""Export of a trained matcher's weights: a safetensors file, or a folder that `transformers` reads.

FILE.safetensors      the weights and the features' scale, with config and sizes as metadata
FILE.vocab.json       the vocabulary, in the usual layout

FOLDER/config.json    config of a fine-tuned CLIP or SigLIP for `transformers`
FOLDER/model.safetensors, tokenizer.json, tokenizer_config.json, about.json
"""

import json
from pathlib import Path
from typing import cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from crcl.config import from_dict
from crcl.data.batches import Standardize
from crcl.data.text.subwords import Subwords
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.matchers import MATCHERS, Matcher
from crcl.matchers.base import as_module
from crcl.retrieval.export_files import (
    ADVICE,
    FORMAT,
    json_bytes,
    make_folder,
    new_folder,
    refuse_folder,
    without_folders,
)
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.runs.about import valid_sizes
from crcl.runs.restore import restored_matcher
from crcl.storage import write_bytes

_SCALE = ("standardize.mean", "standardize.deviation")


def save_weights(path: str | Path, output: str | Path, *, overwrite: bool = False) -> Path:
    """Write a run's matcher to a `.safetensors` file and its vocabulary next to it; returns the vocabulary's path."""
    output = Path(output)
    words = _words_beside(output)
    run, _, scorer = open_scorer(path, device="cpu")
    if run.model() is not None:
        what = "a fine-tuned published model is exported as a folder for transformers"
        raise InputError(what, where=path, hint="name a folder")
    vocabulary = json_bytes(scorer.vocabulary.to_json())
    _refuse_file(output, words, vocabulary, overwrite=overwrite)
    weights = {name: value.contiguous() for name, value in as_module(scorer.matcher).state_dict().items()}
    if scorer.standardize is not None:
        scale = torch.from_numpy(scorer.standardize.mean), torch.tensor(scorer.standardize.deviation)
        weights |= dict(zip(_SCALE, scale, strict=True))
    about = {
        "crcl_export": str(FORMAT),
        "matcher": run.config["matcher"]["name"],
        "networks": str(run.networks),
        "config": json.dumps(without_folders(run.config)),
        "sizes": json.dumps(run.sizes),
    }
    make_folder(output.parent)
    write_bytes(words, vocabulary, advice=ADVICE)
    write_bytes(output, safetensors.torch.save(weights, metadata=about), advice=ADVICE)
    return words


def load_weights(path: str | Path) -> Scorer:
    """Load the matcher from a file that `save_weights` wrote, ready to score."""
    path = Path(path)
    about, weights = _read_weights(path)
    try:
        if about.get("crcl_export") != str(FORMAT):
            what = f"not an export of crcl in format {FORMAT}"
            raise InputError(what, where=path, hint="{export()} makes one")
        config, sizes = json.loads(about["config"]), json.loads(about["sizes"])
    except (KeyError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise _damaged(path, type(error).__name__) from error
    if not valid_sizes(sizes):
        raise _damaged(path, "sizes")
    chosen = from_dict(config, source=str(path))
    standardize = _scale_of(path, weights, sizes["features"])
    if MATCHERS[chosen.matcher.name].pretrained:
        raise _damaged(path, "matcher")
    vocabulary = Vocabulary.load(_words_beside(path))
    if len(vocabulary) != sizes["vocabulary"]:
        what = f"{len(vocabulary)} words, {path} has {sizes['vocabulary']}"
        raise InputError(what, where=_words_beside(path))
    matcher = restored_matcher(chosen, sizes, weights, str(path))
    return Scorer(cast(Matcher, matcher), vocabulary, standardize, chosen.data.max_words)


def save_model(path: str | Path, output: str | Path, *, overwrite: bool = False) -> None:
    """Write a run's CLIP or SigLIP as a folder for `from_pretrained` of `transformers` and `crcl.import_checkpoint`."""
    output = Path(output).absolute()
    run, config, scorer = open_scorer(path, device="cpu")
    if run.networks > 1 or not isinstance(scorer.vocabulary, Subwords):
        what = f"{config.method} trained {run.networks} networks, but a folder holds one model"
        raise InputError(what, where=path)
    refuse_folder(output, overwrite=overwrite)
    weights = as_module(scorer.matcher).state_dict()
    plain = {name.removeprefix("model."): value.contiguous() for name, value in weights.items()}
    padding = scorer.vocabulary.content.get("padding")
    reading = {"model_max_length": scorer.vocabulary.longest} | ({"pad_token": padding["pad_token"]} if padding else {})
    files = {
        "about.json": {"crcl_export": FORMAT, "matcher": config.matcher.name, "config": without_folders(run.config)},
        "config.json": run.model(),
        "tokenizer.json": scorer.vocabulary.to_json(),
        "tokenizer_config.json": reading,
    }
    with new_folder(output) as fresh:
        for name, values in files.items():
            write_bytes(fresh / name, json_bytes(values), advice=ADVICE)
        content = safetensors.torch.save(plain, metadata={"format": "pt"})
        write_bytes(fresh / "model.safetensors", content, advice=ADVICE)


def _refuse_file(output: Path, words: Path, vocabulary: bytes, *, overwrite: bool) -> None:
    """Refuse to overwrite a file that is not an export; an equal vocabulary file may exist."""
    if output.exists():
        if not overwrite:
            raise InputError("exists already", where=output, hint="pass {overwrite}, or name another file")
        if not output.is_file() or "crcl_export" not in _read_weights(output, tensors=False)[0]:
            raise InputError("not an export, so it is not overwritten", where=output, hint="name another file")
    elif words.exists() and not (words.is_file() and words.read_bytes() == vocabulary):
        raise InputError("exists already, and the vocabulary is written here", where=words, hint="name another file")


def _words_beside(path: Path) -> Path:
    if path.suffix != ".safetensors":
        what = "weights are written as .safetensors"
        raise InputError(what, where=path, hint="name such a file, or pass {onnx} for a folder of graphs")
    return path.with_suffix(".vocab.json")


def _read_weights(path: Path, *, tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise InputError("no such file", where=path)
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
            return file.metadata() or {}, weights
    except (SafetensorError, OSError) as error:
        raise InputError(f"not a complete safetensors file ({error})", where=path) from error


def _scale_of(path: Path, weights: dict[str, Tensor], features: int) -> Standardize | None:
    """Remove the features' scale from the weights and return it."""
    mean, deviation = (weights.pop(name, None) for name in _SCALE)
    if mean is None or deviation is None:
        return None
    if mean.dtype != torch.float32 or mean.shape != (features,) or deviation.shape != ():
        what = f"damaged (not a mean of {features} numbers and a deviation)"
        raise InputError(what, where=path, hint="export again")
    return Standardize(mean.numpy(), float(deviation))


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"damaged metadata ({what})", where=path, hint="export again")
