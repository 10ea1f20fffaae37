"""Imports a published checkpoint or model as a run folder that can be evaluated, audited and trained further."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from crcl.config import Config, load, to_dict
from crcl.data import noise
from crcl.data.pairs import Pairs
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.progress import SILENT, Progress
from crcl.runs.checkpoints import published
from crcl.runs.checkpoints.published import Published
from crcl.runs.folder import Learnt, Run
from crcl.runs.overwriting import refuse_existing
from crcl.training.checks import require_pixels


def import_run(
    checkpoint: str | Path,
    data: Pairs,
    path: str | Path,
    *,
    vocab: str | Path | None = None,
    noise_file: str | Path | None = None,
    method: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Run:
    """Create a run folder from a published checkpoint, or from a saved CLIP or SigLIP model."""
    if not is_model(checkpoint):
        return import_checkpoint(
            checkpoint,
            data,
            path,
            vocab=vocab,
            noise_file=noise_file,
            method=method,
            overwrite=overwrite,
            progress=progress,
        )
    if vocab is not None or noise_file is not None:
        raise InputError(
            "a model brings its own tokens and no mismatches", where=checkpoint, hint="leave out {vocab}, {noise_file}"
        )
    return import_model(str(checkpoint), data, path, method=method, overwrite=overwrite)


def import_checkpoint(
    checkpoint: str | Path,
    data: Pairs,
    path: str | Path,
    *,
    vocab: str | Path | None = None,
    noise_file: str | Path | None = None,
    method: str | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Run:
    """Create a run folder from a published checkpoint.

    Args:
        checkpoint: The checkpoint's file.
        data: The data that it was trained on.
        path: The run folder to create.
        vocab: Its vocabulary; found near the data, if not given.
        noise_file: The index of the mismatches that it was trained with.
        method: The method to train it further with; the one it was trained with, if not given.
        overwrite: Whether to replace an existing run.
        progress: Receives messages.
    """
    refuse_existing(path, overwrite=overwrite)
    found = published.read(checkpoint)
    clean = data.split("train")
    _check_shapes(found, clean, checkpoint)
    words = Path(vocab) if vocab is not None else find_vocabulary(Path(data.name))
    vocabulary = Vocabulary.load(words)
    masked = _knows_mask(found, vocabulary, checkpoint, words)
    index = None if noise_file is None else noise.read_index(noise_file)
    pairs = clean if index is None else noise.apply(clean, index)
    _check_beliefs(found, pairs, checkpoint)
    layout = found.layout
    if layout == "SGRAF or RCL":
        layout = "RCL" if masked else "SGRAF"
    noise_path = None if noise_file is None else Path(noise_file).absolute()
    files = _data_settings(data) | {"data.vocab": words.absolute(), "noise.file": noise_path}
    config = _config(found, layout, method, files)
    if vocab is None:
        progress.note(f"using the vocabulary {words}")
    for note in found.notes:
        progress.note(note)
    return Run.create(
        path,
        config=to_dict(config),
        sizes=_sizes(pairs, words=len(vocabulary), networks=found.networks),
        fingerprint=clean.fingerprint(),
        vocabulary=vocabulary,
        noise=index,
        learnt=Learnt(
            found.weights if masked else _with_mask_row(found.weights),
            None if found.beliefs is None else found.beliefs.astype(np.float32),
        ),
        imported=_describe(Path(checkpoint), found, layout),
        overwrite=overwrite,
    )


def _data_settings(data: Pairs) -> dict[str, Any]:
    """The settings that name the files of the data."""
    if data.location is None:
        raise InputError("the data is in memory only", hint="pass a path as {data}")
    return data.location.absolute().settings()


def _sizes(pairs: Split, *, words: int, networks: int) -> dict[str, int]:
    _, regions, features = pairs.features.shape
    return {
        "pairs": len(pairs),
        "images": pairs.images,
        "regions": regions,
        "features": features,
        "vocabulary": words,
        "networks": networks,
    }


def is_model(name: str | Path) -> bool:
    """Whether this is the folder of a saved model or looks like a name on the hub, and so is not a checkpoint file."""
    path = Path(name)
    hub = len(path.parts) == 2 and not path.parent.exists() and path.suffix not in (".tar", ".pth", ".pt")
    return path.is_dir() or hub


def import_model(
    name: str, data: Pairs, path: str | Path, *, method: str | None = None, overwrite: bool = False
) -> Run:
    """Create a run folder from a saved CLIP or SigLIP model; `data` can be any pairs with pixels as features."""
    refuse_existing(path, overwrite=overwrite)
    matcher, load_model = next((record.name, record.published) for record in MATCHERS.values() if record.published)
    base = {"method": method, "matcher.name": matcher, "matcher.model": name, **_data_settings(data)}
    config = load(base={key: value for key, value in base.items() if value is not None})
    found = load_model(name)
    pairs = data.split("train" if "train" in data.splits else data.splits[0])
    require_pixels(config, pairs, found)
    return Run.create(
        path,
        config=to_dict(config),
        sizes=_sizes(pairs, words=len(found.words), networks=1),
        fingerprint=pairs.fingerprint(),
        vocabulary=found.words,
        model=found.model,
        learnt=Learnt(found.weights),
        imported=f"{Path(name).name} ({found.model['model_type']}, not trained here)",
        overwrite=overwrite,
    )


def find_vocabulary(data: Path) -> Path:
    """Find the vocabulary in the data's folder, next to it, or in a folder `vocab` there.

    Of several vocabularies the one named after the data is chosen.
    """
    folders = [data.parent, data.parent / "vocab"] if data.is_file() else [data, data.parent, data.parent / "vocab"]
    near = [file for folder in folders for file in sorted(folder.glob("*vocab*.json")) if file.is_file()]
    chosen = [file for file in near if file.name == f"{data.stem}_vocab.json"] or near
    if len(chosen) == 1:
        return chosen[0]
    found = f"several vocabularies: {', '.join(map(str, chosen[:10]))}" if chosen else "no vocabulary"
    raise InputError(
        f"found {found} near the data", where=data, hint="pass the one the checkpoint was trained with as {vocab}"
    )


def _check_shapes(found: Published, pairs: Split, checkpoint: str | Path) -> None:
    _, regions, size = pairs.features.shape
    if size != found.sizes["features"]:
        raise InputError(
            f"{size} numbers per region, but {checkpoint} was trained on {found.sizes['features']}", where=pairs.source
        )
    if regions != found.sizes.get("regions", regions):
        raise InputError(
            f"{regions} regions per image, but {checkpoint} ({found.matcher}) was trained on {found.sizes['regions']}",
            where=pairs.source,
        )


def _knows_mask(found: Published, vocabulary: Vocabulary, checkpoint: str | Path, words: Path) -> bool:
    """Whether the checkpoint's word embeddings include `<mask>`; refuses a vocabulary of another size."""
    rows = found.sizes["vocabulary"]
    if rows == len(vocabulary):
        return True
    if rows == len(vocabulary) - 1 and vocabulary.mask == rows:
        return False
    raise InputError(
        f"trained with {rows} words, but {words} has {len(vocabulary)} with <mask> and {len(vocabulary) - 1} without",
        where=checkpoint,
        hint="pass its own vocabulary as {vocab}",
    )


