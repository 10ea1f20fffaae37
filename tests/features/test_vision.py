"""Vision models of transformers: small ones that are made and saved here, and read by the real code."""

import json
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from extraction import draw, draw_folder, run
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny import call

from crcl.data.pictures.base import UnusableError
from crcl.errors import InputError
from crcl.features.vision import VisionModel, pool_patches

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 4}
PATCHES = 8  # along one side
CUT = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
WORDS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50}


def make(kind: str, folder: Path, seed: int = 0) -> Path:
    """A saved model with random weights, as people have them in a folder."""
    torch.manual_seed(seed)
    sizes = {**SIZES, "intermediate_size": 40}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=WORDS, vision_config=sizes, projection_dim=12)
        model, processor = transformers.CLIPModel(config), transformers.CLIPImageProcessor(**CUT)
    elif kind == "clip_vision":
        model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**sizes))
        processor = transformers.CLIPImageProcessor(**CUT)
    elif kind == "siglip":
        model = transformers.SiglipModel(transformers.SiglipConfig(text_config=WORDS, vision_config=sizes))
        processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    elif kind == "dinov2_with_registers":
        config = transformers.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=1, num_register_tokens=3)
        model, processor = transformers.Dinov2WithRegistersModel(config), transformers.BitImageProcessor(**CUT)
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(**SIZES, mlp_ratio=1))
        processor = transformers.BitImageProcessor(**CUT)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds = ("clip", "clip_vision", "siglip", "dinov2", "dinov2_with_registers")
    return {kind: make(kind, folder / kind) for kind in kinds}


