"""What goes into the machine of one request and what comes out of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton_gateway.errors import Problem
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.workers.route import Route
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, PromptLogprobs, Reserve, Retarget
from baton_wire.messages.values import (
    MAX_VOCAB,
    PACKED_ID_BYTES,
    Finish,
    PromptLogprob,
    SamplingParams,
    TokenEntry,
    TokenLogprob,
    unpack_ids,
)


@dataclass(frozen=True, slots=True)
class LifeRules:
    """How hard a request is tried. Attempts are counted in a row: a new token sets the counts back."""

    max_failures: int = 3
    """Attempts that workers failed (no room, internal error, corrupt KV) before the client is told."""
    max_losses: int = 10
    """Attempts that ended because a worker went away."""
    backoff_s: float = 0.05
    """Wait before the second retry in a row, doubled each time."""
    max_backoff_s: float = 1.0
    first_stall_s: float = 180.0
    """An attempt without a token for so long is given up although its workers live. Long: it may wait in a queue."""
    stall_s: float = 60.0
    """The same once its decode worker has sent a token."""
    park_s: float = 0.0
    """How long a request waits for a pair of workers to appear; 0: it is told at once that there is none."""
    reroute_wait_s: float = 60.0
    """The same for a request that already ran and lost its workers."""
    tpot_s: float | None = None
    """The target that decode workers are told with each request; None: none."""

    def patient_for(self, settles_in_s: float) -> LifeRules:
        """These rules for a request that comes before the gateway has tried all its workers: nobody can say yet that
        there are none, so it waits at least until somebody can.
        """
        return self if settles_in_s <= self.park_s else replace(self, park_s=settles_in_s)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready for the workers."""

    packed: bytes
    """Its ids as the wire has them (`pack_ids`): 4 bytes a token for as long as a run waits, where a list takes 40."""
    sampling: SamplingParams
    salt: str
    vocab_size: int = MAX_VOCAB
    """Of the model: no token of the answer has a greater id."""

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // PACKED_ID_BYTES

    def ids(self) -> list[int]:
        return unpack_ids(self.packed)


# Events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """It is this request's turn."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Admission, or preparing the prompts, said no; or the gateway stops."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Prepared:
    """The answer to Prepare: at least one prompt."""

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class NoRevision:
    """Another answer to Prepare: no revision of the model can be served now."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Routed:
    """An answer to PickRoute."""

    run: bytes
    route: Route


@dataclass(frozen=True, slots=True)
class NoRoute:
    """The other answer to PickRoute: no fitting pair can take the run now."""

    run: bytes
    problem: Problem
    is_outlived: bool = False
    """The request's revision cannot be served any more, and another one of the model can."""


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """A worker came or changed: who waits for a route may ask again."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A worker produced tokens."""

    worker: bytes
    entry: TokenEntry


@dataclass(frozen=True, slots=True)
class PromptArrived:
    """A worker told log probabilities of a prompt's own tokens."""

    worker: bytes
    message: PromptLogprobs


@dataclass(frozen=True, slots=True)
class LegEnded:
    """A worker gave its part up."""

    worker: bytes
    message: LegFailed


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The link to this worker is gone; it is told nothing more."""

    worker: bytes
    is_refusal: bool = False
    """It lives, and ended the link for what it was sent."""


@dataclass(frozen=True, slots=True)
class StopFound:
    """The text of a choice contains a stop string; its first `tokens` tokens count."""

    choice: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """Nobody reads any more."""


@dataclass(frozen=True, slots=True)
class Tick:
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
    | LegEnded
    | WorkerLost
    | StopFound
    | ClientGone
    | Tick
)

# Actions --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Choose the revision, render, tokenise; answer Prepared, NoRevision or Refused."""


@dataclass(frozen=True, slots=True)
class PickRoute:
    """Choose workers for a run; answer Routed or NoRoute."""

    run: bytes
    prompt: int
    tokens: int
    """What must be prefilled: the prompt and, in a migration, what was already generated."""
    total_tokens: int
    """The most that the longest sequence of the run can become."""
    choices: int
    avoid: frozenset[bytes]
    """Workers that failed this run: chosen only if there is no other."""
    retained_by: bytes | None = None
    """The prefill worker that retains the KV: no other worker prefills while it is linked."""
    is_first: bool = False
    """No worker has had the run yet."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a worker; when its link is gone, answer WorkerLost."""

    worker: bytes
    message: Prefill | Reserve | Retarget | Cancel
    missing_tokens: int | None = None
    """Of a prompt that the worker is to compute, what it probably does not hold yet; None: all of it."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the client new tokens of a choice: the next in order, never twice. `finish` on the last."""

    choice: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: Finish | None
    is_first: bool
    """The first tokens of this choice."""


@dataclass(frozen=True, slots=True)
class DeliverPrompt:
    """Log probabilities of a prompt's own tokens, from place `first_index` on; another attempt may tell them again."""

    prompt: int
    first_index: int
    logprobs: tuple[PromptLogprob, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The one end. `problem` says why, unless it finished or the client is gone."""

    outcome: Outcome
    problem: Problem | None = None


Action = Prepare | PickRoute | Send | Deliver | DeliverPrompt | End
