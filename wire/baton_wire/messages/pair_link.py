"""Messages between a prefill worker P and a decode worker D: one authenticated control link per pair, dialled by P.

P → D: PairHello, Standing, Seal, Abandon, Heartbeat. D → P: PairHello, Grant, Wait, Reject, Done, Heartbeat.
Where a side has several ranks, all messages about hand-overs are inside an `AtRanks`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from baton_wire.messages.values import (
    MAX_CHOICES,
    Attempt,
    Choice,
    Count,
    Epoch,
    Finish,
    Message,
    NestedValue,
    PairFingerprint,
    Reason,
    RequestId,
    Role,
    ShortText,
    TokenCount,
    TokenId,
    TokenLogprob,
    check_worker,
)

TransferId = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Offset = Annotated[int, Meta(ge=0, lt=1 << 48)]
Length = Annotated[int, Meta(ge=0, lt=1 << 48)]

MAX_RANKS = 64
"""Ranks that messages can name; a worker has at most `models.sharding.degrees.MAX_RANKS`."""
Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]
MAX_SPANS = 64
MAX_LAYER_GROUPS = 256
MAX_CHECKSUM_BYTES = 3 << 20
"""Bytes of checksums in one Seal: 8 for each of 393,216 pieces, or for each stretch of pieces of a longer stream."""


class Span(NestedValue, frozen=True):
    """Bytes [offset, offset + length) of D's landing region."""

    offset: Offset
    length: Length


class FirstToken(NestedValue, frozen=True):
    """The token that P drew for a choice, repeated to D so that D need not compute it again."""

    choice: Choice
    token: TokenId
    logprob: TokenLogprob | None = None
    finish: Finish | None = None
    """Set when this choice already ended; D then only continues the others."""


class PairHello(Message, frozen=True, tag=1):
    """Introduces a worker and the units in which it can move KV. Sent once by each side, right after the handshake."""

    role: Role
    epoch: Epoch
    fingerprint: PairFingerprint
    block_tokens: Annotated[int, Meta(ge=1, le=4_096)]
    """The negotiated unit is the smaller of the two; the larger must be a multiple of it."""
    tensor_parallel: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    """Number of the worker's ranks."""
    landing_bytes: Length
    """Size of the landing region, those of all ranks one after the other; 0 on a prefill worker."""
    transports: Annotated[tuple[Annotated[str, Meta(max_length=16)], ...], Meta(min_length=1, max_length=8)]
    """Names of the transports this side can use, best first."""
    descriptor: Annotated[bytes, Meta(max_length=1 << 16)]
    """Data with which the chosen transport reaches this side's landing region; opaque here."""

    def __post_init__(self) -> None:
        check_worker(self.role)


class Grant(Message, frozen=True, tag=2):
    """D holds blocks and landing bytes for this hand-over: P may write [start_tokens, end_tokens) of its KV there."""

    request: RequestId
    attempt: Attempt
    transfer: TransferId
    start_tokens: TokenCount
    """Length of the prefix that D already holds: a multiple of `unit_tokens`."""
    end_tokens: TokenCount
    unit_tokens: Annotated[int, Meta(ge=1, le=4_096)]
    spans: Annotated[tuple[Span, ...], Meta(max_length=MAX_SPANS)]
    """In order; the hand-over's byte stream (see layout) runs through them. Empty when nothing needs to move."""
    groups: Annotated[int, Meta(ge=1, le=MAX_LAYER_GROUPS)] = 1
    """Layer groups of the byte stream, equally many layers each."""


class Wait(Message, frozen=True, tag=3):
    """Not yet: `position` reservations are before this one. A Grant or Reject follows."""

    request: RequestId
    attempt: Attempt
    position: Count


class Reject(Message, frozen=True, tag=4):
    """D will not take this hand-over, or no longer: it holds nothing for it."""

    request: RequestId
    attempt: Attempt
    reason: Reason
    detail: ShortText = ""


class Seal(Message, frozen=True, tag=5):
    """Every write of this transfer has completed remotely. D may verify, scatter and admit."""

    request: RequestId
    attempt: Attempt
    transfer: TransferId
    checksums: Annotated[bytes, Meta(max_length=MAX_CHECKSUM_BYTES)]
    """Little-endian uint64 per piece, in the order of the byte stream; empty with `verify: stamps`. Digests of
    stretches of them where there are more than a Seal carries (docs/protocol.md)."""
    first_tokens: Annotated[tuple[FirstToken, ...], Meta(min_length=1, max_length=MAX_CHOICES)]


class Abandon(Message, frozen=True, tag=6):
    """P will not complete this hand-over (FINISHED: token 1 was the last). No write is in flight any more."""

    request: RequestId
    attempt: Attempt
    reason: Reason
    detail: ShortText = ""


class Done(Message, frozen=True, tag=7):
    """D's verdict on a sealed hand-over: reason None is verified and admitted. P may release its blocks."""

    request: RequestId
    attempt: Attempt
    reason: Reason | None = None
    detail: ShortText = ""


class Heartbeat(Message, frozen=True, tag=8):
    """Sent every 0.5 s by both sides when nothing else was."""


class Standing(Message, frozen=True, tag=9):
    """Every write of the stream's first `groups` layer groups has completed remotely: D may scatter them already."""

    request: RequestId
    attempt: Attempt
    transfer: TransferId
    groups: Annotated[int, Meta(ge=1, le=MAX_LAYER_GROUPS)]


LegMessage = Grant | Wait | Reject | Seal | Abandon | Done | Standing


class AtRanks(Message, frozen=True, tag=10):
    """A message about one leg: the heads that a rank of P sends to a rank of D. Between workers of one rank each there
    is none of these."""

    prefill_rank: Rank
    decode_rank: Rank
    message: LegMessage

    @property
    def request(self) -> bytes:
        return self.message.request

    @property
    def attempt(self) -> int:
        return self.message.attempt


PairMessage = PairHello | Grant | Wait | Reject | Seal | Abandon | Done | Heartbeat | Standing | AtRanks
