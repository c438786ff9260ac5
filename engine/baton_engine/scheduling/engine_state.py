"""Everything that one scheduler keeps, and the moves that several of its parts make: closing slots, ending, dropping.

One `EngineState` belongs to one `Scheduler`; the modules `admission`, `reservations`, `branching`, `growth` and
`results` are its parts and the only others that change it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton_engine.memory.blocks import GONE, BlockOwner, BlockPool
from baton_engine.scheduling.decode_batch import DecodeBatch
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Computed, SchedulerEvent
from baton_engine.scheduling.sequence import Request, Sequence, SequenceStage, Stem, StemStage
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
    """Whether what such options need before a draw is there; else the sequence waits, and nobody with it."""
    batch: DecodeBatch = field(default_factory=DecodeBatch)
    requests: dict[RequestKey, Request] = field(default_factory=dict)
    turns: StartTags = field(default_factory=StartTags)
    waiting: dict[RequestKey, Stem] = field(default_factory=dict)
    """New prompts in the order of their turns."""
    queued: dict[RequestKey, Stem] = field(default_factory=dict)
    """Reservations that are not granted, in the order of their turns."""
    returning: list[Stem] = field(default_factory=list)
    """Preempted, oldest first."""
    landed: list[Stem] = field(default_factory=list)
    """In the order of their turns."""
    promised: dict[RequestKey, Stem] = field(default_factory=dict)
    """Granted reservations and landed stems: slots are not theirs yet, and will be."""
    prefilling: list[Stem] = field(default_factory=list)
    """Oldest first."""
    branching: list[Stem] = field(default_factory=list)
    stalled: list[Sequence] = field(default_factory=list)
    in_flight: deque[LaunchedStep] = field(default_factory=deque)
    launched_step: int = 0
    events: list[SchedulerEvent] = field(default_factory=list)
    ungranted_blocks: int = 0
    """Blocks of held prompts that no decode worker has granted room for."""
    starved: Stem | None = None
    """The prompt that last lacked blocks: as long as it waits, younger reservations must not take them."""
    over_share: int = 0
    """Queued reservations and landed stems that wait for nothing but their own flow, as of the last looks."""
    is_draining: bool = False
    waiting_tokens: int = 0
    """Of the waiting and returning stems."""
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    @property
    def is_running(self) -> bool:
        """Some sequence is moving by itself and will give its blocks back."""
        return bool(self.batch.rows or self.prefilling or self.branching or self.stalled)

    @property
    def floor(self) -> int:
        """Blocks that a new sequence has to leave free."""
        return self.config.watermark_blocks if self.is_running else 0


def enqueue(line: dict[RequestKey, Stem], stem: Stem) -> None:
    """Put the stem into the line by its turn; as a rule it is the last."""
    is_last = not line or line[next(reversed(line))].order < stem.order
    line[stem.request.key] = stem
    if not is_last:
        by_turn = sorted(line.items(), key=lambda entry: entry[1].order)
        line.clear()
        line.update(by_turn)


def may_draw(state: EngineState, stem: Stem) -> bool:
    """Whether nothing that a draw of the stem's members needs is still being made."""
    return state.is_ready(stem.request.spec.sampling)


def may_take_slots(state: EngineState, stem: Stem) -> bool:
    """Whether the stem's flow may hold slots for its waiting members besides those that it has. Asks not whether there
    are so many.
    """
    own = state.slots.held_by(stem.request.flow)
    return may_take(own, len(stem.waiting_members), state.slots.available, WORKER_GREED)


def may_promise_slots(state: EngineState, stem: Stem) -> bool:
    """Whether the flow may be granted room for one more stem: what it was promised counts as if it had it."""
    flow = stem.request.flow
    if state.turns.is_alone(flow):
        return True
    sizes = [(other.request.flow, len(other.waiting_members)) for other in state.promised.values()]
    own = state.slots.held_by(flow) + sum(size for other, size in sizes if other == flow)
    free = state.slots.available - sum(size for _, size in sizes)
    return may_take(own, len(stem.waiting_members), free, WORKER_GREED)


def close_slot(state: EngineState, sequence: Sequence) -> None:
    if sequence.slot is not None:
        state.slots.close(sequence.slot)
        sequence.slot = None


def forget(state: EngineState, request: Request) -> None:
    """The request is not known any more. No effect when it was not."""
    if state.requests.pop(request.key, None) is not None:
        state.turns.closed(request.flow)


