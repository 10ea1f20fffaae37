"""A small CLIP and a small SigLIP with random weights, saved as people have them, and drawn scenes as image files."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from crcl.data.scenes import write
from crcl.features.grid import grid_features

SIDE = 16
TEXT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
VISION = {**TEXT, "image_size": SIDE, "patch_size": 4}
LONGEST = 12


def draw_scenes(folder: Path, *, train: int = 12, held_out: int = 6, captions: int = 2) -> Path:
    """A table of drawn scenes with their image files beside it, in `images`; gives the table."""
    write(folder, describe=lambda image: grid_features(image, grid=1), train=train, dev=held_out, test=held_out,
          captions=captions)  # fmt: skip
    rows = ["image,caption,split"]
    for split in ("train", "dev", "test"):
        names = (folder / f"{split}_ids.txt").read_text("utf-8").split()
        told = (folder / f"{split}_caps.txt").read_text("utf-8").splitlines()
        rows += [f'{names[row // captions]},"{caption}",{split}' for row, caption in enumerate(told)]
    table = folder / "pairs.csv"
    table.write_text("\n".join(rows) + "\n", "utf-8")
    return table


def save_tokenizer(folder: Path, *, start: bool) -> int:
    """Letters, the ends of words, and what is put around a caption; gives the number of tokens."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["<pad>", "<start>", *letters, *(f"{letter}</w>" for letter in letters), "<end>"]
    number = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=number, merges=[], end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_special_tokens(["<pad>", "<start>", "<end>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>" if start else "$A <end>",
        special_tokens=[(token, number[token]) for token in ("<start>", "<end>")],
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    return len(tokens)


def save_clip(folder: Path, kind: str = "clip", *, seed: int = 0) -> Path:
    """A folder with config, weights, tokenizer and image processor."""
    import transformers

    torch.manual_seed(seed)
    size = save_tokenizer(folder, start=kind == "clip")
    text = {**TEXT, "vocab_size": size, "max_position_embeddings": LONGEST, "eos_token_id": size - 1}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8)
        model = transformers.CLIPModel(config)
        cut = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
        processor = transformers.CLIPImageProcessor(**cut)
    else:
        model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=VISION))
        processor = transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    with torch.no_grad():  # random weights of the usual size see hardly any difference between two images
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(6)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def teach(folder: Path, table: Path, images: Path, *, steps: int = 80) -> Path:
    """Train a saved CLIP on the pairs of a table, so that its vectors of an image and its captions agree."""
    import csv

    import transformers
    from PIL import Image

    from crcl.features.language import LanguageModel
    from crcl.features.vision import VisionModel

    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = list(dict.fromkeys(row["image"] for row in rows))
    see, read = VisionModel(str(folder), whole=True), LanguageModel(str(folder))
    pixels = torch.stack([torch.from_numpy(see.prepare(Image.open(images / name).convert("RGB"))) for name in names])
    tokens = [ids for ids, _ in read.tokenize([row["caption"] for row in rows])]
    width = max(map(len, tokens))
    padded = torch.tensor([[*ids, *[ids[-1]] * (width - len(ids))] for ids in tokens])
    shown = torch.tensor([names.index(row["image"]) for row in rows])
    torch.manual_seed(0)
    model = transformers.CLIPModel.from_pretrained(folder, attn_implementation="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        seen = torch.nn.functional.normalize(model.get_image_features(pixel_values=pixels).pooler_output, dim=1)
        told = torch.nn.functional.normalize(model.get_text_features(input_ids=padded).pooler_output, dim=1)
        loss = torch.nn.functional.cross_entropy(told @ seen.T / 0.1, shown)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder
