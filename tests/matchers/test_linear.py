"""The linear matchers: against loops over regions and words, and as method relink fits them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from embedded import made_up
from tiny import small_config, write_folder
from torch import Tensor

from crcl.data.batches import Batches
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.matchers import MATCHERS, Linear, LinearVectors
from crcl.matchers.base import inner_products, l2
from crcl.methods.relink import linear
from crcl.methods.relink.inputs import Stored, bags, image_rows
from crcl.methods.relink.linear import LinearModel, all_shown, divide
from crcl.methods.relink.method import linear_weights
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.training import build, inputs, session

SIZES = {"features": 6, "vocabulary": 12, "embedding": 8}
CAPTIONS = [
    "a dog and a dog and a dog",
    "a red ball",
    "the red dog near the red ball",
    "a cat",
    "the cat under the ball",
    "dog",
]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def weighted(bag: dict[int, float], matcher: Linear) -> Tensor:
    """The vector of a bag, word by word."""
    length = sum(weight**2 for weight in bag.values()) ** 0.5
    total = sum(weight / length * matcher.text.weight[:, word] for word, weight in bag.items())
    return l2(total + matcher.text.bias)


def test_a_text_is_its_bag_of_words_of_length_one_though_words_repeat_and_padding_follows() -> None:
    weights = torch.rand(12) + 0.1
    matcher = Linear(**SIZES, regions=3, word_weights=weights).eval()
    tokens = torch.tensor([[5, 7, 5, 5], [4, 4, 0, 0], [9, 3, 8, 0]])
    lengths = torch.tensor([4, 2, 3])
    spoiled = torch.where(torch.arange(4) < lengths[:, None], tokens, 6)
    with torch.no_grad():
        found, again = (matcher.encode_texts(ids, lengths).features for ids in (tokens, spoiled))
        for row, length in enumerate(lengths.tolist()):
            bag: dict[int, float] = {}
            for word in tokens[row, :length].tolist():
                bag[word] = bag.get(word, 0.0) + float(weights[word])
            torch.testing.assert_close(found[row], weighted(bag, matcher))
    torch.testing.assert_close(again, found)


def test_an_image_is_the_mean_and_the_maximum_of_its_regions_or_its_only_region() -> None:
    pooled, single = Linear(**SIZES, regions=4).eval(), Linear(**SIZES, regions=1).eval()
    regions = torch.randn(3, 4, 6)
    mask = torch.arange(4) < torch.tensor([[4], [2], [1]])
    with torch.no_grad():
        found = pooled.encode_images(regions, mask).features
        for row, count in enumerate((4, 2, 1)):
            real = regions[row, :count]
            x = torch.cat([real.mean(0), real.max(0).values])
            torch.testing.assert_close(found[row], l2(pooled.image.linear(x)))
        one = single.encode_images(regions[:, :1], mask[:, :1]).features
        torch.testing.assert_close(one, l2(single.image.linear(l2(regions[:, 0]))))


def test_a_text_of_words_without_weight_is_finite_and_so_are_its_gradients() -> None:
    matcher = Linear(**SIZES, regions=2, word_weights=torch.zeros(12)).train()
    images = matcher.encode_images(torch.randn(2, 2, 6), torch.ones(2, 2, dtype=torch.bool))
    texts = matcher.encode_texts(torch.tensor([[4, 5], [6, 0]]), torch.tensor([2, 1]))
    matcher.similarity(images, texts).sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in matcher.parameters() if weight.grad is not None)


def test_vectors_are_mapped_whatever_their_length() -> None:
    matcher = LinearVectors(features=6, regions=1, text_features=5, embedding=8).eval()
    images, texts = torch.randn(4, 1, 6), torch.randn(3, 1, 5)
    mask, lengths = torch.ones(4, 1, dtype=torch.bool), torch.ones(3, dtype=torch.int64)
    with torch.no_grad():
        sims = matcher.similarity(matcher.encode_images(images, mask), matcher.encode_texts(texts, lengths))
        longer = matcher.similarity(matcher.encode_images(7 * images, mask), matcher.encode_texts(3 * texts, lengths))
        expected = inner_products(l2(matcher.image.linear(l2(images[:, 0]))), l2(matcher.text(l2(texts[:, 0]))))
    torch.testing.assert_close(sims, expected)
    torch.testing.assert_close(longer, expected)


@pytest.mark.parametrize("regions", [3, 1])
def test_with_the_weights_of_a_fit_it_is_the_linear_model_on_the_same_captions(regions: int) -> None:
    rng = np.random.default_rng(0)
    names = [str(row) for row in range(len(CAPTIONS))]
    features = rng.normal(size=(len(CAPTIONS), regions, 6)).astype(np.float32) + 1
    pairs = Split(CAPTIONS, np.arange(len(CAPTIONS)), features, names)
    words = Vocabulary.build(CAPTIONS, minimum=1)
    tokens = words.encode(CAPTIONS)
    batches = Batches(pairs, tokens, vocabulary=len(words), mask_token=words.mask, batch_size=len(CAPTIONS))
    shown = divide(pairs.image_index, np.empty(0, np.int64), folds=2, seed=0)
    texts = Stored(bags(tokens, len(words)), sparse=True)
    model = LinearModel(image_rows(batches), texts, shown, dimensions=5)
    fitted = model.fit_all(all_shown(len(CAPTIONS)))
    matcher = Linear(features=6, regions=regions, vocabulary=len(words), embedding=5).eval()
    matcher.load_state_dict(linear_weights(fitted, batches))
    batch = batches.make(np.arange(len(CAPTIONS)))
    with torch.no_grad():
        images = matcher.encode_images(batch.regions, batch.region_mask).features
        spoken = matcher.encode_texts(batch.tokens, batch.lengths).features
    np.testing.assert_allclose(images, linear.image_vectors(model.images, fitted), atol=1e-5)
    np.testing.assert_allclose(spoken, linear.text_vectors(model.texts, fitted), atol=1e-5)


def test_with_the_weights_of_a_fit_it_is_the_linear_model_on_the_same_vectors() -> None:
    images, texts = (side.astype(np.float32) for side in made_up(30, text=10))
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, texts)]
    shown = divide(np.arange(30), np.empty(0, np.int64), folds=3, seed=0)
    model = LinearModel(Stored(unit[0]), Stored(unit[1]), shown, dimensions=6)
    fitted = model.fit_all(all_shown(30))
    matcher = LinearVectors(features=16, regions=1, text_features=10, embedding=6).eval()
    matcher.load_state_dict(fitted.weights())
    with torch.no_grad():
        seen = matcher.encode_images(torch.from_numpy(images)[:, None], torch.ones(30, 1, dtype=torch.bool)).features
        said = matcher.encode_texts(torch.from_numpy(texts)[:, None], torch.ones(30, dtype=torch.int64)).features
    np.testing.assert_allclose(seen, linear.image_vectors(model.images, fitted), atol=1e-5)
    np.testing.assert_allclose(said, linear.text_vectors(model.texts, fitted), atol=1e-5)


def test_fitted_by_relink_it_takes_no_gradient_step_and_beats_what_it_began_with(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=60)
    chosen = small_config(data, "method=relink", "matcher.name=linear", "matcher.linear=7", "data.standardize=true")
    method, batches = build.prepare(chosen, session.read_data(chosen))
    method.begin_piece(0)
    logs = list(method.train_epoch(batches, build.schedule(chosen).clock(0, 0, 0)))
    assert {log.phase for log in logs} == {"linear model"}
    run = session.train(chosen, tmp_path / "run")
    _, stored, scorer = open_scorer(run.path)
    assert isinstance(scorer.matcher, Linear)
    assert scorer.matcher.text.out_features == 7
    test = inputs.open_pairs(stored).split("test")
    reached = evaluate([scorer], test).rsum
    by_chance = session.train(small_config(data, "matcher.name=linear", "train.lr=1e-9"), tmp_path / "fresh")
    assert reached > evaluate([open_scorer(by_chance.path)[2]], test).rsum + 50


def test_other_methods_train_it_by_gradient_steps(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    settings = ["matcher.name=linear", "train.pieces=[12]", "noise.rate=0"]
    run = session.train(small_config(data, *settings, method="infonce"), tmp_path / "run")
    first, *_, last = run.metrics()
    assert len(run.metrics()) == 12
    assert last["loss"] < first["loss"]


def test_only_the_linear_matchers_are_fitted_in_closed_form() -> None:
    assert [name for name, record in MATCHERS.items() if record.closed_form] == ["linear", "linear-vectors"]
    assert [record.reads_vectors for record in MATCHERS.values() if record.closed_form] == [False, True]
