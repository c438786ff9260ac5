"""The state of one scheduler, and the moves that several of its parts make: closing slots, ending, dropping.

One `EngineState` belongs to one `Scheduler`. Only the scheduler and its parts change it: `admission`, `reservations`,
`branching`, `growth`, `preemption` and `results`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton_engine.memory.blocks import GONE, BlockOwner, BlockPool
from baton_engine.scheduling.decode_batch import DecodeBatch
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Computed, SchedulerEvent
from baton_engine.scheduling.sequence import Request, Sequence, SequenceStage, SharedPrefix, SharedPrefixStage
from baton_engine.scheduling.slots import SlotTable
from baton_engine.scheduling.step_draft import LaunchedStep
from baton_wire.messages.values import RequestKey, SamplingParams
from baton_wire.rules.fair_share import WORKER_GREED, StartTags, may_take
from baton_wire.rules.piece_size import PieceSize


@dataclass(slots=True, eq=False)
class EngineState:
    config: EngineConfig
    pool: BlockPool
    slots: SlotTable
    pieces: PieceSize
    is_ready: Callable[[SamplingParams], bool] = lambda sampling: True
    """True when everything that such options need before a draw is ready; otherwise the sequence waits, alone."""
    batch: DecodeBatch = field(default_factory=DecodeBatch)
    requests: dict[RequestKey, Request] = field(default_factory=dict)
    turns: StartTags = field(default_factory=StartTags)
    waiting: dict[RequestKey, SharedPrefix] = field(default_factory=dict)
    """New prompts in the order of their turns."""
    queued: dict[RequestKey, SharedPrefix] = field(default_factory=dict)
    """Reservations that are not granted, in the order of their turns."""
    preempted: list[SharedPrefix] = field(default_factory=list)
    """Preempted sequences and prompts that wait to be computed again, oldest first."""
    landed: list[SharedPrefix] = field(default_factory=list)
    """Prefixes whose KV has landed and that wait for slots, in the order of their turns."""
    awaiting_slots: dict[RequestKey, SharedPrefix] = field(default_factory=dict)
    """Granted reservations and landed prefixes: they will take slots, and hold none yet."""
    prefilling: list[SharedPrefix] = field(default_factory=list)
    """Prompts that are being computed, oldest first."""
    branching: list[SharedPrefix] = field(default_factory=list)
    stalled: list[Sequence] = field(default_factory=list)
    in_flight: deque[LaunchedStep] = field(default_factory=deque)
    launched_step: int = 0
    applied_s: float = 0.0
    """When the latest step's result was applied."""
    events: list[SchedulerEvent] = field(default_factory=list)
    ungranted_blocks: int = 0
    """Blocks of held prompts that no decode worker has granted room for."""
    blocked: SharedPrefix | None = None
    """The prompt that last lacked blocks: while it waits, younger reservations must not take any."""
    over_share: int = 0
    """Queued reservations and landed prefixes that wait only for their own flow, when last counted."""
    is_draining: bool = False
    waiting_tokens: int = 0
    """Tokens of the waiting prompts that are probably to be computed, and those of the preempted prefixes."""
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    @property
    def is_running(self) -> bool:
        """True while some sequence advances by itself and will give its blocks back."""
        return bool(self.batch.rows or self.prefilling or self.branching or self.stalled)

    @property
    def watermark(self) -> int:
        """Blocks that a new sequence must leave free."""
        return self.config.watermark_blocks if self.is_running else 0


def enqueue(queue: dict[RequestKey, SharedPrefix], prefix: SharedPrefix) -> None:
    """Put the prefix into the queue by its turn; usually it is the last."""
    is_last = not queue or queue[next(reversed(queue))].order < prefix.order
    queue[prefix.request.key] = prefix
    if not is_last:
        by_turn = sorted(queue.items(), key=lambda entry: entry[1].order)
        queue.clear()
        queue.update(by_turn)


def may_draw(state: EngineState, prefix: SharedPrefix) -> bool:
    """True when the prefix's members may draw: no grammar that they need is still being compiled."""
    return state.is_ready(prefix.request.spec.sampling)


def may_take_slots(state: EngineState, prefix: SharedPrefix) -> bool:
    """True when the flow's share allows slots for the prefix's waiting members too. Does not check that enough are
    free."""
    own = state.slots.held_by(prefix.request.flow)
    return may_take(own, len(prefix.waiting_members), state.slots.available, WORKER_GREED)


def may_reserve_slots(state: EngineState, prefix: SharedPrefix) -> bool:
    """True when the flow's share allows one more prefix to be granted, counting slots that it will take as taken."""
    flow = prefix.request.flow
    if state.turns.is_alone(flow):
        return True
    future = [(other.request.flow, len(other.waiting_members)) for other in state.awaiting_slots.values()]
    own = state.slots.held_by(flow) + sum(count for other, count in future if other == flow)
    free = state.slots.available - sum(count for _, count in future)
    return may_take(own, len(prefix.waiting_members), free, WORKER_GREED)


def close_slot(state: EngineState, sequence: Sequence) -> None:
    if sequence.slot is not None:
        state.slots.close(sequence.slot)
        sequence.slot = None


