"""Log probabilities of prompt tokens, as evaluation harnesses and clients of vLLM ask for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton_gateway.openai_api.openai_types import parse_completion
from baton_gateway.requests.scored_prompts import echoed_prompts, echoes
from baton_gateway.text.revision_text import load_text_model
from baton_testing.gateway.gateway_process import ANSWER, ids_of, tokenizer
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, HttpClient, finishes, streamed_text
from baton_testing.gateway.made_tokenizers import bundle_hash
from baton_wire.messages.values import Reason

PROMPT = "Grüße, Welt"
IDS = ids_of(PROMPT)


def text_of(token: int) -> str:
    made = tokenizer().tokenizer
    piece: str = made.decode([token], skip_special_tokens=False)
    return piece


EXPECTED = [None, *(-float(place) for place in range(1, len(IDS)))]


async def test_echo_with_logprobs_tells_those_of_the_prompt_first(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=IDS, echo=True, logprobs=2, max_tokens=3)
    [choice] = got["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"]) == len(IDS) + 3
    assert logprobs["token_logprobs"] == [*EXPECTED, -0.25, -0.25, -0.25]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {text_of(IDS[1]): -1.0, text_of(IDS[1] + 1): -2.0}
    offsets = logprobs["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets[len(IDS)] == len(PROMPT), "what was generated begins behind the prompt"
    assert got["usage"]["prompt_tokens"] == len(IDS)


async def test_no_token_is_generated_when_none_is_asked_for(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=IDS, echo=True, logprobs=1, max_tokens=0)
    [choice] = got["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert choice["logprobs"]["token_logprobs"] == EXPECTED
    assert got["usage"] == {"prompt_tokens": len(IDS), "completion_tokens": 0, "total_tokens": len(IDS)}
    got = await client.ask(COMPLETIONS, prompt=PROMPT, echo=True, max_tokens=0)
    assert got["choices"] == [{"index": 0, "text": PROMPT, "logprobs": None, "finish_reason": "length"}]


async def test_a_streamed_echo_has_the_prompt_in_its_first_chunk(client: HttpClient) -> None:
    chunks = await client.stream(COMPLETIONS, prompt=PROMPT, echo=True, logprobs=0, max_tokens=100)
    length = client.prefill().prompt_tokens
    assert length == len(IDS) + 1, "a text begins with the token of its beginning"
    first = chunks[0]["choices"][0]
    assert first["text"].startswith(PROMPT)
    assert first["logprobs"]["token_logprobs"][:length] == [None, *(-float(place) for place in range(1, length))]
    assert first["logprobs"]["text_offset"][:2] == [0, 0]
    assert streamed_text(chunks) == PROMPT + ANSWER
    assert finishes(chunks) == ["stop"]


async def test_each_of_several_prompts_and_choices_has_its_own(client: HttpClient) -> None:
    other = ids_of("other words that are longer")
    got = await client.ask(COMPLETIONS, prompt=[IDS, other], n=2, echo=True, logprobs=0, max_tokens=1)
    lengths = [len(IDS), len(IDS), len(other), len(other)]
    assert [len(choice["logprobs"]["tokens"]) - 1 for choice in got["choices"]] == lengths
    for choice, length in zip(got["choices"], lengths, strict=True):
        assert choice["logprobs"]["token_logprobs"][1:length] == [-float(place) for place in range(1, length)]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_prompt_logprobs_have_vllms_form(client: HttpClient, path: str) -> None:
    body = {} if path == CHAT else {"prompt": IDS}
    got = await client.ask(path, prompt_logprobs=1, max_tokens=2, **body)
    [choice] = got["choices"]
    told = got["prompt_logprobs"] if path == CHAT else choice["prompt_logprobs"]
    assert len(told) == got["usage"]["prompt_tokens"]
    assert told[0] is None
    if path == COMPLETIONS:
        token = IDS[3]
        assert told[3] == {str(token): {"logprob": -3.0, "rank": 3, "decoded_token": text_of(token)}}
    assert choice["logprobs"] is None


async def test_a_single_token_has_no_log_probability(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=IDS[:1], echo=True, logprobs=1, max_tokens=0)
    assert got["choices"][0]["logprobs"]["token_logprobs"] == [None]


async def test_it_survives_the_loss_of_its_worker(client: HttpClient) -> None:
    """The next attempt tells everything again, and the client reads it once."""
    client.pool.prefill[0].fail_next = [Reason.INTERNAL]
    got = await client.ask(COMPLETIONS, prompt=IDS, echo=True, logprobs=0, max_tokens=5)
    assert got["choices"][0]["logprobs"]["token_logprobs"][: len(IDS)] == EXPECTED


async def test_a_worker_that_leaves_them_out_is_never_read_as_if_it_had_told_them(client: HttpClient) -> None:
    client.pool.prefill[0].is_mute_about_prompts = True
    status, error = await client.refused(COMPLETIONS, prompt=IDS, echo=True, logprobs=0)
    assert (status, error["code"]) == (500, "internal_error")


@pytest.mark.parametrize(
    ("field", "value", "code", "others"),
    [
        ("prompt_logprobs", 21, "out_of_range", {}),
        ("prompt_logprobs", -1, "out_of_range", {}),
        ("prompt_logprobs", True, "invalid_type", {}),
        ("prompt_logprobs", 1, "unsupported_parameter", {"stream": True}),
        ("prompt_logprobs", 20, "out_of_range", {"prompt": [[5] * 2_000] * 7}),
        ("logprobs", 20, "out_of_range", {"prompt": [[5] * 2_000] * 7, "echo": True}),
        ("max_tokens", 0, "out_of_range", {"echo": False}),
    ],
)
async def test_what_cannot_be_told_is_refused_by_field(
    client: HttpClient, field: str, value: Any, code: str, others: dict[str, Any]
) -> None:
    status, error = await client.refused(COMPLETIONS, **{field: value} | others)
    assert (status, error["param"], error["code"]) == (400, field, code)


async def test_the_most_that_may_be_asked_for_is_told(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=[[5] * 2_000] * 6, echo=True, logprobs=20, max_tokens=0)
    assert [len(choice["logprobs"]["tokens"]) for choice in got["choices"]] == [2_000] * 6


def test_ids_are_given_back_as_text_where_the_tokenizer_is_apart() -> None:
    data = tokenizer().bundle()
    here = load_text_model(data, bundle_hash(data))
    request = parse_completion({"model": "tiny", "prompt": [IDS, ids_of("other words")], "echo": True})
    apart = replace(here, tokenizer=None)
    assert echoes(request, apart) == echoes(request, here) == (PROMPT, "other words")


async def test_long_lists_of_ids_are_given_back_as_text() -> None:
    data = tokenizer().bundle()
    text = load_text_model(data, bundle_hash(data))
    request = parse_completion({"model": "tiny", "prompt": IDS * 2_000, "echo": True})
    assert await echoed_prompts(request, text) == (PROMPT * 2_000,)
