"""Resent answers: with every field of the clients' own types, most of them null."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from openai.types.chat import ChatCompletion

from baton_testing.gateway.gateway_process import ANSWER, RunningGateway

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hello"}]
RESENT: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Hi", "annotations": []},
    {"role": "assistant", "content": "Hi", "annotations": None, "audio": None, "refusal": None, "tool_calls": None},
    {"role": "assistant", "content": None},
    {"role": "assistant"},
    {"role": "assistant", "content": "Hi", "reasoning_content": None, "a_field_of_tomorrow": None},
    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": None}], "name": None},
]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"role": "user", "content": None}, "content", "missing_required_parameter"),
    ({"role": "assistant", "content": []}, "content", "invalid_value"),
    ({"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}]}, "annotations",
     "unsupported_parameter"),
    ({"role": "assistant", "content": "x", "tomorrow": False}, "tomorrow", "unknown_parameter"),
]  # fmt: skip
OPTIONAL = (
    "n", "max_tokens", "temperature", "stop", "stop_token_ids", "logit_bias", "seed", "stream", "stream_options",
    "tools", "response_format", "user", "unknown_to_all",
)  # fmt: skip


async def post(gateway: RunningGateway, http: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, Any]:
    default: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "Hello"}
    async with http.post(gateway.url(path), json={"model": "tiny", **default, **body}) as got:
        return got.status, await got.json()


@pytest.mark.parametrize("resent", RESENT, ids=str)
async def test_a_message_that_a_client_kept_is_taken_back(
    gateway: RunningGateway, http: aiohttp.ClientSession, resent: dict[str, Any]
) -> None:
    status, answer = await post(gateway, http, CHAT, messages=[*USER, resent, *USER])
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(("resent", "field", "code"), REFUSED, ids=str)
async def test_what_asks_for_something_is_refused_by_name(
    gateway: RunningGateway, http: aiohttp.ClientSession, resent: dict[str, Any], field: str, code: str
) -> None:
    status, answer = await post(gateway, http, CHAT, messages=[*USER, resent])
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, f"messages[1].{field}", code)


async def test_the_official_client_may_dump_an_answer_into_its_next_question(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    _, answer = await post(gateway, http, CHAT)
    message = ChatCompletion.model_validate(answer).choices[0].message.model_dump()
    assert {"annotations", "tool_calls"} <= set(message), "the client dumps what the API never said"
    assert (await post(gateway, http, CHAT, messages=[*USER, message, *USER]))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, dict.fromkeys(OPTIONAL)),
        (COMPLETIONS, {"suffix": None, "echo": None, "best_of": None, "also_unknown": None}),
        (CHAT, {"logit_bias": {"5": None}}),
    ],
)
async def test_null_counts_as_absent_in_every_place(
    gateway: RunningGateway, http: aiohttp.ClientSession, path: str, body: dict[str, Any]
) -> None:
    status, answer = await post(gateway, http, path, **body)
    assert status == 200, answer
