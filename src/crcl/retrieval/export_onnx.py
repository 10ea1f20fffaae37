"""Export of a trained matcher as ONNX graphs, which run without torch.

FOLDER/images.onnx    regions (batch, regions, features), mask (batch, regions) -> vectors (batch, size)
FOLDER/texts.onnx     tokens (batch, words), lengths (batch,) -> vectors (batch, size)
FOLDER/vocab.json     the vocabulary
FOLDER/about.json     description of inputs, outputs and tokenization
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from crcl.config import Config
from crcl.data.text.vocabulary import END, PAD, START, UNK
from crcl.errors import InputError, TrainingError
from crcl.matchers import MATCHERS, Ensemble
from crcl.matchers.base import as_module, eval_mode
from crcl.matchers.ensemble import shares_of
from crcl.matchers.onnx_graphs import GRAPHS, images_graph, texts_graph, vector_size
from crcl.retrieval.export_files import ADVICE, FORMAT, json_bytes, new_folder, refuse_folder
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.vectors import side_by_side
from crcl.runs.folder import Run
from crcl.storage import write_bytes

_REGIONS, _TOKENS = 256, 1024  # limits of the graphs; longer captions must be cut
_TOLERANCE = 1e-4
_INSTEAD = "export without {onnx} to write the weights"


def save_onnx(path: str | Path, output: str | Path, *, overwrite: bool = False) -> float | None:
    """Write a run's matcher as a folder of ONNX graphs.

    Returns the largest difference to torch on random inputs, or None if onnxruntime is not installed.
    """
    output = Path(output).absolute()
    run, config, scorer = open_scorer(path, device="cpu")
    _refuse_matcher(config)
    refuse_folder(output, overwrite=overwrite)
    with new_folder(output) as fresh:
        _write_onnx(fresh, run, config, scorer)
        difference = largest_difference(fresh, scorer, features=run.sizes["features"])
        if difference is not None and not difference < _TOLERANCE:
            raise TrainingError(
                f"{path}: the graphs' vectors differ from torch's by {difference:.1e}, so the graphs were not saved; "
                "please report this with the versions of torch, onnx and onnxruntime"
            )
    return difference


def _write_onnx(folder: Path, run: Run, config: Config, scorer: Scorer) -> None:
    matchers, shares = _networks(scorer), shares_of(scorer.matcher)
    regions = max(_REGIONS, run.sizes["regions"])
    tokens = min(config.data.max_words + 2, _TOKENS)  # <start> and <end>
    scale = None if scorer.standardize is None else (scorer.standardize.mean, scorer.standardize.deviation)
    features, size = run.sizes["features"], vector_size(matchers)
    with eval_mode(scorer.matcher):
        images = images_graph(matchers, shares=shares, features=features, longest=regions, scale=scale)
        texts = texts_graph(matchers, shares=shares, longest=tokens)
    about = {
        "crcl_export": FORMAT,
        "matcher": config.matcher.name,
        "networks": run.networks,
        "members": [
            record.name for matcher in matchers for record in MATCHERS.values() if record.kind is type(matcher)
        ],
        "images.onnx": {
            "regions": f"(batch, regions, {features}) float32, as they are in the features file",
            "mask": f"(batch, regions) bool, true for the real regions of an image: 1 to {regions}",
            "vectors": f"(batch, {size}) float32",
        },
        "texts.onnx": {
            "tokens": "(batch, words) int64, made as below",
            "lengths": f"(batch,) int64, the real tokens of a caption: 1 to {tokens}",
            "vectors": f"(batch, {size}) float32",
        },
        "similarity": "inner product of an image's and a text's vector",
        "max_words": tokens - 2,
        "tokens": [
            "lower-case the caption",
            "cut it into words: nltk.tokenize.destructive.NLTKWordTokenizer().tokenize(caption)",
            f"keep the first {tokens - 2} words",
            f"number them by word2idx of vocab.json; a word that is not there is {UNK}",
            f"put {START} before and {END} behind",
            f"pad with {PAD} to the longest caption of the batch",
        ],
    }
    write_bytes(folder / "images.onnx", images.SerializeToString(), advice=ADVICE)
    write_bytes(folder / "texts.onnx", texts.SerializeToString(), advice=ADVICE)
    write_bytes(folder / "vocab.json", json_bytes(scorer.vocabulary.to_json()), advice=ADVICE)
    write_bytes(folder / "about.json", json_bytes(about), advice=ADVICE)


def largest_difference(folder: str | Path, scorer: Scorer, *, features: int, seed: int = 0) -> float | None:
    """Largest difference of the graphs' vectors to torch's on random inputs of several sizes.

    None if onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    images, texts = (
        onnxruntime.InferenceSession(str(Path(folder) / name), providers=["CPUExecutionProvider"])
        for name in ("images.onnx", "texts.onnx")
    )
    rng = np.random.default_rng(seed)
    largest = 0.0
    for batch, length in ((1, 1), (2, 5), (7, 36), (3, 100)):
        lengths = rng.integers(1, length + 1, batch)
        real = np.arange(length) < lengths[:, None]
        regions = rng.normal(size=(batch, length, features)).astype(np.float32)
        tokens = np.where(real, rng.integers(0, len(scorer.vocabulary), real.shape), PAD)
        if scorer.standardize is not None:
            regions = regions * np.float32(scorer.standardize.deviation) + scorer.standardize.mean
        found = images.run(None, {"regions": regions, "mask": real})[0]
        largest = max(largest, _distance(found, _torch_images(scorer, regions, real)))
        tokens, lengths = tokens[:, : scorer.max_words + 2], lengths.clip(max=scorer.max_words + 2)
        found = texts.run(None, {"tokens": tokens, "lengths": lengths})[0]
        largest = max(largest, _distance(found, _torch_texts(scorer, tokens, lengths)))
    return largest


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def _torch_images(scorer: Scorer, regions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    if scorer.standardize is not None:
        regions = scorer.standardize(regions.copy())
    with eval_mode(scorer.matcher):
        encoded = scorer.matcher.encode_images(torch.from_numpy(regions), torch.from_numpy(mask))
        return side_by_side(scorer.matcher, encoded)


def _torch_texts(scorer: Scorer, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    with eval_mode(scorer.matcher):
        encoded = scorer.matcher.encode_texts(torch.from_numpy(tokens), torch.from_numpy(lengths))
        return side_by_side(scorer.matcher, encoded)


def _networks(scorer: Scorer) -> Sequence[nn.Module]:
    module = as_module(scorer.matcher)
    return list(module.members) if isinstance(module, Ensemble) else [module]


def _refuse_matcher(config: Config) -> None:
    name = config.matcher.name
    record = MATCHERS[name]
    if record.pretrained:
        what = f"{name} is a model of transformers, which other tools turn into graphs"
        raise InputError(what, hint="export without {onnx}")
    if record.reads_vectors:
        raise InputError(f"{name} reads vectors of captions, for which there is no graph", hint=_INSTEAD)
    if record.kind not in GRAPHS:
        able = [other.name for other in MATCHERS.values() if other.kind in GRAPHS]
        raise InputError(
            f"{name} compares the regions of an image with the words of a caption, so neither has a vector of its own; "
            f"there are graphs of {', '.join(able[:-1])} and {able[-1]}",
            hint=_INSTEAD,
        )
    if config.record.meta is not None:
        raise InputError(
            f"the meta-networks of {config.method} judge both vectors together, so no inner product of them is the "
            "similarity; there are graphs for runs of other methods",
            hint=_INSTEAD,
        )
    try:
        import onnx  # noqa: F401 - only to see whether it is installed
    except ImportError as error:
        raise InputError("ONNX graphs need the package onnx", hint="pip install 'crcl[onnx]'") from error
