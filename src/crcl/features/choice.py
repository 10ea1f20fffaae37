"""Which extractor to use: a vision model that the user names, or the built-in pixel grid."""

from crcl.errors import InputError
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
    """The vision model that is named, or else the pixel grid, with a word of warning.

    Args:
        model: A saved model's folder or its name on the hub.
        grid: At most grid x grid regions.
        whole: One vector per image instead of regions.
        pixels: The pixels that the model reads, to fine-tune it.
        device: Where a model runs.
        progress: Receives the warning.
    """
    if pixels and (model is None or whole):
        raise InputError("pixels are those that a model reads", hint="pass {model} with {pixels}, and not {whole}")
    if model is None:
        if whole:
            raise InputError("one vector of the whole image comes from a model", hint="pass {model} with {whole}")
        progress.note(
            "the built-in pixel grid sees colours and edges only, for drawings and tests; photos need a model"
        )
        return PixelGrid(grid=grid)
    from crcl.features.vision import Pixels, VisionModel  # loads torch

    return Pixels(model) if pixels else VisionModel(model, grid=grid, whole=whole, device=_device(device))


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
