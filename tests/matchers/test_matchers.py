"""Matchers: the authors' numbers and names, padding, and one caption or image at a time."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from crcl.matchers import MATCHERS, VSE, Bow, Encoded
from crcl.matchers.base import as_module, l2
from crcl.matchers.encoders import TwoLayers, WordEncoder, xavier_linear
from crcl.matchers.kernels.recurrent import averaged_directions, twice_differentiable

Numbers = Callable[[str], dict[str, np.ndarray]]
SIZES = {"features": 6, "vocabulary": 12, "embedding": 8, "word": 5}
each_matcher = pytest.mark.parametrize("matcher_class", [VSE, Bow])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def regions_and_mask(lengths: list[int], *, slots: int = 7) -> tuple[Tensor, Tensor]:
    """Random regions, real ones first, 0 behind them."""
    mask = torch.arange(slots) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), slots, SIZES["features"]) * mask[..., None], mask


def tokens_and_lengths(lengths: list[int], *, slots: int = 9) -> tuple[Tensor, Tensor]:
    """Random token ids, padded with 0."""
    real = torch.arange(slots) < torch.tensor(lengths)[:, None]
    return torch.randint(1, SIZES["vocabulary"], (len(lengths), slots)) * real, torch.tensor(lengths)


def authors_vse(numbers: dict[str, np.ndarray]) -> VSE:
    """A VSE∞ with the recorded weights; the second batch norm is in the authors' files, but never applied."""
    weights = {
        name: torch.from_numpy(value)
        for name, value in numbers.items()
        if name.startswith(("img.", "txt.")) and not name.startswith("img.mlp.bns.1.")
    }
    embedding, features = weights["img.fc.weight"].shape
    vocabulary, word = weights["txt.embed.weight"].shape
    matcher = VSE(features=features, vocabulary=vocabulary, embedding=embedding, word=word)
    matcher.load_state_dict(weights, strict=True)
    return matcher.eval()


