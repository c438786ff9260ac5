"""Values that several messages carry: identities, sampling options, token ids, fingerprints, reasons.

Every string, byte string and tuple has a length cap and every number a range, so that a decoded message needs no
second check of its shape. What spans several fields is checked in `__post_init__`.
"""

from __future__ import annotations

import enum
import math
import sys
from array import array
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

WIRE_VERSION = 11
"""Version of every message type below and of how frames travel; both ends of a link agree on one in the handshake."""

MAX_CONTEXT_TOKENS = 1 << 20
"""The longest context that any model is served with, prompt and answer together."""

MAX_VOCAB = 1 << 24
MAX_FRAME_BYTES = 6 << 20
"""Longest frame that is read. The token ids of the longest context take 4 MiB, the longest grammar 1 MiB. Each message
type fits at its largest, or its sender cuts it up (`Tokens`)."""

RequestId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""Random, minted by the gateway; never derived from anything that a client sent."""

TraceId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""The id of a trace, as W3C Trace Context has it: its client may have chosen it."""

Epoch = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""Random identity of a worker process: the same address with another epoch is another worker."""

Attempt = Annotated[int, Meta(ge=1, le=1_000)]
MAX_CHOICES = 128
Choice = Annotated[int, Meta(ge=0, lt=MAX_CHOICES)]
TokenId = Annotated[int, Meta(ge=0, lt=MAX_VOCAB)]
TokenCount = Annotated[int, Meta(ge=0, le=MAX_CONTEXT_TOKENS)]
MAX_GRAMMAR_CHARS = 1 << 18
MAX_MARK_IDS = 16
"""Token ids that mark where a thought starts or ends."""
MAX_STOP_IDS = 256
"""A model's end ids (128 at most) and those that a client adds."""
MAX_LOGIT_BIAS = 1_024
MAX_LOGPROBS = 20
MAX_ENTRY_IDS = 64
"""Tokens of one choice that one step produced."""
PACKED_ID_BYTES = 4
PackedTokenIds = Annotated[bytes, Meta(max_length=PACKED_ID_BYTES * MAX_CONTEXT_TOKENS)]
"""Token ids as little-endian uint32; see `pack_ids`."""

MAX_PACKED_LOGPROBS = 3 + MAX_ENTRY_IDS * (1 + 9 + 3 + MAX_LOGPROBS * (1 + 5 + 9))
"""Bytes: heads of arrays, doubles, and ids of at most five bytes."""
PackedLogprobs = Annotated[bytes, Meta(max_length=MAX_PACKED_LOGPROBS)]
"""Log probabilities of consecutive tokens; see `baton_wire.messages.packed_logprobs`."""

PLACE_BYTES = 8
"""Bytes that name a place in prefix caches (`baton_wire.rules.prefix_digests`): the beginning of its digest."""

