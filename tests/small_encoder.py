"""A small sentence encoder and a small DINOv2 with random weights, saved as people have them."""

import json
from pathlib import Path
from typing import Any

import torch
from small_clip import save_tokenizer

WORDS = 40
"""Tokens that it reads."""


def save_encoder(folder: Path, *, seed: int = 0, size: int = 8, positions: int = WORDS, pooling: Any = None) -> Path:
    """A BERT; `pooling` is the config of a `sentence-transformers` pooling, if it has one."""
    import transformers

    torch.manual_seed(seed)
    tokens = save_tokenizer(folder, start=True)
    config = transformers.BertConfig(
        vocab_size=tokens,
        hidden_size=size,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=positions,
    )
    model = transformers.BertModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(20)
    model.save_pretrained(folder)
    if pooling is not None:
        kinds = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
        modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


def save_dinov2(folder: Path) -> Path:
    """A vision model without a text side."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).save_pretrained(folder)
    cut = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.BitImageProcessor(**cut).save_pretrained(folder)
    return folder
