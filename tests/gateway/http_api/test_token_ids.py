"""`return_token_ids`: the ids of the prompt's and the answer's tokens, for training and evaluation clients."""

from __future__ import annotations

from typing import Any

import pytest

from baton_testing.gateway.gateway_process import ids_of
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient, streamed_text

PROMPT = "Grüße, Welt"
IDS = ids_of(PROMPT)


async def test_a_completion_has_the_ids_of_its_prompt_and_its_own(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=IDS, return_token_ids=True, max_tokens=5)
    [choice] = got["choices"]
    assert choice["prompt_token_ids"] == IDS
    assert len(choice["token_ids"]) == got["usage"]["completion_tokens"] == 5
    body = {"model": "tiny", "tokens": choice["token_ids"]}
    async with client.http.post(client.gateway.url("/detokenize"), json=body) as answer:
        assert (await answer.json())["prompt"].startswith(choice["text"])


async def test_each_choice_of_several_prompts_has_its_own_prompt(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=[IDS, IDS[:2]], n=2, return_token_ids=True, max_tokens=3)
    assert [choice["prompt_token_ids"] for choice in got["choices"]] == [IDS, IDS, IDS[:2], IDS[:2]]


async def test_a_chat_has_the_ids_of_its_prompt_beside_its_choices(client: HttpClient) -> None:
    got = await client.ask(CHAT, messages=USER, return_token_ids=True, max_tokens=4)
    assert len(got["prompt_token_ids"]) == got["usage"]["prompt_tokens"]
    assert len(got["choices"][0]["token_ids"]) == got["usage"]["completion_tokens"]


async def test_tokens_after_a_stop_string_are_not_listed(client: HttpClient) -> None:
    whole = await client.ask(COMPLETIONS, prompt=IDS, max_tokens=12)
    text = whole["choices"][0]["text"]
    got = await client.ask(COMPLETIONS, prompt=IDS, max_tokens=12, stop=text[3:6], return_token_ids=True)
    assert got["choices"][0]["finish_reason"] == "stop"
    assert len(got["choices"][0]["token_ids"]) == got["usage"]["completion_tokens"] < 12


async def test_no_ids_are_sent_unless_they_are_asked_for(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, prompt=IDS, max_tokens=2)
    assert not {"token_ids", "prompt_token_ids"} & got["choices"][0].keys()


def streamed_ids(chunks: list[dict[str, Any]], index: int = 0) -> list[int]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [token for choice in choices for token in choice.get("token_ids") or []]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "several choices": {"n": 3},
    "a stop string": {"stop": "lo, W"},
    "a stop string that begins in vain": {"stop": "lo, X"},
    "its stop string included": {"stop": "lo", "include_stop_str_in_output": True},
    "usage in each chunk": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "cut by its length": {"max_tokens": 3},
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("logprobs", [False, True], ids=["", "logprobs"])
@pytest.mark.parametrize("case", CASES)
async def test_a_stream_has_the_same_ids_as_the_whole_answer(
    client: HttpClient, path: str, case: str, logprobs: bool
) -> None:
    client.say("Hello, World", "Grüße, Welt", "hello, lo")
    body = {"max_tokens": 30, "return_token_ids": True, **CASES[case]}
    if logprobs:
        body |= {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    chunks = await client.stream(path, **body)
    whole = await client.ask(path, **{name: value for name, value in body.items() if name != "stream_options"})
    for choice in whole["choices"]:
        assert streamed_ids(chunks, choice["index"]) == choice["token_ids"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert streamed_text(chunks, choice["index"]) == text
    if path == CHAT:
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    else:
        first = {choice["index"]: choice for chunk in reversed(chunks) for choice in chunk["choices"]}
        expected = [choice["prompt_token_ids"] for choice in whole["choices"]]
        assert [first[index]["prompt_token_ids"] for index in sorted(first)] == expected


async def test_each_choice_of_a_streamed_completion_begins_with_the_ids_of_its_prompt(client: HttpClient) -> None:
    prompts = [IDS, IDS[:2]]
    chunks = await client.stream(COMPLETIONS, prompt=prompts, n=2, return_token_ids=True, max_tokens=3)
    firsts: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            firsts.setdefault(choice["index"], choice)
    assert [firsts[index]["prompt_token_ids"] for index in range(4)] == [IDS, IDS, IDS[:2], IDS[:2]]


async def test_a_streamed_echo_has_the_ids_of_its_prompt_and_none_of_its_own(client: HttpClient) -> None:
    body = {"prompt": IDS, "echo": True, "max_tokens": 0, "return_token_ids": True}
    chunks = await client.stream(COMPLETIONS, **body)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == IDS
    assert streamed_ids(chunks) == []
    assert streamed_text(chunks) == PROMPT


async def test_a_stream_has_no_ids_unless_they_are_asked_for(client: HttpClient) -> None:
    for path in (CHAT, COMPLETIONS):
        for chunk in await client.stream(path, max_tokens=2):
            assert "prompt_token_ids" not in chunk
            assert not any({"token_ids", "prompt_token_ids"} & choice.keys() for choice in chunk["choices"])
