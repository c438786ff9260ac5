"""Large bodies are parsed beside the event loop, in a thread; small ones where they are."""

from __future__ import annotations

import threading
from typing import Any

import aiohttp
import pytest

from baton_gateway.http_api import request_body
from baton_gateway.http_api.request_body import INLINE_BYTES
from baton_gateway.openai_api.json_body import JsonCounts, parse_object
from baton_testing.gateway.gateway_process import RunningGateway


@pytest.mark.parametrize(("size", "is_aside"), [(10, False), (INLINE_BYTES + 1, True)])
async def test_only_a_large_body_is_parsed_in_a_thread(
    size: int, is_aside: bool, gateway: RunningGateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(body: bytes, shape: JsonCounts) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return parse_object(body, shape)

    monkeypatch.setattr(request_body, "parse_object", noted)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1, "user": "u"}
    async with http.post(gateway.url("/v1/completions"), data=_padded(body, size), headers=JSON) as got:
        assert got.status == 200
    assert [thread is not threading.main_thread() for thread in threads] == [is_aside]


async def test_what_is_wrong_with_a_large_body_is_told(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    for body, code in (
        (b'{"a":' + b" " * INLINE_BYTES + b"}", "invalid_json"),
        (b"[" * (INLINE_BYTES + 1), "json_too_deep"),
    ):
        async with http.post(gateway.url("/v1/completions"), data=body, headers=JSON) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (400, code)


JSON = {"Content-Type": "application/json"}


def _padded(body: dict[str, Any], size: int) -> bytes:
    text = str(body).replace("'", '"').encode()
    return text[:-1] + b" " * max(0, size - len(text)) + b"}"
