"""Export of a trained matcher: its weights in one safetensors file, or ONNX graphs that run without torch.

FILE.safetensors      the weights, the features' scale, and in the metadata config and sizes
FILE.vocab.json       its words, in the field's layout

FOLDER/config.json    of a fine-tuned CLIP or SigLIP: what it is, as `transformers` reads it
FOLDER/model.safetensors, tokenizer.json, tokenizer_config.json, about.json

FOLDER/images.onnx    regions (batch, regions, features), mask (batch, regions) -> vectors (batch, size)
FOLDER/texts.onnx     tokens (batch, words), lengths (batch,) -> vectors (batch, size)
FOLDER/vocab.json     the words
FOLDER/about.json     what goes in, what comes out, and how tokens are made
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from crcl.config import Config, file_keys, from_dict
from crcl.data.batches import Standardize
from crcl.data.text.subwords import Subwords
from crcl.data.text.vocabulary import END, PAD, START, UNK, Vocabulary
from crcl.errors import InputError, TrainingError
from crcl.matchers import MATCHERS, Encoded, Ensemble, Matcher
from crcl.matchers.base import as_module, scoring
from crcl.matchers.onnx_graphs import GRAPHS, images_graph, texts_graph
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.runs.folder import Run, valid_sizes
from crcl.runs.restore import restored_matcher
from crcl.storage import replacing_folder, write_bytes

FORMAT = 1
_ADVICE = "make room and export again"
_FOLDERS = ("data.path", "matcher.model", "train.start")
_SCALE = ("standardize.mean", "standardize.deviation")
_REGIONS, _TOKENS = 256, 1024  # images may have more regions than in training, captions are cut
_TOLERANCE = 1e-4


def save_weights(path: str | Path, output: str | Path, *, overwrite: bool = False) -> Path:
    """Write a run's matcher to a `.safetensors` file, and its words beside it; gives the file of words."""
    output = Path(output)
    words = _words_beside(output)
    run, _, scorer = open_scorer(path, device="cpu")
    if run.model() is not None:
        raise InputError(f"{path}: a published model is exported as a folder, which transformers reads; give its name")
    vocabulary = _json_bytes(scorer.vocabulary.to_json())
    _refuse_file(output, words, vocabulary, overwrite=overwrite)
    weights = {name: value.contiguous() for name, value in as_module(scorer.matcher).state_dict().items()}
    if scorer.standardize is not None:
        scale = torch.from_numpy(scorer.standardize.mean), torch.tensor(scorer.standardize.deviation)
        weights |= dict(zip(_SCALE, scale, strict=True))
    about = {
        "crcl_export": str(FORMAT),
        "matcher": run.config["matcher"]["name"],
        "networks": str(run.networks),
        "config": json.dumps(_without_folders(run.config)),
        "sizes": json.dumps(run.sizes),
    }
    _make_folder(output.parent)
    write_bytes(words, vocabulary, advice=_ADVICE)
    write_bytes(output, safetensors.torch.save(weights, metadata=about), advice=_ADVICE)
    return words


