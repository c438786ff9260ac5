"""Fields of other servers: those that ask for nothing, those that are served, and those that nobody knows, which a
gateway refuses by name or, where it is told to, ignores and names in a header."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from baton_gateway.http_api.access_log import IGNORED_HEADER
from baton_gateway.openai_api.openai_fields import MAX_UNKNOWN
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient, streamed_text
from baton_wire.messages.values import PACKED_ID_BYTES

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "Hello"},
    MESSAGES: {"messages": USER, "max_tokens": 8},
    COUNT: {"messages": USER},
    RESPONSES: {"input": "Hello"},
}


@pytest.fixture
async def lenient(pool: FakePool, http: aiohttp.ClientSession) -> AsyncIterator[HttpClient]:
    async with running_gateway(pool, "--unknown-fields=ignore") as gateway:
        yield HttpClient(gateway, http)


async def asked(client: HttpClient, path: str, **body: Any) -> tuple[int, str | None, dict[str, Any]]:
    """Status, the names in the header, and the answer."""
    async with client.http.post(client.gateway.url(path), json={"model": "tiny", **BODIES[path], **body}) as got:
        return got.status, got.headers.get(IGNORED_HEADER), await got.json()


@pytest.mark.parametrize("path", BODIES)
async def test_what_nobody_knows_is_refused_by_name(client: HttpClient, path: str) -> None:
    status, named, answer = await asked(client, path, documents=3)
    assert (status, named) == (400, None)
    assert "documents" in answer["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_where_it_is_ignored_the_answer_names_it(lenient: HttpClient, path: str) -> None:
    status, named, answer = await asked(lenient, path, documents=3, vllm_xargs={"a": 1}, other=None)
    assert (status, named) == (200, "documents, vllm_xargs"), answer
    assert (await asked(lenient, path))[:2] == (200, None)


async def test_a_missing_field_names_the_one_that_was_probably_meant(client: HttpClient) -> None:
    """Found: "'messages' is required", for a body that had "mesages"."""

    async def message(**body: object) -> str:
        async with client.http.post(client.gateway.url(CHAT), json={"model": "tiny", **body}) as got:
            return str((await got.json())["error"]["message"])

    assert await message(mesages=[]) == "'messages' is required. Is 'mesages' meant?"
    assert await message(temperature=1, **{"mess\u00e4ges": []}) == "'messages' is required."


async def test_a_stream_and_a_refusal_name_it_too(lenient: HttpClient) -> None:
    body = {"model": "tiny", "prompt": "Hello", "documents": 3}
    for more, status in (({"stream": True}, 200), ({"max_tokens": 1_000_000}, 400)):
        async with lenient.http.post(lenient.gateway.url(COMPLETIONS), json=body | more) as got:
            assert (got.status, got.headers.get(IGNORED_HEADER)) == (status, "documents")


@pytest.mark.parametrize(
    "name", ["a b", "x\r\nSet-Cookie: a", "é", "", "x" * 65, "a,b", "a:b", "0", "-a"], ids=lambda name: repr(name)[:16]
)
async def test_a_name_that_fits_no_header_is_refused(lenient: HttpClient, name: str) -> None:
    status, named, answer = await asked(lenient, COMPLETIONS, **{name: 1})
    assert (status, named, answer["error"]["code"]) == (400, None, "unknown_parameter")


async def test_neither_many_nor_large_ones_are_ignored(lenient: HttpClient) -> None:
    names = [f"field_{number}" for number in range(MAX_UNKNOWN + 1)]
    assert (await asked(lenient, CHAT, **dict.fromkeys(names[:-1], 1)))[:2] == (200, ", ".join(names[:-1]))
    status, _, answer = await asked(lenient, CHAT, **dict.fromkeys(names, 1))
    assert (status, answer["error"]["param"]) == (400, names[-1])
    status, _, answer = await asked(lenient, CHAT, documents="x" * 20_000)
    assert (status, answer["error"]["code"]) == (400, "too_long")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("use_beam_search", False, True),
        ("bad_words", [], ["x"]),
        ("allowed_token_ids", None, [1]),
        ("logits_processors", [], ["x"]),
        ("return_tokens_as_token_ids", False, True),
        ("spaces_between_special_tokens", True, False),
        ("kv_transfer_params", {}, {"a": 1}),
    ],
)
async def test_what_would_change_the_answer_is_never_ignored(
    lenient: HttpClient, path: str, name: str, nothing: Any, something: Any
) -> None:
    assert (await asked(lenient, path, **{name: nothing}))[:2] == (200, None)
    status, named, answer = await asked(lenient, path, **{name: something})
    assert (status, named, answer["error"]["param"]) == (400, None, name)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_text_may_end_behind_its_stop_string(client: HttpClient, path: str) -> None:
    client.say("one END two")
    for includes, text in ((True, "one END"), (False, "one "), (None, "one ")):
        body = {"stop": ["END"], "include_stop_str_in_output": includes, "max_tokens": 40}
        [choice] = (await client.ask(path, **body))["choices"]
        assert (choice["message"]["content"] if path == CHAT else choice["text"]) == text
        assert choice["finish_reason"] == "stop"
        assert streamed_text(await client.stream(path, **body)) == text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_end_of_a_prompt_may_do(client: HttpClient, path: str) -> None:
    await client.ask(path, max_tokens=8)
    whole = client.prefill().tokens
    tokens = len(whole) // PACKED_ID_BYTES
    for most, left in ((1, 1), (3, 3), (tokens, tokens), (10_000, tokens), (-1, tokens), (None, tokens)):
        answer = await client.ask(path, max_tokens=8, truncate_prompt_tokens=most)
        assert client.prefill().tokens == whole[-left * PACKED_ID_BYTES :]
        assert answer["usage"]["prompt_tokens"] == left


async def test_a_prompt_beyond_the_context_is_cut_so_that_its_answer_fits(client: HttpClient) -> None:
    context = client.pool.prefill[0].max_context_tokens
    ids = [300] * (context + 7)
    status, problem = await client.refused(COMPLETIONS, prompt=ids, max_tokens=8)
    assert (status, problem["code"]) == (400, "context_length_exceeded")
    answer = await client.ask(COMPLETIONS, prompt=ids, max_tokens=8, truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == context - 8


@pytest.mark.parametrize(("more", "code"), [({"truncate_prompt_tokens": 0}, "out_of_range"), ({"echo": True}, None)])
async def test_what_cannot_be_cut_is_refused(client: HttpClient, more: dict[str, Any], code: str | None) -> None:
    status, problem = await client.refused(COMPLETIONS, **{"truncate_prompt_tokens": 5, **more})
    assert (status, problem["param"]) == (400, "truncate_prompt_tokens")
    assert code is None or problem["code"] == code


async def test_the_official_client_reads_what_was_ignored(lenient: HttpClient) -> None:
    async with openai.AsyncOpenAI(base_url=lenient.gateway.url("/v1"), api_key="none", max_retries=0) as official:
        got = await official.chat.completions.with_raw_response.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], extra_body={"documents": 1, "top_k": 5}
        )
    assert got.headers[IGNORED_HEADER] == "documents"
    assert got.parse().choices[0].message.content


@pytest.mark.parametrize(
    ("path", "field", "meant"),
    [
        (CHAT, "max_token", "max_tokens"),
        (COMPLETIONS, "temprature", "temperature"),
        (CHAT, "tool_choices", "tool_choice"),
    ],
)
async def test_a_mistyped_field_is_answered_with_what_was_meant(
    client: HttpClient, path: str, field: str, meant: str
) -> None:
    status, _, answer = await asked(client, path, **{field: 1})
    assert status == 400
    assert answer["error"]["message"] == f"Unknown field '{field}'. Did you mean '{meant}'?"
