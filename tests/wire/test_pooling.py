"""Pooling files of sentence-transformers folders: what they say, and the refusal of what contradicts the model."""

from __future__ import annotations

from typing import Any

import pytest

from baton_wire.models.errors import ModelConfigError
from baton_wire.models.pooling import Judgement, Pooling, PoolingSpec, read_longest_text, read_pooling, read_prompts

KINDS = "sentence_transformers.models."
TRANSFORMER, POOLING, NORMALIZE = (
    {"idx": place, "name": str(place), "path": path, "type": KINDS + kind}
    for place, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))
)
LAST = {"word_embedding_dimension": 48, "pooling_mode_lasttoken": True, "include_prompt": True}


def read(
    pooling: dict[str, Any] = LAST, modules: Any = None, config: dict[str, Any] | None = None, **more: Any
) -> PoolingSpec:
    files = {"1_Pooling/config.json": pooling, **{f"{name}.json": content for name, content in more.items()}}
    return read_pooling(modules or [TRANSFORMER, POOLING, NORMALIZE], files.get, config or {}, 48)


@pytest.mark.parametrize(
    ("pooling", "method"),
    [
        (LAST, Pooling.LAST),
        ({"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True}, Pooling.MEAN),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}, Pooling.FIRST),
        ({"embedding_dimension": 48, "pooling_mode": "lasttoken"}, Pooling.LAST),
        ({"pooling_mode": "mean", "include_prompt": False}, Pooling.MEAN),
    ],
)
def test_each_spelling_of_a_pooling_is_understood(pooling: dict[str, Any], method: Pooling) -> None:
    assert read(pooling) == PoolingSpec(method, is_normalised=True, is_stated=True)


def test_without_the_last_module_vectors_keep_their_length_and_newer_names_of_modules_are_known() -> None:
    newer = [
        {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
    ]
    assert read(modules=newer) == PoolingSpec(Pooling.LAST, is_normalised=False, is_stated=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"pooling": {**LAST, "word_embedding_dimension": 64}},
            r"1_Pooling/config.json: word_embedding_dimension: 64 .*48",
        ),
        ({"pooling": {**LAST, "pooling_mode_cls_token": True}}, "pooling_mode_cls_token: true .*exactly one"),
        ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling_mode_max_tokens: true"),
        ({"pooling": {"pooling_mode": "attention"}}, 'pooling_mode: "attention"'),
        ({"pooling": {**LAST, "pooling_mode": "mean"}}, 'pooling_mode: "mean"'),
        ({"pooling": {}}, "pooling_mode_lasttoken: is missing"),
        ({"pooling": {"pooling_mode_lasttoken": "yes"}}, 'pooling_mode_lasttoken: "yes"'),
        ({"modules": [TRANSFORMER]}, "modules.json: has no Pooling"),
        ({"modules": [POOLING, TRANSFORMER]}, r"modules.json: \[0\].type: Pooling"),
        ({"modules": [TRANSFORMER, POOLING, {"path": "2_Dense", "type": KINDS + "Dense"}]}, r"\[2\].type: Dense"),
        ({"modules": {"a": 1}}, "modules.json: must be a list"),
        ({"modules": ["x"]}, r"modules.json: \[0\]: must be an object"),
        ({"modules": [TRANSFORMER, {**POOLING, "path": "../../etc"}]}, r"\[1\].path"),
        ({"config": {"is_causal": False}}, "is_causal: false"),
        ({"config": {"use_bidirectional_attention": True}}, "use_bidirectional_attention: true"),
        ({"sentence_bert_config": {"do_lower_case": True}}, "sentence_bert_config.json: do_lower_case: true"),
        (
            {
                "pooling": {"pooling_mode": "mean", "include_prompt": False},
                "config_sentence_transformers": {"prompts": {"query": "Q: "}},
            },
            "include_prompt: false",
        ),
    ],
)
def test_what_baton_would_compute_differently_is_refused_by_its_field(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(**arguments)


LOGITS = {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}
CLASSIFIES = {"architectures": ["Qwen3ForSequenceClassification"]}


def judge(score: dict[str, Any], config: dict[str, Any] | None = None) -> PoolingSpec:
    files = {"1_LogitScore/config.json": score}
    return read_pooling([TRANSFORMER, LOGITS], files.get, config or {}, 48)


def test_cross_encoders_are_classifiers_or_compare_two_answers() -> None:
    assert read(modules=[TRANSFORMER], config=CLASSIFIES) == PoolingSpec()
    assert judge({"true_token_id": 9, "false_token_id": 0}) == PoolingSpec(judgement=Judgement(9, 0))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"true_token_id": 9, "false_token_id": None}, "1_LogitScore/config.json: false_token_id: .*compares both"),
        ({"true_token_id": -1, "false_token_id": 2}, "true_token_id: -1"),
        ({"false_token_id": 2}, "true_token_id: "),
    ],
)
def test_a_score_that_is_no_probability_of_yes_is_refused(score: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        judge(score)


def test_a_classifier_has_no_answers_to_compare() -> None:
    with pytest.raises(ModelConfigError, match=r"modules.json: \[1\].type: LogitScore"):
        judge({"true_token_id": 9, "false_token_id": 2}, CLASSIFIES)


@pytest.mark.parametrize(
    ("options", "tokenizer", "longest"),
    [
        ({"max_seq_length": 512, "do_lower_case": False}, {"model_max_length": 32_768}, 512),
        ({"max_seq_length": None}, {"model_max_length": 256}, 256),
        ({"transformer_task": "feature-extraction"}, {"model_max_length": 131_072}, 131_072),
        (None, {"model_max_length": 1000000000000000019884624838656}, None),
        (None, {}, None),
    ],
)
def test_a_text_is_as_long_as_sentence_transformers_reads_it(options: Any, tokenizer: Any, longest: int | None) -> None:
    assert read_longest_text(options, tokenizer) == longest


@pytest.mark.parametrize("wrong", [0, -1, "512", True])
def test_a_longest_text_that_is_no_count_is_refused_by_its_field(wrong: Any) -> None:
    with pytest.raises(ModelConfigError, match=r"sentence_bert_config\.json: max_seq_length"):
        read(sentence_bert_config={"max_seq_length": wrong})


def test_prompts_are_read_by_name() -> None:
    prompts = {"query": "Instruct: find\nQuery:", "document": ""}
    assert read_prompts({"prompts": prompts, "default_prompt_name": None}) == (prompts, None)
    assert read_prompts({"prompts": prompts, "default_prompt_name": "query"}) == (prompts, "query")
    assert read_prompts(None) == ({}, None)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"prompts": ["a"]}, "prompts: "),
        ({"prompts": {"a": 1}}, "prompts: "),
        ({"prompts": {"a": "x" * 9_000}}, "prompts: "),
        ({"prompts": {"a": "x"}, "default_prompt_name": "b"}, 'default_prompt_name: "b".*allowed: one of a'),
    ],
)
def test_prompts_that_are_no_texts_are_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read_prompts(raw)