def test_vse_agrees_with_the_authors_embeddings_and_similarities(recorded: Numbers) -> None:
    numbers = recorded("vse")
    matcher = authors_vse(numbers)
    regions = torch.from_numpy(numbers["images"])
    mask = torch.arange(regions.shape[1]) < torch.from_numpy(numbers["image_lengths"])[:, None]
    with torch.no_grad():
        images = matcher.encode_images(regions, mask)
        texts = matcher.encode_texts(torch.from_numpy(numbers["captions"]), torch.from_numpy(numbers["lengths"]))
        sims = matcher.similarity(images, texts)
    np.testing.assert_allclose(images.features, numbers["image_embeddings"], atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    np.testing.assert_allclose(sims, numbers["similarities"], atol=1e-5)


def test_vse_names_its_weights_as_the_authors_do(recorded: Numbers) -> None:
    names = {name for name in recorded("vse") if name.startswith(("img.", "txt."))}
    ours = set(VSE(**SIZES).state_dict())
    assert ours == {name for name in names if not name.startswith("img.mlp.bns.1.")}


def test_vse_starts_as_the_field_does() -> None:
    matcher = VSE(features=40, vocabulary=200, embedding=60, word=30)
    bound = math.sqrt(6 / (40 + 60))
    largest = matcher.img.fc.weight.abs().max().item()
    assert 0.95 * bound < largest <= bound
    assert not matcher.img.fc.bias.any()
    assert 0.095 < matcher.txt.embed.weight.abs().max().item() <= 0.1


@each_matcher
def test_padding_changes_no_embedding(matcher_class: type[VSE] | type[Bow]) -> None:
    matcher = matcher_class(**SIZES).eval()
    region_counts, word_counts = [7, 3, 1], [4, 9, 2]
    regions, mask = regions_and_mask(region_counts)
    tokens, lengths = tokens_and_lengths(word_counts)
    with torch.no_grad():
        images = matcher.encode_images(regions, mask).features
        texts = matcher.encode_texts(tokens, lengths).features
        for i, (r, w) in enumerate(zip(region_counts, word_counts, strict=True)):
            alone = matcher.encode_images(regions[i : i + 1, :r], mask[i : i + 1, :r]).features[0]
            torch.testing.assert_close(images[i], alone, rtol=1e-5, atol=1e-6)
            alone = matcher.encode_texts(tokens[i : i + 1, :w], lengths[i : i + 1]).features[0]
            torch.testing.assert_close(texts[i], alone, rtol=1e-5, atol=1e-6)


@each_matcher
def test_what_stands_in_the_padding_is_never_read(matcher_class: type[VSE] | type[Bow]) -> None:
    matcher = matcher_class(**SIZES).eval()
    regions, mask = regions_and_mask([7, 3, 1])
    tokens, lengths = tokens_and_lengths([4, 8, 2])
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    with torch.no_grad():
        images = matcher.encode_images(regions, mask).features
        spoiled = regions.masked_fill(~mask[..., None], 77)
        torch.testing.assert_close(matcher.encode_images(spoiled, mask).features, images)
        texts = matcher.encode_texts(tokens, lengths).features
        spoiled = tokens.masked_fill(~real, 5)
        torch.testing.assert_close(matcher.encode_texts(spoiled, lengths).features, texts)


@each_matcher
def test_similarities_are_cosines_with_images_in_rows(matcher_class: type[VSE] | type[Bow]) -> None:
    matcher = matcher_class(**SIZES).eval()
    with torch.no_grad():
        images = matcher.encode_images(*regions_and_mask([7, 3, 1, 5]))
        texts = matcher.encode_texts(*tokens_and_lengths([4, 9, 2]))
        sims = matcher.similarity(images, texts)
    assert (len(images), len(texts)) == (4, 3)
    assert sims.shape == (4, 3)
    assert sims.abs().max().item() <= 1 + 1e-6
    cosines = nn.functional.cosine_similarity(images.features[:, None], texts.features[None], dim=2)
    torch.testing.assert_close(sims, cosines, rtol=1e-5, atol=1e-5)


@each_matcher
def test_every_parameter_gets_a_finite_gradient(matcher_class: type[VSE] | type[Bow]) -> None:
    matcher = matcher_class(**SIZES).train()
    images = matcher.encode_images(*regions_and_mask([7, 3, 1, 5]))
    texts = matcher.encode_texts(*tokens_and_lengths([4, 9, 2, 6]))
    matcher.similarity(images, texts).square().sum().backward()
    for name, parameter in matcher.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


@each_matcher
def test_half_precision_gives_nearly_the_same_similarities(matcher_class: type[VSE] | type[Bow]) -> None:
    matcher = matcher_class(**SIZES).eval()
    images, texts = regions_and_mask([7, 3, 1, 5]), tokens_and_lengths([4, 9, 2, 6])

    def sims() -> Tensor:
        with torch.no_grad():
            return matcher.similarity(matcher.encode_images(*images), matcher.encode_texts(*texts))

    exact = sims()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = sims()
    torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.05)


