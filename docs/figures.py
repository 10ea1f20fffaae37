"""Draw the figures of the page Concepts from the library's own functions.

    python docs/figures.py        # writes docs/images/concept-*.png, in about ten seconds

The third and the fourth figure show a real training: 2,000 pairs of vectors, of which 40 % are mismatched, two linear
layers, and a twentieth of decoys added, as an audit adds them.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor, nn
from torch.nn.functional import normalize

from crcl.auditing.estimate import estimate
from crcl.ledger import Ledger
from crcl.losses import active, active_complementary, complementary, matching_log_probs, pair_probability
from crcl.methods.relink.inputs import Stored
from crcl.methods.relink.linear import LinearModel, all_shown, divide, judge
from crcl.methods.relink.posterior import beliefs

IMAGES = Path(__file__).parent / "images"
BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8A8A8A", "#222222"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
PAIRS, DECOYS, HIDDEN, IMAGE, TEXT, BATCH, TAU = 2000, 100, 16, 48, 32, 100, 0.05
VAGUE = 2.5  # how much each side says beside what both show
PIECES = (6, 6, 12)


class Trained(NamedTuple):
    """Beliefs after every epoch, (epochs, pairs and decoys), and which of the pairs really match."""

    beliefs: np.ndarray
    matches: np.ndarray


def train(seed: int = 0) -> Trained:
    """The loop of examples/own_training_loop.py on pairs and decoys, with every epoch's beliefs kept."""
    torch.manual_seed(seed)
    things = torch.randn(PAIRS, HIDDEN)
    images = things @ torch.randn(HIDDEN, IMAGE) + VAGUE * torch.randn(PAIRS, IMAGE)
    texts = things @ torch.randn(HIDDEN, TEXT) + VAGUE * torch.randn(PAIRS, TEXT)
    wrong = torch.randperm(PAIRS)[: int(0.4 * PAIRS)]
    image_of = torch.arange(PAIRS)
    image_of[wrong] = wrong[torch.randperm(len(wrong))]
    text_of = torch.cat([torch.arange(PAIRS), torch.randint(PAIRS, (DECOYS,))])
    image_of = torch.cat([image_of, torch.randint(PAIRS, (DECOYS,))])

    ledger, beliefs = Ledger(PAIRS + DECOYS), []
    for piece, epochs in enumerate(PIECES):
        image_side, text_side = nn.Linear(IMAGE, HIDDEN), nn.Linear(TEXT, HIDDEN)
        optimizer = torch.optim.AdamW([*image_side.parameters(), *text_side.parameters()], lr=5e-3)
        for epoch in range(epochs):
            ledger.begin_epoch(piece, epoch)
            for pairs in torch.randperm(PAIRS + DECOYS).split(BATCH):
                sims = normalize(image_side(images[image_of[pairs]])) @ normalize(text_side(texts[text_of[pairs]])).T
                labels = ledger.observe(pairs, pair_probability(*matching_log_probs(sims, TAU)))
                optimizer.zero_grad()
                active_complementary(sims, labels, tau=TAU).mean().backward()
                optimizer.step()
            beliefs.append(ledger.correspondence.copy())
    return Trained(np.array(beliefs), (image_of == text_of)[:PAIRS].numpy())


def draw_workflow() -> Figure:
    """From a table to a cleaned table, as boxes and arrows."""
    figure = Figure(figsize=(8.4, 2.7), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.05, 10.05)
    axes.set_ylim(0, 2.5)
    boxes = [
        (0.1, 0.9, "pairs", "images and captions,\nsome of them wrong", GREY),
        (2.15, 0.9, "decoys", "known mismatches\nare added", ORANGE),
        (4.2, 0.9, "training", "loss follows beliefs,\nbeliefs follow matcher", BLUE),
        (6.25, 0.9, "beliefs", "one number per pair,\n0 suspect, 1 match", BLUE),
        (8.35, 1.65, "audit", "suspects, precision,\nrecall, suggestions", GREEN),
        (8.35, 0.15, "matcher", "evaluate, export,\nscore new photos", GREEN),
    ]
    for left, bottom, name, says, colour in boxes:
        shape = FancyBboxPatch((left, bottom), 1.6, 0.78, boxstyle="round,pad=0.04", fc="white", ec=colour, lw=1.8)
        axes.add_patch(shape)
        axes.text(left + 0.8, bottom + 0.57, name, ha="center", va="center", weight="bold", color=colour, size=12)
        axes.text(left + 0.8, bottom + 0.22, says, ha="center", va="center", color=INK, size=7.6)
    for start, end in [((1.75, 1.27), (2.1, 1.27)), ((3.8, 1.27), (4.15, 1.27)), ((5.85, 1.27), (6.2, 1.27))]:
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=INK))
    for start, end in [((7.9, 1.5), (8.25, 1.95)), ((7.9, 1.05), (8.25, 0.6))]:
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=INK))
    back = FancyArrowPatch((6.9, 0.85), (5.1, 0.85), arrowstyle="-|>", mutation_scale=11, color=BLUE, ls="--")
    back.set_connectionstyle("arc3,rad=-0.35")
    axes.add_patch(back)
    axes.text(6.0, 0.33, "next epoch's labels", ha="center", color=BLUE, size=9)
    return figure


