"""A small folder of made-up embeddings, as clip-retrieval writes it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

LATENT = 12


def made_up(
    rows: int, *, image: int = 16, text: int = 16, noise: float = 0.3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of both sides that show the same hidden things, each side about a centre of its own."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(rows, LATENT))
    shows = rng.normal(size=(LATENT, image)) / LATENT**0.5
    says = shows if text == image else rng.normal(size=(LATENT, text)) / LATENT**0.5
    sides = []
    for side, size in ((shows, image), (says, text)):
        vectors = hidden @ side + noise * rng.normal(size=(rows, size)) + 0.5 * rng.normal(size=size)
        sides.append((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16))
    return sides[0], sides[1]


def write_embeddings(
    folder: Path, rows: int = 60, *, shards: int = 3, columns: dict[str, list[Any]] | None = None, **options: Any
) -> Path:
    """Shards of nearly equal size; `columns` are added to the metadata or replace what is there."""
    images, texts = made_up(rows, **options)
    metadata = {
        "image_path": [f"photos/{row}.jpg" for row in range(rows)],
        "caption": [f"what {row} shows" for row in range(rows)],
    } | (columns or {})
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for shard, here in enumerate(np.array_split(np.arange(rows), shards)):
        np.save(folder / "img_emb" / f"img_emb_{shard}.npy", images[here])
        np.save(folder / "text_emb" / f"text_emb_{shard}.npy", texts[here])
        part = pa.table({name: [values[row] for row in here] for name, values in metadata.items()})
        pa.parquet.write_table(part, folder / "metadata" / f"metadata_{shard}.parquet")
    return folder