def test_word_encoder_reads_each_caption_alone_in_both_directions() -> None:
    """No pad is read: the backward direction starts at the last real word."""
    encoder = WordEncoder(vocabulary=12, word=5, embedding=8)
    tokens, lengths = tokens_and_lengths([4, 9, 1, 9, 2])
    encoded = encoder(tokens, lengths)
    alone = torch.zeros_like(encoded)
    for i, length in enumerate(lengths.tolist()):
        forward, backward = encoder.rnn(encoder.embed(tokens[i : i + 1, :length]))[0].chunk(2, dim=2)
        alone[i, :length] = ((forward + backward) / 2)[0]
    torch.testing.assert_close(encoded, alone, rtol=1e-5, atol=1e-6)
    weigh = torch.randn_like(encoded)
    found = torch.autograd.grad((encoded * weigh).sum(), list(encoder.parameters()))
    expected = torch.autograd.grad((alone * weigh).sum(), list(encoder.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_padding_counts_in_training_as_if_it_were_computed() -> None:
    layers, computed = TwoLayers(6, 4, 8).train(), TwoLayers(6, 4, 8).train()
    computed.load_state_dict(layers.state_dict())
    regions, mask = regions_and_mask([7, 3, 1])
    output = layers(regions[mask], padding=int((~mask).sum()))
    expected = computed(regions.flatten(0, 1)).view(3, 7, 8)[mask]
    torch.testing.assert_close(output, expected)
    for name, value in computed.state_dict().items():
        torch.testing.assert_close(layers.state_dict()[name], value)
    output.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(layers.parameters(), computed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_two_grus_equal_the_library_gru_with_its_gradients() -> None:
    rnn = nn.GRU(7, 5, batch_first=True, bidirectional=True)
    lengths = torch.tensor([3, 9, 1, 5, 9, 2])
    words, which = torch.randn(11, 7, requires_grad=True), torch.randint(0, 11, (6, 9))
    packed = pack_padded_sequence(words[which], lengths, batch_first=True, enforce_sorted=False)
    both, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    expected = (both[..., :5] + both[..., 5:]) / 2
    output = averaged_directions(rnn, words, which, lengths)
    torch.testing.assert_close(output, expected)
    back = torch.randn_like(output)
    inputs = [words, *rnn.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(output, inputs, back), torch.autograd.grad(expected, inputs, back), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_xavier_layer_has_the_fields_bound_and_no_bias() -> None:
    layer = xavier_linear(30, 70)
    assert layer.weight.abs().max().item() <= math.sqrt(6 / 100)
    assert not layer.bias.any()


def test_bow_is_mean_and_maximum_of_regions_against_the_weighted_mean_of_words() -> None:
    weights = torch.rand(12) + 0.1
    bow = Bow(**SIZES, word_weights=weights).eval()
    regions, mask = regions_and_mask([7, 3, 1])
    tokens, lengths = tokens_and_lengths([4, 9, 2])
    with torch.no_grad():
        images, texts = bow.encode_images(regions, mask).features, bow.encode_texts(tokens, lengths).features
        for i in range(3):
            real = regions[i, : int(mask[i].sum())]
            x = torch.cat([real.mean(0), real.max(0).values])[None]
            torch.testing.assert_close(images[i], l2(bow.image_linear(x) + bow.image_mlp(x))[0])
            words = tokens[i, : int(lengths[i])]
            mean = sum(weights[w] * bow.embed.weight[w] for w in words) / sum(weights[w] for w in words)
            torch.testing.assert_close(texts[i], l2(bow.text_linear(mean)))


def test_bow_keeps_its_word_weights_with_its_state_and_does_not_train_them() -> None:
    weights = torch.rand(12)
    bow = Bow(**SIZES, word_weights=weights)
    other = Bow(**SIZES)
    other.load_state_dict(bow.state_dict())
    assert torch.equal(other.word_weights, weights)
    assert "word_weights" not in dict(bow.named_parameters())


def test_order_of_words_matters_to_vse_and_not_to_bow() -> None:
    tokens, lengths = tokens_and_lengths([9])
    for matcher, matters in ((VSE(**SIZES).eval(), True), (Bow(**SIZES).eval(), False)):
        with torch.no_grad():
            there, back = (matcher.encode_texts(order, lengths).features for order in (tokens, tokens.flip(1)))
        assert torch.allclose(there, back, atol=1e-5) != matters


def test_l2_adds_to_the_norm_so_that_nothing_stays_nothing() -> None:
    torch.testing.assert_close(l2(torch.tensor([[3.0, 4.0], [0.0, 0.0]])), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert l2(torch.tensor([1e-8]))[0].item() == pytest.approx(0.5)


each_that_reads_words = pytest.mark.parametrize(
    "name",
    [name for name, record in MATCHERS.items() if not (record.reads_vectors or record.pretrained)],  # have other tests
)


def reader(name: str, **sizes: int) -> nn.Module:
    """A matcher that reads words, of seven regions."""
    own = {"regions": 7} if name in ("saf", "sgr", "linear") else {}
    given = SIZES | own | sizes
    if name == "linear":  # has no vectors of words
        del given["word"]
    return MATCHERS[name].kind(**given)


each_of_any_regions = pytest.mark.parametrize(
    "name",
    [
        name
        for name, record in MATCHERS.items()
        if not (record.reads_vectors or record.pretrained or record.fixed_regions)
    ],
)


@each_of_any_regions
def test_padding_and_the_rest_of_the_batch_change_no_similarity(name: str) -> None:
    matcher = reader(name).eval()
    region_counts, word_counts = [7, 3, 1], [4, 9, 2, 1]
    regions, mask = regions_and_mask(region_counts)
    tokens, lengths = tokens_and_lengths(word_counts)
    with torch.no_grad():
        sims = matcher.similarity(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, lengths))
        for i, r in enumerate(region_counts):
            image = matcher.encode_images(regions[i : i + 1, :r], mask[i : i + 1, :r])
            for j, w in enumerate(word_counts):
                text = matcher.encode_texts(tokens[j : j + 1, :w], lengths[j : j + 1])
                torch.testing.assert_close(sims[i, j], matcher.similarity(image, text)[0, 0], rtol=1e-5, atol=1e-5)


@each_of_any_regions
def test_no_similarity_reads_what_stands_in_the_padding(name: str) -> None:
    matcher = reader(name).eval()
    (regions, mask), (tokens, lengths) = regions_and_mask([7, 3, 1]), tokens_and_lengths([4, 8, 2])
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    spoiled = regions.masked_fill(~mask[..., None], 77), tokens.masked_fill(~real, 5)
    with torch.no_grad():
        sims = matcher.similarity(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, lengths))
        again = matcher.similarity(matcher.encode_images(spoiled[0], mask), matcher.encode_texts(spoiled[1], lengths))
    torch.testing.assert_close(again, sims)


@each_of_any_regions
def test_parts_that_are_joined_give_the_same_similarities(name: str) -> None:
    """Batches of images with fewer regions, or of shorter captions, get more padding when they are joined."""
    matcher = reader(name).eval()
    (regions, mask), (tokens, lengths) = regions_and_mask([7, 5, 3, 1]), tokens_and_lengths([9, 8, 2, 1])
    with torch.no_grad():
        whole = matcher.similarity(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, lengths))
        images = [matcher.encode_images(regions[:2], mask[:2]), matcher.encode_images(regions[2:, :3], mask[2:, :3])]
        texts = [matcher.encode_texts(tokens[:2], lengths[:2]), matcher.encode_texts(tokens[2:, :2], lengths[2:])]
        joined = matcher.similarity(Encoded.join(images), Encoded.join(texts))
    torch.testing.assert_close(joined, whole, rtol=1e-5, atol=1e-5)


@each_of_any_regions
def test_all_that_is_learnt_has_a_finite_gradient(name: str) -> None:
    matcher = reader(name).train()
    images = matcher.encode_images(*regions_and_mask([7, 3, 1, 5]))
    matcher.similarity(images, matcher.encode_texts(*tokens_and_lengths([4, 9, 2, 6]))).square().sum().backward()
    for own, parameter in matcher.named_parameters():
        assert parameter.grad is not None, own
        assert bool(torch.isfinite(parameter.grad).all()), own


@each_that_reads_words
def test_every_matcher_that_reads_words_is_a_module(name: str) -> None:
    assert as_module(reader(name)).training


@pytest.mark.parametrize(
    ("name", "own"),
    [(name, {}) for name in ("scan", "chan", "naaf", "imram", "gsmn", "vsrn", "mvvse", "hrem", "linear")]
    + [(name, {"meta": meta}) for name in ("bow", "saf", "sgr", "vse") for meta in (0, 4)],
)
def test_half_precision_ends_before_similarities_which_a_temperature_magnifies(name: str, own: dict[str, int]) -> None:
    matcher = as_module(reader(name, **own)).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        images = matcher.encode_images(*regions_and_mask([7, 7, 7]))
        texts = matcher.encode_texts(*tokens_and_lengths([4, 9, 2]))
        found = matcher.similarity(images, texts)
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True], ids=["quick", "plain"])
@each_that_reads_words
def test_two_threads_give_the_same_gradients_every_time(name: str, twice: bool) -> None:
    matcher = as_module(reader(name, embedding=256)).train()
    images, texts = regions_and_mask([7] * 64), tokens_and_lengths([9, 7, 8, 9] * 16)

    def gradients() -> list[Tensor]:
        matcher.zero_grad()
        torch.manual_seed(0)  # of dropout
        with twice_differentiable() if twice else nullcontext():
            sims = matcher.similarity(matcher.encode_images(*images), matcher.encode_texts(*texts))
        sims.square().sum().backward()
        return [parameter.grad for parameter in matcher.parameters() if parameter.grad is not None]

    torch.set_num_threads(2)
    try:
        first = [gradient.clone() for gradient in gradients()]
        again = [gradients() for _ in range(3)]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for found in again for one, other in zip(first, found, strict=True))


def test_a_matcher_that_is_no_module_is_refused() -> None:
    class Plain:
        def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
            return Encoded(regions)

        encode_texts = encode_images

        def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
            return images.features @ texts.features.T

    with pytest.raises(TypeError, match=r"must be an nn\.Module, got Plain"):
        as_module(Plain())
