"""CLIP and SigLIP of Hugging Face `transformers` as matchers, on pixels and the model's own tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crcl.data.text.subwords import Subwords, read_tokenizer
from crcl.errors import InputError
from crcl.features import pretrained
from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings

KINDS = {"clip": ("CLIPConfig", "CLIPModel"), "siglip": ("SiglipConfig", "SiglipModel")}
"""Model types, and their classes in `transformers`."""
PARTS = ("text_config", "vision_config")
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "projection_dim"),
    *("vocab_size", "max_position_embeddings", "projection_size", "num_channels", "image_size", "patch_size"),
)
OTHERS = ("hidden_act", "layer_norm_eps", "attention_dropout", "eos_token_id")
"""Keys of a model's config that its outputs depend on. Other keys are dropped: some make `transformers` load code."""
LARGEST, DEEPEST = 2**20, 1000
_NEEDED = "config.json, tokenizer.json and weights as safetensors are needed"


class Clip(nn.Module):
    """A CLIP or SigLIP model, compared by cosine; the temperature is that of the loss, not the model's own.

    `model` is the result of `describe`. The constructor does not load weights; the caller does, as for any matcher.
    """

    def __init__(self, *, model: dict[str, Any], features: int, vocabulary: int) -> None:
        super().__init__()
        self.side = image_side(model)
        if features != 3 * self.side**2:
            what = f"the model reads {self.side} x {self.side} pixels, not {features} numbers per image"
            raise InputError(what, where="model.json")
        if vocabulary > model["text_config"]["vocab_size"]:
            what = f"the model knows {model['text_config']['vocab_size']} tokens, not {vocabulary}"
            raise InputError(what, where="model.json")
        self.model = _build(model)
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(not name.startswith("logit_"))
        for part in self.model.modules():  # position ids are not in the weights' file, so they are computed here
            for name, buffer in list(part.named_buffers(recurse=False)):
                positions = torch.arange(buffer.shape[-1], device="cpu" if buffer.is_meta else buffer.device)
                part.register_buffer(name, positions.expand(1, -1), persistent=False)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        pixels = regions.reshape(-1, 3, self.side, self.side)
        return Encoded(l2(_pooled(self.model.get_image_features(pixel_values=pixels))))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        # no mask: CLIP ignores tokens after a caption's end, SigLIP was trained on captions padded to one length
        return Encoded(l2(_pooled(self.model.get_text_features(input_ids=tokens))))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


@dataclass(frozen=True)
class Pretrained:
    """A published model, loaded for a matcher."""

    model: dict[str, Any]
    """Its description, see `describe`."""
    words: Subwords
    weights: dict[str, Tensor]
    """State dict of a `Clip`."""


def load(name: str) -> Pretrained:
    """Load a model from the folder that it was saved in, or by its name on the hub, with float32 weights."""
    safe = pretrained.safe_options(name)
    transformers = pretrained.library(needed_by="matcher clip")
    with pretrained.loading(name, needed=_NEEDED):
        config = pretrained.read_config(name, safe)
        if config.model_type not in KINDS:
            what = f"a model of type '{config.model_type}', expected {' or '.join(KINDS)}"
            raise InputError(what, where=name)
        model = describe(config, source=name)
        words = _words(name, model, transformers, safe)
        _check_stored_size(name, model)
        kind = getattr(transformers, KINDS[config.model_type][1])
        loaded, loading_info = kind.from_pretrained(
            name,
            config=_config(model),
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            **safe,
        )
    pretrained.refuse_missing(name, loading_info)
    return Pretrained(model, words, {f"model.{key}": weight for key, weight in loaded.state_dict().items()})


def describe(config: Any, *, source: str) -> dict[str, Any]:
    """Description of a model as plain values: the part of its config that its outputs depend on."""
    parts = {part: _known(getattr(config, part)) for part in PARTS}
    return check({"model_type": config.model_type, **_known(config), **parts}, source=source)


