"""Which extractor and which encoder to use: models that the user names, or the built-in pixel grid."""

from crcl.errors import InputError
from crcl.features.encoder import Encoder
from crcl.features.extractor import Extractor
from crcl.features.grid import PixelGrid
from crcl.progress import SILENT, Progress


def choose_extractor(
    model: str | None,
    *,
    grid: int = 6,
    whole: bool = False,
    pixels: bool = False,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Extractor:
    """The extractor of a vision model, or the pixel grid, with a warning, if no model is given.

    Args:
        model: Folder of a saved model, or its name on the hub.
        grid: Regions per side: an image has at most grid x grid regions.
        whole: Extract one vector per image instead of regions.
        pixels: Extract the model's input pixels, to fine-tune the model.
        device: Device that the model runs on.
        progress: Receives the warning.
    """
    if pixels and (model is None or whole):
        raise InputError("pixels are prepared for a model", hint="pass {model} with {pixels}, and leave out {whole}")
    if model is None:
        if whole:
            raise InputError("the pixel grid gives no vector of the whole image", hint="pass {model} with {whole}")
        progress.note(
            "the built-in pixel grid sees only colours and edges, which is enough for drawings and tests; for photos "
            "name a model, such as openai/clip-vit-base-patch32"
        )
        return PixelGrid(grid=grid)
    from crcl.features.vision import Pixels, VisionModel  # loads torch

    return Pixels(model) if pixels else VisionModel(model, grid=grid, whole=whole, device=_device(device))


def choose_encoder(model: str | None, text_model: str | None = None, *, device: str = "auto") -> Encoder:
    """The encoder of captions: of a text model, or the text side of the vision model.

    Args:
        model: The vision model; a folder, or a name on the hub.
        text_model: A sentence encoder, or a CLIP or SigLIP of which the text side is used.
        device: Device that it runs on.
    """
    if text_model is None and model is None:
        raise InputError("captions need a model too", hint="pass {model} or {text_model}")
    from crcl.features.language import LanguageModel, has_text_side  # loads torch

    if text_model is None and not has_text_side(str(model)):
        raise InputError("has no text side", where=str(model), hint="pass a sentence encoder as {text_model} too")
    return LanguageModel(str(text_model or model), device=_device(device))


def has_texts(model: str | None) -> bool:
    """Whether a vision model reads captions too."""
    if model is None:
        return False
    from crcl.features.language import has_text_side  # loads torch

    return has_text_side(model)


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
