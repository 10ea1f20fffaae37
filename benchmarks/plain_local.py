"""SCAN, CHAN, NAAF, IMRAM and GSMN straight from their formulas, one caption at a time against all images.

What `speed_words.py` compares with. All regions are real; `v` is (images, R, D), `t` (words, D).
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu

from crcl.matchers import CHAN, GSMN, IMRAM, NAAF, SCAN, Encoded

Local = SCAN | CHAN | NAAF | IMRAM | GSMN


def plain_similarities(matcher: Local, images: Encoded, texts: Encoded) -> Tensor:
    """Every image with every caption. (images, captions)"""
    one = {SCAN: scan, CHAN: chan, NAAF: naaf, IMRAM: imram, GSMN: gsmn}[type(matcher)]
    captions = zip(texts.features, texts.mask.sum(1).tolist(), strict=True)
    return torch.stack([one(matcher, images.features, words[:length]) for words, length in captions], dim=1)


def attended(asking: Tensor, asked: Tensor, smooth: float) -> tuple[Tensor, Tensor]:
    """Attention of what asks, and its contexts. (images, asking, asked), (images, asking, D)"""
    s = leaky_relu(asking @ asked.mT, 0.1)
    attention = (smooth * s / (s.norm(dim=1, keepdim=True) + 1e-8)).softmax(2)
    return attention, attention @ asked


def scan(matcher: SCAN, v: Tensor, t: Tensor) -> Tensor:
    words = t.expand(len(v), -1, -1)
    relevance = cosine_similarity(words, attended(words, v, matcher.smooth)[1], dim=2)
    return (matcher.sharp * relevance).exp().sum(1).log() / matcher.sharp


def chan(matcher: CHAN, v: Tensor, t: Tensor) -> Tensor:
    best = (v @ t.T).max(1).values
    return (matcher.sharp * best).exp().sum(1).log() / matcher.sharp


def naaf(matcher: NAAF, v: Tensor, t: Tensor) -> Tensor:
    threshold = matcher.threshold if matcher.training else matcher.safe_threshold
    words = t.expand(len(v), -1, -1)
    s = words @ v.mT  # (images, words, R)
    weights = (matcher.smooth * (s - threshold)).exp() * (s > threshold)
    context = weights / (weights.sum(2, keepdim=True) + 1e-8) @ v
    clear = (words * context).sum(2) / context.norm(dim=2).clamp(min=1e-8)
    usual = (attended(words, v, matcher.smooth)[0] * s).sum(2)
    margin = s.max(2).values - threshold
    votes = margin @ (5 * t @ t.T).softmax(1).T
    lacking = margin.clamp(max=0) if matcher.training else margin * (votes < 0)
    return (clear + usual + lacking).mean(1)


def imram(matcher: IMRAM, v: Tensor, t: Tensor) -> Tensor:
    words, found = t.expand(len(v), -1, -1), []
    for way, asking, asked in (("t2i", words, v), ("i2t", v, words)):
        query = asking
        for step in range(matcher.steps):
            context = attended(query, asked, matcher.smooth)[1]
            found.append(cosine_similarity(asking, context, dim=2).mean(1))
            if step + 1 < matcher.steps:
                both = torch.cat([query, context], dim=2)
                gate = matcher.sim[f"gate_{way}"](both).sigmoid()
                query = gate * query + (1 - gate) * matcher.sim[f"linear_{way}"](both).tanh()
    return torch.stack(found).mean(0)


def gsmn(matcher: GSMN, v: Tensor, t: Tensor) -> Tensor:
    words, total = t.expand(len(v), -1, -1), torch.zeros(len(v))
    for way, asking, asked in (("t2i", words, v), ("i2t", v, words)):
        context = attended(asking, asked, matcher.smooth)[1]
        blocks = (x.unflatten(2, (matcher.blocks, -1)) for x in (asking, context))
        cosines = cosine_similarity(*blocks, dim=3)  # (images, asking, blocks)
        total = total + matcher.sim[way](cosines[None], torch.ones(asking.shape[:2], dtype=torch.bool))[0].mean(1)
    return total
