"""Log probabilities in the forms of the APIs, encoded token by token.

The JSON of tokens is cached. That leaves a number and a few copies for each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from baton_gateway.openai_api.json_pieces import EncodedJson
from baton_gateway.openai_api.openai_types import ApiEndpoint
from baton_gateway.text.choice_text import TokenInfo
from baton_gateway.text.revision_text import TextModel
from baton_wire.messages.values import PromptLogprob

_LEAST: Final = -9999.0
"""The value in OpenAI's API for a token that is not among the likeliest."""
_encode = msgspec.json.Encoder().encode


class ChatLogprobs:
    """The form of chats: an object whose `content` has an entry for each token."""

    __slots__ = ("_entries", "_text")

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._entries = bytearray()

    def add(self, tokens: Iterable[TokenInfo]) -> int:
        entries, text = self._entries, self._text
        before = len(entries)
        for info in tokens:
            assert info.logprob is not None, "a chat gives no prompt back"
            if entries:
                entries += b","
            top = info.logprob.top
            number, *numbers = _numbers([max(value, _LEAST) for value in (info.logprob.logprob, *(p for _, p in top))])
            _, head, tail = text.token_json_of(info.token)
            entries += b'%b%b%b,"top_logprobs":[' % (head, number, tail)
            entries += b",".join([_alternative(token, p, text) for (token, _), p in zip(top, numbers, strict=True)])
            entries += b"]}"
        return len(entries) - before

    def add_encoded(self, others: ChatLogprobs) -> None:
        """Append the entries of another object."""
        if self._entries and others._entries:
            self._entries += b","
        self._entries += others._entries

    def value(self) -> EncodedJson:
        return EncodedJson(b'{"content":[', self._entries, b'],"refusal":null}')

    def entries(self) -> EncodedJson:
        """Return the list of entries alone."""
        return EncodedJson(b"[", self._entries, b"]")


class CompletionLogprobs:
    """The form of completions: an object of four lists."""

    __slots__ = ("_offsets", "_text", "_tokens", "_tops", "_values")

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._tokens, self._values, self._tops, self._offsets = (bytearray() for _ in range(4))

    def add(self, tokens: Iterable[TokenInfo]) -> int:
        before = self.size
        for info in tokens:
            if self._tokens:
                for column in self._columns:
                    column += b","
            self._tokens += self._text.token_json_of(info.token).text
            self._offsets += b"%d" % info.text_offset
            if info.logprob is None:
                self._values += b"null"
                self._tops += b"null"
                continue
            top = info.logprob.top
            number, *numbers = _numbers([info.logprob.logprob, *(value for _, value in top)])
            self._values += number
            names = [self._text.token_json_of(token).text for token, _ in top]
            entries = dict(zip(names, numbers, strict=True))  # two tokens may have one text
            self._tops += b"{%b}" % b",".join([b"%b:%b" % entry for entry in entries.items()])
        return self.size - before

    def add_encoded(self, others: CompletionLogprobs) -> int:
        """Append the entries of another object, and return their bytes."""
        before = self.size
        for column, other in zip(self._columns, others._columns, strict=True):
            if column and other:
                column += b","
            column += other
        return self.size - before

    def value(self) -> EncodedJson:
        tokens, values, tops, offsets = self._columns
        return EncodedJson(
            b'{"tokens":[', tokens, b'],"token_logprobs":[', values, b'],"top_logprobs":[', tops,
            b'],"text_offset":[', offsets, b"]}",
        )  # fmt: skip

    @property
    def _columns(self) -> tuple[bytearray, bytearray, bytearray, bytearray]:
        return self._tokens, self._values, self._tops, self._offsets

    @property
    def size(self) -> int:
        return sum(map(len, self._columns))


class PromptLogprobsJson:
    """The form of vLLM's prompt logprobs: for each token an object of ids, its own first; null for the first token."""

    __slots__ = ("_entries", "_text")

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._entries = bytearray(b"null")

    def add(self, ids: Sequence[int], logprobs: Sequence[PromptLogprob], alternatives: int) -> None:
        """Append tokens with their log probabilities and at most this many alternatives."""
        for token, logprob in zip(ids, logprobs, strict=True):
            top = logprob.top[:alternatives]
            number, *numbers = _numbers([logprob.logprob, *(value for _, value in top)])
            entries = {token: self._encode_ranked(token, number, logprob.rank)}
            for rank, ((other, _), value) in enumerate(zip(top, numbers, strict=True), 1):
                if other not in entries:
                    entries[other] = self._encode_ranked(other, value, rank)
            self._entries += b",{%b}" % b",".join(entries.values())

    def value(self) -> EncodedJson:
        return EncodedJson(b"[", self._entries, b"]")

    def _encode_ranked(self, token: int, logprob: bytes, rank: int) -> bytes:
        text = self._text.token_json_of(token).text
        return b'"%d":{"logprob":%b,"rank":%d,"decoded_token":%b}' % (token, logprob, rank, text)


LogprobsJson = ChatLogprobs | CompletionLogprobs
"""The growing `logprobs` of one choice or chunk."""


def logprobs_json(endpoint: ApiEndpoint, text: TextModel) -> LogprobsJson:
    """Build empty `logprobs` in the form of an endpoint."""
    return ChatLogprobs(text) if endpoint is ApiEndpoint.CHAT else CompletionLogprobs(text)


def _alternative(token: int, logprob: bytes, text: TextModel) -> bytes:
    _, head, tail = text.token_json_of(token)
    return b"%b%b%b}" % (head, logprob, tail)


def _numbers(values: list[float]) -> list[bytes]:
    return _encode(values)[1:-1].split(b",")
