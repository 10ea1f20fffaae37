"""SAF and SGR, the local matchers of SGRAF: words attend to regions, similarity vectors are filtered or reasoned over.

Exact, but not as published: captions are batched with masks instead of looped over; what depends on a text or an image
alone is computed once; the attention carries the context's normalisation (its norm comes from the Gram matrix of the
regions), so that the difference to the words is one product; SGR's query and key are merged into one bilinear form, and
its last step computes node 0 alone. Work is cut into tiles of images x captions.
"""

from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from crcl.matchers.base import SMALLEST_SQUARE, Encoded, l2
from crcl.matchers.encoders import MetaNetwork, xavier_linear
from crcl.matchers.kernels.distances import squared_distances
from crcl.matchers.kernels.recurrent import averaged_directions
from crcl.matchers.kernels.tiles import ROWS, WORDS, caption_blocks, image_blocks
from crcl.matchers.record import MadeFor, MatcherRecord, MatcherSettings
from crcl.settings import Count

_SMOOTH = 9.0
_EPS = 1e-8


class Settings(MatcherSettings):
    """Similarity vectors of SAF and SGR."""

    similarity: Count = 256
    """Size of a similarity vector (saf and sgr)."""


class _SGRAF(nn.Module):
    """What SAF and SGR share: all but the last layers. Parameters are named as in the authors' checkpoints.

    The number of regions is fixed: a BatchNorm of the published network has one channel per region slot. `memory` is
    what intermediate results may take, in GiB; a training step that would keep more for its backward pass computes them
    a second time instead, block by block. A block has about `tile_rows` (image, word) rows. With `meta` hidden units
    the last layer is MSCN's meta-network.
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
        """So many (image, word) rows may keep their intermediate results; off the CPU also the differences (D)."""
        numbers = self.kept if device.type == "cpu" else self.kept + self.differences
        return int(self.memory * 2**30 / (4 * numbers))

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        if regions.shape[1] != self.regions:
            raise ValueError(f"this matcher was made for {self.regions} regions per image, got {regions.shape[1]}")
        local = l2(self.img["fc"](regions))  # (B, R, D)
        return Encoded(local, mask, self.sim.v_global_w(local))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        words = self.txt(tokens, lengths)  # (B, W, D), 0 behind a caption's end
        mask = torch.arange(words.shape[1], device=words.device) < lengths[:, None]
        return Encoded(words, mask, self.sim.t_global_w(words, mask))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.scores(images, texts).sigmoid()

    def scores(self, images: Encoded, texts: Encoded) -> Tensor:
        """Similarities before the sigmoid. (images, texts)"""
        scores, moments = self._scores(images, texts)
        if self.training and self.sim.SAF_module is not None:
            self.sim.SAF_module.remember(moments)
        return scores

    def within(self, encoded: Encoded) -> Tensor:
        """Images with images, or texts with texts, by the same head; not remembered in running statistics. (K, K)

        Parts behind a caption's end are 0, and as such nothing to attend to: a context's length does not count.
        """
        return self._scores(encoded, encoded)[0].sigmoid()

    def _scores(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Scores, and SAF's moments of each caption. (images, texts), (2, texts)"""
        mask, t_whole = cast(Tensor, texts.mask), cast(Tensor, texts.whole)
        lengths, order = mask.sum(1).sort(descending=True, stable=True)
        learning = self.training or torch.is_grad_enabled()
        words = min(self.tile_rows // len(images), WORDS) if learning else WORDS
        sizes = caption_blocks(lengths.tolist(), words=words)
        rows = len(images) * int(lengths.sum())
        again = torch.is_grad_enabled() and rows > self.most_rows(mask.device)
        gram = images.features @ images.features.mT  # (images, R, R)
        blocks = zip(*(part[order].split(sizes) for part in (texts.features, mask, t_whole)), strict=True)
        columns, moments = [], []
        for t, real, whole in blocks:
            longest = int(real[0].sum())
            parts = gram, t[:, :longest], real[:, :longest], whole
            scores, moment = self._block(images, *parts, cut=not learning, again=again)
            columns.append(scores)
            moments.append(moment)
        return torch.cat(columns, dim=1)[:, order.argsort()], torch.cat(moments, dim=1)

    def _block(
        self, images: Encoded, gram: Tensor, t: Tensor, mask: Tensor, t_whole: Tensor, *, cut: bool, again: bool
    ) -> tuple[Tensor, Tensor]:
        """Scores of all images with a few captions `(images, captions)`, and SAF's moments of each caption.

        Only without gradients the images are cut too: SAF's statistics of a caption are taken over all of them.
        """
        v, v_whole = images.features, cast(Tensor, images.whole)
        if not cut:
            parts = v, gram, v_whole, t, mask, t_whole
            return self._computed_again(parts) if again else self.sim(*parts)
        blocks = image_blocks(len(images), mask.numel(), rows=self.tile_rows)
        scores = [self.sim(v[block], gram[block], v_whole[block], t, mask, t_whole)[0] for block in blocks]
        return torch.cat(scores), scores[0].new_empty(2, len(mask))

    def _computed_again(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Scores and moments of a block that the backward pass computes a second time, with the weights of now."""
        now: dict[str, Tensor] = dict(self.sim.named_parameters())
        # put in by `functional_call`, and gone by then
        virtual = {name: weight for name, weight in now.items() if not isinstance(weight, nn.Parameter)}
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
        self.dropout = nn.Dropout(dropout)
        self.cap_rnn = nn.GRU(word, embedding, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.training:  # dropout differs from token to token
            words, which = self.dropout(self.embed(tokens)).flatten(0, 1), torch.arange(tokens.numel())
            which = which.to(tokens.device).view_as(tokens)
        else:
            distinct, which = tokens.unique(return_inverse=True)
            words = self.embed(distinct)
        return l2(averaged_directions(self.cap_rnn, words, which, lengths))


class _VisualSA(nn.Module):
    def __init__(self, regions: int, size: int, dropout: float) -> None:
        super().__init__()
        self.embedding_local = nn.Sequential(
            xavier_linear(size, size), nn.BatchNorm1d(regions), nn.Tanh(), nn.Dropout(dropout)
        )
        self.embedding_global = nn.Sequential(
            xavier_linear(size, size), nn.BatchNorm1d(size), nn.Tanh(), nn.Dropout(dropout)
        )
        self.embedding_common = nn.Sequential(xavier_linear(size, 1))

    def forward(self, local: Tensor) -> Tensor:
        common = self.embedding_local(local) * self.embedding_global(local.mean(1))[:, None]
        weights = self.embedding_common(common).squeeze(2).softmax(1)
        return l2(torch.einsum("br,brd->bd", weights, local))


class _TextSA(nn.Module):
    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.embedding_local = nn.Sequential(xavier_linear(size, size), nn.Tanh(), nn.Dropout(dropout))
        self.embedding_global = nn.Sequential(xavier_linear(size, size), nn.Tanh(), nn.Dropout(dropout))
        self.embedding_common = nn.Sequential(xavier_linear(size, 1))

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        mean = words.sum(1) / mask.sum(1, keepdim=True)  # words behind the end are 0
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
        self, v: Tensor, gram: Tensor, v_whole: Tensor, t: Tensor, mask: Tensor, t_whole: Tensor
    ) -> tuple[Tensor, Tensor]:
        attention = _attention(v, gram, t)  # (images, captions * words, R)
        local = squared_distances(attention, v, t.flatten(0, 1), self.sim_tranloc_w)
        local = l2(local).view(len(v), *mask.shape, -1)
        whole = l2(self.sim_tranglo_w((v_whole[:, None] - t_whole).square()))  # (images, captions, H)
        nodes = torch.cat([whole[:, :, None], local], dim=2)  # (images, captions, 1 + words, H)
        real = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
        if self.SAF_module is not None:
            vector, moments = self.SAF_module(nodes, real)
        else:
            vector, moments = _reason(self.SGR_module, nodes, real), nodes.new_empty(2, len(mask))
        with torch.autocast(vector.device.type, enabled=False):  # a temperature magnifies what is rounded here
            return self.sim_eval_w(vector.float()).squeeze(2), moments


def _attention(v: Tensor, gram: Tensor, t: Tensor) -> Tensor:
    """What each word sees of the regions, scaled so that its context has length 1. (images, captions * words, R)"""
    s = (v.flatten(0, 1) @ t.flatten(0, 1).T).view(*v.shape[:2], *t.shape[:2])  # (images, R, captions, words)
    s = leaky_relu(s.float(), 0.1)  # 0 behind a caption's end, since the words are
    s = s * (_SMOOTH / (s.norm(dim=3, keepdim=True) + _EPS))
    attention = s.softmax(1).flatten(2).mT
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
            count = len(x) * real.sum(1)  # numbers that each caption's statistics are taken over
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
    def remember(self, moments: Tensor) -> None:
        """Update the running statistics as if each caption's had come one after the other. Moments (2, captions)"""
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
    return steps[-1](nodes[:, :, :1], nodes, real).squeeze(2)


def _make(kind: type[_SGRAF], settings: Settings, made_for: MadeFor) -> _SGRAF:
    return kind(
        features=made_for.sizes["features"],
        vocabulary=made_for.sizes["vocabulary"],
        regions=made_for.sizes["regions"],
        embedding=settings.embedding,
        word=settings.word,
        similarity=settings.similarity,
        memory=made_for.memory,
        meta=made_for.meta,
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
    )


SAF_RECORD = _record("saf", "SGRAF's attention filtration of similarity vectors (a local matcher of the paper)", SAF)
SGR_RECORD = _record("sgr", "SGRAF's graph reasoning over similarity vectors (a local matcher of the paper)", SGR)
