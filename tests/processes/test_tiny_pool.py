"""A decode pool that cannot hold its sequences: preemption is forced, and every answer is still exact and complete."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment, Shape

pytestmark = pytest.mark.processes

TOKEN_BYTES = 4 * 2 * 2 * 32 * 4  # layers, K and V, heads, dim, float32
BLOCK_TOKENS = 16
CONTEXT_TOKENS = 384
BLOCKS = 30
CLIENTS = 8


@pytest.fixture(scope="module")
def shape() -> Shape:
    size = ("--block-tokens", str(BLOCK_TOKENS), "--max-context-tokens", str(CONTEXT_TOKENS), "--dtype", "float32")
    return Shape(
        worker_flags=size,
        prefill_flags=("--kv-cache-bytes", str(64 * BLOCK_TOKENS * TOKEN_BYTES)),
        decode_flags=(
            *("--kv-cache-bytes", str(BLOCKS * BLOCK_TOKENS * TOKEN_BYTES)),
            *("--landing-bytes", str(CONTEXT_TOKENS * TOKEN_BYTES)),
        ),
    )


def answer(deployment: Deployment, question: str) -> str:
    body = {"model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0}
    request = urllib.request.Request(
        f"{deployment.base_url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=90) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def test_answers_are_exact_although_their_kv_never_fits_at_once(deployment: Deployment) -> None:
    questions = tiny_llama.LONG_ANSWERS[:16]
    expected = [tiny_llama.greedy(tiny_llama.chat_ids(question), 300).ids for question in questions]
    needed_blocks = sum(len(ids) // BLOCK_TOKENS for ids in sorted(expected, key=len)[:CLIENTS])
    assert needed_blocks > 2 * BLOCKS
    with ThreadPoolExecutor(CLIENTS) as clients:
        replies = list(clients.map(lambda question: answer(deployment, question), questions))
    assert replies == [tiny_llama.text_of(ids) for ids in expected]
    deployment.await_idle()
    assert preemptions(deployment) > 0


def preemptions(deployment: Deployment) -> float:
    lines = deployment.of_role("decode")[0].metrics().splitlines()
    return sum(float(line.split()[-1]) for line in lines if "preempt" in line and not line.startswith("#"))


def test_a_request_that_can_never_fit_is_refused_and_others_are_served(deployment: Deployment) -> None:
    body = {"model": "tiny", "prompt": [300] * (CONTEXT_TOKENS + 1), "max_tokens": 4}
    request = urllib.request.Request(
        f"{deployment.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as error:
        assert error.code == 400
        assert json.load(error)["error"]["code"] == "context_length_exceeded"
    assert answer(deployment, tiny_llama.GREETING[0]) == tiny_llama.GREETING[1]
