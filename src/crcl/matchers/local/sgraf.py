"""SAF and SGR, the local matchers of SGRAF: words attend to regions, similarity vectors are filtered or reasoned over.

The results equal those of the published code, but the computation is faster: captions are batched with masks instead of
looped over; everything that depends on only a text or only an image is computed once; the attention includes the
normalisation of the context (its norm comes from the Gram matrix of the regions), so that the difference to the words
is one matrix product; SGR's query and key are merged into one bilinear form, and its last step computes node 0 only.
The work is cut into tiles of images x captions.
"""

from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from crcl.distributed import current_part
from crcl.matchers.base import SMALLEST_SQUARE, Encoded, l2
from crcl.matchers.encoders import MetaNetwork, xavier_linear
from crcl.matchers.kernels.distances import squared_distances
from crcl.matchers.kernels.recurrent import averaged_directions
from crcl.matchers.kernels.tiles import ROWS, WORDS, caption_blocks, image_blocks
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.matchers.statistics import BatchNorm, Dropout, as_wide_as_the_batch, shared_moments
from crcl.settings import Count

_SMOOTH = 9.0
_EPS = 1e-8


class Settings(MatcherSettings):
    """Similarity vectors of SAF and SGR."""

    similarity: Count = 256
    """Size of a similarity vector (saf and sgr)."""


