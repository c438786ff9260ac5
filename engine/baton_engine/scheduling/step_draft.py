"""The step under construction: the parts of its StepPlan, and the records that are needed to read its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton_engine.memory.blocks import GONE
from baton_engine.scheduling.decode_batch import DecodeBatch
from baton_engine.scheduling.sequence import Sequence, SequenceStage, SharedPrefix
from baton_engine.scheduling.slots import SlotTable
from baton_engine.scheduling.step_plan import BlockCopy, BlockUpdate, OpenSlot, PrefillChunk, StepPlan


@dataclass(frozen=True, slots=True)
class LaunchedChunk:
    """A prefill chunk whose result is awaited."""

    prefix: SharedPrefix
    start: int
    end: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A launched step's sequences by slot. Its result is read through them: slots may have changed hands since."""

    step: int
    rows: dict[int, Sequence]
    """Sequences by slot as the plan had them; shared between steps, not to be changed."""
    samples: dict[int, Sequence]
    """Sequences that draw from a prefill chunk, by slot."""
    chunks: tuple[LaunchedChunk, ...]
    finishing: tuple[Sequence, ...]
    """Rows that run for the last time: their blocks come back with the result."""
    is_ahead: bool = False
    """True if it was planned while the step before ran: the device goes on at once."""


@dataclass(slots=True, eq=False)
class StepDraft:
    step: int
    opens: list[OpenSlot] = field(default_factory=list)
    blocks: list[BlockUpdate] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    prefill: list[PrefillChunk] = field(default_factory=list)
    chunks: list[LaunchedChunk] = field(default_factory=list)
    samples: dict[int, Sequence] = field(default_factory=dict)
    finishing: list[Sequence] = field(default_factory=list)
    """Rows that run for the last time in this step."""
    claimed_blocks: int = 0
    """Blocks of running steps that stalled rows already count on."""
    budget: int = 0
    """Most prefill tokens of the step."""
    prefill_tokens: int = 0
    is_shared: bool = False
    """True when a prompt left a part of the budget, which it could use, to later prompts."""

    def open(self, sequence: Sequence, context_tokens: int, last_token: int | None) -> None:
        """The sequence takes its slot in this step."""
        assert sequence.slot is not None
        spec = sequence.request.spec
        outputs = tuple(sequence.outputs)
        self.opens.append(
            OpenSlot(
                sequence.slot,
                spec.sampling,
                sequence.choice,
                sequence.request.prompt,
                outputs,
                context_tokens,
                last_token,
            )
        )

    def set_blocks(self, slot: int, blocks: Iterable[int], groups: int, first_index: int = 0) -> None:
        """Set entries of the slot's block tables from `first_index` on; `blocks` has the entries of all `groups` in
        turn."""
        self.blocks += [
            BlockUpdate(slot, first_index + place // groups, block, place % groups)
            for place, block in enumerate(blocks)
            if block != GONE
        ]

    def seal(self, batch: DecodeBatch, slots: SlotTable, *, is_ahead: bool) -> tuple[StepPlan, LaunchedStep] | None:
        """Finish the plan; None when there is nothing to do. Rows that run for the last time leave the batch."""
        decode, rows = batch.assemble()
        for sequence in self.finishing:
            assert sequence.slot is not None
            batch.leave(sequence, SequenceStage.FINISHING)
            slots.close(sequence.slot)
            sequence.slot = None
        closes = slots.close_in(self.step)
        if not (decode or self.prefill or self.opens or self.blocks or self.copies or closes):
            return None
        plan = StepPlan(
            self.step,
            tuple(self.opens),
            tuple(self.blocks),
            tuple(self.copies),
            tuple(self.prefill),
            decode,
            closes,
        )
        return plan, LaunchedStep(self.step, rows, self.samples, tuple(self.chunks), tuple(self.finishing), is_ahead)
