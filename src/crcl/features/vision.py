"""Extractors that use a vision model of Hugging Face `transformers`: pooled patches, one vector, or input pixels.

Weights are read from safetensors files only, and code that comes with a model is never run.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.decoded import Recipe, usable
from crcl.errors import InputError
from crcl.features.pretrained import fingerprint, library, loading, read_config, refuse_missing, safe_options, short

_FILES = "config.json, preprocessor_config.json"


class Kind(NamedTuple):
    """Which outputs of a family of models are the features."""

    model: str
    """Class in `transformers`."""
    layer: int | None
    """Hidden state of the patches; None: the last one, after the final norm."""
    vector: str
    """Output with the vector of the whole image."""


_CLIP = Kind("CLIPVisionModelWithProjection", -2, "image_embeds")  # patches of its last layer are not trained
_SIGLIP = Kind("SiglipVisionModel", None, "pooler_output")
KINDS = {
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "dinov2": Kind("Dinov2Model", None, "pooler_output"),
    "dinov2_with_registers": Kind("Dinov2WithRegistersModel", None, "pooler_output"),
}


class VisionModel:
    """Extractor of a vision model, given by its folder or its name on the hub."""

    def __init__(
        self,
        name: str,
        *,
        grid: int = 6,
        whole: bool = False,
        device: torch.device | str = "cpu",
        download: bool = True,
    ) -> None:
        """Load the model. With `whole` it gives one vector per image, otherwise at most grid x grid pooled regions."""
        if grid < 1:
            raise InputError(f"grid must be 1 or more, not {grid}")
        self.title, self.grid, self.whole, self.device = name, grid, whole, torch.device(device)
        self.kind, self.model, self.processor = _load(name, download=download)
        self.patch = int(self.model.config.patch_size)
        self.settings = {
            "extractor": "vision model",
            "model": fingerprint(self.model, self.processor.to_dict()),
            "grid": None if whole else grid,
            "layer": None if whole else self.kind.layer,
            "version": 1,
        }
        self.model.to(self.device).eval()
        self._try()

    def prepare(self, image: Image.Image) -> NDArray[np.float32]:
        """The input pixels of the model. (3, height, width)"""
        return _prepare(self.processor, image)

    def preparer(self) -> Callable[[Image.Image], NDArray[np.float32]]:
        """`prepare` without the model, for worker processes."""
        return partial(_prepare, self.processor)

    @torch.inference_mode()
    def compute(self, prepared: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Features of a batch. (K, R, F), or (K, F) of the whole images"""
        pixels = torch.from_numpy(np.stack(prepared)).to(self.device)
        inner = not self.whole and self.kind.layer is not None
        output = self.model(pixel_values=pixels, output_hidden_states=inner)
        if self.whole:
            features = output[self.kind.vector]
        else:
            layer = output.last_hidden_state if self.kind.layer is None else output.hidden_states[self.kind.layer]
            features = pool_patches(layer, pixels.shape[2] // self.patch, pixels.shape[3] // self.patch, grid=self.grid)
        return features.float().cpu().numpy()

    def _try(self) -> None:
        """Run the model once, to raise an error before long work if it cannot be used."""
        try:
            shapes = {self.prepare(Image.new("RGB", size)).shape for size in ((40, 90), (90, 40))}
            if len(shapes) > 1:
                raise InputError(
                    f"its preprocessing gives images of different sizes, {sorted(shapes)}", where=self.title
                )
            self.compute([np.zeros(shapes.pop(), dtype=np.float32)])
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, InputError | torch.cuda.OutOfMemoryError):
                raise
            raise InputError(f"does not work on an image ({short(error)})", where=self.title) from error


