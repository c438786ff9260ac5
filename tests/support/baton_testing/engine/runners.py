"""A runner without a model whose every token depends on every KV entry of its context.

The "KV" of a token is a number mixed from the KV of the position before it (read back through the block table) and the
token. The next token is mixed from all KV of the context, again read through the block table, and from the sampling
state. So a wrong table, a stale or foreign block, a missing copy-on-write, a wrong position or wrong outputs change
what comes out. `reference_tokens` computes the same without blocks.

Deferred steps are executed only when they are collected: whatever happens in between (reassigned blocks, reused slots,
landing KV) then shows in their results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.blocks import GONE, BlockPool, BlockState
from baton_engine.scheduling.step_plan import OpenSlot, PrefillChunk, SlotFailure, SlotTokens, StepPlan, StepResult
from baton_testing.engine import toy_grammars
from baton_wire.kv_shape import first_seen
from baton_wire.messages.values import SamplingParams

MASK = (1 << 61) - 1
VOCABULARY = 50


def mix(*numbers: int) -> int:
    """A deterministic hash of integers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & ((1 << 64) - 1)
        state ^= state >> 29
    return state & MASK


def next_kv(previous: int, token: int, position: int) -> int:
    """KV of a token: depends on everything before it, as a deep model's does."""
    return mix(previous, token, position)


def context_kv(tokens: Sequence[int]) -> list[int]:
    """KV of a whole context."""
    kv: list[int] = []
    for token in tokens:
        kv.append(next_kv(kv[-1] if kv else 0, token, len(kv)))
    return kv


def draw(
    kv: Sequence[int],
    sampling: SamplingParams,
    choice: int,
    prompt: Sequence[int],
    outputs: Sequence[int],
    allowed: Collection[int] | None = None,
) -> int:
    """The token after the context `kv`: also depends on what sampling with penalties and noise depends on. With a
    grammar it is one of those `allowed`."""
    base = mix(len(outputs), choice, sampling.seed, mix(*kv), mix(*prompt), mix(*outputs))
    in_turn = ((base + i) % VOCABULARY for i in range(VOCABULARY))
    if allowed is not None:
        return next(token for token in in_turn if token in allowed)
    stop_ids = sampling.stop_token_ids if len(outputs) < sampling.min_tokens else ()
    return next(token for token in in_turn if token not in stop_ids)


def reference_tokens(
    tokens: Sequence[int], prompt_tokens: int, sampling: SamplingParams, choice: int, max_context_tokens: int
) -> list[int]:
    """All outputs of one choice, computed alone and without blocks; forced ones (beyond the prompt) included."""
    prompt, outputs = list(tokens[:prompt_tokens]), list(tokens[prompt_tokens:])
    kv = context_kv(tokens)
    while len(outputs) < sampling.max_tokens and prompt_tokens + len(outputs) < max_context_tokens:
        token = draw(kv, sampling, choice, prompt, outputs, toy_grammars.allowed(sampling, outputs))
        outputs.append(token)
        if token in sampling.stop_token_ids and (sampling.grammar is not None or len(outputs) > sampling.min_tokens):
            break
        kv.append(next_kv(kv[-1], token, len(kv)))
    return outputs


@dataclass(slots=True)
class ToySlot:
    sampling: SamplingParams
    choice: int
    prompt: tuple[int, ...]
    outputs: list[int]
    context: int
    last_token: int | None
    table: dict[tuple[int, int], int] = field(default_factory=dict)
    """By group and index."""


