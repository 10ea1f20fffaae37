"""CLIP and SigLIP of Hugging Face `transformers` as matchers: pixels and a model's own tokens, compared by cosine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crcl.data.text.subwords import Subwords, read_tokenizer
from crcl.errors import InputError
from crcl.features import pretrained
from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.record import MadeFor, MatcherRecord, MatcherSettings

KINDS = {"clip": ("CLIPConfig", "CLIPModel"), "siglip": ("SiglipConfig", "SiglipModel")}
"""Types of models, and their classes in `transformers`."""
PARTS = ("text_config", "vision_config")
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "projection_dim"),
    *("vocab_size", "max_position_embeddings", "projection_size", "num_channels", "image_size", "patch_size"),
)
OTHERS = ("hidden_act", "layer_norm_eps", "attention_dropout", "eos_token_id")
"""All of a model's config that its numbers depend on. Nothing else is kept: some keys fetch code from the hub."""
LARGEST, DEEPEST = 2**20, 1000
_NEEDED = "config.json, tokenizer.json and weights as safetensors are needed"


class Clip(nn.Module):
    """A CLIP or SigLIP model. It begins as it was published; the temperature is the loss's own, not the model's.

    `model` is what `describe` says of one. Weights are put in afterwards, as into every matcher.
    """

    def __init__(self, *, model: dict[str, Any], features: int, vocabulary: int) -> None:
        super().__init__()
        self.side = image_side(model)
        if features != 3 * self.side**2:
            raise InputError(f"model.json: reads {self.side} x {self.side} pixels, not {features} numbers per image")
        if vocabulary > model["text_config"]["vocab_size"]:
            raise InputError(f"model.json: knows {model['text_config']['vocab_size']} tokens, not {vocabulary}")
        self.model = _build(model)
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(not name.startswith("logit_"))
        for part in self.model.modules():  # no weights, so not in the weights' file: they have to be real at once
            for name, buffer in list(part.named_buffers(recurse=False)):
                places = torch.arange(buffer.shape[-1], device="cpu" if buffer.is_meta else buffer.device)
                part.register_buffer(name, places.expand(1, -1), persistent=False)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        pixels = regions.reshape(-1, 3, self.side, self.side)
        return Encoded(l2(_pooled(self.model.get_image_features(pixel_values=pixels))))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        # without a mask: CLIP reads no further than a caption's end, SigLIP learnt on captions padded to one length
        return Encoded(l2(_pooled(self.model.get_text_features(input_ids=tokens))))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


@dataclass(frozen=True)
class Pretrained:
    """A saved model as a matcher needs it."""

    model: dict[str, Any]
    """What it is: see `describe`."""
    words: Subwords
    weights: dict[str, Tensor]
    """Of a `Clip`."""


def load(name: str) -> Pretrained:
    """A model from the folder that it was saved in, or by its name on the hub; weights are taken in float32."""
    safe = pretrained.safe_options(name)
    transformers = pretrained.library(needed_by="matcher clip")
    with pretrained.loading(name, needed=_NEEDED):
        config = transformers.AutoConfig.from_pretrained(name, **safe)
        if config.model_type not in KINDS:
            raise InputError(f"{name}: a model of type '{config.model_type}', expected {' or '.join(KINDS)}")
        model = describe(config, source=name)
        words = _words(name, model, transformers, safe)
        _refuse_more_than_stored(name, model)
        kind = getattr(transformers, KINDS[config.model_type][1])
        loaded, told = kind.from_pretrained(
            name,
            config=_config(model),
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            **safe,
        )
    pretrained.refuse_missing(name, told)
    return Pretrained(model, words, {f"model.{key}": weight for key, weight in loaded.state_dict().items()})


def describe(config: Any, *, source: str) -> dict[str, Any]:
    """A model in plain values: all that its config says and its numbers depend on."""
    parts = {part: _known(getattr(config, part)) for part in PARTS}
    return check({"model_type": config.model_type, **_known(config), **parts}, source=source)


