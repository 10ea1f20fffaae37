"""SAF and SGR written straight from their formulas, one caption at a time: what `speed.py` compares with."""

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from crcl.matchers import SAF, SGR
from crcl.matchers.base import l2


def plain_images(matcher: SAF | SGR, regions: Tensor) -> tuple[Tensor, Tensor]:
    """Local and global vectors of the images by the weights of one of ours. (images, R, D), (images, D)"""
    v = l2(matcher.img["fc"](regions))
    return v, matcher.sim.v_global_w(v)


def plain_similarities(matcher: SAF | SGR, images: tuple[Tensor, Tensor], tokens: Tensor, lengths: Tensor) -> Tensor:
    """Every image with every caption. Captions come longest first. (images, captions)"""
    sim, txt, (v, v_whole) = matcher.sim, matcher.txt, images
    packed = pack_padded_sequence(txt.dropout(txt.embed(tokens)), lengths.tolist(), batch_first=True)
    both = pad_packed_sequence(txt.cap_rnn(packed)[0], batch_first=True)[0]
    words = l2((both[..., : v.shape[2]] + both[..., v.shape[2] :]) / 2)
    columns = [one_caption(sim, v, v_whole, words[n, :length]) for n, length in enumerate(lengths.tolist())]
    return torch.cat(columns, dim=1).sigmoid()


def one_caption(sim: nn.Module, v: Tensor, v_whole: Tensor, t: Tensor) -> Tensor:
    """Raw scores of all images with one caption. (images, 1)"""
    t_whole = sim.t_global_w(t[None], torch.ones(1, len(t), dtype=torch.bool))
    words = t.expand(len(v), -1, -1)
    s = leaky_relu(v @ words.mT, 0.1)  # (images, R, words)
    s = s / (s.norm(dim=2, keepdim=True) + 1e-8)
    context = l2((9 * s).softmax(1).mT @ v)  # (images, words, D)
    local = l2(sim.sim_tranloc_w((context - words).square()))
    whole = l2(sim.sim_tranglo_w((v_whole - t_whole).square()))
    nodes = torch.cat([whole[:, None], local], dim=1)
    if sim.SAF_module is not None:
        logits = sim.SAF_module.attn_sim_w(nodes).mT  # (images, 1, nodes)
        gates = sim.SAF_module.bn(logits).sigmoid()
        vector = l2((gates / (gates.sum(2, keepdim=True) + 1e-8) @ nodes).squeeze(1))
    else:
        for step in sim.SGR_module:
            edges = (step.graph_query_w(nodes) @ step.graph_key_w(nodes).mT).softmax(2)
            nodes = torch.relu(step.sim_graph_w(edges @ nodes))
        vector = nodes[:, 0]
    return sim.sim_eval_w(vector)
