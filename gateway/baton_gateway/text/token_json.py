"""What JSON says of one token, made once: log probabilities name the same tokens again and again."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

MAX_KEPT_TOKENS: Final = 32_768
"""Tokens whose JSON a model keeps, of some hundred bytes each."""
_encode = msgspec.json.Encoder().encode


class TokenJson(NamedTuple):
    """The JSON of one token."""

    text: bytes
    """Its text, a string."""
    head: bytes
    """Of an object with its log probability what stands before the number."""
    tail: bytes
    """What stands behind the number, without the end of the object."""


def token_json(data: bytes) -> TokenJson:
    """Of a token that stands for these bytes."""
    text = _encode(data.decode(errors="replace"))
    return TokenJson(text, b'{"token":%b,"logprob":' % text, b',"bytes":%b' % _encode(list(data)))
