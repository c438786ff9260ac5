"""`return_token_ids`: the ids of the prompt's and the answer's tokens, for training and evaluation clients."""

from __future__ import annotations

import pytest

from baton_testing.gateway.gateway_process import ids_of
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient

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


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_refuses_them_by_name(client: HttpClient, path: str) -> None:
    body = {"messages": USER} if path == CHAT else {"prompt": PROMPT}
    status, error = await client.refused(path, stream=True, return_token_ids=True, **body)
    assert (status, error["param"]) == (400, "return_token_ids")
