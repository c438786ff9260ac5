"""`/tokenize` and `/detokenize` in vLLM's forms."""

from __future__ import annotations

from typing import Any

import pytest

from baton_testing.gateway.gateway_process import RunningGateway, ids_of, tokenizer
from baton_testing.gateway.http_client import CHAT, USER, HttpClient
from baton_wire.messages.values import Role, unpack_ids

TEXT = "Grüße, Welt"
IDS = ids_of(TEXT)


async def post(client: HttpClient, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    async with client.http.post(client.gateway.url(path), json=body) as got:
        return got.status, await got.json()


async def test_a_prompt_has_the_tokens_that_a_completion_would_see(client: HttpClient) -> None:
    status, got = await post(client, "/tokenize", model="tiny", prompt=TEXT)
    assert status == 200
    await client.ask("/v1/completions", prompt=TEXT, max_tokens=1)
    assert got == {
        "count": len(IDS) + 1,
        "max_model_len": 2_048,
        "tokens": unpack_ids(client.prefill().tokens),
        "token_strs": None,
    }


async def test_special_tokens_are_left_out_and_strings_told_when_asked_for(client: HttpClient) -> None:
    status, got = await post(client, "/tokenize", prompt=TEXT, add_special_tokens=False, return_token_strs=True)
    assert (status, got["tokens"]) == (200, IDS)
    assert got["token_strs"] == [tokenizer().tokenizer.id_to_token(token) for token in IDS]


async def test_a_chat_has_the_tokens_that_its_answer_would_see(client: HttpClient) -> None:
    status, got = await post(client, "/tokenize", model="tiny", messages=USER)
    assert status == 200
    await client.ask(CHAT, max_tokens=1)
    assert got["tokens"] == unpack_ids(client.prefill().tokens)


async def test_tokens_become_their_text_again(client: HttpClient) -> None:
    assert await post(client, "/detokenize", model="tiny", tokens=IDS) == (200, {"prompt": TEXT})
    _, got = await post(client, "/tokenize", prompt=TEXT)
    _, back = await post(client, "/detokenize", tokens=got["tokens"])
    assert back["prompt"].endswith(TEXT)
    assert back["prompt"] != TEXT, "special tokens are told"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("/tokenize", {}, 400, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": "x", "messages": USER}, 400, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt", "invalid_type"),
        ("/tokenize", {"prompt": "x", "colour": 1}, 400, "colour", "unknown_parameter"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": False}, 400, "prompt", "invalid_value"),
        ("/tokenize", {"messages": USER, "chat_template": "x"}, 400, "chat_template", "unsupported_parameter"),
        ("/tokenize", {"prompt": "x", "model": "gpt-9"}, 404, "model", "model_not_found"),
        ("/tokenize", {"prompt": "word " * 60_000}, 400, "prompt", "context_length_exceeded"),
        ("/detokenize", {}, 400, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens", "invalid_type"),
        ("/detokenize", {"tokens": []}, 400, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]", "out_of_range"),
        ("/detokenize", {"tokens": [1 << 20]}, 400, "tokens", "out_of_range"),
    ],
)  # fmt: skip
async def test_what_is_not_understood_is_refused_by_field(
    client: HttpClient, path: str, body: dict[str, Any], status: int, param: str, code: str
) -> None:
    got, content = await post(client, path, **body)
    error = content["error"]
    assert (got, error["param"], error["code"]) == (status, param, code), error


async def test_several_models_must_be_named(gateway: RunningGateway, client: HttpClient) -> None:
    await gateway.pool.add(Role.DECODE, served_name="other")
    await gateway.until_linked(3)
    status, content = await post(client, "/tokenize", prompt="x")
    assert (status, content["error"]["param"]) == (400, "model")
    assert (await post(client, "/tokenize", prompt="x", model="other"))[0] == 200
