"""Cached prompt tokens of real workers, reported by every API."""

from __future__ import annotations

import itertools
import json
import urllib.request
from typing import Any

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment, Shape

pytestmark = pytest.mark.processes

LONG = "Foxes hunt at night, owls do too, and so the hare sleeps badly. " * 4
BLOCK = 16
"""Tokens of a block, a flag of the workers."""
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(worker_flags=("--block-tokens", str(BLOCK)))


def chat(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 3}


def responses(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": text, "max_output_tokens": 16, "store": False}


def messages(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 3}


def lines(deployment: Deployment, path: str, body: dict[str, Any]) -> list[str]:
    data = json.dumps({"model": "tiny", **body}).encode()
    request = urllib.request.Request(deployment.base_url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        return str(answer.read().decode()).splitlines()


def usage_of(deployment: Deployment, path: str, body: dict[str, Any]) -> dict[str, Any]:
    usage: dict[str, Any] = json.loads("".join(lines(deployment, path, body)))["usage"]
    return usage


def usage_of_stream(deployment: Deployment, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Usage from all events of the stream, the last value of each field."""
    asked = {**body, "stream": True}
    if path == "/v1/chat/completions":
        asked["stream_options"] = {"include_usage": True}
    usage: dict[str, Any] = {}
    for line in lines(deployment, path, asked):
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            for held in (event, event.get("response") or {}, event.get("message") or {}):
                usage |= held.get("usage") or {}
    return usage


def cached(usage: dict[str, Any]) -> int:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    number: int = details["cached_tokens"] if details else usage["cache_read_input_tokens"]
    return number


def prompt(usage: dict[str, Any]) -> int:
    if "cache_read_input_tokens" in usage:
        return int(usage["input_tokens"]) + int(usage["cache_read_input_tokens"])
    return int(usage.get("prompt_tokens", usage.get("input_tokens", 0)))


@pytest.mark.parametrize("surface", [chat, responses, messages], ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("ask", [usage_of, usage_of_stream], ids=["whole", "streamed"])
def test_a_prompt_that_came_before_is_told_as_cached_but_for_its_last_block(
    deployment: Deployment, surface: Any, ask: Any
) -> None:
    story = f"Story {next(NUMBERS)}: {LONG}"
    tokens = len(tiny_llama.chat_ids(story))
    first = ask(deployment, *surface(story))
    deployment.await_idle()
    again, other = ask(deployment, *surface(story)), ask(deployment, *surface(story + " What then?"))
    assert [prompt(answer) for answer in (first, again)] == [tokens] * 2
    block = BLOCK
    # A block of the template's beginning may be there from other tests.
    assert cached(first) <= block
    assert cached(again) == (tokens - 1) // block * block
    assert tokens // block * block - block <= cached(other) <= tokens
    assert cached(other) > cached(first)


def test_a_client_sees_it_too(client: openai.OpenAI, deployment: Deployment) -> None:
    story: Any = [{"role": "user", "content": f"Story {next(NUMBERS)}: {LONG}"}]
    for _ in range(2):
        reply = client.chat.completions.create(model="tiny", messages=story, max_tokens=2)
        deployment.await_idle()
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert (reply.usage.prompt_tokens_details.cached_tokens or 0) > len(LONG) // 16