class _SGRAF(nn.Module):
    """Base class of SAF and SGR, which differ in their last layers. Parameters have the names of the authors' code.

    The number of regions is fixed: a BatchNorm of the published network has one channel per region. `memory` limits
    intermediate results, in GiB; a training step that would store more for its backward pass recomputes them there
    instead, block by block (gradient checkpointing). A block has about `tile_rows` (image, word) rows. If `meta` is not
    0, the last layer is MSCN's meta-network with so many hidden units.
    """

    reasoning: Literal["saf", "sgr"]

    def __init__(
        self,
        *,
        features: int,
        vocabulary: int,
        regions: int,
        embedding: int = 1024,
        word: int = 300,
        similarity: int = 256,
        dropout: float = 0.4,
        memory: float = 4.0,
        tile_rows: int = ROWS,
        meta: int = 0,
    ) -> None:
        super().__init__()
        self.regions = regions
        self.memory = memory
        self.kept = 6 * regions + (12 if self.reasoning == "sgr" else 5) * similarity
        self.differences = 2 * embedding
        self.tile_rows = max(min(tile_rows, self.most_rows(torch.device("cpu"))), 1)
        self.img = nn.ModuleDict({"fc": xavier_linear(features, embedding)})
        self.txt = _Words(vocabulary=vocabulary, word=word, embedding=embedding, dropout=dropout)
        self.sim = _Similarity(regions, embedding, similarity, self.reasoning, dropout, meta)

    def most_rows(self, device: torch.device) -> int:
        """Most (image, word) rows whose intermediate results fit in memory; on a GPU these include the differences."""
        numbers = self.kept if device.type == "cpu" else self.kept + self.differences
        return int(self.memory * 2**30 / (4 * numbers))

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        if regions.shape[1] != self.regions:
            raise ValueError(f"this matcher was built for {self.regions} regions per image, got {regions.shape[1]}")
        local = l2(self.img["fc"](regions))  # (B, R, D)
        return Encoded(local, mask, self.sim.v_global_w(local))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        words = self.txt(tokens, lengths)  # (B, W, D), padding is 0
        mask = torch.arange(words.shape[1], device=words.device) < lengths[:, None]
        return Encoded(words, mask, self.sim.t_global_w(words, mask))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.scores(images, texts).sigmoid()

    def scores(self, images: Encoded, texts: Encoded) -> Tensor:
        """Similarities before the sigmoid. (images, texts)"""
        scores, moments = self._scores(images, texts)
        if self.training and self.sim.SAF_module is not None:
            if (part := current_part()) is not None:
                moments = shared_moments(moments, cast(Tensor, texts.mask).sum(1), part)
            self.sim.SAF_module.update_running_statistics(moments)
        return scores

    def within_modality(self, encoded: Encoded, everyone: Encoded | None = None) -> Tensor:
        """Images with images, or texts with texts, by the same head, without updating running statistics. (K, K)

        `everyone` are all of them, if those given are not; these then stand where captions do. (all, given)

        Padded words need no mask as attention targets: they are 0, and the norm of a context does not matter.
        """
        return self._scores(encoded if everyone is None else everyone, encoded)[0].sigmoid()

    def _scores(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Scores, and SAF's moments of each caption, longest first. (images, texts), (2, texts)"""
        mask, t_pooled = cast(Tensor, texts.mask), cast(Tensor, texts.pooled)
        lengths, order = mask.sum(1).sort(descending=True, stable=True)
        learning = self.training or torch.is_grad_enabled()
        words = (min if learning else max)(self.tile_rows // len(images), WORDS)
        sizes = caption_blocks(lengths.tolist(), words=words)
        rows = len(images) * int(lengths.sum())
        recompute = torch.is_grad_enabled() and rows > self.most_rows(mask.device)
        with torch.autocast(mask.device.type, enabled=False):  # squared lengths of contexts come from it
            gram = images.features @ images.features.mT  # (images, R, R)
        blocks = zip(*(part[order].split(sizes) for part in (texts.features, mask, t_pooled)), strict=True)
        columns, moments = [], []
        for t, real, pooled in blocks:
            longest = int(real[0].sum())
            parts = gram, t[:, :longest], real[:, :longest], pooled
            scores, moment = self._block(images, *parts, split_images=not learning, recompute=recompute)
            columns.append(scores)
            moments.append(moment)
        return torch.cat(columns, dim=1)[:, order.argsort()], torch.cat(moments, dim=1)

    def _block(
        self,
        images: Encoded,
        gram: Tensor,
        t: Tensor,
        mask: Tensor,
        t_pooled: Tensor,
        *,
        split_images: bool,
        recompute: bool,
    ) -> tuple[Tensor, Tensor]:
        """Scores of all images with a few captions `(images, captions)`, and SAF's moments of each caption.

        The images are split only in evaluation: in training SAF's statistics of a caption cover all of them.
        """
        v, v_pooled = images.features, cast(Tensor, images.pooled)
        if not split_images:
            parts = v, gram, v_pooled, t, mask, t_pooled
            return self._checkpointed(parts) if recompute else self.sim(*parts)
        blocks = image_blocks(len(images), mask.numel(), rows=self.tile_rows)
        scores = [self.sim(v[block], gram[block], v_pooled[block], t, mask, t_pooled)[0] for block in blocks]
        return torch.cat(scores), scores[0].new_empty(2, len(mask))

    def _checkpointed(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Scores and moments of a block, recomputed by the backward pass with the current weights."""
        weights: dict[str, Tensor] = dict(self.sim.named_parameters())
        # set by `functional_call`, which has removed them again when the backward pass runs
        virtual = {name: weight for name, weight in weights.items() if not isinstance(weight, nn.Parameter)}
        if virtual:
            return checkpoint(functional_call, self.sim, virtual, parts, use_reentrant=False)
        return checkpoint(self.sim, *parts, use_reentrant=False)


class SAF(_SGRAF):
    """Similarity attention filtration."""

    reasoning = "saf"


class SGR(_SGRAF):
    """Similarity graph reasoning."""

    reasoning = "sgr"


class _Words(nn.Module):
    def __init__(self, *, vocabulary: int, word: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = Dropout(dropout)
        self.cap_rnn = nn.GRU(word, embedding, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.training:  # dropout differs for each token, so equal words are not shared
            words, which = self.dropout(self.embed(tokens)).flatten(0, 1), torch.arange(tokens.numel())
            which = which.to(tokens.device).view_as(tokens)
        else:
            distinct, which = tokens.unique(return_inverse=True)
            words = self.embed(distinct)
        return as_wide_as_the_batch(l2(averaged_directions(self.cap_rnn, words, which, lengths)), tokens)


class _VisualSA(nn.Module):
    def __init__(self, regions: int, size: int, dropout: float) -> None:
        super().__init__()
        self.embedding_local = nn.Sequential(xavier_linear(size, size), BatchNorm(regions), nn.Tanh(), Dropout(dropout))
        self.embedding_global = nn.Sequential(xavier_linear(size, size), BatchNorm(size), nn.Tanh(), Dropout(dropout))
        self.embedding_common = nn.Sequential(xavier_linear(size, 1))

    def forward(self, local: Tensor) -> Tensor:
        common = self.embedding_local(local) * self.embedding_global(local.mean(1))[:, None]
        weights = self.embedding_common(common).squeeze(2).softmax(1)
        return l2(torch.einsum("br,brd->bd", weights, local))


class _TextSA(nn.Module):
    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.embedding_local = nn.Sequential(xavier_linear(size, size), nn.Tanh(), Dropout(dropout))
        self.embedding_global = nn.Sequential(xavier_linear(size, size), nn.Tanh(), Dropout(dropout))
        self.embedding_common = nn.Sequential(xavier_linear(size, 1))

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        mean = words.sum(1) / mask.sum(1, keepdim=True)  # padded words are 0
        common = self.embedding_local(words) * self.embedding_global(mean)[:, None]
        weights = self.embedding_common(common).squeeze(2).masked_fill(~mask, -torch.inf).softmax(1)
        return l2(torch.einsum("bw,bwd->bd", weights, words))


class _Similarity(nn.Module):
    def __init__(self, regions: int, embedding: int, size: int, reasoning: str, dropout: float, meta: int) -> None:
        super().__init__()
        self.v_global_w = _VisualSA(regions, embedding, dropout)
        self.t_global_w = _TextSA(embedding, dropout)
        self.sim_tranloc_w = xavier_linear(embedding, size)
        self.sim_tranglo_w = xavier_linear(embedding, size)
        self.sim_eval_w = MetaNetwork(size, meta) if meta else xavier_linear(size, 1)
        self.SAF_module = _Filtration(size) if reasoning == "saf" else None
        self.SGR_module = nn.ModuleList([_Reasoning(size) for _ in range(3)] if reasoning == "sgr" else [])

    def forward(
        self, v: Tensor, gram: Tensor, v_pooled: Tensor, t: Tensor, mask: Tensor, t_pooled: Tensor
    ) -> tuple[Tensor, Tensor]:
        attention = _attention(v, gram, t)  # (images, captions * words, R)
        local = squared_distances(attention, v, t.flatten(0, 1), self.sim_tranloc_w)
        local = l2(local).view(len(v), *mask.shape, -1)
        pooled = l2(self.sim_tranglo_w((v_pooled[:, None] - t_pooled).square()))  # (images, captions, H)
        nodes = torch.cat([pooled[:, :, None], local], dim=2)  # (images, captions, 1 + words, H)
        real = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
        if self.SAF_module is not None:
            with torch.autocast(nodes.device.type, enabled=False):  # for the statistics; it has no large products
                vector, moments = self.SAF_module(nodes, real)
        else:
            vector, moments = _reason(self.SGR_module, nodes, real), nodes.new_empty(2, len(mask))
        with torch.autocast(vector.device.type, enabled=False):  # a temperature magnifies rounding errors
            return self.sim_eval_w(vector.float()).squeeze(2), moments


def _attention(v: Tensor, gram: Tensor, t: Tensor) -> Tensor:
    """Attention of words to regions, scaled to give contexts of length 1. (images, captions * words, R)"""
    s = (v.flatten(0, 1) @ t.flatten(0, 1).T).view(*v.shape[:2], *t.shape[:2])  # (images, R, captions, words)
    s = leaky_relu(s.float(), 0.1)  # 0 for padding, as the words are
    s = s * (_SMOOTH / (s.norm(dim=3, keepdim=True) + _EPS))
    attention = s.softmax(1).flatten(2).mT
    with torch.autocast(v.device.type, enabled=False):
        norm = ((attention @ gram) * attention).sum(2, keepdim=True).clamp(min=SMALLEST_SQUARE).sqrt()
    return attention / (norm + _EPS)


class _Filtration(nn.Module):
    """Similarity attention filtration (SAF)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.attn_sim_w = xavier_linear(size, 1)
        self.bn = nn.BatchNorm1d(1)

    def forward(self, nodes: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        x = self.attn_sim_w(nodes).squeeze(3)  # (images, captions, nodes)
        if self.training:
            count = len(x) * real.sum(1)  # numbers behind each caption's statistics
            mean = (x * real).sum((0, 2)) / count
            variance = ((x - mean[:, None]).square() * real).sum((0, 2)) / count
        else:
            count = torch.full((1,), 2, device=x.device)
            mean, variance = cast(Tensor, self.bn.running_mean), cast(Tensor, self.bn.running_var)
        x = (x - mean[:, None]) * torch.rsqrt(variance[:, None] + self.bn.eps) * self.bn.weight + self.bn.bias
        weights = x.sigmoid() * real
        weights = weights / (weights.sum(2, keepdim=True) + _EPS)
        moments = torch.stack([mean, variance * count / (count - 1)]).detach()
        return l2(torch.einsum("ijn,ijnh->ijh", weights, nodes)), moments

    @torch.no_grad()
    def update_running_statistics(self, moments: Tensor) -> None:
        """Update the running mean and variance as if by one caption after the other. Moments: (2, captions)"""
        momentum, captions = 0.1, moments.shape[1]
        later = torch.arange(captions - 1, -1, -1, device=moments.device)
        share = momentum * (1 - momentum) ** later
        for running, values in zip((self.bn.running_mean, self.bn.running_var), moments, strict=True):
            cast(Tensor, running).mul_((1 - momentum) ** captions).add_((share * values).sum())
        cast(Tensor, self.bn.num_batches_tracked).add_(captions)


class _Reasoning(nn.Module):
    """One step of similarity graph reasoning (SGR)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.graph_query_w = xavier_linear(size, size)
        self.graph_key_w = xavier_linear(size, size)
        self.sim_graph_w = xavier_linear(size, size)

    def forward(self, queries: Tensor, nodes: Tensor, real: Tensor) -> Tensor:
        bilinear = self.graph_query_w.weight.T @ self.graph_key_w.weight
        linear = self.graph_query_w.bias @ self.graph_key_w.weight
        logits = (queries @ bilinear + linear) @ nodes.mT  # (images, captions, queries, nodes)
        edges = logits.masked_fill(~real[:, None], -torch.inf).softmax(3)
        return torch.relu(self.sim_graph_w(edges @ nodes))


def _reason(steps: nn.ModuleList, nodes: Tensor, real: Tensor) -> Tensor:
    for step in steps[:-1]:
        nodes = step(nodes, nodes, real)
    return steps[-1](nodes[:, :, :1].contiguous(), nodes, real).squeeze(2)


def _make(kind: type[_SGRAF], settings: Settings, context: BuildContext) -> _SGRAF:
    return kind(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        regions=context.sizes["regions"],
        embedding=settings.embedding,
        word=settings.word,
        similarity=settings.similarity,
        memory=context.memory,
        meta=context.meta,
    )


def _record(name: str, summary: str, kind: type[_SGRAF]) -> MatcherRecord:
    return MatcherRecord(
        name=name,
        summary=summary,
        kind=kind,
        make=partial(_make, kind),
        settings=Settings,
        dropped_regions="blanked",
        fixed_regions=True,
        one_vector=False,
    )


SAF_RECORD = _record("saf", "SGRAF's attention filtration of similarity vectors (a local matcher of the paper)", SAF)
SGR_RECORD = _record("sgr", "SGRAF's graph reasoning over similarity vectors (a local matcher of the paper)", SGR)
