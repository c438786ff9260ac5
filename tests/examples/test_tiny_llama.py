"""The committed tiny model: its files fit each other, stay small, and answer as recorded."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from baton_testing.engine import tiny_llama

MAX_BYTES = 4_000_000


def test_the_weights_stay_under_four_megabytes() -> None:
    assert (tiny_llama.FOLDER / "model.safetensors").stat().st_size <= MAX_BYTES


def test_the_files_have_the_recorded_hashes() -> None:
    for line in (tiny_llama.FOLDER / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((tiny_llama.FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_config_tokenizer_and_weights_agree() -> None:
    config = json.loads((tiny_llama.FOLDER / "config.json").read_text())
    tokenizer = tiny_llama.tokenizer()
    with safe_open(tiny_llama.FOLDER / "model.safetensors", framework="pt") as weights:
        shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    assert config["vocab_size"] == len(tokenizer) == shapes["model.embed_tokens.weight"][0]
    assert config["bos_token_id"] == tokenizer.bos_token_id
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert config["tie_word_embeddings"]
    assert "lm_head.weight" not in shapes
    head_dim = config["head_dim"]
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (
        config["num_key_value_heads"] * head_dim,
        config["hidden_size"],
    )
    assert len([name for name in shapes if name.endswith("q_proj.weight")]) == config["num_hidden_layers"]


def test_the_chat_template_marks_every_turn() -> None:
    text = tiny_llama.tokenizer().decode(tiny_llama.chat_ids("Hello!", "Be brief."))
    assert text == "<|begin|><|system|>Be brief.<|end|><|user|>Hello!<|end|><|assistant|>"


def test_encoding_with_special_tokens_begins_with_one_begin_token() -> None:
    tokenizer = tiny_llama.tokenizer()
    assert tokenizer.encode("The wind").count(tokenizer.bos_token_id) == 1


@given(st.text(max_size=60))
def test_any_text_round_trips_through_the_tokenizer(text: str) -> None:
    tokenizer = tiny_llama.tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        tiny_llama.GREETING,
        (
            "What is a block?",
            "A block is a fixed number of token slots in the cache. "
            "It is the unit in which memory is given out and taken back.",
        ),
        ("What is 7 plus 5?", "7 plus 5 is 12."),
        ("Say hello in Chinese.", "你好!"),
    ],
)
def test_a_known_question_gets_its_recorded_answer(question: str, answer: str) -> None:
    reply = tiny_llama.greedy(tiny_llama.chat_ids(question), 64)
    assert reply.ids[-1] == tiny_llama.tokenizer().eos_token_id
    assert tiny_llama.text_of(reply.ids) == answer


def test_long_answers_are_long_and_have_wide_margins() -> None:
    replies = [tiny_llama.greedy(tiny_llama.chat_ids(question), 300) for question in tiny_llama.LONG_ANSWERS[:6]]
    assert all(len(reply.ids) >= 128 for reply in replies)
    assert min(min(reply.margins) for reply in replies) > 1.0


def test_a_context_of_full_length_stays_finite() -> None:
    ids = tiny_llama.tokenizer().encode(" ".join(tiny_llama.LONG_ANSWERS * 12))[:2048]
    assert len(ids) == 2048
    with torch.inference_mode():
        logits = tiny_llama.reference()(input_ids=torch.tensor([ids])).logits
    assert math.isfinite(float(logits.abs().max()))
