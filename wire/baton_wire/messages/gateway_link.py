"""Messages between a gateway and a worker: one WebSocket per pair, one message a frame.

Down (gateway → worker): Prefill, Reserve, Encode, Retarget, Cancel, Flip, Holding, AskCachedPlaces, Heartbeat. Up:
Hello (first), BundleChunk, Tokens, PromptLogprobs, EncodedPrompt, LegFailed, WorkerState, CachedPlaces, Heartbeat.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from baton_wire.messages.encoding import Encode, EncodedPrompt, EncodingLimits
from baton_wire.messages.measures import Lanes, StepTiming
from baton_wire.messages.values import (
    MAX_CHOICES,
    MAX_CONTEXT_TOKENS,
    MAX_VOCAB,
    PLACE_BYTES,
    Attempt,
    ByteCount,
    Choice,
    Count,
    Digest,
    Epoch,
    Message,
    NestedValue,
    PackedTokenIds,
    PairFingerprint,
    PeerRef,
    Port,
    PositiveCount,
    PositiveSeconds,
    PromptLogprob,
    Reason,
    RequestId,
    Role,
    Salt,
    SamplingParams,
    Seconds,
    ShortText,
    TokenCount,
    TokenEntry,
    TraceId,
    check_worker,
)

MAX_STATE_TIMINGS = 8
MAX_BUNDLE_BYTES = 64 << 20
MAX_ENTRIES = 4_096
"""Entries in one message. A step that produced more, or more than a frame holds, sends several."""
MAX_PROMPT_LOGPROBS = 1_024
"""Entries in one message: with 20 alternatives each they take about 0.4 MB."""

MAX_CHANGED_PLACES = 4_096
"""Places that one message adds, and that it drops."""
PlaceNames = Annotated[bytes, Meta(max_length=PLACE_BYTES * MAX_CHANGED_PLACES)]
"""Names of places in prefix caches (`baton_wire.rules.prefix_digests`), one after the other."""

Rank = Annotated[int, Meta(ge=0, le=2)]
"""A `HeldRank` of `baton_wire.rules.gateway_rounds`."""

Choices = Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=MAX_CHOICES)]


class Hello(Message, frozen=True, tag=1):
    """Introduces a worker. Sent once, right after the handshake."""

    role: Role
    """The role that it has now; a worker that `flips` reports later roles in its states."""
    epoch: Epoch
    fingerprint: PairFingerprint
    template_hash: Annotated[str, Meta(min_length=1, max_length=64)]
    pair_port: Port | None
    """Where a worker that decodes for other workers listens for them, on the host that the gateway dialled; None on
    a prefill worker that never `flips`.
    """
    served_name: Annotated[str, Meta(min_length=1, max_length=253)]
    vocab_size: Annotated[int, Meta(ge=1, le=MAX_VOCAB)]
    max_context_tokens: Annotated[int, Meta(ge=1, le=MAX_CONTEXT_TOKENS)]
    max_choices: Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
    max_sequences: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Sequences that it runs at once."""
    block_tokens: Annotated[int, Meta(ge=1, le=4_096)]
    blocks_total: Count
    bundle_hash: Digest
    """SHA-256 of the tokenizer bundle, which follows in BundleChunk messages."""
    bundle_bytes: Annotated[int, Meta(ge=1, le=MAX_BUNDLE_BYTES)]
    keeps_answers: bool = False
    """A prefill worker that also takes Reserve without `prefill_epoch`: it decodes what it computed itself."""
    flips: bool = False
    """The worker takes the work of both roles at any time, and a Flip says which new work it will get."""
    encoding: EncodingLimits | None = None
    """The results that an Encode may ask for; None: the worker takes no Encode."""

    def __post_init__(self) -> None:
        check_worker(self.role)


class BundleChunk(Message, frozen=True, tag=2):
    """A piece of the tokenizer bundle, in order; complete when `bundle_bytes` have come."""

    offset: Annotated[int, Meta(ge=0, le=MAX_BUNDLE_BYTES)]
    data: Annotated[bytes, Meta(min_length=1, max_length=1 << 20)]


class Tokens(Message, frozen=True, tag=3):
    """Tokens that one engine step produced for this gateway's requests; a large step sends several."""

    step: Count
    entries: Annotated[tuple[TokenEntry, ...], Meta(min_length=1, max_length=MAX_ENTRIES)]


class LegFailed(Message, frozen=True, tag=4):
    """This worker's part of (request, attempt) ended without a finish. It holds nothing for it, unless `kept`."""

    request: RequestId
    attempt: Attempt
    reason: Reason
    detail: ShortText = ""
    kept: bool = False
    """A prefill worker's hand-over failed for the decode worker's sake: the KV waits a few seconds for a Retarget."""


class HeldTurn(NestedValue, frozen=True):
    """A `RoundPosition` of `baton_wire.rules.gateway_rounds`."""

    place: Count | None
    of: PositiveCount


