"""Whole greedy answers over HTTP against `transformers` on the same weights, and the KV that really moved for them."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment, Worker

pytestmark = pytest.mark.processes

MAX_TOKENS = 320
LEAST_TOKENS = 128
LEAST_ANSWERS = 20
BLOCK_TOKENS = 16
FRAMING_SHARE = 0.01
"""The sender counts the frames' headers too."""


def complete(deployment: Deployment, prompt: tuple[int, ...], max_tokens: int = MAX_TOKENS) -> tuple[str, int]:
    """Greedy text of a completion of token ids, and how many tokens it has."""
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{deployment.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        reply = json.load(response)
    return reply["choices"][0]["text"], reply["usage"]["completion_tokens"]


def sent_by(worker: Worker) -> int:
    return int(worker.state()["transfer"]["kv_bytes_sent"])


def received_by(worker: Worker) -> int:
    return int(worker.state()["transfer"]["kv_bytes_received"])


def assert_identical(text: str, count: int, expected: tiny_llama.Greedy) -> None:
    safe = expected.safe_tokens()
    if safe == len(expected.ids):
        assert text == tiny_llama.text_of(expected.ids)
        assert count == len(expected.ids)
    else:
        assert text.startswith(tiny_llama.text_of(expected.ids[:safe]).rstrip("\ufffd"))


def test_twenty_long_answers_are_identical_to_transformers(deployment: Deployment) -> None:
    prompts = [tiny_llama.chat_ids(question) for question in tiny_llama.LONG_ANSWERS]
    expected = [tiny_llama.greedy(prompt, MAX_TOKENS) for prompt in prompts]
    long = sum(len(e.ids) >= LEAST_TOKENS and e.safe_tokens() == len(e.ids) for e in expected)
    assert long >= LEAST_ANSWERS
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda prompt: complete(deployment, prompt), prompts))
    for (text, count), reference in zip(replies, expected, strict=True):
        assert_identical(text, count, reference)
    deployment.await_idle()


def test_the_kv_of_a_prompt_moves_between_the_two_processes(deployment: Deployment) -> None:
    prompt = tiny_llama.chat_ids(
        "What is a rainbow?", "You speak to people who have never been handed this text before."
    )
    prefill, decode = deployment.of_role("prefill")[0], deployment.of_role("decode")[0]
    before_sent, before_got = sent_by(prefill), received_by(decode)
    text, count = complete(deployment, prompt)
    assert_identical(text, count, tiny_llama.greedy(prompt, MAX_TOKENS))
    deployment.await_idle()
    received = received_by(decode) - before_got
    assert received == -(-len(prompt) // BLOCK_TOKENS) * decode.state()["block_bytes"]
    assert received <= sent_by(prefill) - before_sent <= received * (1 + FRAMING_SHARE)


def test_a_shared_prefix_is_handed_over_as_a_delta(deployment: Deployment) -> None:
    system = " ".join(f"Rule {i}: the baton must get round the track." for i in range(12))
    prompts = [tiny_llama.chat_ids(q, system) for q in ("What is a fox?", "Why does it rain?", "What is a block?")]
    decode = deployment.of_role("decode")[0]
    moved = []
    for prompt in prompts:
        before = received_by(decode)
        text, count = complete(deployment, prompt)
        assert_identical(text, count, tiny_llama.greedy(prompt, MAX_TOKENS))
        moved.append(received_by(decode) - before)
    assert moved[0] > 0
    assert all(later < moved[0] / 2 for later in moved[1:])


def test_a_prompt_seen_before_is_answered_alike(deployment: Deployment) -> None:
    prompt = tiny_llama.chat_ids("How do I bake bread?", "Once more, please.")
    replies = [complete(deployment, prompt) for _ in range(3)]
    assert all(one == other for one, other in pairwise(replies))
    assert_identical(*replies[0], tiny_llama.greedy(prompt, MAX_TOKENS))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 65, 257])
def test_prompts_around_block_borders_are_identical(deployment: Deployment, length: int) -> None:
    text = tiny_llama.tokenizer().encode(" ".join(tiny_llama.LONG_ANSWERS * 2))
    prompt = (text[0], *text[-length + 1 :]) if length > 1 else (text[0],)
    expected = tiny_llama.greedy(prompt, 24)
    assert_identical(*complete(deployment, prompt, 24), expected)