def forget(state: EngineState, request: Request) -> None:
    """Delete the request from the books. No effect when it is not in them."""
    if state.requests.pop(request.key, None) is not None:
        state.turns.closed(request.flow)


def release_blocks(state: EngineState, owner: BlockOwner, fence: int = 0) -> None:
    """Give up all blocks of `owner`; they stay untouched until every launched step (and step `fence`) is over."""
    state.pool.release(owner, max(fence, state.launched_step))


def announce(state: EngineState, prefix: SharedPrefix) -> None:
    """Report how much KV of a held prompt is complete. From now on a transfer may be reading its blocks."""
    prefix.request.is_announced = True
    table = tuple(state.pool.table(prefix.owner))
    state.events.append(Computed(prefix.request.key, prefix.done_tokens, table))


def publish(state: EngineState, owner: BlockOwner, digests: list[bytes], root: bytes, first: int, end: int) -> None:
    """Publish blocks [first, end) of the owner's table, which are full and complete, where a group still has them."""
    table, groups = state.pool.table(owner), state.pool.groups
    for index in range(first, end):
        parent = digests[index - 1] if index else root
        for group in range(groups):
            block = table[index * groups + group]
            if block != GONE:
                state.pool.publish(block, digests[index], parent, index + 1, group)


def drop_unseen(state: EngineState, owner: BlockOwner, tokens: int) -> None:
    """Give up blocks that no token after `tokens` attends to; they stay untouched until every launched step is over."""
    if state.config.has_windows:
        state.pool.drop(owner, state.config.first_blocks(tokens), state.launched_step)


def end_sequence(state: EngineState, sequence: Sequence) -> None:
    """End a sequence that has finished, was cancelled or failed: it gives back what only it holds."""
    if sequence.stage is SequenceStage.DONE:
        return
    if sequence.stage is SequenceStage.RUNNING:
        state.batch.leave(sequence, SequenceStage.DONE)
    elif sequence.stage is SequenceStage.STALLED:
        state.stalled.remove(sequence)
    sequence.stage = SequenceStage.DONE
    prefix = sequence.prefix
    if prefix is None:
        close_slot(state, sequence)
        release_blocks(state, sequence.owner, sequence.fence)
    elif all(member.stage is SequenceStage.DONE for member in prefix.members):
        drop_prefix(state, prefix)
    elif sequence.slot != prefix.slot:  # the prefix's own slot is needed by the other members
        close_slot(state, sequence)
    request = sequence.request
    if not request.spec.hold and not request.live:
        forget(state, request)


def leave_stage(state: EngineState, prefix: SharedPrefix) -> None:
    """Take the prefix out of the list of its stage."""
    match prefix.stage:
        case SharedPrefixStage.WAITING:
            del state.waiting[prefix.request.key]
            state.waiting_tokens -= prefix.missing_tokens
        case SharedPrefixStage.QUEUED:
            del state.queued[prefix.request.key]
        case SharedPrefixStage.PREEMPTED:
            state.preempted.remove(prefix)
            state.waiting_tokens -= prefix.num_tokens
        case SharedPrefixStage.LANDED:
            state.landed.remove(prefix)
            del state.awaiting_slots[prefix.request.key]
        case SharedPrefixStage.PREFILLING:
            state.prefilling.remove(prefix)
        case SharedPrefixStage.BRANCHING:
            state.branching.remove(prefix)
        case SharedPrefixStage.RESERVED:
            del state.awaiting_slots[prefix.request.key]
        case SharedPrefixStage.HELD | SharedPrefixStage.GONE:
            pass


def drop_prefix(state: EngineState, prefix: SharedPrefix) -> None:
    """Give back the prefix's slots and blocks."""
    leave_stage(state, prefix)
    prefix.stage = SharedPrefixStage.GONE
    for member in prefix.members:
        close_slot(state, member)
    release_blocks(state, prefix.owner)


def drop_request(state: EngineState, request: Request) -> None:
    """Forget the request and give back everything it holds."""
    forget(state, request)
    uncount_held(state, request)
    for sequence in request.sequences.values():
        end_sequence(state, sequence)
    if request.prefix is not None and request.prefix.stage is not SharedPrefixStage.GONE:
        drop_prefix(state, request.prefix)


def stop_request(state: EngineState, request: Request) -> None:
    """Stop computing for the request; blocks that were announced stay until its release."""
    if not request.is_announced or request.prefix is None or request.prefix.stage is SharedPrefixStage.GONE:
        drop_request(state, request)
        return
    request.is_stopped = True
    prefix = request.prefix
    if prefix.stage is SharedPrefixStage.PREFILLING:
        leave_stage(state, prefix)
        prefix.stage = SharedPrefixStage.HELD
    for member in prefix.members:
        member.stage = SequenceStage.DONE
        close_slot(state, member)


def uncount_held(state: EngineState, request: Request) -> None:
    """Count the request's blocks as ungranted no longer."""
    state.ungranted_blocks -= request.held_blocks
    request.held_blocks = 0