def check(model: Any, *, source: str) -> dict[str, Any]:
    """The model's description with known keys only; refuses one with missing or unreasonable values."""
    if not isinstance(model, dict) or model.get("model_type") not in KINDS:
        raise InputError(f"not a model of type {' or '.join(KINDS)}", where=source)
    known: dict[str, Any] = {"model_type": model["model_type"], "projection_dim": model.get("projection_dim")}
    for part in PARTS:
        values = model.get(part)
        if not isinstance(values, dict):
            raise InputError(f"no {part}", where=source)
        known[part] = {key: value for key, value in values.items() if key in (*SIZES, *OTHERS)}
    for values in (known, *(known[part] for part in PARTS)):
        for key in set(SIZES) & values.keys():
            most = DEEPEST if key == "num_hidden_layers" else LARGEST
            if values[key] is not None and not (type(values[key]) is int and 0 < values[key] <= most):
                what = f"{key} is {str(values[key])[:60]}, expected a whole number up to {most}"
                raise InputError(what, where=source)
    needed = ("text_config", "vocab_size", "max_position_embeddings"), ("vision_config", "image_size", "patch_size")
    for part, *keys in needed:
        if missing := [key for key in keys if known[part].get(key) is None]:
            raise InputError(f"{part} has no {' and no '.join(missing)}", where=source)
        if known[part].get("attention_dropout") not in (None, 0):  # no published model has any
            raise InputError(f"{part} has an attention_dropout, expected 0", where=source)
    vision = known["vision_config"]
    if vision.get("num_channels", 3) != 3:
        raise InputError(f"the model reads {vision['num_channels']} colour channels, expected 3", where=source)
    if vision["patch_size"] > vision["image_size"]:
        what = f"patch_size {vision['patch_size']} is larger than image_size {vision['image_size']}"
        raise InputError(what, where=source)
    return {key: value for key, value in known.items() if value is not None}


def check_caption_length(model: dict[str, Any], words: Subwords, *, source: str) -> None:
    """Refuse a tokenizer whose captions may be longer than the model's position embeddings."""
    most = model["text_config"]["max_position_embeddings"]
    if words.longest > most:
        raise InputError(f"captions of up to {words.longest} tokens, but the model reads {most}", where=source)


def image_side(model: dict[str, Any]) -> int:
    """Width and height in pixels of the images that a model reads."""
    return int(model["vision_config"]["image_size"])


def _known(config: Any) -> dict[str, Any]:
    return {key: getattr(config, key) for key in (*SIZES, *OTHERS) if hasattr(config, key)}


def _config(model: dict[str, Any]) -> Any:
    """The config object of `transformers` for a model's description."""
    transformers = pretrained.library(needed_by="matcher clip")
    rest = {key: value for key, value in model.items() if key != "model_type"}
    return getattr(transformers, KINDS[model["model_type"]][0])(**rest, attn_implementation="sdpa")


def _build(model: dict[str, Any]) -> Any:
    transformers = pretrained.library(needed_by="matcher clip")
    with pretrained.loading("the model", needed="its description does not make sense"):
        return getattr(transformers, KINDS[model["model_type"]][1])(_config(model))


def _pooled(output: Any) -> Tensor:
    """The pooled vectors; some versions of `transformers` return these alone."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _words(name: str, model: dict[str, Any], transformers: Any, safe: dict[str, Any]) -> Subwords:
    """The model's tokenizer; for SigLIP it pads short captions."""
    options = {"local_files_only": safe["local_files_only"]}
    content = read_tokenizer(transformers.utils.cached_file(name, "tokenizer.json", **options))
    text = model["text_config"]
    pad = None
    if model["model_type"] == "siglip":
        pad = _pad_token(read_tokenizer(transformers.utils.cached_file(name, "tokenizer_config.json", **options)))
        if pad is None:
            raise InputError("tokenizer_config.json names no pad_token", where=name)
    words = Subwords.of_model(
        content, longest=text["max_position_embeddings"], pad=pad, source=f"{name}: tokenizer.json"
    )
    if len(words) > text["vocab_size"]:
        what = f"tokenizer.json has tokens up to {len(words) - 1}, but the model knows {text['vocab_size']}"
        raise InputError(what, where=name)
    return words


def _pad_token(about: Any) -> str | None:
    """The padding token of a tokenizer's config, where it is a string or an object with a string."""
    token = about.get("pad_token") if isinstance(about, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _check_stored_size(name: str, model: dict[str, Any]) -> None:
    """Refuse a config that claims more weights than the files can hold, before memory is allocated for them."""
    files = list(Path(name).glob("*.safetensors"))
    if not files:
        return  # a model on the hub, or missing weights, which transformers reports
    with torch.device("meta"):
        claimed = sum(weight.numel() for weight in _build(model).parameters())
    stored = sum(file.stat().st_size for file in files)
    if claimed > stored:
        what = f"config.json claims {claimed:,} weights, but the files hold {stored:,} bytes"
        raise InputError(what, where=name)


def _make(settings: MatcherSettings, context: BuildContext) -> Clip:
    return Clip(
        model=check(context.model, source="model.json"),
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
    )


RECORD = MatcherRecord(
    name="clip",
    summary="a published CLIP or SigLIP model, on pixels and its own tokens",
    kind=Clip,
    make=_make,
    published=load,
    fixed_regions=True,
)
