"""Encoding and comparing a batch: at once, in chunks to save memory, or a part of it in each of several processes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from crcl import distributed
from crcl.data.batches import Batch
from crcl.distributed import Part
from crcl.losses import PartSims, Sims
from crcl.matchers.base import Encoded, Matcher, as_module
from crcl.matchers.statistics import Moments, given, measure


def encoded(matcher: Matcher, batch: Batch) -> tuple[Encoded, Encoded]:
    """The images and the texts of a batch, encoded."""
    return (
        matcher.encode_images(batch.regions, batch.region_mask),
        matcher.encode_texts(batch.tokens, batch.lengths),
    )


def encoded_in_chunks(matcher: Matcher, batch: Batch, size: int, device: torch.device) -> tuple[Encoded, Encoded]:
    """The same, chunk by chunk; the backward pass encodes each chunk again (GradCache), with the same gradients.

    Only the encodings are kept, and what the encoders computed for one chunk at a time.
    """
    chunks = batch.chunks(size)
    part = batch.part

    def images_of(chunk: Batch) -> Encoded:
        with distributed.dividing(part):  # the backward pass is outside of any context
            chunk = chunk.to(device)
            return matcher.encode_images(chunk.regions, chunk.region_mask)

    def both_of(chunk: Batch, moments: Moments | None) -> tuple[Encoded, Encoded]:
        with distributed.dividing(part), given(moments):
            return encoded(matcher, chunk.to(device))

    moments = measure(as_module(matcher), images_of, chunks)
    found: list[Any] = [
        checkpoint(both_of, chunk, moments, use_reentrant=False) if torch.is_grad_enabled() else both_of(chunk, moments)
        for chunk in chunks
    ]
    return Encoded.join([images for images, _ in found]), Encoded.join([texts for _, texts in found])


def compared(
    similarity: Callable[[Encoded, Encoded], Tensor], images: Encoded, texts: Encoded, part: Part | None
) -> Sims:
    """Similarities of a batch, or if processes share it, those of the own images and texts with all others.

    Where an image or a text is more than one vector, each process compares all images with its own texts, and they
    exchange the results: comparing is the most work there, and SAF's statistics of a text are those of all images.
    """
    if part is None:
        return similarity(images, texts)
    everyone = images.each(lambda value: distributed.gather(value, part))
    if images.features.ndim == 2:
        others = texts.each(lambda value: distributed.gather(value, part))
        rows, columns = similarity(images, others), similarity(everyone, texts)
    else:
        columns = similarity(everyone, texts)
        rows = distributed.gather(columns.T, part).T[part.own]
    return PartSims(distributed.own_first(rows, part, dim=1), distributed.own_first(columns, part))
