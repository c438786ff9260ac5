"""What the scheduler keeps per request: the request, its choices' sequences, and the stem from which they branch.

A *stem* is a context that is computed (or landed) once: the tokens that a request's choices share, or everything of
one sequence that returns from preemption. When it stands, its members branch off and each becomes a row of the decode
batch of its own. Plain records with arithmetic on themselves; the moves between stages are in the modules named after
them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from baton_engine.memory.blocks import BlockOwner
from baton_engine.memory.prefix import block_digest, root_digest
from baton_engine.scheduling.events import SequenceSpec
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import RequestKey


class SequenceStage(enum.Enum):
    """Where a sequence is."""

    STEM = "stem"
    """With its stem, whose own stage tells more."""
    RUNNING = "running"
    """A row of every step."""
    STALLED = "stalled"
    """Branched, but waits for a block."""
    ENDING = "ending"
    """Its last row is launched; only the result is missing."""
    DONE = "done"


class StemStage(enum.Enum):
    """Where a stem is; in brackets what it holds."""

    WAITING = "waiting"
    """A new prompt (nothing)."""
    QUEUED = "queued"
    """A reservation that is not granted yet (nothing)."""
    RESERVED = "reserved"
    """Waits for KV from another worker (blocks)."""
    LANDED = "landed"
    """Its KV stands; waits for slots (blocks)."""
    RETURNING = "returning"
    """Preempted: waits for room to be computed again (nothing)."""
    PREFILLING = "prefilling"
    """(blocks, slots)"""
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
    """Ids since the end of the prompt whose result was collected, forced ones included."""
    limit: int
    """Outputs at which the sequence ends by length: max_tokens or the context limit."""
    stop_ids: frozenset[int]
    stage: SequenceStage = SequenceStage.STEM
    stem: Stem | None = None
    slot: int | None = None
    kv_tokens: int = 0
    """Tokens whose KV is planned or done; kept current only outside the batch (see `DecodeBatch.kv_tokens`)."""
    base: int = 0
    due: int = 0
    """Both filled by `DecodeBatch`."""
    fence: int = 0
    """A step that touches the blocks although the sequence has no row in it: the copies of a fork."""
    digests: list[bytes] = field(default_factory=list)
    """Of the leading full blocks; the scheduler extends it as blocks fill."""

    @property
    def last_row(self) -> int:
        """Context length of the last decode row: the row that draws output number `limit`."""
        return self.request.spec.prompt_tokens + self.limit - 2

    @property
    def is_settled(self) -> bool:
        """No drawn token is still on its way: the context is known."""
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
class Stem:
    """A context that is computed or landed once, and the sequences that draw from its end."""

    request: Request
    members: tuple[Sequence, ...]
    owner: BlockOwner
    stage: StemStage
    tokens: tuple[int, ...] = ()
    """Filled at creation, or for a returning stem when it starts."""
    slot: int | None = None
    """Whose block table the chunks use: the first member's."""
    cached_tokens: int = 0
    planned_tokens: int = 0
    """KV that is computed once the launched steps are done."""
    done_tokens: int = 0
    """KV that stands."""
    failed_at: tuple[int, int] | None = None
    """Pool gains and floor when there was last no room: no use in looking again until one of them changes."""
    digests: list[bytes] = field(default_factory=list)

    @property
    def order(self) -> tuple[float, int, int]:
        return self.members[0].order

    @property
    def is_scored(self) -> bool:
        """The log probabilities of its tokens are wanted: all are computed, whatever a cache has of them.

        Once something is drawn they have been told.
        """
        spec = self.request.spec
        return spec.sampling.prompt_logprobs is not None and len(self.tokens) == spec.prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Length of the context, also before a returning stem's tokens are all known."""
        return len(self.tokens) or self.members[0].kv_tokens + 1

    @property
    def waiting_members(self) -> list[Sequence]:
        return [member for member in self.members if member.stage is SequenceStage.STEM]

    def fill_digests(self, block_tokens: int) -> None:
        """Digests of all full blocks of `tokens`."""
        for index in range(len(self.digests), len(self.tokens) // block_tokens):
            parent = self.digests[-1] if self.digests else self.request.root
            self.digests.append(block_digest(parent, self.tokens[index * block_tokens : (index + 1) * block_tokens]))


@dataclass(slots=True, eq=False)
class Request:
    spec: SequenceSpec
    arrival: int
    start_tag: float
    """Its turn among all flows."""
    prompt: tuple[int, ...]
    root: bytes
    sequences: dict[int, Sequence] = field(default_factory=dict)
    """By choice; done ones stay."""
    stem: Stem | None = None
    """The first stem, until its members have branched; on a prefill worker to the end."""
    first_tokens: list[FirstToken] = field(default_factory=list)
    """Prefill worker: what was drawn, in order of drawing."""
    is_granted: bool = False
    is_announced: bool = False
    """Blocks were named in Computed or Reserved: another part of the worker may be using them."""
    is_stopped: bool = False
    cached_tokens: int | None = None
    """What the prefix cache had of the prompt when it was started here for the first time."""
    held_blocks: int = 0
    """Counted against the share for ungranted KV."""
    reported_position: int | None = None

    @property
    def key(self) -> RequestKey:
        return self.spec.key

    @property
    def flow(self) -> bytes:
        return self.spec.flow or self.spec.key.request

    @property
    def cost(self) -> float:
        """Tokens that it may come to."""
        return work_tokens(self.spec)

    @property
    def live(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences.values() if sequence.stage is not SequenceStage.DONE]


def work_tokens(spec: SequenceSpec) -> float:
    """The most tokens that are computed for it here: a prefill worker draws one a choice."""
    outputs = 1 if spec.hold else spec.prompt_tokens + spec.sampling.max_tokens - len(spec.tokens)
    return len(spec.tokens) + len(spec.choices) * max(1, outputs)


def open_request(
    spec: SequenceSpec, arrival: int, start_tag: float, max_context_tokens: int, stage: StemStage
) -> Request:
    """The records of a new request; its stem holds nothing yet."""
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
    request.stem = Stem(request, members, owner, stage, spec.tokens)
    for member in members:
        member.stem = request.stem
    return request
