"""Vectors of captions are those of the models as their authors use them; models that cannot be used are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_clip import LONGEST, save_clip
from small_encoder import WORDS, save_dinov2, save_encoder

from crcl.data.text.subwords import Subwords, read_tokenizer
from crcl.errors import InputError
from crcl.features.language import LanguageModel, has_text_side
from crcl.features.vision import VisionModel

TEXTS = ["a dog", "red ball on the grass and more of it", "x"]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    return {kind: save_clip(folder / kind, kind) for kind in ("clip", "siglip")}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoders") / "bert")


def vectors(model: LanguageModel, texts: list[str]) -> np.ndarray:
    return model.compute([ids for ids, _ in model.tokenize(texts)])


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_vectors_of_a_clip_are_its_own_projected_ones_at_length_1(clips: dict[str, Path], kind: str) -> None:
    import transformers

    whole = transformers.AutoModel.from_pretrained(clips[kind]).eval()
    pad = "<pad>" if kind == "siglip" else None
    words = Subwords.of_model(read_tokenizer(clips[kind] / "tokenizer.json"), longest=LONGEST, pad=pad)
    expected = []
    for text in TEXTS:
        tokens = torch.from_numpy(words.encode([text]).flat.astype(np.int64))[None]
        with torch.inference_mode():
            found = whole.get_text_features(input_ids=tokens)
        found = found if isinstance(found, torch.Tensor) else found.pooler_output
        expected.append(torch.nn.functional.normalize(found, dim=-1)[0].numpy())
    found = vectors(LanguageModel(str(clips[kind])), TEXTS)
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)
    whole_image = VisionModel(str(clips[kind]), whole=True)
    assert found.shape[1] == whole_image.compute([np.zeros((3, 16, 16), np.float32)]).shape[1]
    assert has_text_side(str(clips[kind]))


@pytest.mark.parametrize("pooling", [None, {"pooling_mode_mean_tokens": True}, {"pooling_mode_cls_token": True}])
def test_a_sentence_encoder_gives_the_mean_of_its_tokens_or_its_first_one(tmp_path: Path, pooling) -> None:
    import transformers

    folder = save_encoder(tmp_path / "bert", pooling=pooling)
    model = LanguageModel(str(folder))
    bert = transformers.BertModel.from_pretrained(folder).eval()
    for text, found in zip(TEXTS, vectors(model, TEXTS), strict=True):  # in one batch, with padding
        ((ids, cut),) = model.tokenize([text])
        with torch.inference_mode():
            states = bert(input_ids=torch.tensor([ids])).last_hidden_state[0]
        expected = states[0] if pooling == {"pooling_mode_cls_token": True} else states.mean(0)
        np.testing.assert_allclose(found, torch.nn.functional.normalize(expected, dim=0).numpy(), atol=1e-5)
        assert not cut
    assert model.longest == WORDS
    assert not has_text_side(str(folder))


def test_captions_longer_than_the_model_reads_are_known(clips: dict[str, Path], encoder: Path) -> None:
    for folder, longest in ((clips["clip"], LONGEST), (encoder, WORDS)):
        (fits, cut), (long, longer) = LanguageModel(str(folder)).tokenize(["abcdefghij"[: longest - 2], "ab" * longest])
        assert (cut, longer) == (False, True)
        assert len(fits) <= len(long) == longest


def test_limits_and_lowercase_of_sentence_transformers_are_honoured(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "bert")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    model = LanguageModel(str(folder))
    assert model.longest == 9
    np.testing.assert_array_equal(vectors(model, ["A DOG"]), vectors(model, ["a dog"]))


def test_the_settings_name_the_weights_and_what_is_read_but_not_the_folder(tmp_path: Path) -> None:
    first = LanguageModel(str(save_encoder(tmp_path / "a"))).settings
    assert LanguageModel(str(shutil.copytree(tmp_path / "a", tmp_path / "b"))).settings == first
    assert LanguageModel(str(save_encoder(tmp_path / "c", seed=1))).settings != first
    (tmp_path / "b/sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    assert LanguageModel(str(tmp_path / "b")).settings != first


def test_weights_of_a_pooler_that_is_not_used_may_be_missing(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_encoder(tmp_path / "bert")
    settings = LanguageModel(str(folder)).settings
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert LanguageModel(str(folder)).settings == settings  # twice: nothing random is in them
    assert LanguageModel(str(folder)).settings == settings
    del kept["embeddings.word_embeddings.weight"]
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="weights are missing"):
        LanguageModel(str(folder))


DENSE = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", json.dumps(DENSE), "modules.json has Transformer, Pooling, Dense; expected"),
        ("modules.json", "{}", "modules.json has no modules"),
        ("modules.json", "{", "not a JSON file"),
        ("modules.json", json.dumps([DENSE[0], DENSE[1] | {"path": "../../etc"}]), "names no folder of the pooling"),
        ("modules.json", json.dumps([DENSE[0] | {"path": "0_x"}, DENSE[1]]), "modules.json has Transformer, Pooling;"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pools its tokens by max_tokens"),
        ("1_Pooling/config.json", "[]", "pools its tokens by None"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("model.safetensors", None, "cannot be loaded"),
        ("config.json", None, "cannot be loaded"),
        ("config.json", '{"model_type": "bert", "vocab_size": 3}', "missing or misshapen|knows 3|cannot be loaded"),
    ],
)
def test_a_folder_that_is_no_encoder_is_refused_with_the_reason(tmp_path: Path, file, content, message) -> None:
    folder = save_encoder(tmp_path / "bert", pooling={"pooling_mode_mean_tokens": True})
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(InputError, match=message):
        LanguageModel(str(folder))


def test_a_model_that_reads_no_captions_is_refused(tmp_path: Path) -> None:
    save_dinov2(tmp_path / "dino")
    assert not has_text_side(str(tmp_path / "dino"))
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        LanguageModel(str(tmp_path / "dino"))
    with pytest.raises(InputError, match="no such folder"):
        LanguageModel("./none")


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 10_000_000), ("hidden_size", 2**31 - 2)])
def test_sizes_that_no_model_has_are_refused_before_there_is_room_for_them(
    tmp_path: Path, key: str, value: int
) -> None:
    folder = save_encoder(tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {key: value}))
    with pytest.raises(InputError, match=f"model: config.json: {key} is {value}, expected at most"):
        LanguageModel(str(folder))


def test_a_token_number_that_no_model_has_is_refused(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["rare"] = 2**31 - 2
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="has a token of number 2147483646, expected less than 16,777,216"):
        LanguageModel(str(folder))
