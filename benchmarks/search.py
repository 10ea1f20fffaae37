"""Search among a million vectors: cells with a chosen recall, beside exact search and faiss's HNSW.

    python benchmarks/search.py FOLDER
    python benchmarks/search.py FOLDER --rows 20000 --size 64      # a trial

Vectors are synthetic, made to be like those of CLIP. Images are unit vectors around 20,000 centres (for a million),
with variances that fall off as 1/i over the dimensions, so that 100 of 512 have three quarters of it. Captions lie off
the images: each is its image's vector plus noise as large as itself, turned towards one direction that no image has
(the modality gap), and has a cosine of about 0.35 with its image. Every way of search is a process of its own that
answers one query at a time on one core; recall@10 is against exact search, on captions that are not in the index.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import peak_memory

from crcl.progress import SILENT
from crcl.retrieval.index.building import about_json
from crcl.retrieval.index.cells import recall_of
from crcl.retrieval.index.dividing import update_cells
from crcl.retrieval.index.exact import nearest
from crcl.retrieval.index.folder import ABOUT, About, Index
from crcl.storage import write_json

CAPTIONS = 2000
"""Captions in the index, of which some choose the setting."""
WAYS = ("exact", "cells", "hnsw")
K = 10
LINKS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the vectors go; those that are there are used again")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--queries", type=int, default=500, help="captions to search for; none of them is in the index")
    parser.add_argument("--decay", type=float, default=1.0, help="variances fall off as i to this power; 0: all alike")
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--links", type=int, default=LINKS, help="links of each vector in the graph of HNSW")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--way", choices=WAYS, help="measure one way in this process, as the others are")
    given = parser.parse_args()
    if given.way is not None:
        print(json.dumps(measure(given.folder, given.way, given.recall, links=given.links)))
        return
    make(given.folder, given.rows, given.size, given.queries, decay=given.decay)
    columns = ("search", "build s (CPU s)", "on disk, GB", "peak memory, GiB", "recall@10", "p50 ms", "p99 ms")
    print(f"| {' | '.join(columns)} | CPU p50 | CPU p99 |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for way in given.ways:
        words = [sys.executable, __file__, str(given.folder), "--way", way]
        words += ["--recall", str(given.recall), "--links", str(given.links)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout)
        print(
            f"| {row['name']} | {row['build']:.0f} ({row['build_cpu']:.0f}) | {row['bytes'] / 1e9:.2f} "
            f"| {row['memory']:.2f} | {row['recall']:.3f} | {row['p50']:.1f} | {row['p99']:.1f} "
            f"| {row['cpu_p50']:.1f} | {row['cpu_p99']:.1f} |",
            flush=True,
        )


def make(folder: Path, rows: int, size: int, queries: int, *, decay: float = 1.0, seed: int = 0) -> None:
    """Write an index folder of synthetic vectors, and captions to search for with their exact answers."""
    if (folder / ABOUT).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    scale = np.arange(1, size + 1, dtype=np.float32) ** (-decay / 2)
    turned = np.linalg.qr(rng.standard_normal((size, size)))[0].astype(np.float32)
    turned *= (scale / np.linalg.norm(scale))[:, None]  # of a normal vector: length 1 on average

    def drawn(count: int) -> np.ndarray:
        return rng.standard_normal((count, size), dtype=np.float32) @ turned

    gap = unit(rng.standard_normal((1, size), dtype=np.float32))
    centres = drawn(max(rows // 50, 10))
    with (folder / "images.f16").open("wb") as file:
        for start in range(0, rows, 50_000):
            count = min(50_000, rows - start)
            own = centres[rng.integers(0, len(centres), count)] + drawn(count)
            file.write(off(own, gap).astype(np.float16).tobytes())
    stored = np.memmap(folder / "images.f16", dtype=np.float16, mode="r", shape=(rows, size))
    shown = rng.choice(rows, CAPTIONS + queries, replace=False)
    texts = unit(stored[shown].astype(np.float32) + drawn(len(shown)) + 2.5 * gap)
    (folder / "captions.f16").write_bytes(texts[:CAPTIONS].astype(np.float16).tobytes())
    np.savez(folder / "queries.npz", queries=texts[CAPTIONS:], wanted=nearest(stored, texts[CAPTIONS:], K)[1])
    about = About("synthetic", "", "", size, images=rows, captions=CAPTIONS)
    write_json(folder / ABOUT, about_json(about))


def off(vectors: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """Unit vectors without their part in one direction."""
    return unit(vectors - (vectors @ gap.T) * gap)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measure(folder: Path, way: str, recall: float, *, links: int = LINKS) -> dict[str, float | str]:
    """Build time, size, memory, recall and latency of one way of search."""
    index = Index.open(folder)
    with np.load(folder / "queries.npz") as file:
        queries, wanted = file["queries"], file["wanted"]
    began, cpu = time.perf_counter(), time.process_time()
    ways = {"exact": exact, "cells": cells, "hnsw": partial(hnsw, links=links)}
    name, size, find = ways[way](folder, index, recall)
    build, build_cpu = time.perf_counter() - began, time.process_time() - cpu
    one_thread()
    some = queries if way != "exact" else queries[:50]
    find(some[:1])
    taken, worked, rows = [], [], []
    for query in some:
        began, cpu = time.perf_counter(), time.process_time()
        rows.append(find(query[None])[0])
        taken.append(1000 * (time.perf_counter() - began))
        worked.append(1000 * (time.process_time() - cpu))
    return {
        "name": name,
        "build": build,
        "build_cpu": build_cpu,
        "bytes": size,
        "memory": peak_memory(),
        "recall": recall_of(np.array(rows), wanted[: len(some)]),
        "p50": float(np.median(taken)),
        "p99": float(np.quantile(taken, 0.99)),
        "cpu_p50": float(np.median(worked)),
        "cpu_p99": float(np.quantile(worked, 0.99)),
    }


def one_thread() -> None:
    """Answer queries on one core, as a server with many clients does."""
    import faiss

    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)


def exact(folder: Path, index: Index, _recall: float) -> tuple:
    """All vectors of the memory map."""
    return "exact", 2 * index.about.size * index.about.images, lambda q: index.search_vectors(q, exact=True)[1]


def cells(folder: Path, index: Index, recall: float) -> tuple:
    """Cells with 8-bit codes, by the recall of captions."""
    about = update_cells(folder, index.about, recall, SILENT)
    divided = Index(folder, about)
    found = divided.found()
    assert found is not None
    name = f"cells, recall {recall:g} asked: {found.probe} of {found.cells:,} cells, {found.again} scored again"
    return name, 2 * about.size * about.images + found.bytes, lambda q: divided.search_vectors(q)[1]


def hnsw(folder: Path, index: Index, recall: float, *, links: int) -> tuple:
    """faiss's HNSW, at the least effort that reaches the recall on the captions of the index."""
    import faiss

    stored, texts = index.vectors(), index.vectors("captions")[:200].astype(np.float32)
    graph = faiss.IndexHNSWFlat(index.about.size, links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 40
    for start in range(0, len(stored), 50_000):
        graph.add(stored[start : start + 50_000].astype(np.float32))
    wanted = nearest(stored, texts, K)[1]
    for effort in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        graph.hnsw.efSearch = effort
        if recall_of(graph.search(texts, K)[1], wanted) >= recall:
            break
    size = len(stored) * (4 * index.about.size + 2 * links * 4)
    return f"faiss HNSW{links}, float32, efSearch {effort}", size, lambda q: graph.search(q, K)[1]


if __name__ == "__main__":
    main()
