"""Log probabilities of tokens as bytes: while they wait to be delivered, they take a fifth of the memory of the values.

They are decoded in the time of the tenant that gets them. Before that nothing has looked into them, so
`unpack_logprobs` may refuse them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton_wire.messages.values import MAX_ENTRY_IDS, TokenLogprob

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[TokenLogprob, ...]] = msgspec.msgpack.Decoder(
    Annotated[tuple[TokenLogprob, ...], msgspec.Meta(max_length=MAX_ENTRY_IDS)]
)


def pack_logprobs(logprobs: tuple[TokenLogprob, ...]) -> bytes:
    """Encode the log probabilities of consecutive tokens."""
    return _encoder.encode(logprobs)


def unpack_logprobs(packed: bytes) -> tuple[TokenLogprob, ...]:
    """Decode `pack_logprobs`. Raises ValueError where values, or their number, do not fit their types."""
    try:
        return _decoder.decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"log probabilities: {error}") from error
