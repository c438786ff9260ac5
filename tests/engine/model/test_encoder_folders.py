"""Folders of embedding models and classifiers, as transformers and sentence-transformers write them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_engine.model.errors import WeightsError
from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.model.servable import servable_model
from baton_testing.engine.encoder_engine import EncoderEngine, encoding_spec, reference_embedding, tensor_of
from baton_testing.engine.encoder_folders import write_classifier, write_embedding_model, write_pooling
from baton_wire.messages.encoding import Encoding, EncodingKind
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.pooling import Pooling, PoolingSpec

PROMPT = [5, 77, 31, 190, 8, 44, 12]


def load(directory: Path) -> LoadedModel:
    return load_model(directory, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("family", ["qwen3", "mistral-window", "llama-gqa"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_model_saved_without_its_head_gives_the_vectors_of_transformers(
    family: str, tied: bool, tmp_path: Path
) -> None:
    reference = write_embedding_model(tmp_path, family, Pooling.LAST, tie_word_embeddings=tied)
    loaded = load(tmp_path)
    pooling = PoolingSpec(Pooling.LAST, is_normalised=True, is_stated=True)
    assert (loaded.config.pooling, loaded.config.generates) == (pooling, False)
    assert servable_model(tmp_path) == loaded.config
    result = EncoderEngine(loaded, pooling).encode(encoding_spec(0, PROMPT))[0]
    torch.testing.assert_close(tensor_of(result), reference_embedding(reference, PROMPT, pooling), rtol=0, atol=1e-5)


def test_a_folder_that_names_the_generating_class_may_lack_its_head_if_it_pools(tmp_path: Path) -> None:
    write_embedding_model(tmp_path, "qwen3", Pooling.LAST, tie_word_embeddings=False)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForCausalLM"]}))
    assert not load(tmp_path).config.generates
    (tmp_path / "modules.json").unlink()
    with pytest.raises(WeightsError, match=r"missing tensors: lm_head\.weight"):
        load(tmp_path)


def test_thirty_random_embedding_models_agree_with_transformers(tmp_path: Path) -> None:
    dice = random.Random(11)
    for number in range(30):
        directory = tmp_path / str(number)
        family = dice.choice(["qwen2", "qwen3", "llama-gqa", "mistral-no-window", "qwen3-moe", "phi3", "glm4"])
        method, heads = dice.choice(list(Pooling)), dice.choice([2, 4])
        sizes: dict[str, Any] = {
            "hidden_size": 16 * heads * dice.choice([1, 2]),
            "num_attention_heads": heads,
            "num_key_value_heads": dice.choice([1, heads]),
            "num_hidden_layers": dice.choice([1, 2, 4]),
            "intermediate_size": dice.choice([40, 96]),
        }
        if family == "qwen3-moe" and sizes["num_hidden_layers"] < 2:
            sizes["mlp_only_layers"] = []
        normalised = dice.random() < 0.7
        reference = write_embedding_model(directory, family, method, normalised=normalised, seed=number, **sizes)
        loaded = load(directory)
        pooling = PoolingSpec(method, normalised, is_stated=True)
        assert loaded.config.pooling == pooling
        prompt = [dice.randrange(3, 199) for _ in range(dice.choice([1, 4, 23, 60]))]
        dimensions = dice.choice([None, 8])
        encoding = Encoding(EncodingKind.EMBEDDING, dimensions)
        result = tensor_of(EncoderEngine(loaded, pooling).encode(encoding_spec(0, prompt, encoding))[0])
        expected = reference_embedding(reference, prompt, pooling, dimensions)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama-gqa", "mistral-no-window", "gpt-oss", "gemma3"])
@pytest.mark.parametrize("labels", [1, 5])
def test_a_classifier_gives_the_logits_of_transformers(family: str, labels: int, tmp_path: Path) -> None:
    reference = write_classifier(tmp_path, family, labels)
    loaded = load(tmp_path)
    assert (loaded.config.labels, loaded.config.generates) == (labels, False)
    encoding = Encoding(EncodingKind.LABELS)
    result = tensor_of(EncoderEngine(loaded, PoolingSpec()).encode(encoding_spec(0, PROMPT, encoding))[0])
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_a_cross_encoder_saved_by_sentence_transformers_has_its_activation_in_a_file_of_its_own(tmp_path: Path) -> None:
    write_classifier(tmp_path, "qwen3", 1)
    transformer = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": "sentence_transformers.base.modules.transformer.Transformer",
    }
    (tmp_path / "modules.json").write_text(json.dumps([transformer]))
    for name, is_probability in (("linear.Identity", False), ("activation.Sigmoid", True)):
        options = {"model_type": "CrossEncoder", "activation_fn": f"torch.nn.modules.{name}"}
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(options))
        assert servable_model(tmp_path).label_activation is is_probability


def test_a_head_of_another_size_than_the_labels_is_refused(tmp_path: Path) -> None:
    write_classifier(tmp_path, "qwen3", 3)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["id2label"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_labels": 4}))
    with pytest.raises(WeightsError, match=r"score.weight: shape \[3, 48\].*\[4, 48\]"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": {"0": "a", "2": "b"}}))
    with pytest.raises(ModelConfigError, match="id2label"):
        load(tmp_path)


def test_a_pooling_that_contradicts_the_model_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    write_embedding_model(tmp_path, "qwen3", Pooling.LAST)
    write_pooling(tmp_path, Pooling.LAST, width=64)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelConfigError, match="word_embedding_dimension: 64 is not supported; allowed: 48"):
        servable_model(tmp_path)
