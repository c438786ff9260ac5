"""The scheduler's records of a request: the request, its choices' sequences, and the shared prefix they branch from.

A *shared prefix* is a context that is computed (or landed) once: the tokens that a request's choices share, or the
whole context of one preempted sequence. When it is complete, its members branch off and each becomes a row of the
decode batch. These are plain records with arithmetic on themselves; the modules named after the stages move them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from baton_engine.memory.blocks import BlockOwner
from baton_engine.scheduling.events import SequenceSpec
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import RequestKey
from baton_wire.rules.prefix_digests import block_digest, root_digest


class SequenceStage(enum.Enum):
    """Stages in the life of a sequence."""

    PREFIX = "prefix"
    """Part of its shared prefix, which has a stage of its own."""
    RUNNING = "running"
    """A row of every step."""
    STALLED = "stalled"
    """Has branched, but waits for a block."""
    FINISHING = "finishing"
    """Its last row is launched; the result is awaited."""
    DONE = "done"


class SharedPrefixStage(enum.Enum):
    """Stages in the life of a shared prefix; in brackets what it holds."""

    WAITING = "waiting"
    """A new prompt (nothing)."""
    QUEUED = "queued"
    """A reservation that is not granted yet (nothing)."""
    RESERVED = "reserved"
    """Waits for KV from another worker (blocks)."""
    LANDED = "landed"
    """Its KV is complete; waits for slots (blocks)."""
    PREEMPTED = "preempted"
    """Waits for blocks and a slot to be computed again (nothing)."""
    PREFILLING = "prefilling"
    """A prompt that is being computed (blocks, slots)."""
    BRANCHING = "branching"
    """Last chunk launched; the members branch in the next plan (blocks, slots)."""
    HELD = "held"
    """Complete on a prefill worker, or stopped: until `release` (blocks)."""
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request."""

    request: Request
    choice: int
    order: tuple[float, int, int]
    """(start tag, arrival, position among the choices): smaller is served first and gives way last."""
    owner: BlockOwner
    outputs: list[int]
    """Ids after the prompt, as far as results were collected, forced ones included."""
    limit: int
    """Outputs at which the sequence ends by length: max_tokens or the context limit."""
    stop_ids: frozenset[int]
    stage: SequenceStage = SequenceStage.PREFIX
    prefix: SharedPrefix | None = None
    slot: int | None = None
    kv_tokens: int = 0
    """Tokens whose KV is planned or done; up to date only outside the batch (see `DecodeBatch.kv_tokens`)."""
    base: int = 0
    due_tick: int = 0
    """Tick of the row's next check. `DecodeBatch` sets it and `base`."""
    fence: int = 0
    """A step that touches the blocks although the sequence has no row in it: the copies of a fork."""
    digests: list[bytes] = field(default_factory=list)
    """Digests of the leading full blocks; the scheduler extends them as blocks fill."""

    @property
    def last_row(self) -> int:
        """Context length of the last decode row: the row that draws output number `limit`."""
        return self.request.spec.prompt_tokens + self.limit - 2

    @property
    def is_settled(self) -> bool:
        """True when the result of every launched row was collected, so that the context is known."""
        return self.request.spec.prompt_tokens + len(self.outputs) == self.kv_tokens + 1

    def context(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.outputs)

    def block_ids(self, index: int, block_tokens: int) -> tuple[int, ...]:
        """Token ids of full block `index`."""
        start, end = index * block_tokens, (index + 1) * block_tokens
        prompt = self.request.prompt
        if end <= len(prompt):
            return prompt[start:end]
        return (*prompt[start:], *self.outputs[max(0, start - len(prompt)) : end - len(prompt)])


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """A context that is computed or landed once, and its members: the sequences that draw from its end."""

    request: Request
    members: tuple[Sequence, ...]
    owner: BlockOwner
    stage: SharedPrefixStage
    tokens: tuple[int, ...] = ()
    """Filled at creation, or for a preempted one when it starts again."""
    slot: int | None = None
    """The slot whose block table the chunks use: the first member's."""
    cached_tokens: int = 0
    planned_tokens: int = 0
    """Tokens whose KV will be complete after the launched steps."""
    done_tokens: int = 0
    """Tokens whose KV is complete."""
    failed_at: tuple[int, int] | None = None
    """The pool's gains and the watermark at the last failed attempt: no other is made until one of them changes."""
    digests: list[bytes] = field(default_factory=list)

    @property
    def order(self) -> tuple[float, int, int]:
        return self.members[0].order

    @property
    def is_scored(self) -> bool:
        """True when log probabilities of its tokens are wanted: all are computed, whatever the cache has.

        False once a token is drawn: they have been reported by then.
        """
        spec = self.request.spec
        return spec.sampling.prompt_logprobs is not None and len(self.tokens) == spec.prompt_tokens

    @property
    def is_published(self) -> bool:
        """True when its KV goes to the prefix cache. An encoded prompt gives its blocks back instead."""
        return self.request.spec.encoding is None

    @property
    def reads_cache(self) -> bool:
        """True when its KV may come from the prefix cache. An encoded prompt's does not: its result would depend on
        what was computed before.
        """
        return self.is_published and not self.is_scored

    @property
    def num_tokens(self) -> int:
        """Length of the context, also while a preempted one's last token is not known yet."""
        return len(self.tokens) or self.members[0].kv_tokens + 1

    @property
    def missing_tokens(self) -> int:
        """Tokens of a waiting prompt that are probably to be computed."""
        estimate = self.request.spec.missing_tokens
        return self.num_tokens if estimate is None else min(estimate, self.num_tokens)

    @property
    def waiting_members(self) -> list[Sequence]:
        return [member for member in self.members if member.stage is SequenceStage.PREFIX]

    def fill_digests(self, block_tokens: int) -> None:
        """Compute the digests of all full blocks of `tokens`."""
        for index in range(len(self.digests), len(self.tokens) // block_tokens):
            parent = self.digests[-1] if self.digests else self.request.root
            self.digests.append(block_digest(parent, self.tokens[index * block_tokens : (index + 1) * block_tokens]))


@dataclass(slots=True, eq=False)
class Request:
    """A request with its sequences, from `submit` or `reserve` until it is dropped."""

    spec: SequenceSpec
    arrival: int
    start_tag: float
    """The request's turn among all flows."""
    prompt: tuple[int, ...]
    root: bytes
    sequences: dict[int, Sequence] = field(default_factory=dict)
    """Sequences by choice; done ones stay."""
    prefix: SharedPrefix | None = None
    """The prompt's shared prefix, until its members have branched; on a prefill worker to the end."""
    first_tokens: list[FirstToken] = field(default_factory=list)
    """Prefill worker: the tokens drawn, in order."""
    is_granted: bool = False
    is_announced: bool = False
    """True once Computing, Computed or Reserved named its blocks: a transfer may be using them."""
    is_stopped: bool = False
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache had at the first start."""
    held_blocks: int = 0
    """Blocks that count against the share for ungranted KV."""
    reported_position: int | None = None
    device_s: float = 0.0
    """Its share of the time of steps, on all devices."""

    @property
    def key(self) -> RequestKey:
        return self.spec.key

    @property
    def flow(self) -> bytes:
        return self.spec.flow or self.spec.key.request

    @property
    def cost(self) -> float:
        """The most tokens that the request may come to."""
        return work_tokens(self.spec)

    @property
    def live(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences.values() if sequence.stage is not SequenceStage.DONE]


def work_tokens(spec: SequenceSpec) -> float:
    """The most tokens that this worker may compute for the request: a prefill worker draws one for each choice."""
    outputs = 1 if spec.hold else spec.prompt_tokens + spec.sampling.max_tokens - len(spec.tokens)
    return len(spec.tokens) + len(spec.choices) * max(1, outputs)


def open_request(
    spec: SequenceSpec, arrival: int, start_tag: float, max_context_tokens: int, stage: SharedPrefixStage
) -> Request:
    """Create the records of a new request; its prefix holds nothing yet."""
    prompt = spec.tokens[: spec.prompt_tokens]
    request = Request(spec, arrival, start_tag, prompt, root_digest(spec.salt))
    limit = min(spec.sampling.max_tokens, max_context_tokens - spec.prompt_tokens)
    stop_ids = frozenset(spec.sampling.stop_token_ids)
    for position, choice in enumerate(spec.choices):
        owner = BlockOwner(spec.key, choice)
        outputs = list(spec.tokens[spec.prompt_tokens :])
        request.sequences[choice] = Sequence(
            request, choice, (start_tag, arrival, position), owner, outputs, limit, stop_ids
        )
    members = tuple(request.sequences.values())
    owner = members[0].owner if len(members) == 1 else BlockOwner(spec.key, None)
    request.prefix = SharedPrefix(request, members, owner, stage, spec.tokens)
    for member in members:
        member.prefix = request.prefix
    return request
