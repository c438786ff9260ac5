"""The JSON of one token, encoded once: log probabilities name the same tokens again and again."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

MAX_CACHED_TOKENS: Final = 32_768
"""The most tokens whose JSON a model caches, at some hundred bytes each."""
_encode = msgspec.json.Encoder().encode


class TokenJson(NamedTuple):
    """The JSON of one token, in parts."""

    text: bytes
    """The token's text, a JSON string."""
    head: bytes
    """The object with its log probability, up to the number."""
    tail: bytes
    """The same object after the number, without its closing brace."""


def token_json(data: bytes) -> TokenJson:
    """Encode a token that stands for these bytes."""
    text = _encode(data.decode(errors="replace"))
    return TokenJson(text, b'{"token":%b,"logprob":' % text, b',"bytes":%b' % _encode(list(data)))