def load_weights(path: str | Path) -> Scorer:
    """The matcher of a file that `save_weights` wrote, ready to score."""
    path = Path(path)
    about, weights = _read_weights(path)
    try:
        if about.get("crcl_export") != str(FORMAT):
            raise InputError(f"{path}: not an export of crcl of format {FORMAT}; `crcl export RUN -o FILE` makes one")
        config, sizes = json.loads(about["config"]), json.loads(about["sizes"])
    except (KeyError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged metadata ({type(error).__name__}); export again") from error
    if not valid_sizes(sizes):
        raise InputError(f"{path}: damaged metadata (sizes); export again")
    chosen = from_dict(config, source=str(path))
    standardize = _scale_of(path, weights, sizes["features"])
    if MATCHERS[chosen.matcher.name].pretrained:
        raise InputError(f"{path}: damaged metadata (matcher); export again")
    vocabulary = Vocabulary.load(_words_beside(path))
    if len(vocabulary) != sizes["vocabulary"]:
        raise InputError(f"{_words_beside(path)}: {len(vocabulary)} words, {path} has {sizes['vocabulary']}")
    matcher = restored_matcher(chosen, sizes, weights, str(path))
    return Scorer(cast(Matcher, matcher), vocabulary, standardize, chosen.data.max_words)


def save_model(path: str | Path, output: str | Path, *, overwrite: bool = False) -> None:
    """Write a run's CLIP or SigLIP as a folder that `from_pretrained` of `transformers` and `crcl import` read."""
    output = Path(output).absolute()
    run, config, scorer = open_scorer(path, device="cpu")
    if run.networks > 1 or not isinstance(scorer.vocabulary, Subwords):
        raise InputError(f"{path}: {config.method} trained {run.networks} networks; a folder holds one model")
    _refuse_folder(output, overwrite=overwrite)
    weights = as_module(scorer.matcher).state_dict()
    plain = {name.removeprefix("model."): value.contiguous() for name, value in weights.items()}
    padding = scorer.vocabulary.content.get("padding")
    reading = {"model_max_length": scorer.vocabulary.longest} | ({"pad_token": padding["pad_token"]} if padding else {})
    files = {
        "about.json": {"crcl_export": FORMAT, "matcher": config.matcher.name, "config": _without_folders(run.config)},
        "config.json": run.model(),
        "tokenizer.json": scorer.vocabulary.to_json(),
        "tokenizer_config.json": reading,
    }
    with _replacing(output) as fresh:
        for name, content in files.items():
            write_bytes(fresh / name, _json_bytes(content), advice=_ADVICE)
        weights_of = safetensors.torch.save(plain, metadata={"format": "pt"})
        write_bytes(fresh / "model.safetensors", weights_of, advice=_ADVICE)


def save_onnx(path: str | Path, output: str | Path, *, overwrite: bool = False) -> float | None:
    """Write a run's matcher as a folder of ONNX graphs.

    Gives the largest difference to torch on random inputs, or None where onnxruntime is not installed to compare.
    """
    output = Path(output).absolute()
    run, config, scorer = open_scorer(path, device="cpu")
    _refuse_matcher(config)
    _refuse_folder(output, overwrite=overwrite)
    with _replacing(output) as fresh:
        _write_onnx(fresh, run, config, scorer)
        difference = largest_difference(fresh, scorer, features=run.sizes["features"])
        if difference is not None and not difference < _TOLERANCE:
            raise TrainingError(
                f"{path}: the graphs' vectors differ from torch's by {difference:.1e}, so they were not kept; "
                "please report this with the versions of torch, onnx and onnxruntime"
            )
    return difference


@contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    _make_folder(output.parent)
    try:
        with replacing_folder(output, busy="another process is at work there") as fresh:
            yield fresh
    except OSError as error:
        raise TrainingError(f"could not save {output}: {error.strerror or error}; {_ADVICE}") from error


def _write_onnx(folder: Path, run: Run, config: Config, scorer: Scorer) -> None:
    matchers = _networks(scorer)
    regions = max(_REGIONS, run.sizes["regions"])
    tokens = min(config.data.max_words + 2, _TOKENS)  # <start> and <end>
    scale = None if scorer.standardize is None else (scorer.standardize.mean, scorer.standardize.deviation)
    features, embedding = run.sizes["features"], config.matcher.embedding
    with scoring(scorer.matcher):
        images = images_graph(matchers, features=features, embedding=embedding, longest=regions, scale=scale)
        texts = texts_graph(matchers, embedding=embedding, longest=tokens)
    about = {
        "crcl_export": FORMAT,
        "matcher": config.matcher.name,
        "networks": run.networks,
        "images.onnx": {
            "regions": f"(batch, regions, {features}) float32, as they are in the features file",
            "mask": f"(batch, regions) bool, true for the real regions of an image: 1 to {regions}",
            "vectors": f"(batch, {embedding * run.networks}) float32",
        },
        "texts.onnx": {
            "tokens": "(batch, words) int64, made as below",
            "lengths": f"(batch,) int64, the real tokens of a caption: 1 to {tokens}",
            "vectors": f"(batch, {embedding * run.networks}) float32",
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
    write_bytes(folder / "images.onnx", images.SerializeToString(), advice=_ADVICE)
    write_bytes(folder / "texts.onnx", texts.SerializeToString(), advice=_ADVICE)
    write_bytes(folder / "vocab.json", _json_bytes(scorer.vocabulary.to_json()), advice=_ADVICE)
    write_bytes(folder / "about.json", _json_bytes(about), advice=_ADVICE)


def largest_difference(folder: str | Path, scorer: Scorer, *, features: int, seed: int = 0) -> float | None:
    """How far the graphs' vectors are from torch's on random inputs of several sizes; None without onnxruntime."""
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
    with scoring(scorer.matcher):
        return _vectors(scorer.matcher.encode_images(torch.from_numpy(regions), torch.from_numpy(mask)))


def _torch_texts(scorer: Scorer, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    with scoring(scorer.matcher):
        return _vectors(scorer.matcher.encode_texts(torch.from_numpy(tokens), torch.from_numpy(lengths)))


def _vectors(encoded: Encoded) -> np.ndarray:
    """One vector each; those of several networks one after the other, so that inner products are the mean of theirs."""
    parts = [part.features for part in encoded.members or (encoded,)]
    return (torch.cat(parts, dim=1) / len(parts) ** 0.5).numpy()


def _networks(scorer: Scorer) -> Sequence[nn.Module]:
    module = as_module(scorer.matcher)
    return list(module.members) if isinstance(module, Ensemble) else [module]


def _refuse_matcher(config: Config) -> None:
    name = config.matcher.name
    record = MATCHERS[name]
    if record.pretrained:
        raise InputError(f"--onnx: {name} is a model of transformers, which other tools turn into graphs; leave it out")
    if record.reads_vectors:
        raise InputError(
            f"--onnx: {name} reads vectors of captions, for which there is no graph. Without --onnx the weights are "
            "written"
        )
    if record.kind not in GRAPHS:
        able = [other.name for other in MATCHERS.values() if other.kind in GRAPHS]
        raise InputError(
            f"--onnx: {name} compares the regions of an image with the words of a caption, so neither has a vector of "
            f"its own; it can be done for {' and '.join(able)}. Without --onnx the weights are written"
        )
    if config.record.meta is not None:
        raise InputError(
            f"--onnx: the meta-networks of {config.method} judge both vectors together, so no inner product of them is "
            "the similarity; it can be done for runs of other methods. Without --onnx the weights are written"
        )
    try:
        import onnx  # noqa: F401 - is it there?
    except ImportError as error:
        raise InputError("--onnx needs the package onnx: pip install 'crcl[onnx]'") from error


def _refuse_file(output: Path, words: Path, vocabulary: bytes, *, overwrite: bool) -> None:
    """Stop before a file is lost that is not an export; words that are there already may stay."""
    if output.exists():
        if not overwrite:
            raise InputError(f"{output}: exists already; replace it by --overwrite, or name another file")
        if not output.is_file() or "crcl_export" not in _read_weights(output, tensors=False)[0]:
            raise InputError(f"{output}: not an export, so it is not overwritten; name another file")
    elif words.exists() and not (words.is_file() and words.read_bytes() == vocabulary):
        raise InputError(f"{words}: would hold the words, but is there already; name another file")


def _refuse_folder(output: Path, *, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{output}: exists already; replace it by --overwrite, or name another folder")
    try:
        about = json.loads((output / "about.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or "crcl_export" not in about:
        raise InputError(f"{output}: not an export, so it is not overwritten; name another folder")


def _words_beside(path: Path) -> Path:
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: weights are written as .safetensors; with --onnx a folder of graphs is written")
    return path.with_suffix(".vocab.json")


def _read_weights(path: Path, *, tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
            return file.metadata() or {}, weights
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a whole safetensors file ({error})") from error


def _scale_of(path: Path, weights: dict[str, Tensor], features: int) -> Standardize | None:
    """Take the features' scale out of the weights."""
    mean, deviation = (weights.pop(name, None) for name in _SCALE)
    if mean is None or deviation is None:
        return None
    if mean.dtype != torch.float32 or mean.shape != (features,) or deviation.shape != ():
        raise InputError(f"{path}: damaged (not a mean of {features} numbers and a deviation); export again")
    return Standardize(mean.numpy(), float(deviation))


def _without_folders(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the names of files alone: folders of a machine are nobody's business."""
    plain = dict(config)
    for key in (*file_keys(), *_FOLDERS):
        section, _, leaf = key.partition(".")
        values = plain.get(section, {})
        if values.get(leaf):
            plain[section] = values | {leaf: Path(values[leaf]).name}
    return plain


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
