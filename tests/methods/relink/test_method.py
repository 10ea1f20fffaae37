"""Relink: partners drawn by beliefs, beliefs of network and linear model together; resumed at any step."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from embedded import write_embeddings
from peers import Small, assert_ends_alike_when_lost, assert_goes_on_from_any_step, clock
from tiny import Stop, StopAfter, assert_same_runs, leaves, small_config, write_folder
from torch import Tensor, nn

from crcl import losses
from crcl.data.batches import Batch
from crcl.data.split import Split
from crcl.matchers import MATCHERS, Ensemble, Linear
from crcl.matchers.base import eval_mode
from crcl.methods.base import Plan
from crcl.methods.relink import Relink, RelinkSettings, linear, posterior
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.method import draw_partners, encode_all
from crcl.methods.relink.posterior import Beliefs
from crcl.methods.relink.siblings import FoldVectors, Siblings
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.runs.folder import Run
from crcl.training import inputs, session

Tiny = Callable[..., Split]
EPOCHS = 3


@pytest.fixture
def small(tiny: Tiny) -> Small:
    torch.manual_seed(0)
    return Small(tiny(images=12), batch_size=5)


def companion_for(small: Small) -> Callable[[], nn.Module]:
    return lambda: Linear(features=5, regions=4, vocabulary=small.batches.vocabulary, embedding=6)


def relink(small: Small, *, companion: bool = True, matcher: str = "bow", **settings: object) -> Relink:
    make = companion_for(small) if companion else None
    plan = Plan(epochs=EPOCHS, matcher=MATCHERS[matcher], batch_size=5, make_companion=make)
    given = {"refresh": 2, "average": 0.5, **settings}
    return Relink(small.make_learner(), small.pairs, plan, RelinkSettings(**given))  # type: ignore[arg-type]


def started(small: Small, epochs: int = 1, *, seed: int = 0, **settings: object) -> Relink:
    torch.manual_seed(seed)
    method = relink(small, **settings)  # type: ignore[arg-type]
    method.begin_piece(0)
    for epoch in range(epochs):
        list(method.train_epoch(small.batches, clock(epoch)))
    return method


def test_partners_are_drawn_as_often_as_they_are_believed() -> None:
    count = 20_000
    one = np.ones((count, 1))
    beliefs = Beliefs(
        np.full(count, 0.5, np.float32), one.astype(np.int64) * [7, 8], (one * [0.2, 0.1]).astype(np.float32)
    )
    drawn = draw_partners(beliefs, np.full(count, 3), 0, 0)
    shares = {image: float((drawn == image).mean()) for image in (3, 7, 8, -1)}
    assert sum(shares.values()) == 1
    for image, share in ((3, 0.5), (7, 0.2), (8, 0.1), (-1, 0.2)):
        assert shares[image] == pytest.approx(share, abs=0.015)


def test_the_same_seed_and_epoch_draw_the_same_partners() -> None:
    beliefs = Beliefs(np.full(50, 0.4, np.float32), np.full((50, 1), 7), np.full((50, 1), 0.3, np.float32))
    shown = np.full(50, 3)
    first = draw_partners(beliefs, shown, 1, 2)
    assert np.array_equal(first, draw_partners(beliefs, shown, 1, 2))
    assert not np.array_equal(first, draw_partners(beliefs, shown, 1, 3))
    assert not np.array_equal(first, draw_partners(beliefs, shown, 2, 2))


def test_full_belief_draws_the_shown_image_always() -> None:
    shown = np.arange(30)
    np.testing.assert_array_equal(draw_partners(linear.all_shown(30), shown, 0, 0), shown)


def test_all_images_and_captions_are_encoded_in_their_order_in_eval_mode(small: Small) -> None:
    matcher = small.make_matcher()
    pairs = small.batches.pairs
    images, texts = encode_all(matcher, small.batches)  # type: ignore[arg-type]
    assert matcher.training
    with eval_mode(matcher):  # type: ignore[arg-type]
        for pair in (0, 7, 23):
            batch = small.batches.make(np.array([pair]))
            one = matcher.encode_images(batch.regions, batch.region_mask).features[0]
            torch.testing.assert_close(images[pairs.image_index[pair]], one)
            torch.testing.assert_close(texts[pair], matcher.encode_texts(batch.tokens, batch.lengths).features[0])


def test_an_epoch_trains_on_the_drawn_partners_and_on_no_caption_without_one(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = started(small)
    seen: list[Batch] = []
    expected: list[float] = []
    ask = method.learner.similarities

    def similarities(batch: Batch) -> Tensor:
        sims = ask(batch)
        seen.append(batch)
        labels = torch.full((len(batch),), 0.5)
        expected.append(float(losses.active_complementary(sims.detach(), labels, tau=0.05, scale=5.0).mean()))
        return sims

    monkeypatch.setattr(method.learner, "similarities", similarities)
    small.batches.augment = False
    before = method.beliefs
    logs = [log for log in method.train_epoch(small.batches, clock(1)) if log.phase == "train"]
    drawn = draw_partners(before, small.batches.pairs.image_index, 0, 1)
    assert (drawn == -1).any()
    np.testing.assert_array_equal(method.drawn[0], drawn)
    assert [log.loss for log in logs] == pytest.approx(expected, rel=1e-5)
    for turn in method.drawn:
        used = np.flatnonzero(turn != -1).tolist()
        batches = [seen.pop(0) for _ in range(small.batches.count(len(used)))]
        pairs = torch.cat([batch.pairs for batch in batches]).tolist() if batches else []
        assert set(pairs) <= set(used)
        assert len(pairs) == len(used) - (len(used) % 5 == 1)
        for batch in batches:
            np.testing.assert_array_equal(batch.regions, small.batches.pairs.gather(turn[batch.pairs.numpy()]))
    assert not seen


@pytest.mark.parametrize(("belief", "turns"), [(1.0, 1), (0.6, 2), (0.4, 3)])
def test_an_epoch_has_as_many_pairs_as_the_data_though_captions_have_no_partner(
    tiny: Tiny, belief: float, turns: int
) -> None:
    many = Small(tiny(images=500), batch_size=5)
    method = relink(many)
    method.begin_piece(0)
    everyone = linear.all_shown(many.pairs)
    method.beliefs = Beliefs(everyone.shown * np.float32(belief), everyone.images, everyone.others)
    drawn = method._draw(many.batches, clock(0))
    assert (drawn != -1).sum() == many.pairs
    assert [bool((turn != -1).any()) for turn in drawn] == [number < turns for number in range(len(drawn))]
    assert (drawn[0] != -1).mean() == pytest.approx(belief, abs=0.05)


def test_captions_that_hardly_belong_anywhere_are_not_drawn_for_without_end(tiny: Tiny) -> None:
    many = Small(tiny(images=500), batch_size=5)
    method = relink(many)
    method.begin_piece(0)
    everyone = linear.all_shown(many.pairs)
    method.beliefs = Beliefs(everyone.shown * np.float32(0.1), everyone.images, everyone.others)
    drawn = method._draw(many.batches, clock(0))
    assert (drawn != -1).mean() == pytest.approx(0.1, abs=0.03)
    assert not np.array_equal(drawn[0], drawn[1])


def test_what_is_evaluated_is_the_running_average_of_the_weights_and_the_linear_model(small: Small) -> None:
    method = started(small, epochs=0)
    average: dict[str, Tensor] = {}
    for _ in method.train_epoch(small.batches, clock(0)):
        now = {name: value.detach().clone() for name, value in method.learner.module.named_parameters()}
        if method.averaged.n_averaged > 0:
            average = {name: (average[name] + value) / 2 if average else value for name, value in now.items()}
    for name, value in method.averaged.module.named_parameters():
        torch.testing.assert_close(value, average[name], msg=name)
    assert isinstance(method.matcher, Ensemble)
    assert [type(member).__name__ for member in method.matcher.members] == ["Bow", "Linear"]
    assert type(started(small, companion=False).matcher).__name__ == "Bow"


def test_beliefs_of_the_first_epoch_do_not_depend_on_the_network(small: Small) -> None:
    one, other = (started(small, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(one.correspondence, other.correspondence)
    np.testing.assert_array_equal(one.partners.images, other.partners.images)
    np.testing.assert_array_equal(one.partners.beliefs, one.beliefs.others)
    assert not torch.equal(*(next(method.learner.module.parameters()) for method in (one, other)))


def test_beliefs_are_made_anew_at_their_turn_and_after_the_last_epoch(small: Small) -> None:
    method = started(small, epochs=0)
    phases = [{log.phase for log in method.train_epoch(small.batches, clock(epoch))} for epoch in range(EPOCHS)]
    assert phases == [{"linear model", "train"}, {"train", "beliefs"}, {"train", "beliefs"}]


@pytest.mark.parametrize("share", [0, 1])
def test_anew_a_caption_is_judged_by_the_network_in_its_share(small: Small, share: float) -> None:
    method = started(small, network=share)
    siblings = None if share else Siblings(method.correspondence, method.together)  # these help the linear model alone
    near = method.temperature
    method._judge(small.batches)
    model = method._linear_model(small.batches)
    images, texts = encode_all(method.averaged.module, small.batches)  # type: ignore[arg-type]
    vectors = []
    for fold, tensors in enumerate(method.projections):
        of_fold = model.fold_vectors(fold, Projections.from_tensors(tensors))
        vectors.append(FoldVectors(of_fold.rows, images, texts) if share else of_fold)
    found, prior = linear.judge(vectors, model.shown, siblings, near=near)
    expected = posterior.beliefs(found, prior.rate, len(images))
    np.testing.assert_allclose(method.correspondence, expected.shown, atol=1e-3)
    np.testing.assert_allclose(method.partners.beliefs, expected.others, atol=1e-3)


@pytest.mark.parametrize("matcher", ["saf", "sgr", "scan"])
def test_local_matchers_keep_the_beliefs_of_the_linear_model(tmp_path: Path, matcher: str) -> None:
    data = write_folder(tmp_path / "data")
    settings = ["method=relink", "relink.refresh=1", "matcher.similarity=4", "train.pieces=[2]"]
    run = session.train(small_config(data, *settings, f"matcher.name={matcher}"), tmp_path / "run")
    alone = session.train(small_config(data, *settings, "matcher.name=linear"), tmp_path / "alone")
    np.testing.assert_allclose(run.load_ledger(), alone.load_ledger(), atol=1e-5)
    assert (len(run.metrics()), len(alone.metrics())) == (2, 1)
    assert run.networks == alone.networks == 1


def test_saved_after_any_step_it_goes_on_to_the_same_end(small: Small) -> None:
    counts = assert_goes_on_from_any_step(lambda: relink(small), small.batches, epochs=range(EPOCHS))
    assert counts[0] > counts[1]  # the linear model comes first


def test_without_a_companion_it_goes_on_to_the_same_end_too(small: Small) -> None:
    make: Callable[[], Relink] = lambda: relink(small, companion=False)  # noqa: E731
    assert_goes_on_from_any_step(make, small.batches, epochs=range(EPOCHS))


def test_with_very_many_images_the_beliefs_of_the_linear_model_stay_and_it_goes_on_to_the_same_end(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crcl.methods.relink.sampled.EXACT", 11)
    assert_goes_on_from_any_step(lambda: relink(small), small.batches, epochs=range(EPOCHS))
    one, other = started(small, 1), started(small, EPOCHS)
    np.testing.assert_array_equal(one.correspondence, other.correspondence)


def test_the_number_of_loader_workers_changes_nothing(small: Small) -> None:
    expected = dict(leaves(started(small, 2).state_dict()))
    small.batches.workers = 2
    assert dict(leaves(started(small, 2).state_dict())) == expected


def test_a_state_of_other_pairs_is_refused(tiny: Tiny, small: Small) -> None:
    method, other = relink(small, companion=False), relink(Small(tiny(images=11)), companion=False)
    other.learner.make_matcher = small.make_matcher  # of the same words
    for one in (method, other):
        one.begin_piece(0)
    with pytest.raises(ValueError, match="has 22 pairs, the data 24"):
        method.load_state_dict(other.state_dict())


def test_every_piece_begins_anew(small: Small) -> None:
    method = started(small)
    assert method.projections
    method.begin_piece(0)
    assert (method.correspondence == 1).all()
    assert (method.rounds, method.projections) == (0, [])


def test_a_run_with_a_companion_scores_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = session.train(small_config(data, "method=relink"), tmp_path / "run")
    assert run.networks == 2
    _, stored, scorer = open_scorer(run.path)
    assert isinstance(scorer.matcher, Ensemble)
    assert [type(member).__name__ for member in scorer.matcher.members] == ["Bow", "Linear"]
    scores = evaluate([scorer], inputs.open_pairs(stored).split("dev"))
    assert scores.rsum == max(record["dev"]["rsum"] for record in run.metrics())
    alone = session.train(small_config(data, "method=relink", "relink.ensemble=false"), tmp_path / "alone")
    assert alone.networks == 1
    assert type(open_scorer(alone.path)[2].matcher).__name__ == "Bow"


def test_a_pair_whose_caption_a_decoy_repeats_is_judged_but_not_trained_on(small: Small) -> None:
    originals = np.array([0, 5])
    # the last two pairs stand for decoys, which are trained on as any other pair
    plan = Plan(epochs=EPOCHS, matcher=MATCHERS["bow"], batch_size=5, originals=originals)
    method = Relink(small.make_learner(), small.pairs, plan, RelinkSettings(refresh=2, average=0.5))
    method.begin_piece(0)
    method.beliefs = linear.all_shown(small.pairs)
    drawn = method._draw(small.batches, clock(0))
    assert (drawn[:, originals] == -1).all()
    others = np.setdiff1d(np.arange(small.pairs), originals)
    np.testing.assert_array_equal(drawn[0, others], small.batches.pairs.image_index[others])
    list(method.train_epoch(small.batches, clock(0)))
    assert (method.drawn[:, originals] == -1).all()
    assert np.isfinite(method.correspondence[originals]).all()


def test_a_run_keeps_the_partners_that_captions_may_belong_to(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    run = session.train(small_config(data, "method=relink", "data.decoys=0.1"), tmp_path / "run")
    found = Run.open(run.path).load_partners()
    assert found is not None
    images, beliefs = found
    assert images.shape == beliefs.shape == (48, 10)  # decoys have none
    ledger = run.load_ledger()
    shown = run.noise()
    assert shown is not None
    assert (images != shown[:, None]).all()
    assert (np.diff(beliefs, axis=1) <= 0).all()
    assert (ledger + beliefs.sum(1) < 1 + 1e-5).all()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [["matcher.name=linear"], ["matcher.name=vse", "train.workers=1"]])
def test_lost_on_the_way_a_training_ends_bit_identical(tmp_path: Path, settings: list[str]) -> None:
    assert_ends_alike_when_lost(tmp_path, ["method=relink", "train.pieces=[2]", *settings], after=3)


@pytest.mark.parametrize("matcher", ["dual", "linear-vectors"])
def test_on_embeddings_it_finds_mismatches_and_goes_on_to_the_same_end(tmp_path: Path, matcher: str) -> None:
    data = write_embeddings(tmp_path / "data", 300, text=10)
    settings = [f"matcher.name={matcher}", "train.pieces=[2]", "train.batch_size=64", "train.save_minutes=0"]
    chosen = small_config(data, "method=relink", *settings)
    run = session.train(chosen, tmp_path / "whole")
    with pytest.raises(Stop):
        session.train(chosen, tmp_path / "stopped", progress=StopAfter(3))
    session.train(chosen, tmp_path / "stopped", resume=True)
    assert_same_runs(tmp_path / "stopped", run.path)
    shown = run.noise()
    assert shown is not None
    right = shown == np.arange(len(shown))
    beliefs = run.load_ledger()
    assert beliefs[right].mean() > beliefs[~right].mean() + 0.4
    assert run.networks == (2 if matcher == "dual" else 1)