def _with_mask_row(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Add an embedding of `<mask>`, the mean of all words, so that the matcher can be trained with masked words.

    No caption contains this word, so no similarity changes.
    """
    return {
        name: torch.cat([value, value.mean(0, keepdim=True)]) if name.endswith("txt.embed.weight") else value
        for name, value in weights.items()
    }


def _check_beliefs(found: Published, pairs: Split, checkpoint: str | Path) -> None:
    if found.beliefs is not None and len(found.beliefs) != len(pairs):
        raise InputError(
            f"correspondences of {len(found.beliefs)} pairs, but {pairs.source} has {len(pairs)} to train on",
            where=checkpoint,
        )


def _config(found: Published, layout: str, method: str | None, files: dict[str, Any]) -> Config:
    if method in METHODS and METHODS[method].meta is not None:
        what = "its networks end in a meta-network, which no such checkpoint has"
        raise InputError(what, where=f"method {method}")
    trained_by, settings = next(
        (record.name, record.checkpoints[layout]) for record in METHODS.values() if layout in record.checkpoints
    )
    base: dict[str, Any] = {
        "method": method or trained_by,
        "matcher.name": found.matcher,
        **{f"matcher.{key}": value for key, value in found.options.items()},
        **{f"matcher.{key}": found.sizes[key] for key in ("embedding", "word", "similarity") if key in found.sizes},
        **{key: str(value) for key, value in files.items() if value is not None},
        **settings,
    }
    return load(base=base)


def _describe(checkpoint: Path, found: Published, layout: str) -> str:
    """The checkpoint's file name and layout, its number of networks, epoch and dev rSum."""
    parts = [f"{checkpoint.name} ({layout})"]
    if found.networks > 1:
        parts.append(f"{found.networks} networks")
    if found.epoch is not None:
        parts.append(f"epoch {found.epoch}")
    if found.rsum is not None:
        parts.append(f"dev rSum {found.rsum:.1f}")
    return ", ".join(parts)
