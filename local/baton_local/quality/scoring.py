"""Scores passages with a served model: log probabilities of each passage and of a greedy answer after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import aiohttp
import msgspec

from baton_local.client import AnswerError, open_session
from baton_local.quality.comparison import Place

ALTERNATIVES: Final = 20
"""Log probabilities per token: the API's maximum."""
AT_ONCE: Final = 4
ANSWER_S: Final = 600.0
UNREADABLE: Final = "\ufffd"
"""Replacement character for bytes that are no text alone; several tokens may look like it."""


class PromptEntry(msgspec.Struct, frozen=True):
    """An alternative token at a place of a prompt."""

    logprob: float


class AnswerLogprobs(msgspec.Struct, frozen=True):
    """The `logprobs` of a completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.token_logprobs) == len(self.top_logprobs):
            raise ValueError("logprobs: lists of unequal lengths")


class _Choice(msgspec.Struct, frozen=True):
    prompt_logprobs: list[dict[str, PromptEntry] | None]
    logprobs: AnswerLogprobs


class _Completion(msgspec.Struct, frozen=True):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class _Named(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Named]


class _Error(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


Reply = TypeVar("Reply", _Completion, _Models)


@dataclass(frozen=True, slots=True)
class Scored:
    """A passage and the greedy answer after it, as one model sees both."""

    prompt: tuple[Place, ...]
    """The passage without its first token, which has no probability."""
    answer: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a gateway serves."""

    endpoint: str
    model: str
    api_key: str | None


async def served_name(endpoint: str, api_key: str | None) -> str:
    """The name of the only model that a gateway serves. Raises AnswerError."""
    async with open_session(ANSWER_S, api_key=api_key) as session:
        listed = await _request(session, "GET", f"{endpoint}/v1/models", None, _Models)
    names = [entry.id for entry in listed.data]
    if len(names) != 1:
        raise AnswerError(f"{endpoint} serves {len(names)} models: {', '.join(names)[:200]}; one was expected")
    return names[0]


def passages_of(text: str, characters: int) -> list[str]:
    """The text in pieces of at most `characters`, cut before the last white space of each if there is one.

    >>> passages_of("one two three", 8)
    ['one two', ' three']
    """
    pieces = []
    start = 0
    while start < len(text):
        end = min(start + characters, len(text))
        if end < len(text):
            cut = next((at for at in range(end, start, -1) if text[at].isspace()), end)
            end = cut if cut > start else end
        pieces.append(text[start:end])
        start = end
    return [piece for piece in pieces if not piece.isspace()]


async def score(
    service: ServedModel, passages: Sequence[str], answer_tokens: int, done: Callable[[], None]
) -> list[Scored]:
    """Score passages, in their order; `done` is called after each. Raises AnswerError at the first failure."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(passage: str) -> Scored:
        body = {
            "model": service.model, "prompt": passage, "max_tokens": answer_tokens, "temperature": 0,
            "repetition_penalty": 1.0, "logprobs": ALTERNATIVES, "prompt_logprobs": ALTERNATIVES,
        }  # fmt: skip
        async with free:
            reply = await _request(session, "POST", f"{service.endpoint}/v1/completions", body, _Completion)
        done()
        choice = reply.choices[0]
        return Scored(prompt_places(choice.prompt_logprobs), answer_places(choice.logprobs))

    async with open_session(ANSWER_S, api_key=service.api_key) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(passage)) for passage in passages]
    return [task.result() for task in tasks]


def prompt_places(prompt_logprobs: Sequence[Mapping[str, PromptEntry] | None]) -> tuple[Place, ...]:
    """The places of a prompt, by token id. The prompt's own token is the first in each entry."""
    places = []
    for entries in prompt_logprobs:
        if entries:
            likeliest = {token: entry.logprob for token, entry in entries.items()}
            own = next(iter(likeliest))
            places.append(Place(own, likeliest[own], likeliest))
    return tuple(places)


def answer_places(logprobs: AnswerLogprobs) -> tuple[Place, ...]:
    """The places of an answer, by text. Where several tokens have the same text, the likeliest are unknown."""
    places = []
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        is_clear = len(top) >= ALTERNATIVES and not any(UNREADABLE in text for text in top)
        places.append(Place(token, logprob, top if is_clear else None))
    return tuple(places)


async def _request(
    session: aiohttp.ClientSession, method: str, url: str, body: Mapping[str, object] | None, kind: type[Reply]
) -> Reply:
    """Send a request to a gateway. Raises AnswerError: refused, broken, or no answer of a Baton gateway."""
    try:
        async with session.request(method, url, json=body) as response:
            content = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise AnswerError(f"{url}: {type(error).__name__}: {error}") from error
    if response.status != 200:
        raise AnswerError(f"{url}: HTTP {response.status}: {_message(content)}")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise AnswerError(f"{url}: is no answer of a Baton gateway: {error}") from error


def _message(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=_Refusal).error.message
    except msgspec.DecodeError:
        return " ".join(content[:300].decode(errors="replace").split())
