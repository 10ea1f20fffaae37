"""Encoders of captions that use a model of Hugging Face `transformers`: the text side of CLIP and SigLIP, or a sentence
encoder.

Weights are read from safetensors files only, and code that comes with a model is never run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crcl.data.text.subwords import Subwords
from crcl.errors import InputError
from crcl.features.pretrained import (
    fingerprint,
    library,
    loading,
    read_config,
    read_json,
    refuse_missing,
    safe_options,
    short,
)

KINDS = {
    "clip": ("CLIPTextModelWithProjection", "text_embeds"),
    "clip_text_model": ("CLIPTextModelWithProjection", "text_embeds"),
    "siglip": ("SiglipTextModel", "pooler_output"),
    "siglip_text_model": ("SiglipTextModel", "pooler_output"),
}
"""Model types with a text side of their own: the class in `transformers`, and the output with a caption's vector."""
_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "longformer")
"""Model types whose first positions are taken."""
_UNLIMITED = 512  # tokens to read of a caption if a model names no limit
_MODULES = ("Transformer", "Pooling", "Normalize")
_NEEDED = "config.json, tokenizer.json and weights as safetensors are needed"
_POOLER = "pooler."  # weights that a mean over tokens does not use; many models come without them


@dataclass(frozen=True)
class _Reading:
    """How a model reads a caption."""

    longest: int
    """Tokens that it reads."""
    pooling: Literal["own", "mean", "cls"]
    """Its own vector, the mean of its tokens' vectors, or that of the first token."""
    pad: str | None = None
    """Token that all captions are padded with to one length; None: they are padded within a batch."""
    lower: bool = False
    """Whether captions are lowercased first."""


class LanguageModel:
    """Encoder of captions, given by a model's folder or its name on the hub. Vectors have length 1."""

    def __init__(self, name: str, *, device: torch.device | str = "cpu", download: bool = True) -> None:
        self.title, self.device = name, torch.device(device)
        self.output, self.model, self.words, self.reading = _load(name, download=download)
        self.longest = self.reading.longest
        self.settings = {
            "encoder": "language model",
            "model": fingerprint(
                self.model,
                self.words.to_json(),
                vars(self.reading),
                without=None if self.reading.pooling == "own" else _POOLER,
            ),
            "version": 1,
        }
        self.model.to(self.device).eval()
        self._try()

    def tokenize(self, texts: Sequence[str]) -> list[tuple[list[int], bool]]:
        """For each text, its token ids and whether it is longer than the model reads."""
        read = [text.lower() for text in texts] if self.reading.lower else texts
        return list(self.words.encode_each(read))

    @torch.inference_mode()
    def compute(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors of a batch of texts. (K, D)"""
        width = max(len(ids) for ids in tokens)
        padded = torch.tensor([[*ids, *[ids[-1]] * (width - len(ids))] for ids in tokens], device=self.device)
        if self.reading.pooling == "own":
            # no mask: CLIP ignores what follows a caption's end, SigLIP was trained on captions of one length
            vectors = self.model(input_ids=padded)[self.output]
        else:
            lengths = torch.tensor([len(ids) for ids in tokens], device=self.device)
            mask = (torch.arange(width, device=self.device) < lengths[:, None]).long()
            vectors = _pool(self.model(input_ids=padded, attention_mask=mask)[self.output], mask, self.reading.pooling)
        return nn.functional.normalize(vectors.float(), dim=-1).cpu().numpy()

    def _try(self) -> None:
        """Run the model once, on a caption as long as it reads, to raise an error before long work."""
        try:
            tokens = [ids for ids, _ in self.tokenize(["a dog on the grass. " * self.longest, "a dog"])]
            vectors = self.compute(tokens)
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            if isinstance(error, InputError | torch.cuda.OutOfMemoryError):
                raise
            raise InputError(f"does not work on a caption ({short(error)})", where=self.title) from error
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise InputError("gives no finite vectors of captions", where=self.title)


def has_text_side(name: str) -> bool:
    """Whether a vision model has a text side, so that its vectors of images and captions can be compared."""
    safe = safe_options(name)
    with loading(name, needed="config.json is needed"):
        return read_config(name, safe).model_type in ("clip", "siglip")


def _pool(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector of each caption, (K, D), from the vectors of its tokens, (K, W, D)."""
    if pooling == "cls":
        return states[:, 0]
    real = mask[..., None].to(states)
    return (states * real).sum(1) / real.sum(1)


def _load(name: str, *, download: bool) -> tuple[str, Any, Subwords, _Reading]:
    """The output to use, the model in float32, its tokenizer, and how it reads captions."""
    safe = safe_options(name, download=download)
    transformers = library(needed_by="vectors of captions")
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True, **safe}
    with loading(name, needed=_NEEDED):
        config = read_config(name, safe)
        kind = KINDS.get(config.model_type)
        reading = _of_sentences(name, config, safe) if kind is None else _of_model(name, config, safe)
        words = _words(name, reading, safe)
        if kind is None:
            output = "last_hidden_state"
            # a config may name an attention implementation on the hub, which is code
            model, info = transformers.AutoModel.from_pretrained(name, attn_implementation="eager", **options)
            info = {**info, "missing_keys": {key for key in info["missing_keys"] if not key.startswith(_POOLER)}}
        else:
            class_name, output = kind
            model, info = getattr(transformers, class_name).from_pretrained(
                name, config=_text_config(config), attn_implementation="sdpa", **options
            )
        vocabulary = model.get_input_embeddings().num_embeddings
    refuse_missing(name, info)
    if len(words) > vocabulary:
        what = f"tokenizer.json has tokens up to {len(words) - 1}, but the model knows {vocabulary}"
        raise InputError(what, where=name)
    return output, model, words, reading


