"""Requests into the scheduler and events out of it: plain values, exchanged with the io and transfer threads."""

from __future__ import annotations

from dataclasses import dataclass

from baton_wire.messages.encoding import Encoding
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Finish, PromptLogprob, Reason, RequestKey, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A request as the engine sees it: `choices` sequences that share `tokens` as their beginning."""

    key: RequestKey
    tokens: tuple[int, ...]
    """Prompt, then ids that were already generated (migration)."""
    prompt_tokens: int
    choices: tuple[int, ...]
    sampling: SamplingParams
    salt: str
    """Separates prefix caches (tenant, adapter)."""
    deadline_s: float
    """On the engine's monotonic clock."""
    hold: bool = False
    """Prefill worker: stop after the first token of each choice and keep the blocks until `release`."""
    flow: bytes = b""
    """All runs of one client's request share a turn (see `baton_wire.rules.fair_share`); empty: this request alone."""
    tpot_s: float | None = None
    """Target time between two tokens; None: steps may take any time."""
    missing_tokens: int | None = None
    """Tokens that are probably to be computed, as long as the request waits; None: all of them."""
    encoding: Encoding | None = None
    """The result that is wanted of the prompt's hidden states; None: an answer. Such a request draws no token and ends
    in `PromptEncoded`."""


# Out of the scheduler -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens of one choice; `finish` is set on the last ones, after which the engine holds nothing for the choice."""

    key: RequestKey
    choice: int
    first_index: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: Finish | None
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache had; set with the first token if the prompt was computed here."""
    device_s: float | None = None
    """The request's share of the time of steps so far; set now and then, and with the last tokens of a choice."""


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log probabilities of the prompt's tokens from position `first_index` on. All come before the first `Drawn`; after
    a preemption they are reported again from the beginning.
    """

    key: RequestKey
    first_index: int
    logprobs: tuple[PromptLogprob, ...]


@dataclass(frozen=True, slots=True)
class PromptEncoded:
    """The result of a request with an `encoding`, after which the engine holds nothing for it."""

    key: RequestKey
    values: bytes
    """float32 (`pack_floats`)."""
    device_s: float | None = None
    """The request's share of the time of steps."""


@dataclass(frozen=True, slots=True)
class Computed:
    """KV of [0, tokens) of a held sequence is complete in `blocks` (its whole block table so far, in logical order).

    `tokens` includes a cached prefix; the event for it comes before the first chunk. Valid until `release` of the key.
    """

    key: RequestKey
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computing:
    """Step `step`, about to be launched, computes KV of a held sequence up to `tokens`, into `blocks` (its whole block
    table so far). Valid until `release` of the key.
    """

    key: RequestKey
    step: int
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkLaunched:
    """A step, about to be launched, computes a chunk of the prompt of a sequence that is not held."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class Preempted:
    """Sequences of the request gave up their blocks, and will be computed again."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A held sequence is complete: every choice has its first token.

    Follows the last `Computed` and the `Drawn` events.
    """

    key: RequestKey
    first_tokens: tuple[FirstToken, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Decode worker: blocks for all of the spec's tokens are held; the first `cached_tokens` (whole blocks) already
    have their KV.
    """

    key: RequestKey
    cached_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """Decode worker: the reservation waits, with `position` others ahead of it."""

    key: RequestKey
    position: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine gave the request up and holds nothing for it.

    Except blocks that a transfer may be using (announced by `Computed` or `Reserved`): they stay until `release` of
    the key.
    """

    key: RequestKey
    reason: Reason
    detail: str = ""


SchedulerEvent = (
    Drawn
    | PromptScored
    | PromptEncoded
    | Computing
    | Computed
    | ChunkLaunched
    | Preempted
    | Prefilled
    | Reserved
    | Queued
    | Failed
)
