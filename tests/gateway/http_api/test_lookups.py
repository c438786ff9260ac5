"""Lookups: models, version and health in the forms that clients of other servers expect."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest

from baton_testing.gateway.gateway_process import RunningGateway


async def get(gateway: RunningGateway, http: aiohttp.ClientSession, path: str, method: str = "GET") -> tuple[int, Any]:
    async with http.request(method, gateway.url(path)) as got:
        return got.status, await (got.json() if got.content_type == "application/json" else got.text())


async def test_the_version_is_that_of_the_distribution(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    assert await get(gateway, http, "/version") == (200, {"version": version("baton-serving")})


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("POST", "/health"), ("GET", "/ping"), ("POST", "/ping")]
)
async def test_health_says_whether_a_request_would_be_served(
    gateway: RunningGateway, http: aiohttp.ClientSession, method: str, path: str
) -> None:
    assert (await get(gateway, http, path, method))[0] == 200
    await gateway.pool.decode[0].stop()
    gateway.pool.decode.clear()
    await gateway.until_linked(1)
    assert (await get(gateway, http, path, method))[0] == 503


async def test_a_model_says_the_longest_context_that_a_pair_can_take(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    assert gateway.pool.prefill[0].max_context_tokens == 2_048
    _, listed = await get(gateway, http, "/v1/models")
    [entry] = listed["data"]
    assert (entry["id"], entry["max_model_len"]) == ("tiny", 2_048)
    assert await get(gateway, http, "/v1/models/tiny") == (200, entry)


async def test_an_unknown_path_or_model_names_where_the_served_ones_are(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    status, content = await get(gateway, http, "/v1/nothing")
    assert status == 404
    assert "/v1/nothing is not served" in content["error"]["message"]
    assert "/openapi.json lists all paths" in content["error"]["message"]
    status, content = await get(gateway, http, "/v1/models/other")
    assert (status, content["error"]["code"]) == (404, "model_not_found")
    assert "'tiny'" in content["error"]["message"]
    body = {"model": "gpt-9", "prompt": "x"}
    async with http.post(gateway.url("/v1/completions"), json=body) as got:
        assert "'tiny'" in (await got.json())["error"]["message"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/embeddings", "/v1/embeddings"),
        ("/pooling", "/classify"),
        ("/v1/audio/transcriptions", "speech model"),
        ("/v1/images/generations", "image model"),
        ("/v1/batches", "baton batch"),
        ("/v1/responses/resp_1", "send the whole conversation"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_a_generating_model_cannot_do_is_refused_with_what_can(
    gateway: RunningGateway, http: aiohttp.ClientSession, path: str, reason: str, method: str
) -> None:
    status, content = await get(gateway, http, path, method)
    assert (status, content["error"]["code"]) == (404, "unsupported_path")
    assert reason in content["error"]["message"]


async def test_another_method_is_told_those_of_the_path(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async with http.delete(gateway.url("/ping")) as got:
        assert (got.status, got.headers["Allow"]) == (405, "GET, POST")


async def test_the_root_says_what_this_is_to_a_terminal_and_to_a_browser(gateway: RunningGateway) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(gateway.url("/")) as plain:
            assert plain.status == 200
            assert plain.content_type == "text/plain"
            text = await plain.text()
            assert "baton chat" in text
            assert "curl " in text
        async with http.get(gateway.url("/"), headers={"Accept": "text/html,*/*", "Host": "x.example"}) as page:
            assert page.content_type == "text/html"
            assert page.headers["Content-Security-Policy"] == "default-src 'none'"
            html = await page.text()
            assert "<script" not in html
            assert "x.example" not in html, "nothing that a client sends is repeated"
    served = gateway.server.api.methods()
    for path in re.findall(r"(?:GET|POST) (/\S+?)[, ]", text):
        assert path in served, path


async def test_tokenizer_info_has_what_evaluation_clients_ask_for(gateway: RunningGateway) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(gateway.url("/tokenizer_info")) as answer:
            info = await answer.json()
            assert answer.status == 200
        assert {"eos_token", "bos_token", "pad_token", "chat_template", "model_max_length"} <= info.keys()
        assert info["eos_token"]
        async with http.get(gateway.url("/tokenizer_info?model=nope")) as answer:
            assert (await answer.json())["error"]["code"] == "model_not_found"
        async with http.get(gateway.url("/tokenizer_info?" + "&".join(f"a{n}=1" for n in range(20)))) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (400, "model")


async def test_a_wrong_path_gets_the_one_that_was_probably_meant(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    """Found: the message was one line of 35 paths."""
    paths = {"/v1/embedding": "did you mean /v1/embeddings?", "/none-like-it": "is not served.", "/" + "x" * 2_000: ""}
    for path, meant in paths.items():
        async with http.get(gateway.url(path)) as got:
            assert got.status == 404
            message = (await got.json())["error"]["message"]
        assert meant in message
        assert len(message) < 200