def batch_with(own: Tensor) -> Tensor:
    """Logarithms of matching probabilities: pair i has own[i], and one other caption has the rest. (K, K)"""
    logs = torch.full((len(own), len(own)), -torch.inf, dtype=own.dtype)
    numbers = torch.arange(len(own))
    logs[numbers, numbers], logs[numbers, numbers.roll(1)] = own.log(), (1 - own).log()
    return logs


def draw_loss() -> Figure:
    """The two terms of Eq. 8, and their sum at three beliefs, against the probability of the pair."""
    own = torch.linspace(0.002, 0.998, 128, dtype=torch.float64)
    logs = batch_with(own)
    both = logs, logs.T
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(own, active(*both), color=ORANGE, label="active L_d: grows without bound")
    for q, dashes in ((0.0, "-"), (0.5, "--"), (1.0, ":")):
        left.plot(own, complementary(*both, q), color=BLUE, ls=dashes, label=f"complementary L_r, q = {q:g}")
    left.set_title("What one pair can cost")
    for label, colour in ((1.0, GREEN), (0.5, GREY), (0.0, ORANGE)):
        loss = active(*both, label) + 5 * complementary(*both, 1 - label)
        right.plot(own, loss, color=colour, label=f"belief {label:g}")
    right.set_title("The loss of CRCL follows the belief")
    for axes in (left, right):
        axes.set_xlabel("probability that the matcher gives the pair")
        axes.set_ylabel("loss")
        axes.set_xlim(0, 1)
        axes.legend(fontsize=8.5)
    left.set_ylim(0, 8)
    right.set_ylim(0, 24)
    return figure


def draw_ledger(trained: Trained) -> Figure:
    """Median and middle half of the beliefs in matched and mismatched pairs, epoch by epoch."""
    figure = Figure(figsize=(8, 3.3), layout="constrained")
    axes = figure.add_subplot()
    epochs = np.arange(1, len(trained.beliefs) + 1)
    real = trained.beliefs[:, :PAIRS]
    for name, chosen, colour in (("match", trained.matches, BLUE), ("mismatch", ~trained.matches, ORANGE)):
        low, middle, high = np.quantile(real[:, chosen], [0.25, 0.5, 0.75], axis=1)
        axes.fill_between(epochs, low, high, color=colour, alpha=0.18, lw=0)
        axes.plot(epochs, middle, color=colour, marker="o", ms=3, label=f"pairs that really {name}")
    mark_pieces(axes)
    axes.set_xlabel("epoch")
    axes.set_ylabel("belief")
    axes.set_ylim(0, 1.16)
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_title("Beliefs over the epochs: median and middle half")
    axes.legend(loc="center right", fontsize=9)
    return figure


def mark_pieces(axes: Axes) -> None:
    begin = 0
    for piece, epochs in enumerate(PIECES):
        if piece:
            axes.axvline(begin + 0.5, color=GREY, lw=1, ls="--")
        axes.text(begin + epochs / 2 + 0.5, 1.09, f"piece {piece + 1}: fresh weights", ha="center", color=INK, size=8.5)
        begin += epochs


