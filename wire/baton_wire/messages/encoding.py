"""Prompts whose hidden states are wanted instead of an answer: embeddings, scores of labels, logits of some tokens."""

from __future__ import annotations

import enum
import sys
from array import array
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from baton_wire.messages.values import (
    Attempt,
    Message,
    NestedValue,
    PackedTokenIds,
    PositiveSeconds,
    RequestId,
    Salt,
    Seconds,
    TokenCount,
    TokenId,
)

FLOAT_BYTES = 4
MAX_WIDTH = 1 << 20
"""Most values of one result: as many as a hidden state may have."""
MAX_LABELS = 1_024
MAX_SCORED_TOKENS = 16
PackedFloats = Annotated[bytes, Meta(min_length=FLOAT_BYTES, max_length=FLOAT_BYTES * MAX_WIDTH)]
"""float32 values, little-endian; see `pack_floats`."""


class EncodingKind(enum.StrEnum):
    """The kinds of results that a prompt's hidden states become."""

    EMBEDDING = "embedding"
    """The vector that the model's pooling makes of them."""
    LABELS = "labels"
    """Logits of the labels of a classification head."""
    TOKENS = "tokens"
    """Logits of some tokens after the prompt, such as `no` and `yes`."""


class Encoding(NestedValue, frozen=True):
    """The result that is wanted of one prompt."""

    kind: EncodingKind
    dimensions: Annotated[int, Meta(ge=1, le=MAX_WIDTH)] | None = None
    """How many leading values of an embedding are wanted; None: all."""
    is_normalised: bool | None = None
    """Divide an embedding by its length; None: as the model's files say."""
    token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_SCORED_TOKENS)] = ()

    def __post_init__(self) -> None:
        if bool(self.token_ids) is not (self.kind is EncodingKind.TOKENS):
            raise ValueError(f"token_ids: {self.token_ids} does not suit kind {self.kind.value}")
        if self.kind is not EncodingKind.EMBEDDING and (self.dimensions, self.is_normalised) != (None, None):
            raise ValueError(f"dimensions and is_normalised do not suit kind {self.kind.value}")


class EncodingLimits(NestedValue, frozen=True):
    """The results that a worker's model can make of a prompt, besides an answer."""

    width: Annotated[int, Meta(ge=1, le=MAX_WIDTH)]
    """Values of an embedding."""
    labels: Annotated[int, Meta(ge=0, le=MAX_LABELS)] = 0
    """Labels of its classification head; 0: it has none."""
    is_probability: bool = True
    """Scores of labels are shown as probabilities; False: as logits."""
    embeds: bool = True
    generates: bool = True
    """False: prompts are encoded here and never answered."""
    reranks: bool = False
    """Pairs are scored by the logits of `yes` and `no`."""


class Encode(Message, frozen=True, tag=23):
    """Compute what `output` wants of `tokens`. No KV is kept or handed over. Answered by EncodedPrompt or LegFailed."""

    request: RequestId
    attempt: Attempt
    tokens: PackedTokenIds
    output: Encoding
    timeout_s: PositiveSeconds
    salt: Salt
    flow: RequestId | None = None
    """As in Prefill."""
    missing_tokens: TokenCount | None = None
    """As in Prefill."""


class EncodedPrompt(Message, frozen=True, tag=9):
    """The result of an Encode; the worker holds nothing for the request any more."""

    request: RequestId
    attempt: Attempt
    values: PackedFloats
    device_s: Seconds | None = None
    """The prompt's share of the time of the worker's steps, summed over its devices; None: not known."""


def pack_floats(values: Iterable[float]) -> bytes:
    """Encode numbers as little-endian float32."""
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_floats(packed: bytes) -> array[float]:
    """Decode `pack_floats`. Raises ValueError when the length is not a multiple of four."""
    if len(packed) % FLOAT_BYTES:
        raise ValueError(f"values: {len(packed)} bytes are not a multiple of {FLOAT_BYTES}")
    values = array("f")
    values.frombytes(packed)
    if sys.byteorder == "big":
        values.byteswap()
    return values
