"""A byte order mark before a body means nothing, and is left out; anywhere else it is a character."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_testing.gateway.http_client import HttpClient

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"model": "tiny", "input": "Hello"}
JSON = {"Content-Type": "application/json"}
MESSAGE = CHAT | {"max_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "tiny", "prompt": "x"}),
        ("/v1/responses", RESPONSE),
        ("/v1/messages", MESSAGE),
        ("/v1/messages/count_tokens", CHAT),
        ("/v1/responses/input_tokens", RESPONSE),
        ("/tokenize", {"model": "tiny", "prompt": "x"}),
        ("/v1/chat/completions", CHAT | {"user": "x" * 9_000}),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_body_may_begin_with_one(client: HttpClient, path: str, body: dict[str, Any]) -> None:
    data = b"\xef\xbb\xbf" + json.dumps(body).encode()
    async with client.http.post(client.gateway.url(path), data=data, headers=JSON) as got:
        assert got.status == 200, await got.text()


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf{}", b"{\xef\xbb\xbf}", b"\xff\xfe{}"])
async def test_elsewhere_it_is_no_json(client: HttpClient, data: bytes) -> None:
    async with client.http.post(client.gateway.url("/v1/chat/completions"), data=data, headers=JSON) as got:
        assert got.status == 400


async def test_input_tokens_are_counted_as_for_an_answer(client: HttpClient) -> None:
    asked = RESPONSE | {"instructions": "Be brief.", "tools": [{"type": "web_search"}]}
    async with client.http.post(client.gateway.url("/v1/responses/input_tokens"), json=asked) as got:
        count = await got.json()
        assert got.headers["X-Baton-Ignored"] == "tools[0]:web_search"
    async with client.http.post(client.gateway.url("/v1/responses"), json=asked) as got:
        usage = (await got.json())["usage"]
    assert count == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    async with client.http.post(client.gateway.url("/v1/responses/input_tokens"), json={"model": "tiny"}) as got:
        assert (got.status, (await got.json())["error"]["param"]) == (400, "input")