class Pixels:
    """Extractor of the input pixels of a model, for a matcher that fine-tunes it."""

    def __init__(self, name: str, *, download: bool = True) -> None:
        self.title = name
        safe = safe_options(name, download=download)
        transformers = library(needed_by="pixels of a model")
        with loading(name, needed=f"{_FILES} are needed"):
            config = read_config(name, safe)
            if config.model_type not in ("clip", "siglip"):
                raise InputError(f"is a model of type '{config.model_type}', expected clip or siglip", where=name)
            self.processor = transformers.AutoImageProcessor.from_pretrained(name, backend="pil", **safe)
            side = config.vision_config.image_size
        self.side = side
        self.settings = {"extractor": "pixels", "processor": _plain(self.processor.to_dict()), "version": 1}
        try:
            shapes = {self.prepare(Image.new("RGB", size)).shape for size in ((40, 90), (90, 40))}
        except UnusableError as error:
            raise InputError(f"does not work on an image ({error})", where=name) from error
        if shapes != {(3, side, side)}:
            raise InputError(
                f"its preprocessing gives {sorted(shapes)}, but the model reads (3, {side}, {side})", where=name
            )

    def prepare(self, image: Image.Image) -> NDArray[np.float32]:
        """The input pixels of the model. (3, height, width)"""
        return _prepare(self.processor, image)

    def preparer(self) -> Callable[[Image.Image], NDArray[np.float32]]:
        """`prepare` without the model, for worker processes."""
        return partial(_prepare, self.processor)

    def compute(self, prepared: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The pixels of an image as one region. (K, 1, 3 * height * width)"""
        return np.stack(prepared).reshape(len(prepared), 1, -1)

    def recipe(self, most_pixels: int) -> Recipe:
        """How to make the same pixels without `transformers`; refuses a model whose pixels it would not make."""
        about = self.processor.to_dict()
        size = about.get("size") or {}
        given = {
            "side": self.side,
            "resize": size.get("shortest_edge") or size.get("height"),
            "cut": "shortest_edge" in size,
            "resample": about.get("resample"),
            "scale": about.get("rescale_factor"),
            "mean": about.get("image_mean"),
            "deviation": about.get("image_std"),
            "most_pixels": most_pixels,
        }
        hint = "store its pixels with {extract_features()}, {model} and {pixels}"
        try:
            recipe = Recipe.model_validate(given)
        except ValueError as error:
            raise InputError("prepares images in a way that is not known here", where=self.title, hint=hint) from error
        for width, height in ((40, 90), (91, 40), (self.side, self.side), (7, 5)):
            values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
            image = Image.fromarray(values)
            if (recipe.pixels(image) != self.prepare(image).reshape(-1).astype(np.float16)).any():
                raise InputError("prepares images in a way that is not known here", where=self.title, hint=hint)
        return recipe


def _prepare(processor: Any, image: Image.Image) -> NDArray[np.float32]:
    """The input pixels of a model. (3, height, width)"""
    image = usable(image)
    try:
        pixels = processor(images=image, return_tensors="np")["pixel_values"][0]
    except Exception as error:  # one bad image must not stop the extraction
        raise UnusableError(f"cannot be prepared for the model ({short(error)})") from error
    return np.asarray(pixels, dtype=np.float32)


def pool_patches(tokens: Tensor, height: int, width: int, *, grid: int) -> Tensor:
    """Average adjacent patches, from (K, tokens, F) to (K, R, F), row by row; the patches are the last tokens."""
    batch, _, size = tokens.shape
    patches = tokens[:, -height * width :].transpose(1, 2).reshape(batch, size, height, width)
    sides = min(grid, height), min(grid, width)
    pooled = adaptive_avg_pool2d(patches.float().cpu(), sides)  # some devices lack it for some sizes
    return pooled.flatten(2).transpose(1, 2)  # (K, R, F)


def _load(name: str, *, download: bool) -> tuple[Kind, Any, Any]:
    """The outputs to use, the vision model in float32, and its image processor."""
    safe = safe_options(name, download=download)
    transformers = library(needed_by="a vision model")
    with loading(name, needed=f"{_FILES} and weights as safetensors are needed"):
        config = read_config(name, safe)
        kind = _kind(name, config)
        processor = transformers.AutoImageProcessor.from_pretrained(name, backend="pil", **safe)
        model, info = getattr(transformers, kind.model).from_pretrained(
            name,
            config=_vision_config(config),
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",  # a config may name an implementation on the hub, which is code
            output_loading_info=True,
            **safe,
        )
    refuse_missing(name, info)
    return kind, model, processor


def _kind(name: str, config: Any) -> Kind:
    kind = KINDS.get(config.model_type)
    if kind is None:
        raise InputError(f"is a model of type '{config.model_type}', expected one of {', '.join(KINDS)}", where=name)
    if kind is _CLIP and "CLIPVisionModel" in (config.architectures or ()):
        return Kind("CLIPVisionModel", _CLIP.layer, "pooler_output")  # saved without the projection
    return kind


def _vision_config(config: Any) -> Any:
    """The config of the vision part; it takes the size of CLIP's projection from the whole config."""
    part = getattr(config, "vision_config", config)
    if part is not config and hasattr(config, "projection_dim"):
        part.projection_dim = config.projection_dim
    return part


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of an image processor as plain JSON values."""
    return dict(json.loads(json.dumps(settings, sort_keys=True, default=str)))
