"""Events that go into the machine of one request, and the actions that come out: plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from baton_gateway.errors import Problem
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.workers.route import Route
from baton_wire.messages.encoding import Encode, EncodedPrompt, Encoding
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, PromptLogprobs, Reserve, Retarget
from baton_wire.messages.values import (
    MAX_VOCAB,
    PACKED_ID_BYTES,
    Finish,
    PromptLogprob,
    Reason,
    SamplingParams,
    TokenEntry,
    TokenLogprob,
    unpack_ids,
)


@dataclass(frozen=True, slots=True)
class LifeRules:
    """How often a request is retried, and how long it may wait. A new token resets the counts of attempts."""

    max_failures: int = 3
    """Attempts in a row that workers failed (no room, internal error, corrupt KV) until the request fails."""
    patience_s: float = 6.0
    """Seconds after a run's first failure in which failures of one and the same worker do not count: they speak against
    the worker rather than the request, and another worker may return. Failures for lack of room count, unless the
    client has tokens already: such a stream waits for room.
    """
    max_losses: int = 10
    """Attempts in a row that ended because a worker was lost, until the request fails."""
    backoff_s: float = 0.05
    """Wait before the second retry in a row, doubled each time."""
    max_backoff_s: float = 1.0
    first_stall_s: float = 180.0
    """An attempt without a token for this long is given up although its workers live. It may be queued for long."""
    stall_s: float = 60.0
    """The same limit, once its decode worker has sent a token."""
    park_s: float = 0.0
    """How long a request waits for a pair of workers to appear; 0: it is refused at once."""
    reroute_wait_s: float = 60.0
    """The same limit for a request that ran and lost its workers."""
    tpot_s: float | None = None
    """The target that is sent to decode workers with each request; None: none."""

    def patient_for(self, settles_in_s: float) -> LifeRules:
        """The rules for a request that arrives before the gateway has tried all its workers: until then it is unknown
        whether there are any, so the request waits at least so long.
        """
        return self if settles_in_s <= self.park_s else replace(self, park_s=settles_in_s)


class Prompt(msgspec.Struct, frozen=True):
    """One prompt, ready for the workers."""

    packed: bytes
    """Its ids as the wire has them (`pack_ids`): 4 bytes a token for as long as a run waits, where a list takes 40."""
    sampling: SamplingParams
    salt: str
    vocab_size: int = MAX_VOCAB
    """The model's: ids of the answer's tokens are below it."""
    encoding: Encoding | None = None
    """The result that is wanted instead of an answer."""
    width: int = 0
    """Values of this result."""

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // PACKED_ID_BYTES

    def ids(self) -> list[int]:
        return unpack_ids(self.packed)


# Events ---------------------------------------------------------------------------------------------------------------


class Admitted(msgspec.Struct, frozen=True):
    """Admission let the request in."""


class Refused(msgspec.Struct, frozen=True):
    """Admission or preparation refused the request, or the gateway stops."""

    problem: Problem


class Prepared(msgspec.Struct, frozen=True):
    """The answer to Prepare: at least one prompt."""

    prompts: tuple[Prompt, ...]


class NoRevision(msgspec.Struct, frozen=True):
    """Another answer to Prepare: no revision of the model can be served now."""

    problem: Problem


class Routed(msgspec.Struct, frozen=True):
    """An answer to PickRoute."""

    run: bytes
    route: Route


class NoRoute(msgspec.Struct, frozen=True):
    """The other answer to PickRoute: no fitting pair can take the run now."""

    run: bytes
    problem: Problem
    is_superseded: bool = False
    """The request's revision cannot be served any more, and another one of its model can."""


class RoutesChanged(msgspec.Struct, frozen=True):
    """A worker appeared or changed: a run that waits for a route may ask again."""


class Arrived(msgspec.Struct, frozen=True):
    """A worker produced tokens."""

    worker: bytes
    entry: TokenEntry


class PromptArrived(msgspec.Struct, frozen=True):
    """A worker sent log probabilities of a prompt's own tokens."""

    worker: bytes
    message: PromptLogprobs


class EncodedArrived(msgspec.Struct, frozen=True):
    """A worker sent the result of an encoded prompt."""

    worker: bytes
    message: EncodedPrompt


class LegEnded(msgspec.Struct, frozen=True):
    """A worker gave up its part of an attempt."""

    worker: bytes
    message: LegFailed


class WorkerLost(msgspec.Struct, frozen=True):
    """The link to this worker is gone; nothing more can be sent to it."""

    worker: bytes
    is_refusal: bool = False
    """The worker lives, and closed the link because of a message."""


class StopFound(msgspec.Struct, frozen=True):
    """The text of a choice contains a stop string; its first `tokens` tokens count."""

    choice: int
    tokens: int


class ClientGone(msgspec.Struct, frozen=True):
    """The client does not read any more."""


class Tick(msgspec.Struct, frozen=True):
    """Time passed: `wake_at` was reached."""


Event = (
    Admitted
    | Refused
    | Prepared
    | NoRevision
    | Routed
    | NoRoute
    | RoutesChanged
    | Arrived
    | PromptArrived
    | EncodedArrived
    | LegEnded
    | WorkerLost
    | StopFound
    | ClientGone
    | Tick
)


class LostAttempt(msgspec.Struct, frozen=True):
    """An attempt that ended without its result."""

    run: bytes
    attempt: int
    at_fault: bytes
    """The worker that the next attempt avoids."""
    reason: Reason


# Actions --------------------------------------------------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    """Choose the revision, render, tokenise; answer Prepared, NoRevision or Refused."""


class PickRoute(msgspec.Struct, frozen=True):
    """Choose workers for a run; answer Routed or NoRoute."""

    run: bytes
    prompt: int
    tokens: int
    """Tokens to prefill: the prompt and, in a migration, the tokens generated before."""
    total_tokens: int
    """The longest that a sequence of the run can become."""
    choices: int
    avoid: frozenset[bytes]
    """Workers that failed this run: chosen only if there is no other."""
    retained_by: bytes | None = None
    """The prefill worker that retains the KV: no other worker prefills while it is linked."""
    is_first: bool = False
    """No worker has had the run before."""


class Send(msgspec.Struct, frozen=True):
    """Send a message to a worker; when its link is gone, answer WorkerLost."""

    worker: bytes
    message: Prefill | Reserve | Encode | Retarget | Cancel
    missing_tokens: int | None = None
    """Tokens of the prompt that the worker probably has not cached; None: all of them."""


class Deliver(msgspec.Struct, frozen=True):
    """Give the client new tokens of a choice: the next in order, never twice. `finish` on the last."""

    choice: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: Finish | None
    is_first: bool
    """The first tokens of this choice."""


class DeliverPrompt(msgspec.Struct, frozen=True):
    """Log probabilities of a prompt's own tokens, from place `first_index` on; another attempt may repeat them."""

    prompt: int
    first_index: int
    logprobs: tuple[PromptLogprob, ...]


class DeliverEncoded(msgspec.Struct, frozen=True):
    """The result of one prompt, once."""

    prompt: int
    values: bytes


class End(msgspec.Struct, frozen=True):
    """The only end of the request. `problem` is the client's error, unless it finished or the client is gone."""

    outcome: Outcome
    problem: Problem | None = None


Action = Prepare | PickRoute | Send | Deliver | DeliverPrompt | DeliverEncoded | End