def release_blocks(state: EngineState, owner: BlockOwner, fence: int = 0) -> None:
    """Give up all blocks of `owner`; they stay untouched until every launched step (and step `fence`) is over."""
    state.pool.release(owner, max(fence, state.launched_step))


def announce(state: EngineState, stem: Stem) -> None:
    """Tell how much KV of a held prompt stands. From now on others may be reading its blocks."""
    stem.request.is_announced = True
    table = tuple(state.pool.table(stem.owner))
    state.events.append(Computed(stem.request.key, stem.done_tokens, table))


def publish(state: EngineState, owner: BlockOwner, digests: list[bytes], root: bytes, first: int, end: int) -> None:
    """Blocks [first, end) of the owner's table are full and their KV stands, where a group still has them."""
    table, groups = state.pool.table(owner), state.pool.groups
    for index in range(first, end):
        parent = digests[index - 1] if index else root
        for group in range(groups):
            block = table[index * groups + group]
            if block != GONE:
                state.pool.publish(block, digests[index], parent, group)


def drop_unseen(state: EngineState, owner: BlockOwner, tokens: int) -> None:
    """Give up what no token behind `tokens` sees; it stays untouched until every launched step is over."""
    if state.config.has_windows:
        state.pool.drop(owner, state.config.first_blocks(tokens), state.launched_step)


def end_sequence(state: EngineState, sequence: Sequence) -> None:
    """The sequence is over (finished, cancelled or failed) and gives back whatever only it holds."""
    if sequence.stage is SequenceStage.DONE:
        return
    if sequence.stage is SequenceStage.RUNNING:
        state.batch.leave(sequence, SequenceStage.DONE)
    elif sequence.stage is SequenceStage.STALLED:
        state.stalled.remove(sequence)
    sequence.stage = SequenceStage.DONE
    stem = sequence.stem
    if stem is None:
        close_slot(state, sequence)
        release_blocks(state, sequence.owner, sequence.fence)
    elif all(member.stage is SequenceStage.DONE for member in stem.members):
        drop_stem(state, stem)
    elif sequence.slot != stem.slot:  # the stem's own slot is needed by the other members
        close_slot(state, sequence)
    request = sequence.request
    if not request.spec.hold and not request.live:
        forget(state, request)


def leave_stage(state: EngineState, stem: Stem) -> None:
    """Take the stem out of the list of its stage."""
    match stem.stage:
        case StemStage.WAITING:
            del state.waiting[stem.request.key]
            state.waiting_tokens -= stem.num_tokens
        case StemStage.QUEUED:
            del state.queued[stem.request.key]
        case StemStage.RETURNING:
            state.returning.remove(stem)
            state.waiting_tokens -= stem.num_tokens
        case StemStage.LANDED:
            state.landed.remove(stem)
            del state.promised[stem.request.key]
        case StemStage.PREFILLING:
            state.prefilling.remove(stem)
        case StemStage.BRANCHING:
            state.branching.remove(stem)
        case StemStage.RESERVED:
            del state.promised[stem.request.key]
        case StemStage.HELD | StemStage.GONE:
            pass


def drop_stem(state: EngineState, stem: Stem) -> None:
    """Give back the stem's slots and blocks."""
    leave_stage(state, stem)
    stem.stage = StemStage.GONE
    for member in stem.members:
        close_slot(state, member)
    release_blocks(state, stem.owner)


def drop_request(state: EngineState, request: Request) -> None:
    """Forget the request and give back everything it holds."""
    forget(state, request)
    uncount_held(state, request)
    for sequence in request.sequences.values():
        end_sequence(state, sequence)
    if request.stem is not None and request.stem.stage is not StemStage.GONE:
        drop_stem(state, request.stem)


def stop_request(state: EngineState, request: Request) -> None:
    """Compute nothing more for the request; blocks that were announced stay until its release."""
    if not request.is_announced or request.stem is None or request.stem.stage is StemStage.GONE:
        drop_request(state, request)
        return
    request.is_stopped = True
    stem = request.stem
    if stem.stage is StemStage.PREFILLING:
        leave_stage(state, stem)
        stem.stage = StemStage.HELD
    for member in stem.members:
        member.stage = SequenceStage.DONE
        close_slot(state, member)


def uncount_held(state: EngineState, request: Request) -> None:
    """The request's blocks no longer count as ungranted."""
    state.ungranted_blocks -= request.held_blocks
    request.held_blocks = 0