class WorkerState(Message, frozen=True, tag=5):
    """Load as routing sees it. Sent on change, every 100 ms at most; sooner when other gateways sent much to it or hold
    other prompts than before.
    """

    draining: bool
    running: Count
    """Sequences in the engine's batch."""
    waiting: Count
    """Requests accepted and not yet in the batch."""
    waiting_tokens: Count
    """Prompt tokens of the waiting requests that are still to be computed."""
    blocks_free: Count
    """Blocks that could be given out now; cached ones count."""
    blocks_cached: Count
    steps: Count
    step_s: Seconds
    """Smoothed duration of recent engine steps; 0 before the first."""
    startup_s: Seconds | None = None
    """From the start of the process until it was ready; None: not known."""
    kv_bytes: ByteCount | None = None
    """KV sent or received so far; None: not known."""
    timings: Annotated[tuple[StepTiming, ...], Meta(max_length=MAX_STATE_TIMINGS)] = ()
    """Some of the steps since the last state."""
    lanes: Lanes | None = None
    """None: a decode worker, or nothing was measured."""
    computing_tokens: Count = 0
    """Prompt tokens of steps that were running; they are not among `waiting_tokens`."""
    role: Role | None = None
    """The present role of a worker that `flips`; None: the role of its Hello, for good."""
    flip: Count = 0
    """The number of the last Flip that it carried out; 0: none."""
    turn: HeldTurn | None = None
    """Turn of the receiving gateway among those that hold prompts; None: no gateway reported any to this worker."""
    gateways: PositiveCount = 1
    """Gateway processes linked to it, in whatever replica, the receiver included."""

    def __post_init__(self) -> None:
        if self.role is not None:
            check_worker(self.role)


class Heartbeat(Message, frozen=True, tag=6):
    """Sent every 0.5 s by both sides when nothing else was."""


class PromptLogprobs(Message, frozen=True, tag=7):
    """Log probabilities of some of a prompt's own tokens, in order; all of them come before the first drawn token."""

    request: RequestId
    attempt: Attempt
    first_index: Annotated[int, Meta(ge=1, le=MAX_CONTEXT_TOKENS)]
    """Place of logprobs[0]'s token in the prompt. The first token, place 0, has no log probability."""
    logprobs: Annotated[tuple[PromptLogprob, ...], Meta(min_length=1, max_length=MAX_PROMPT_LOGPROBS)]


class CachedPlaces(Message, frozen=True, tag=8):
    """Announces which places the worker's prefix cache holds: all of them when a link begins or a gateway asks, and
    then what changed, to all gateways alike.
    """

    generation: Count
    """The number of the change; several messages may belong to one. A receiver that missed a number asks again."""
    added: PlaceNames
    dropped: PlaceNames
    is_first: bool = False
    """The first message of a whole announcement: what was announced before is void."""
    left_out: Count = 0
    """Places that the cache holds and that are not announced, because there are too many."""


class Prefill(Message, frozen=True, tag=16):
    """Compute the KV of `tokens`, draw one first token per choice, hand the KV over to `decode`."""

    request: RequestId
    attempt: Attempt
    tokens: PackedTokenIds
    prompt_tokens: TokenCount
    """How many of `tokens` are the client's prompt; the rest was already generated (migration)."""
    choices: Choices
    sampling: SamplingParams
    timeout_s: PositiveSeconds
    salt: Salt
    decode: PeerRef
    flow: RequestId | None = None
    """The flow that shares one turn at the worker (see `baton_wire.rules.fair_share`); None: this request alone."""
    missing_tokens: TokenCount | None = None
    """Tokens that the worker probably has to compute, until it looks itself; None: not known."""
    trace_id: TraceId | None = None
    """The trace of a sampled request, for exemplars of the worker's metrics; None: it is not sampled."""


class Reserve(Message, frozen=True, tag=17):
    """Make room for `tokens`, receive their KV from `prefill` (None: prefill here), then generate."""

    request: RequestId
    attempt: Attempt
    tokens: PackedTokenIds
    prompt_tokens: TokenCount
    choices: Choices
    sampling: SamplingParams
    timeout_s: PositiveSeconds
    salt: Salt
    prefill_epoch: Epoch | None
    flow: RequestId | None = None
    """As in Prefill."""
    tpot_s: PositiveSeconds | None = None
    """The target between two tokens: prompts computed in the same steps must not make them longer. None: no target."""
    missing_tokens: TokenCount | None = None
    """As in Prefill."""
    trace_id: TraceId | None = None
    """As in Prefill."""


class Retarget(Message, frozen=True, tag=19):
    """The KV of (request, attempt), computed or not, goes to another decode worker, as `next_attempt`.

    Nothing is computed again, and messages about it carry the new number from now on. Answered with LegFailed of
    `next_attempt` when it is not held here any more.
    """

    request: RequestId
    attempt: Attempt
    next_attempt: Attempt
    timeout_s: PositiveSeconds
    decode: PeerRef


class Cancel(Message, frozen=True, tag=18):
    """Stop (request, attempt), or one choice of it, and free what it holds. Unknown ones are ignored."""

    request: RequestId
    attempt: Attempt
    choice: Choice | None = None


class Flip(Message, frozen=True, tag=20):
    """Be a worker of this role from now on: others send it new work of that kind, and it finishes what it has.

    Only a `number` over that of the last one counts, so that a repeated or late Flip changes nothing.
    """

    number: Annotated[int, Meta(ge=1, le=1 << 40)]
    role: Role

    def __post_init__(self) -> None:
        check_worker(self.role)


class Holding(Message, frozen=True, tag=21):
    """How urgent the most urgent prompt is that waits at this gateway for room at prefill workers.

    Sent to one of them when it changes; that worker tells all gateways whose turn it is.
    """

    rank: Rank | None
    """None: nothing waits."""
    left_s: Annotated[float, Meta(ge=-1e7, le=1e7)] | None = None
    """Until that prompt has to start; None: `Urgency` says when."""


class AskCachedPlaces(Message, frozen=True, tag=22):
    """Asks for a whole announcement of the worker's cached places. The worker answers one a second at most."""


ToGateway = (
    Hello | BundleChunk | Tokens | PromptLogprobs | EncodedPrompt | LegFailed | WorkerState | CachedPlaces | Heartbeat
)
ToWorker = Prefill | Reserve | Encode | Retarget | Cancel | Flip | Holding | AskCachedPlaces | Heartbeat