def draw_decoys(trained: Trained) -> Figure:
    """Beliefs of pairs and decoys, and what their distributions say of each threshold."""
    last = trained.beliefs[-1]
    found = estimate(last[:PAIRS], last[PAIRS:])
    threshold = found.best_f1()
    expected = found.at(threshold)
    figure = Figure(figsize=(8, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    edges = np.linspace(0, 1, 31)
    weights = np.full(DECOYS, found.rate * PAIRS / DECOYS)
    left.hist(last[:PAIRS], edges, color=BLUE, alpha=0.35, label="your pairs")
    left.hist(last[PAIRS:], edges, weights=weights, histtype="step", color=ORANGE, lw=1.8, label="decoys, scaled")
    left.axvline(threshold, color=INK, lw=1, ls="--", label=f"threshold {threshold:g}")
    left.set_xlabel("belief")
    left.set_ylabel("pairs")
    left.set_title(f"Estimated: {found.rate:.1%} are wrong (truth {1 - trained.matches.mean():.1%})")
    right.plot(found.thresholds, found.precision, color=BLUE, label="estimated precision")
    right.plot(found.thresholds, found.recall, color=ORANGE, ls="--", label="estimated recall")
    right.axvline(threshold, color=INK, lw=1, ls="--")
    right.set_xlabel("threshold")
    right.set_ylim(0, 1.04)
    right.set_title(f"There: precision {expected.precision:.0%}, recall {expected.recall:.0%}")
    for axes in (left, right):
        axes.legend(fontsize=8.5)
    return figure


def draw_relink() -> Figure:
    """Beliefs of relink's linear model: where three captions belong, and in the shown pairs of all."""
    rng = np.random.default_rng(0)
    things = rng.normal(size=(PAIRS, HIDDEN))
    images = things @ rng.normal(size=(HIDDEN, IMAGE)) + VAGUE * rng.normal(size=(PAIRS, IMAGE))
    texts = things @ rng.normal(size=(HIDDEN, TEXT)) + VAGUE * rng.normal(size=(PAIRS, TEXT))
    moved = rng.permutation(PAIRS)[: int(0.4 * PAIRS)]
    shown = np.arange(PAIRS)
    shown[moved] = rng.permutation(moved)
    gone, nothing = moved[0], np.empty(0, np.int64)
    texts[gone] = rng.normal(size=TEXT) * texts.std()  # a caption of an image that is not in the data
    model = LinearModel(
        Stored(images.astype(np.float32)), Stored(texts.astype(np.float32)), divide(shown, nothing, folds=4, seed=0)
    )
    found = all_shown(PAIRS)
    for _ in range(4):
        vectors = [model.fold_vectors(fold, one) for fold, one in enumerate(model.fit(found))]
        ratios, prior = judge(vectors, model.shown)
        found = beliefs(ratios, prior.rate, PAIRS)
    right, wrong = found.shown[shown == np.arange(PAIRS)], found.shown[shown != np.arange(PAIRS)]
    relinked = next(row for row in moved[1:] if found.images[row, 0] == row and found.others[row, 0] > 0.6)
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    left, axes = figure.subplots(1, 2, width_ratios=(1.25, 1))
    matched = int(np.flatnonzero(shown == np.arange(PAIRS))[0])
    rows = {
        "a caption that is shown with its image": matched,
        "a caption that is shown with another one": relinked,
        "a caption whose image is not in the data": int(gone),
    }
    for place, (name, row) in enumerate(rows.items()):
        parts = [found.shown[row], found.others[row, 0], found.others[row, 1:].sum()]
        parts.append(max(1 - sum(parts), 0))
        start = 0.0
        for part, colour in zip(parts, (BLUE, GREEN, "#8FD3BC", "#DDDDDD"), strict=True):
            left.barh(place, part, left=start, color=colour, height=0.55)
            start += part
        left.text(0, place - 0.34, name, fontsize=9)
    colours = {"the shown image": BLUE, "the best other": GREEN, "nine more": "#8FD3BC", "none of these": "#DDDDDD"}
    for label, colour in colours.items():
        left.bar(0, 0, color=colour, label=label)
    left.set(title="Where does a caption belong?", xlabel="belief", yticks=[], xlim=(0, 1), ylim=(2.6, -0.6))
    left.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8.5, columnspacing=1, handlelength=1)
    bins = np.linspace(0, 1, 26)
    axes.hist([right, wrong], bins=list(bins), stacked=True, color=[BLUE, ORANGE], label=["match", "mismatched"])
    axes.set(title="Beliefs in the shown pairs", xlabel="belief", ylabel="pairs")
    axes.legend()
    return figure


def main() -> None:
    torch.set_num_threads(1)
    trained = train()
    with matplotlib.rc_context(STYLE):
        figures = {
            "workflow": draw_workflow(),
            "loss": draw_loss(),
            "ledger": draw_ledger(trained),
            "decoys": draw_decoys(trained),
            "relink": draw_relink(),
        }
        for name, figure in figures.items():
            figure.savefig(IMAGES / f"concept-{name}.png", dpi=140, metadata={"Software": None})


if __name__ == "__main__":
    main()