class ToyRunner:
    """Implements `Runner`. With `pool` it also checks that no block of a launched step changes hands.

    `is_ready` answers `is_done` for the oldest launched step: always true is a synchronous runner.
    """

    def __init__(
        self,
        block_tokens: int,
        pool: BlockPool | None = None,
        is_ready: Callable[[], bool] = lambda: True,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        """Every group keeps the same KV; what one sees is compared with the first's, which has no window."""
        assert windows[0] is None
        self.windows = windows
        self.storage: dict[tuple[int, int], int] = {}
        self.launched: deque[tuple[StepPlan, dict[int, int]]] = deque()
        self.plans: list[StepPlan] = []
        self.block_tokens = block_tokens
        self._pool = pool
        self._is_ready = is_ready
        self._slots: dict[int, ToySlot] = {}
        self._keeping: set[int] = set()
        self._tables: dict[int, dict[tuple[int, int], int]] = {}  # as of the last launched step
        self._contexts: dict[int, int] = {}
        self._last_step = 0
        self.write_first_layer: Callable[[tuple[int, int], int], None] | None = None
        """When set, a step that is launched alone may write its prompts' first layer at once: `wrote_first_layer`."""
        self.wrote_first_layer: Callable[[int], None] = lambda step: None
        self.masks: RowMasks | None = None
        """Masks of rows that follow grammars; without it grammars are ignored."""

    # Runner -----------------------------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> None:
        assert plan.step == self._last_step + 1, f"step {plan.step} launched after {self._last_step}"
        assert len(self.launched) < 2, "more than one step ahead"
        self._last_step = plan.step
        self.plans.append(plan)
        self.launched.append((plan, self._generations(plan)))
        if self.write_first_layer is not None and plan.prefill and len(self.launched) == 1:
            for chunk in plan.prefill:
                self._begin(chunk, self.write_first_layer)
            self.wrote_first_layer(plan.step)

    def is_done(self) -> bool:
        return bool(self.launched) and self._is_ready()

    def collect(self) -> StepResult:
        if not self.launched:
            raise RuntimeError("no step is launched")
        plan, generations = self.launched.popleft()
        self._assert_unchanged(plan, generations)
        return self._execute(plan)

    def execute(self, plan: StepPlan) -> StepResult:
        self.launch(plan)
        return self.collect()

    # From outside -----------------------------------------------------------------------------------------------------

    def write_kv(self, blocks: Sequence[int], kv: Sequence[int], start: int) -> None:
        """KV of positions from `start` on arrives in a sequence's blocks."""
        for position in range(start, len(kv)):
            index, offset = divmod(position, self.block_tokens)
            for block in blocks[index * len(self.windows) : (index + 1) * len(self.windows)]:
                if block != GONE:
                    self.storage[block, offset] = kv[position]

    def read_kv(self, blocks: Sequence[int], tokens: int, total: int | None = None) -> list[int | None]:
        """KV at the first `tokens` positions of a sequence's blocks; None where nothing was ever written, or
        where a group that sees it after `total` tokens has something else."""
        written: list[int | None] = []
        groups = len(self.windows)
        for position in range(tokens):
            index, offset = divmod(position, self.block_tokens)
            seen = {
                self.storage.get((blocks[index * groups + group], offset))
                for group, window in enumerate(self.windows)
                if position >= first_seen(tokens if total is None else total, window)
            }
            written.append(seen.pop() if len(seen) == 1 else None)
        return written

    def _begin(self, chunk: PrefillChunk, write: Callable[[tuple[int, int], int], None]) -> None:
        table = self._tables[chunk.slot]
        previous = 0
        if chunk.start:
            index, offset = divmod(chunk.start - 1, self.block_tokens)
            previous = self.storage[table[0, index], offset]
        for position, token in enumerate(chunk.tokens, chunk.start):
            previous = next_kv(previous, token, position)
            index, offset = divmod(position, self.block_tokens)
            for group in range(len(self.windows)):
                write((table[group, index], offset), previous)

    # Computing --------------------------------------------------------------------------------------------------------

    def _execute(self, plan: StepPlan) -> StepResult:
        for opened in plan.opens:
            self._open(opened)
        for update in plan.blocks:
            self._slots[update.slot].table[update.kv_group, update.index] = update.block
        self._copy(plan)
        drawn: list[SlotTokens | SlotFailure] = []
        for chunk in plan.prefill:
            slot = self._slots[chunk.slot]
            assert chunk.tokens or chunk.slot in self._keeping, f"slot {chunk.slot} kept nothing to draw from"
            self._keeping.discard(chunk.slot)
            if chunk.keeps:
                self._keeping.add(chunk.slot)
            assert chunk.start == slot.context, f"chunk starts at {chunk.start}, context is {slot.context}"
            self._write(slot, chunk.start, chunk.tokens)
            slot.context = chunk.start + len(chunk.tokens)
            kv = self._read(slot, chunk.start, slot.context)
            for target in chunk.sample:
                self._slots[target].context = slot.context
                drawn.append(self._draw(target, kv))
        for row in plan.decode:
            slot = self._slots[row]
            assert slot.last_token is not None
            self._write(slot, slot.context, (slot.last_token,))
            slot.context += 1
            drawn.append(self._draw(row, self._read(slot, slot.context - 1, slot.context)))
        for closed in plan.closes:
            del self._slots[closed]
            self._keeping.discard(closed)
        if self.masks is not None:
            self.masks.close(plan.closes)
        tokens = tuple(result for result in drawn if isinstance(result, SlotTokens))
        failures = tuple(result for result in drawn if isinstance(result, SlotFailure))
        return StepResult(plan.step, tokens, 0.001, failures=failures)

    def _open(self, opened: OpenSlot) -> None:
        assert opened.slot not in self._slots, f"slot {opened.slot} is opened twice"
        if self.masks is not None:
            self.masks.open(opened)
        self._slots[opened.slot] = ToySlot(
            opened.sampling,
            opened.choice,
            opened.prompt,
            list(opened.outputs),
            opened.context_tokens,
            opened.last_token,
        )

    def _copy(self, plan: StepPlan) -> None:
        contents = [
            [self.storage.get((copy.source, offset)) for offset in range(self.block_tokens)] for copy in plan.copies
        ]
        for copy, content in zip(plan.copies, contents, strict=True):
            for offset, kv in enumerate(content):
                self.storage.pop((copy.target, offset), None)
                if kv is not None:
                    self.storage[copy.target, offset] = kv

    def _place(self, slot: ToySlot, position: int, group: int = 0) -> tuple[int, int]:
        return slot.table[group, position // self.block_tokens], position % self.block_tokens

    def _write(self, slot: ToySlot, start: int, tokens: Sequence[int]) -> None:
        previous = self.storage[self._place(slot, start - 1)] if start else 0
        for position, token in enumerate(tokens, start):
            previous = next_kv(previous, token, position)
            for group in range(len(self.windows)):
                self.storage[self._place(slot, position, group)] = previous

    def _read(self, slot: ToySlot, start: int, context: int) -> list[int]:
        """The whole context; whatever rows [start, context) see of a group with a window must be the same."""
        kv = [self.storage[self._place(slot, position)] for position in range(context)]
        for group, window in enumerate(self.windows):
            for position in range(first_seen(start, window), context):
                assert self.storage[self._place(slot, position, group)] == kv[position], f"group {group}: {position}"
        return kv

    def _draw(self, row: int, kv: Sequence[int]) -> SlotTokens | SlotFailure:
        slot = self._slots[row]
        allowed = None if self.masks is None else toy_grammars.allowed_now(self.masks, row)
        if isinstance(allowed, SlotFailure):
            return allowed
        token = draw(kv, slot.sampling, slot.choice, slot.prompt, slot.outputs, allowed)
        if self.masks is not None:
            toy_grammars.took(self.masks, row, token)
        slot.outputs.append(token)
        slot.last_token = token
        return SlotTokens(row, (token,))

    # Checking ---------------------------------------------------------------------------------------------------------

    def _generations(self, plan: StepPlan) -> dict[int, int]:
        """Generations of all blocks that the step reads or writes; asserts that written blocks are exclusive."""
        closing = {slot for launched, _ in self.launched for slot in launched.closes}
        for opened in plan.opens:
            assert opened.slot not in closing, f"slot {opened.slot} is reused before its closing step was collected"
            self._tables[opened.slot] = {}
            self._contexts[opened.slot] = opened.context_tokens
        for update in plan.blocks:
            self._tables[update.slot][update.kv_group, update.index] = update.block
        touched: set[int] = set()
        copied = {block for copy in plan.copies for block in (copy.source, copy.target)}
        written = {copy.target for copy in plan.copies}
        for chunk in plan.prefill:
            end = chunk.start + len(chunk.tokens)
            touched |= self._range(chunk.slot, 0, end, chunk.start)
            written |= self._range(chunk.slot, chunk.start, end, chunk.start)
            for target in chunk.sample:
                self._contexts[target] = end
        for row in plan.decode:
            context = self._contexts[row]
            touched |= self._range(row, 0, context + 1, context)
            written |= self._range(row, context, context + 1, context)
            self._contexts[row] = context + 1
        if self._pool is None:
            return {}
        for block in touched:
            assert self._pool.state(block) is BlockState.IN_USE, f"block {block} is {self._pool.state(block)}"
        for block in copied:  # a fork may be preempted in the very step that copies for it
            assert self._pool.state(block) in (BlockState.IN_USE, BlockState.FENCED)
        for block in written & touched:
            assert self._pool.references(block) == 1, f"block {block} is written while shared"
            assert not self._pool.is_published(block), f"published block {block} is written"
        return {block: self._pool.generation(block) for block in touched | copied}

    def _range(self, slot: int, start: int, end: int, rows: int) -> set[int]:
        """Blocks of positions [start, end) that rows from `rows` on see."""
        last = (end - 1) // self.block_tokens
        return {
            self._tables[slot][group, index]
            for group, window in enumerate(self.windows)
            for index in range(max(start, first_seen(rows, window)) // self.block_tokens, last + 1)
        }

    def _assert_unchanged(self, plan: StepPlan, generations: dict[int, int]) -> None:
        for block, generation in generations.items():
            assert self._pool is not None
            now = self._pool.generation(block)
            assert now == generation, f"block {block} changed hands while step {plan.step} was launched"
            assert self._pool.state(block) in (BlockState.IN_USE, BlockState.FENCED), f"block {block} was given back"


def copy_kv(
    source: ToyRunner, source_blocks: Sequence[int], target: ToyRunner, blocks: Sequence[int], tokens: range
) -> None:
    """Copy the KV of positions `tokens` from one pool's blocks to another's, as a transfer does."""
    kv = source.read_kv(source_blocks, tokens.stop)
    target.write_kv(blocks, [value for value in kv if value is not None], tokens.start)
