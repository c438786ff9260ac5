"""The server under load: its model, the token counts of its prompts, and requests encoded ahead for it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import AnswerError, ClientRequest, chat, completion, send
from baton_local.errors import LocalError
from baton_local.load_test.open_loop import PlannedRequest
from baton_local.load_test.prompts import Prompts, WordPrompts, word_prompts, words

FEW_WORDS, MANY_WORDS = 16, 256
PROBE_S = 60.0


@dataclass(frozen=True, slots=True)
class LoadedServer:
    """The server that requests go to, and how they are made for it."""

    session: aiohttp.ClientSession
    endpoint: str
    model: str
    prompts: Prompts
    is_plain: bool = False
    """Send only fields of OpenAI's API."""
    is_chat: bool = False
    """Send prompts as user messages, which are texts."""

    def request(self, prompt: Sequence[int] | str, output_tokens: int) -> ClientRequest:
        """A request whose body is JSON already, so that sending it costs the event loop nothing."""
        request = _request(self.model, prompt, output_tokens, self.is_chat)
        return (_plain(request) if self.is_plain else request).encode_ahead()

    def request_of_json(self, prompt: bytes, output_tokens: int, headers: Mapping[str, str]) -> ClientRequest:
        """A request whose prompt is JSON already: a text, or token ids."""
        request = _request(self.model, "", output_tokens, self.is_chat)
        request = _plain(request) if self.is_plain else request
        name = "messages" if self.is_chat else "prompt"
        value = b'[{"role": "user", "content": ' + prompt + b"}]" if self.is_chat else prompt
        rest = {field: value for field, value in request.body.items() if field != name}
        encoded = json.dumps(rest).encode()[:-1] + b', "' + name.encode() + b'": ' + value + b"}"
        return ClientRequest(request.path, rest, encoded, headers)

    def plan(self, workload: Workload, load: int) -> list[PlannedRequest]:
        """The requests of a workload; its cached tokens become a beginning that several prompts share.

        `load` numbers the loads on one server: no two have a prompt in common.
        """
        columns = zip(
            *(workload.arrival_s.tolist(), workload.prompt_tokens.tolist()),
            *(workload.output_tokens.tolist(), workload.cached_tokens.tolist()),
            strict=True,
        )
        return [
            PlannedRequest(due_s, self.request(self.prompts.prompt(load, place, prompt, shared), output))
            for place, (due_s, prompt, output, shared) in enumerate(columns)
        ]


def _request(
    model: str, prompt: Sequence[int] | str, output_tokens: int, is_chat: bool, *, stream: bool = True
) -> ClientRequest:
    if not is_chat:
        return completion(model, prompt, output_tokens, stream=stream)
    return chat(model, str(prompt), stream=stream, max_tokens=output_tokens, temperature=0, ignore_eos=True)


def _plain(request: ClientRequest) -> ClientRequest:
    return ClientRequest(request.path, {name: value for name, value in request.body.items() if name != "ignore_eos"})


async def first_model(session: aiohttp.ClientSession, endpoint: str) -> str:
    """The first model that a server lists. Raises LocalError."""
    try:
        async with session.get(f"{endpoint}/v1/models", timeout=aiohttp.ClientTimeout(total=PROBE_S)) as response:
            if response.status != 200:
                raise AnswerError(f"{endpoint}/v1/models answers {response.status}: {(await response.text())[:200]}")
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LocalError(f"{endpoint} does not answer: {error}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise LocalError(f"{endpoint}/v1/models lists no model; give --model") from error


async def counted_words(
    session: aiohttp.ClientSession,
    endpoint: str,
    model: str,
    salt: int,
    beginnings: int,
    *,
    is_chat: bool = False,
    is_plain: bool = False,
) -> WordPrompts:
    """Prompts of words, calibrated by the server's token counts of two. Raises LocalError when it reports none."""

    async def count_tokens(count: int) -> tuple[int, int]:
        text = " ".join(words(random.Random(f"{salt}"), count))
        request = _request(model, text, 1, is_chat, stream=False)
        answer = (await send(session, endpoint, _plain(request) if is_plain else request)).checked()
        if answer.prompt_tokens is None:
            instead = "without them --chat cannot make prompts" if is_chat else "give --ids LOW-HIGH"
            raise LocalError(f"{endpoint} does not report the tokens of a prompt; {instead}")
        return count, answer.prompt_tokens

    few, many = await count_tokens(FEW_WORDS), MANY_WORDS
    while True:
        try:
            return word_prompts([few, await count_tokens(many)], salt, beginnings)
        except AnswerError:  # its context may be too short for so many words
            many //= 2
            if many <= FEW_WORDS:
                raise