def _text_config(config: Any) -> Any:
    """The config of the text side; it takes the size of CLIP's projection from the whole config."""
    part = getattr(config, "text_config", config)
    if part is not config and hasattr(config, "projection_dim"):
        part.projection_dim = config.projection_dim
    return part


def _of_model(name: str, config: Any, safe: dict[str, Any]) -> _Reading:
    """How the text side of CLIP or SigLIP reads captions; SigLIP's are padded to one length."""
    longest = int(_text_config(config).max_position_embeddings)
    if not config.model_type.startswith("siglip"):
        return _Reading(longest, "own")
    about = read_json(name, "tokenizer_config.json", safe)
    token = about.get("pad_token") if isinstance(about, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    if not isinstance(token, str):
        raise InputError("tokenizer_config.json names no pad_token", where=name)
    return _Reading(longest, "own", pad=token)


def _of_sentences(name: str, config: Any, safe: dict[str, Any]) -> _Reading:
    """How a sentence encoder reads captions: by its files for `sentence-transformers`, or the mean of the tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and config.model_type in _OFFSET:
        positions -= (config.pad_token_id or 0) + 1
    own, about = (read_json(name, file, safe) for file in ("sentence_bert_config.json", "tokenizer_config.json"))
    own, about = (content if isinstance(content, dict) else {} for content in (own, about))
    limits = (positions, own.get("max_seq_length"), about.get("model_max_length"))
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < 2**16]
    pooling = _pooling(name, read_json(name, "modules.json", safe), safe)
    return _Reading(min(known, default=_UNLIMITED), pooling, lower=own.get("do_lower_case") is True)


def _pooling(name: str, modules: Any, safe: dict[str, Any]) -> Literal["mean", "cls"]:
    """How `sentence-transformers` pools the tokens of this model: by their mean, or by taking the first one."""
    if modules is None:
        return "mean"
    parts = modules if isinstance(modules, list) and all(isinstance(part, dict) for part in modules) else []
    kinds = [str(part.get("type", "")).rpartition(".")[2] for part in parts]
    folders = [part.get("path", "") for part in parts]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds) <= {*_MODULES} or folders[0]:
        what = f"modules.json has {', '.join(kinds)[:200] or 'no modules'}; expected {', '.join(_MODULES)}"
        raise InputError(what, where=name, hint="name another {text_model}")
    if not isinstance(folders[1], str) or not re.fullmatch(r"\w+", folders[1], re.ASCII):
        raise InputError("modules.json names no folder of the pooling", where=name)
    about = read_json(name, f"{folders[1]}/config.json", safe)
    about = about if isinstance(about, dict) else {}
    modes = {key.removeprefix("pooling_mode_") for key, on in about.items() if key.startswith("pooling_mode_") and on}
    modes = modes or {str(about.get("pooling_mode"))}
    if modes in ({"mean_tokens"}, {"mean"}):
        return "mean"
    if modes in ({"cls_token"}, {"cls"}):
        return "cls"
    what = f"pools its tokens by {', '.join(sorted(modes))[:200]}; expected mean or cls"
    raise InputError(what, where=name, hint="name another {text_model}")


def _words(name: str, reading: _Reading, safe: dict[str, Any]) -> Subwords:
    content = read_json(name, "tokenizer.json", safe)
    if content is None:
        raise InputError("has no tokenizer.json", where=name, hint=_NEEDED)
    return Subwords.of_model(content, longest=reading.longest, pad=reading.pad, source=f"{name}: tokenizer.json")