def drawn(number: int) -> Image.Image:
    noise = np.random.default_rng(number).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def expected(kind: str, folder: Path, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches (K, 64, 32) and the whole image's vector, by the model as its authors use it."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    part = getattr(model, "vision_model", model)
    with torch.inference_mode():
        output = part(pixel_values=pixels, output_hidden_states=True)
        tokens = output.hidden_states[-2] if kind.startswith("clip") else output.last_hidden_state
        before = {"siglip": 0, "dinov2_with_registers": 4}.get(kind, 1)
        assert tokens.shape[1] == before + PATCHES**2
        vector = model.visual_projection(output.pooler_output) if kind == "clip" else output.pooler_output
    return tokens[:, before:], vector


@pytest.mark.parametrize("kind", ["clip", "clip_vision", "siglip", "dinov2", "dinov2_with_registers"])
def test_regions_are_means_of_patches_and_the_vector_is_the_models_own(models, kind) -> None:
    extractor = VisionModel(str(models[kind]))
    prepared = [extractor.prepare(drawn(number)) for number in range(2)]
    patches, vector = expected(kind, models[kind], torch.from_numpy(np.stack(prepared)))
    regions = extractor.compute(prepared)
    assert regions.shape == (2, 36, 32)
    for row in range(6):
        for column in range(6):
            places = [
                y * PATCHES + x
                for y in range(row * PATCHES // 6, math.ceil((row + 1) * PATCHES / 6))
                for x in range(column * PATCHES // 6, math.ceil((column + 1) * PATCHES / 6))
            ]
            mean = patches[:, places].mean(dim=1).numpy()
            np.testing.assert_allclose(regions[:, row * 6 + column], mean, atol=1e-5)
    whole = VisionModel(str(models[kind]), whole=True).compute(prepared)
    np.testing.assert_allclose(whole, vector.numpy(), atol=1e-5)
    assert whole.shape == (2, 12 if kind == "clip" else 32)


def test_fewer_patches_than_regions_are_left_as_they_are() -> None:
    tokens = torch.randn(2, 1 + 3 * 4, 5)
    torch.testing.assert_close(pool_patches(tokens, 3, 4, grid=6), tokens[:, 1:])


def test_preprocessing_is_the_models_own(models) -> None:
    image = drawn(3)
    processor = transformers.CLIPImageProcessor.from_pretrained(models["clip"])
    pixels = processor(images=image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(VisionModel(str(models["clip"])).prepare(image), pixels)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (3, 90), (300, 3), (1, 100)])
def test_small_and_narrow_images_are_prepared(models, size) -> None:
    for kind in ("clip", "siglip"):
        assert VisionModel(str(models[kind])).prepare(Image.new("RGB", size, "red")).shape == (3, 32, 32)


def test_an_image_like_a_line_is_refused_before_it_fills_the_memory(models) -> None:
    with pytest.raises(UnusableError, match="aspect ratio above 100"):
        VisionModel(str(models["clip"])).prepare(Image.new("RGB", (60_000, 1)))


def test_killed_in_the_middle_a_model_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, models) -> None:
    images = draw_folder(tmp_path / "images", 11)
    (images / "004.png").write_bytes(b"broken")
    extractor = VisionModel(str(models["clip"]))
    run(images, tmp_path / "whole", extractor, batch_size=4)

    def killed() -> None:
        batches = []

        class Mortal(VisionModel):
            def __init__(self) -> None:
                self.__dict__ = extractor.__dict__

            def compute(self, prepared):
                batches.append(len(prepared))
                if len(batches) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().compute(prepared)

        run(images, tmp_path / "killed", Mortal(), batch_size=4)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert run(images, tmp_path / "killed", extractor, batch_size=4).computed == 6
    for name in ("features.npy", "ids.txt", "skipped.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


def test_the_cache_knows_a_model_by_its_weights_and_settings_not_by_its_place(tmp_path: Path, models) -> None:
    images = draw_folder(tmp_path / "images", 3)
    shutil.copytree(models["clip"], tmp_path / "copy")
    other = make("clip", tmp_path / "other", seed=1)
    counts = [
        run(images, tmp_path / str(number), VisionModel(str(folder), **options), cache=tmp_path / "cache").computed
        for number, (folder, options) in enumerate(
            [
                (models["clip"], {}),
                (tmp_path / "copy", {}),
                (other, {}),
                (models["clip"], {"whole": True}),
                (models["clip"], {"grid": 2}),
                (other, {}),
            ]
        )
    ]
    assert counts == [3, 0, 3, 3, 3, 0]


def test_the_command_writes_regions_and_vectors(tmp_path: Path, models, capsys, monkeypatch) -> None:
    (tmp_path / "a.png").write_bytes(draw(0))
    for words, shape in (([], (1, 36, 32)), (["--global"], (1, 32)), (["--grid", "2"], (1, 4, 32))):
        out = tmp_path / "".join(["out", *words])
        told = ["--model", str(models["dinov2"]), "--device", "cpu"]
        answer = call(capsys, monkeypatch, "features", str(tmp_path / "a.png"), "-o", str(out), *told, *words)
        assert answer.code == 0, answer.err
        assert np.load(out / "features.npy").shape == shape


class Trap:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_pickled_weights_are_refused_and_not_opened(tmp_path: Path, models) -> None:
    folder = shutil.copytree(models["clip"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "trace")))
    with pytest.raises(InputError, match="safetensors"):
        VisionModel(str(folder))
    torch.save(load_file(models["clip"] / "model.safetensors"), folder / "pytorch_model.bin")  # good ones too
    with pytest.raises(InputError, match="safetensors"):
        VisionModel(str(folder))
    assert not (tmp_path / "trace").exists()


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path, models) -> None:
    folder = shutil.copytree(models["clip"], tmp_path / "model")
    code = f"open({str(tmp_path / 'trace')!r}, 'w')\n"
    (folder / "evil.py").write_text(code)
    for name, auto_map in (
        ("config.json", {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}),
        ("preprocessor_config.json", {"AutoImageProcessor": "evil.Processor"}),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, "auto_map": auto_map}))
    assert VisionModel(str(folder)).compute([np.zeros((3, 32, 32), np.float32)]).shape == (1, 36, 32)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "model_type": "evil"}))
    with pytest.raises(InputError):
        VisionModel(str(folder))
    assert not (tmp_path / "trace").exists()


def change(folder: Path, name: str, **values: object) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **values}))


def without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_a_weight, "weights are missing or misshapen: layernorm.weight"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "cannot be loaded"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: not a JSON file"),
        (lambda folder: change(folder, "config.json", model_type="bert"), "type 'bert', expected one of clip"),
        (lambda folder: change(folder, "config.json", hidden_size=64), "cannot be loaded|missing"),
        (lambda folder: change(folder, "preprocessor_config.json", do_center_crop=False), "different sizes"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_told(tmp_path: Path, models, spoil, message) -> None:
    folder = shutil.copytree(models["dinov2"], tmp_path / "model")
    spoil(folder)
    with pytest.raises(InputError, match=message):
        VisionModel(str(folder))


def test_without_transformers_the_extra_is_named(monkeypatch, models) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'crcl\[transformers\]'"):
        VisionModel(str(models["clip"]))
