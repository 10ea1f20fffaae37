"""Relink: beliefs in the partners of captions, and training on partners that are drawn by them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from crcl import distributed
from crcl.data.batches import Batch, Batches
from crcl.data.text.vocabulary import Tokens
from crcl.losses import active_complementary
from crcl.matchers import Ensemble, Matcher
from crcl.matchers.base import device_of, eval_mode
from crcl.methods.base import Learner, Partners, Plan, Space
from crcl.methods.epochs import CompletedSteps
from crcl.methods.relink import linear, posterior, sampled, search
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.inputs import Rows, Stored, bag_weights, blocks, linear_rows
from crcl.methods.relink.linear import LinearModel
from crcl.methods.relink.posterior import Beliefs
from crcl.methods.relink.settings import RelinkSettings
from crcl.methods.relink.siblings import Network, Shown, Siblings, shared_fate
from crcl.progress import Clock, StepLog

LABEL = 0.5
"""Label of every drawn pair in the active complementary loss."""
_EPOCHS_AVERAGED = 2.2
_NOWHERE = -1  # partner of a caption that is left out
TURNS = 3
"""How often an epoch draws partners, at most."""
_DRAWS, _CUTS = 0xD7A3, 0xC075  # keep the random numbers of draws apart from others drawn with the same seed


class Relink:
    """Trains on partners drawn by beliefs that a linear model starts and the averaged network refines.

    The first epoch begins with the linear model: rounds of beliefs and fits, out of fold. Each epoch then draws a
    partner for every caption: the shown image, one of its ten best others, or none. Where many have none, it draws
    again, up to three times in all, until it has as many pairs as the data: so an epoch costs about the same whatever
    the rate of mismatches. A running average of the weights is what is evaluated; every `refresh` epochs and after the
    last one it judges all captions anew, together with the linear model.
    """

    def __init__(
        self,
        learner: Learner,
        pairs: int,
        plan: Plan,
        settings: RelinkSettings,
        *,
        tau: float = 0.05,
        scale: float = 5.0,
    ) -> None:
        self.learner = learner
        self.pairs = pairs
        self.plan = plan
        self.settings = settings
        self.tau = tau
        self.scale = scale
        self._model: LinearModel | None = None
        self._clear()

    def _clear(self) -> None:
        self.beliefs: Beliefs = linear.all_shown(self.pairs)
        self.drawn = np.full((TURNS, self.pairs), _NOWHERE, dtype=np.int64)
        self.projections: list[dict[str, Tensor]] = []
        self.rounds = 0
        self.temperature = 0.0
        self.together = 0.0

    @property
    def matcher(self) -> Matcher:
        network = cast(Matcher, self.averaged.module)
        if self.companion is None:
            return network
        return Ensemble([self.averaged.module, self.companion], shares=self.shares)

    @property
    def correspondence(self) -> np.ndarray:
        return self.told.shown

    @property
    def judged(self) -> np.ndarray | None:
        return None if self.plan.fixed is None else self.beliefs.shown

    @property
    def told(self) -> Beliefs:
        """The beliefs, or what verdicts say: a right caption belongs to its image alone, a wrong one not to it."""
        fixed, found = self.plan.fixed, self.beliefs
        if fixed is None:
            return found
        shown = np.where(np.isnan(fixed), found.shown, fixed).astype(np.float32)
        return Beliefs(shown, found.images, np.where(fixed[:, None] == 1, np.float32(0), found.others))

    @property
    def partners(self) -> Partners:
        return Partners(self.beliefs.images, self.beliefs.others)

    def spaces(self, batches: Batches) -> Iterator[Space]:
        """The vectors by which the linear model judges, one space for each fold."""
        shown, (images, texts) = self._shown(batches), self._rows(batches)
        for fold, tensors in enumerate(self.projections):
            model = Projections.from_tensors(tensors)
            yield Space.of(
                np.flatnonzero(shown.folds == fold),
                shown.images,
                partial(linear.image_vectors, images, model),
                partial(linear.text_vectors, texts, model),
            )

    def begin_piece(self, piece: int) -> None:
        self.learner.reset()
        self.averaged = AveragedModel(self.learner.module, use_buffers=True)
        make = self.plan.make_companion
        self.companion: nn.Module | None = None if make is None else make()
        self.shares = torch.full((2,), 0.5, device=device_of(self.learner.module))  # validation chooses others
        self._clear()

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        completed = CompletedSteps(clock.step)
        rounds = rounds_of(batches) if clock.epoch == 0 else 0
        for _ in range(completed.take(rounds), rounds):
            self._fit_linear(batches)
            distributed.meet()  # each fits the same model, which may take some of them longer
            yield StepLog(self.pairs, float("nan"), phase="linear model")
        if self.plan.matcher.closed_form:
            return
        if clock.step <= rounds:
            self.drawn = self._draw(batches, clock)
        self.learner.module.train()
        self.averaged.multi_avg_fn = get_ema_multi_avg_fn(average_decay(self.settings.average, len(batches)))
        for batch in self._batches(batches, clock, completed):
            sims = self.learner.similarities(batch)
            labels = torch.full((len(batch),), LABEL, device=sims.device)
            losses = active_complementary(sims, labels, tau=self.tau, scale=self.scale)
            step = StepLog(batch.size, self.learner.optimizer.step(losses, batch, clock.learning_rate))
            self.averaged.update_parameters(self.learner.module)
            yield step
        if self._refreshes(clock.epoch, batches) and not completed.take(1):
            self._judge(batches)
            distributed.meet()
            yield StepLog(self.pairs, float("nan"), phase="beliefs")

    def _batches(self, batches: Batches, clock: Clock, completed: CompletedSteps) -> Iterator[Batch]:
        """The drawn pairs of this epoch, turn by turn, without the batches of completed steps."""
        for turn, drawn in enumerate(self.drawn):
            used = np.flatnonzero(drawn != _NOWHERE)
            steps = batches.count(len(used))
            if (start := completed.take(steps)) < steps:
                yield from batches.epoch(clock.total_epoch, start=start, among=used, images=drawn, stream=turn)

    def _draw(self, batches: Batches, clock: Clock) -> np.ndarray:
        """The image that each caption is trained with in each turn of this epoch, or none. (turns, N)

        A pair whose caption is repeated by a decoy is left out: the network would know the decoy's caption from it, as
        it knows no other mismatched caption, and would disbelieve decoys more than mismatches.
        """
        told, shown = self.told, batches.pairs.image_index
        left_out = np.empty(0, np.int64) if self.plan.originals is None else self.plan.originals
        found, wanted = [], self.pairs - len(left_out)
        for turn in range(TURNS):
            drawn = draw_partners(told, shown, batches.seed, clock.total_epoch, turn=turn)
            drawn[left_out] = _NOWHERE
            rows = np.random.default_rng([_CUTS, batches.seed, clock.total_epoch, turn]).permutation(len(drawn))
            rows = rows[drawn[rows] != _NOWHERE]
            drawn[rows[wanted:]] = _NOWHERE
            found.append(drawn)
            wanted -= min(wanted, len(rows))
        return distributed.from_first(np.stack(found))

    def _refreshes(self, epoch: int, batches: Batches) -> bool:
        """Whether the network judges all captions after this epoch.

        With a local matcher, or very many images, that would take too long: the linear model's beliefs stay.
        """
        due = epoch + 1 == self.plan.epochs or (epoch + 1) % self.settings.refresh == 0
        return due and self.plan.matcher.one_vector and batches.pairs.images <= sampled.EXACT

    def _linear_model(self, batches: Batches) -> LinearModel:
        if self._model is None:
            if batches.pairs.images > sampled.EXACT:
                search.library(batches.pairs.images)  # refuses before long work
            images, texts = self._rows(batches)
            shown = self._shown(batches)
            most = sampled.FITTED if batches.pairs.images > sampled.EXACT else None
            self._model = LinearModel(images, texts, shown, dimensions=self._dimensions(), most=most, seed=batches.seed)
        return self._model

    def _rows(self, batches: Batches) -> tuple[Rows, Rows]:
        """Images and captions as the linear model reads them."""
        return self._published_rows(batches) if self.plan.matcher.pretrained else linear_rows(batches)

    def _shown(self, batches: Batches) -> Shown:
        """The pairs, divided into folds."""
        originals = np.empty(0, np.int64) if self.plan.originals is None else self.plan.originals
        return linear.divide(batches.pairs.image_index, originals, folds=self.settings.folds, seed=batches.seed)

    def _dimensions(self) -> int:
        """Dimensions of the linear model: those of the matcher that it becomes, if any."""
        module = self.learner.module if self.plan.matcher.closed_form else self.companion
        return linear.DIMENSIONS if module is None else int(cast(Any, module).text.out_features)

    def _published_rows(self, batches: Batches) -> tuple[Rows, Rows]:
        """The vectors of a published model before any training, for the linear model."""
        with torch.random.fork_rng():
            matcher = cast(Matcher, self.learner.make_matcher())
        images, texts = encode_all(matcher, batches)
        return Stored(images.cpu().numpy()), Stored(texts.cpu().numpy())

    def _fit_linear(self, batches: Batches) -> None:
        """One round of the linear model: fit on the beliefs, then judge."""
        model = self._linear_model(batches)
        told = self.told
        near = self.temperature or None
        if len(model.images) > sampled.EXACT:
            last = self.rounds + 1 == rounds_of(batches)
            projections, ratios, prior = sampled.run_round(model, told, last=last, near=near, seed=batches.seed)
        else:
            projections = model.fit(told)
            vectors = [model.fold_vectors(fold, one) for fold, one in enumerate(projections)]
            siblings = Siblings(told.shown, self.together) if self.rounds >= linear.ALONE else None
            ratios, prior = linear.judge(vectors, model.shown, siblings, near=near, seed=batches.seed)
        self.beliefs = posterior.beliefs(ratios, prior.rate, len(model.images))
        self.temperature = prior.temperature
        if self.rounds < linear.ALONE:
            fitted = model.shown.fitted
            self.together = shared_fate(self.told.shown[fitted], model.shown.images[fitted])
        self.projections = [projection.tensors() for projection in projections]
        self.rounds += 1
        if self.rounds == rounds_of(batches):
            self._fit_matchers(model, batches)

    def _judge(self, batches: Batches) -> None:
        """Beliefs by the averaged network and the linear model together: their vectors side by side."""
        model = self._linear_model(batches)
        images, texts = encode_all(cast(Matcher, self.averaged.module), batches)
        projections = [Projections.from_tensors(tensors) for tensors in self.projections]
        vectors = [model.fold_vectors(fold, one).to(images.device) for fold, one in enumerate(projections)]
        siblings = Siblings(self.told.shown, self.together)
        network = Network(images, texts, self.settings.network)
        ratios, prior = linear.judge(vectors, model.shown, siblings, network, near=self.temperature, seed=batches.seed)
        self.beliefs = posterior.beliefs(ratios, prior.rate, len(images))
        self._fit_matchers(model, batches)

    def _fit_matchers(self, model: LinearModel, batches: Batches) -> None:
        """Give the companion, or a matcher that is linear itself, the linear model of all pairs."""
        own = self.averaged.module if self.plan.matcher.closed_form else None
        for module in (self.companion, own):
            if module is not None:
                module.load_state_dict(module.state_dict() | linear_weights(model.fit_all(self.told), batches))

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.learner.state_dict(),
            "averaged": self.averaged.state_dict(),
            "companion": {} if self.companion is None else self.companion.state_dict(),
            "shares": self.shares.clone(),
            "beliefs": {name: torch.from_numpy(value.copy()) for name, value in vars(self.beliefs).items()},
            "drawn": torch.from_numpy(self.drawn.copy()),
            "projections": self.projections,
            "rounds": self.rounds,
            "temperature": self.temperature,
            "together": self.together,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.averaged.load_state_dict(state["averaged"])
        if self.companion is not None:
            self.companion.load_state_dict(state["companion"])
        self.shares.copy_(state["shares"])
        if state["drawn"].shape[-1] != self.pairs:
            raise ValueError(f"the saved state has {state['drawn'].shape[-1]} pairs, the data {self.pairs}")
        self.beliefs = Beliefs(**{name: value.numpy().copy() for name, value in state["beliefs"].items()})
        self.drawn = state["drawn"].numpy().copy()
        self.projections = state["projections"]
        self.rounds, self.temperature = int(state["rounds"]), float(state["temperature"])
        self.together = float(state["together"])


def average_decay(most: float, steps: int) -> float:
    """Weight of the old value in the running average: it reaches back over two epochs of so many steps, or less."""
    return min(most, 1 - 1 / (_EPOCHS_AVERAGED * max(steps, 1)))


def rounds_of(batches: Batches) -> int:
    """Rounds of the linear model."""
    return sampled.ROUNDS if batches.pairs.images > sampled.EXACT else linear.ROUNDS


def linear_weights(fitted: Projections, batches: Batches) -> dict[str, Tensor]:
    """The weights of a linear matcher."""
    weights = fitted.weights()
    if isinstance(batches.tokens, Tokens):
        weights["word_weights"] = torch.from_numpy(bag_weights(batches.tokens, batches.vocabulary))
    return weights


def draw_partners(beliefs: Beliefs, shown: np.ndarray, seed: int, epoch: int, *, turn: int = 0) -> np.ndarray:
    """A partner for every caption, drawn by its beliefs: the shown image, another one, or -1 for none. (N,)"""
    drawn = np.random.default_rng([_DRAWS, seed, epoch, turn]).random(len(shown))
    edges = np.cumsum(np.concatenate([beliefs.shown[:, None], beliefs.others], axis=1), axis=1, dtype=np.float64)
    choice = (drawn[:, None] >= edges).sum(1)
    images = np.concatenate([shown[:, None], beliefs.images, np.full((len(shown), 1), _NOWHERE)], axis=1)
    return np.take_along_axis(images, choice[:, None], axis=1)[:, 0]


def encode_all(matcher: Matcher, batches: Batches) -> tuple[Tensor, Tensor]:
    """Vectors of all images and of all captions, in eval mode. (M, D), (N, D)"""
    pairs = batches.pairs
    with eval_mode(matcher) as device:
        images, texts = [], []
        for rows in blocks(pairs.images, 256):
            regions = pairs.gather(rows)
            if batches.standardize is not None:
                regions = batches.standardize(regions)
            mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=device)
            images.append(matcher.encode_images(torch.from_numpy(regions).to(device), mask).features.float())
        by_length = np.argsort(batches.tokens.lengths, kind="stable")
        for rows in blocks(len(pairs), 256):
            tokens, real = batches.tokens.side_by_side(by_length[rows])
            lengths = torch.from_numpy(real.sum(1)).to(device)
            texts.append(matcher.encode_texts(torch.from_numpy(tokens).to(device), lengths).features.float())
        back = torch.from_numpy(np.argsort(by_length, kind="stable")).to(device)
        return torch.cat(images).clone(), torch.cat(texts)[back].clone()