Host = Annotated[str, Meta(min_length=1, max_length=253)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Digest = Annotated[str, Meta(min_length=64, max_length=64, pattern="^[0-9a-f]+$")]
ShortText = Annotated[str, Meta(max_length=256)]
Salt = Annotated[str, Meta(max_length=128)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
PositiveCount = Annotated[int, Meta(ge=1, le=1 << 40)]
ByteCount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes moved since a process started: a worker hands over 2^40 bytes of KV within minutes."""
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e7)]


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One attempt of one request, in a process; everything held for it is released by comparing this."""

    request: bytes
    attempt: int

    def __str__(self) -> str:
        return f"{self.request.hex()[:12]}/{self.attempt}"


class NestedValue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of everything nested in a message: immutable, encoded as an array of its fields in order."""


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of the messages of every link: an array of the type's number (its `tag`) and its fields in order."""


class Role(enum.StrEnum):
    """The role of a process."""

    PREFILL = "prefill"
    DECODE = "decode"
    GATEWAY = "gateway"

    @property
    def partner(self) -> Role:
        """The role of the pool that this worker's pool works with. Raises ValueError for a gateway, which has none."""
        check_worker(self)
        return Role.DECODE if self is Role.PREFILL else Role.PREFILL


POOL_ROLES = (Role.PREFILL, Role.DECODE)


def check_worker(role: Role) -> None:
    """Raises ValueError for the role of a process that is no worker."""
    if role not in POOL_ROLES:
        raise ValueError(f"role: {role.value} is not allowed: one of {', '.join(POOL_ROLES)}")


class Reason(enum.StrEnum):
    """Why a leg of a request, a reservation or a hand-over ended without its result; comments say what to do."""

    CANCELLED = "cancelled"  # the client or the gateway no longer wants it: nothing to do
    FINISHED = "finished"  # the first token already was the last: nothing to do
    DRAINING = "draining"  # try another worker
    NO_CAPACITY = "no_capacity"  # try another worker or later: pool, landing region or queue is full
    TOO_LONG = "too_long"  # can never fit this worker: tell the client
    DEADLINE = "deadline"  # the request's time is up: tell the client
    BAD_REQUEST = "bad_request"  # the message breaks a rule: our bug or a hostile peer; do not retry
    UNKNOWN_REQUEST = "unknown_request"  # the other side does not know (request, attempt): it already ended there
    UNFIT_PAIR = "unfit_pair"  # fingerprints differ: choose a fitting pair
    PEER_LOST = "peer_lost"  # the other worker is gone or has another epoch: retry with another
    KV_CORRUPT = "kv_corrupt"  # landed KV failed verification: prefill again
    INTERNAL = "internal"  # the worker failed: retry on another
    STALLED = "stalled"  # the worker lives, this part of it does not move: retry on another
    GRAMMAR = "grammar"  # the grammar cannot be followed, or no further: tell the client, every worker would end so


class Finish(enum.StrEnum):
    """Why a choice ended well, as the worker sees it (stop strings are the gateway's business)."""

    STOP = "stop"
    LENGTH = "length"


class Address(NestedValue, frozen=True):
    host: Host
    port: Port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PeerRef(NestedValue, frozen=True):
    """A worker as named to another worker: where it listens for P–D links and which process is meant."""

    address: Address
    epoch: Epoch


class PairFingerprint(NestedValue, frozen=True):
    """Facts that must be equal between a prefill and a decode worker before KV may move between them."""

    wire_version: Annotated[int, Meta(ge=1, le=65_535)]
    model_hash: Digest
    """Hash of weights and config: another revision of the model is another model."""
    dtype: Annotated[str, Meta(max_length=32)]
    kv_dtype: Annotated[str, Meta(max_length=32)]
    layers: Annotated[int, Meta(ge=1, le=1_024)]
    kv_heads: Annotated[int, Meta(ge=1, le=1_024)]
    head_dim: Annotated[int, Meta(ge=1, le=4_096)]
    rope: Digest
    tokenizer: Digest
    windowed_block_tokens: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Token slots of a block where layers with a window keep blocks of their own: these move as whole blocks. 0: the
    model has no windows."""


class Grammar(NestedValue, frozen=True):
    """A grammar that the answer must match, from its first token to its end."""

    definition: Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
    """In llguidance's own serialised form, validated by the gateway. Only the worker's matcher looks into it."""
    max_blanks: Annotated[int, Meta(ge=1, le=250)] | None = None
    """Most spaces and tabs in a row outside of strings, for a definition of JSON that lets blanks go on without end: no
    token that begins with another is drawn then. None: only the definition counts."""


class Thought(NestedValue, frozen=True):
    """A thought that may come before the answer; no grammar binds it.

    With a `start` the model chooses. Either its first tokens are `start`, and what follows is a thought. Or they are
    not, and there is no thought: the grammar holds from the first token.
    """

    end: Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_MARK_IDS)]
    """The thought ends with these ids; a grammar begins after them."""
    start: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_MARK_IDS)] = ()
    """Empty: the prompt already opened the thought."""
    max_tokens: TokenCount | None = None
    """After this many tokens of thought `end` is forced; neither mark counts. None: the model ends its thought
    itself."""


class SamplingParams(NestedValue, frozen=True):
    """How tokens are drawn. `temperature` 0 is greedy. None means that the option is off.

    Noise is a function of (seed, choice, token index, vocabulary id) and penalties follow from the ids, so that a
    sequence continues identically on another worker.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_CONTEXT_TOKENS)]
    """Tokens to generate, counted from the end of the prompt: forced ones of a migration included."""
    seed: Seed = 0
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=1, le=MAX_VOCAB)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    min_tokens: TokenCount = 0
    """Stop ids are not drawn before this many tokens."""
    logit_bias: Annotated[
        tuple[tuple[TokenId, Annotated[float, Meta(ge=-100, le=100)]], ...], Meta(max_length=MAX_LOGIT_BIAS)
    ] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_IDS)] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    """None: no logprobs. k: the drawn token's logprob and the k likeliest alternatives."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    """The same for the prompt's own tokens but the first; reported once, before the first drawn token."""
    grammar: Grammar | None = None
    """None: any token may be drawn. With a grammar, stop ids are drawn where the answer may end, and only there."""
    thought: Thought | None = None
    """None: the answer begins at once."""

    def __post_init__(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: {self.min_tokens} is larger than max_tokens {self.max_tokens}")
        reals = (self.temperature, self.top_p, self.min_p, self.presence_penalty, self.frequency_penalty)
        if not all(map(math.isfinite, (*reals, self.repetition_penalty, *(bias for _, bias in self.logit_bias)))):
            raise ValueError("sampling options must be finite numbers")


class TokenLogprob(NestedValue, frozen=True):
    """Natural-log probability of the drawn token under the unmodified distribution, and the likeliest alternatives."""

    logprob: float
    top: Annotated[tuple[tuple[TokenId, float], ...], Meta(max_length=MAX_LOGPROBS)]


class PromptLogprob(NestedValue, frozen=True):
    """Natural-log probability of one token of a prompt under the model, given the tokens before it."""

    logprob: float
    rank: Annotated[int, Meta(ge=1, le=MAX_VOCAB)]
    """1: no token was likelier."""
    top: Annotated[tuple[tuple[TokenId, float], ...], Meta(max_length=MAX_LOGPROBS)]
    """The likeliest tokens in its place, best first."""


class LegTimes(NestedValue, frozen=True):
    """When things happened to a leg at its worker, in seconds of that worker's clock since it received the leg."""

    sent_s: Seconds
    """The entry that carries these times was sent."""
    began_s: Seconds | None = None
    """The first chunk of its prompt was launched; None: no prompt is computed here, or it is not known."""
    computed_s: Seconds | None = None
    """The last chunk of its prompt was launched."""
    chunks: Count = 0
    """Chunks in which its prompt was computed."""
    reserved_s: Seconds | None = None
    """Blocks were reserved for the KV of another worker."""
    landed_s: Seconds | None = None
    """The KV of another worker had landed and was verified."""
    preemptions: Count = 0
    """How often its sequences gave up their blocks to older ones since the last report."""
    preempted_s: Seconds = 0.0
    """How long they waited because of it, until this token."""


class TokenEntry(NestedValue, frozen=True):
    """Tokens of one choice of one request that one engine step produced."""

    request: RequestId
    attempt: Attempt
    choice: Choice
    first_index: TokenCount
    """Index of ids[0] among the tokens generated since the end of the prompt."""
    ids: Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_ENTRY_IDS)]
    logprobs: PackedLogprobs | None = None
    finish: Finish | None = None
    cached_tokens: TokenCount | None = None
    """Tokens of the prompt whose KV the prefix cache had: reported with the first token, where the prompt was
    computed."""
    times: LegTimes | None = None
    """Sent with the first entry of a leg, and with the first one after a preemption."""
    device_s: Seconds | None = None
    """The leg's share of the time of the worker's steps so far, summed over its devices and all choices; None: not
    due with this entry."""


def pack_ids(ids: tuple[int, ...] | list[int]) -> bytes:
    """Encode token ids as little-endian uint32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def largest_id(packed: bytes) -> int:
    """The greatest of packed token ids; 0 where there is none."""
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return max(ids, default=0)


def num_packed(packed: bytes) -> int:
    """How many token ids are packed in these bytes."""
    return len(packed) // PACKED_ID_BYTES


def unpack_ids(packed: bytes) -> list[int]:
    """Decode `pack_ids`. Raises ValueError when the length is not a multiple of four."""
    if len(packed) % PACKED_ID_BYTES:
        raise ValueError(f"token ids: {len(packed)} bytes are not a multiple of 4")
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()
