"""Your own model, your own loop: only `active_complementary` and `Ledger` come from crcl.

    python examples/own_training_loop.py

2,000 pairs of vectors, an "image" and a "text" view of the same hidden vector, 40 % of them mismatched. Two linear
layers learn to match them, and the ledger learns which pairs are wrong.
"""

import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import normalize

from crcl.ledger import Ledger
from crcl.losses import active_complementary, matching_log_probs, pair_probability

PAIRS, HIDDEN, IMAGE, TEXT, BATCH, TAU = 2000, 16, 48, 32, 100, 0.05

torch.manual_seed(0)
things = torch.randn(PAIRS, HIDDEN)
images = things @ torch.randn(HIDDEN, IMAGE) + 0.5 * torch.randn(PAIRS, IMAGE)
texts = things @ torch.randn(HIDDEN, TEXT) + 0.5 * torch.randn(PAIRS, TEXT)
wrong = torch.randperm(PAIRS)[: int(0.4 * PAIRS)]
shown = torch.arange(PAIRS)
shown[wrong] = wrong[torch.randperm(len(wrong))]
mismatched = shown != torch.arange(PAIRS)  # for the last line only: training never sees it

ledger = Ledger(PAIRS)
for piece, epochs in enumerate([6, 6, 12]):  # every piece starts from fresh weights and keeps the ledger
    image_side, text_side = nn.Linear(IMAGE, HIDDEN), nn.Linear(TEXT, HIDDEN)
    optimizer = torch.optim.AdamW([*image_side.parameters(), *text_side.parameters()], lr=5e-3)
    for epoch in range(epochs):
        ledger.begin_epoch(piece, epoch)
        total = 0.0
        for pairs in torch.randperm(PAIRS).split(BATCH):
            sims = normalize(image_side(images[shown[pairs]])) @ normalize(text_side(texts[pairs])).T
            labels = ledger.observe(pairs, pair_probability(*matching_log_probs(sims, TAU)))
            loss = active_complementary(sims, labels, tau=TAU).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(pairs)
    print(f"piece {piece + 1}: loss {total / PAIRS:.3f}, mean correspondence {ledger.correspondence.mean():.3f}")

auroc = roc_auc_score(mismatched, -ledger.correspondence)
print(f"mismatched pairs found with AUROC {auroc:.3f}")