def check(model: Any, *, source: str) -> dict[str, Any]:
    """Refuse what no model can be made of, or none that fits anywhere."""
    if not isinstance(model, dict) or model.get("model_type") not in KINDS:
        raise InputError(f"{source}: not a model of type {' or '.join(KINDS)}")
    known: dict[str, Any] = {"model_type": model["model_type"], "projection_dim": model.get("projection_dim")}
    for part in PARTS:
        values = model.get(part)
        if not isinstance(values, dict):
            raise InputError(f"{source}: no {part}")
        known[part] = {key: value for key, value in values.items() if key in (*SIZES, *OTHERS)}
    for values in (known, *(known[part] for part in PARTS)):
        for key in set(SIZES) & values.keys():
            most = DEEPEST if key == "num_hidden_layers" else LARGEST
            if values[key] is not None and not (type(values[key]) is int and 0 < values[key] <= most):
                raise InputError(f"{source}: {key} is {str(values[key])[:60]}, expected a whole number up to {most}")
    needed = ("text_config", "vocab_size", "max_position_embeddings"), ("vision_config", "image_size", "patch_size")
    for part, *keys in needed:
        if missing := [key for key in keys if known[part].get(key) is None]:
            raise InputError(f"{source}: {part} has no {' and no '.join(missing)}")
        if known[part].get("attention_dropout") not in (None, 0):  # none of the published ones has any
            raise InputError(f"{source}: {part} has an attention_dropout, expected 0")
    sees = known["vision_config"]
    if sees.get("num_channels", 3) != 3 or sees["patch_size"] > sees["image_size"]:
        raise InputError(f"{source}: does not read images of three colours, or none as small as it says")
    return {key: value for key, value in known.items() if value is not None}


def refuse_longer(model: dict[str, Any], words: Subwords, *, source: str) -> None:
    """Stop where captions would be longer than the model has places for."""
    most = model["text_config"]["max_position_embeddings"]
    if words.longest > most:
        raise InputError(f"{source}: captions of up to {words.longest} tokens, but the model reads {most}")


def image_side(model: dict[str, Any]) -> int:
    """Pixels along one side of the images that a model reads."""
    return int(model["vision_config"]["image_size"])


def _known(config: Any) -> dict[str, Any]:
    return {key: getattr(config, key) for key in (*SIZES, *OTHERS) if hasattr(config, key)}


def _config(model: dict[str, Any]) -> Any:
    """The config of `transformers` for a model that was described."""
    transformers = pretrained.library(needed_by="matcher clip")
    rest = {key: value for key, value in model.items() if key != "model_type"}
    return getattr(transformers, KINDS[model["model_type"]][0])(**rest, attn_implementation="sdpa")


def _build(model: dict[str, Any]) -> Any:
    transformers = pretrained.library(needed_by="matcher clip")
    with pretrained.loading("the model", needed="its description does not make sense"):
        return getattr(transformers, KINDS[model["model_type"]][1])(_config(model))


def _pooled(output: Any) -> Tensor:
    """The vectors; some versions of `transformers` give them alone."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _words(name: str, model: dict[str, Any], transformers: Any, safe: dict[str, Any]) -> Subwords:
    """The model's tokenizer; SigLIP wants short captions filled up."""
    options = {"local_files_only": safe["local_files_only"]}
    content = read_tokenizer(transformers.utils.cached_file(name, "tokenizer.json", **options))
    text = model["text_config"]
    pad = None
    if model["model_type"] == "siglip":
        pad = _pad_token(read_tokenizer(transformers.utils.cached_file(name, "tokenizer_config.json", **options)))
        if pad is None:
            raise InputError(f"{name}: tokenizer_config.json names no pad_token")
    words = Subwords.of_model(
        content, longest=text["max_position_embeddings"], pad=pad, source=f"{name}: tokenizer.json"
    )
    if len(words) > text["vocab_size"]:
        raise InputError(f"{name}: tokenizer.json has tokens up to {len(words) - 1}, the model {text['vocab_size']}")
    return words


def _pad_token(about: Any) -> str | None:
    """A token is written as text, or as an object with its text."""
    token = about.get("pad_token") if isinstance(about, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _refuse_more_than_stored(name: str, model: dict[str, Any]) -> None:
    """Stop before memory is taken for numbers that only the config claims."""
    files = list(Path(name).glob("*.safetensors"))
    if not files:
        return  # on the hub; or there are none, which transformers tells better
    with torch.device("meta"):
        claimed = sum(weight.numel() for weight in _build(model).parameters())
    stored = sum(file.stat().st_size for file in files)
    if claimed > stored:
        raise InputError(f"{name}: config.json claims {claimed:,} weights, but the files hold {stored:,} bytes")


def _make(settings: MatcherSettings, made_for: MadeFor) -> Clip:
    return Clip(
        model=check(made_for.model, source="model.json"),
        features=made_for.sizes["features"],
        vocabulary=made_for.sizes["vocabulary"],
    )


RECORD = MatcherRecord(
    name="clip",
    summary="a published CLIP or SigLIP model, on pixels and its own tokens",
    kind=Clip,
    make=_make,
    published=load,
    fixed_regions=True,
)
