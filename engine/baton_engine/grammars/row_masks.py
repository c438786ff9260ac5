"""The constrained rows of a runner by slot, and the masks of a draw.

A mask needs every id that its row drew before. So on a device that runs asynchronously, a draw with masks is launched
when the step before it has been collected: see `baton_engine.running.runner`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from baton_engine.grammars.constrained_row import Allowance, ConstrainedRow, EndIds
from baton_engine.grammars.grammar_compiler import READY_S, GrammarCompiler, GrammarError
from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.grammars.vocabulary import VocabularyError, Words
from baton_engine.scheduling.step_plan import OpenSlot, SlotFailure, SlotTokens


@dataclass(frozen=True, slots=True)
class RowConstraints:
    """The constraints of one draw."""

    masks: TokenMasks | None
    failures: tuple[SlotFailure, ...]
    """Slots without a valid token."""


class DrawMasks(Protocol):
    """The constraints of a runner's draws, as it asks for them: `RowMasks`, or the masks that a rank is sent."""

    def open(self, opened: OpenSlot) -> None: ...

    def close(self, slots: Iterable[int]) -> None: ...

    def bind(self, slots: Sequence[int]) -> bool: ...

    def take_drawn(self, tokens: Iterable[SlotTokens]) -> None: ...

    def constraints(self, slots: Sequence[int]) -> RowConstraints: ...


@dataclass(frozen=True, slots=True)
class _Batch:
    """The constrained rows among the slots of one draw."""

    slots: tuple[int, ...]
    rows: tuple[ConstrainedRow, ...]
    computations: tuple[tuple[ConstrainedRow, Callable[[int, int], None], int, Words], ...]
    """Masks that matchers compute: row, matcher's function, address, and the mask itself [W]."""
    firsts: tuple[tuple[Words, int], ...]
    """Masks [W] of answers that begin, each with the number of its row."""
    words: Words
    """The masks [R, W]."""
    ends: EndIds | None
    """End ids of the first row; None without rows."""
    is_plain: bool
    """True when grammars alone bind these rows, none has ended, and all have the same end ids. Until a slot is opened
    or closed, or an answer ends, the next draw of the same slots can use this batch again."""
    constraints: RowConstraints
    """The constraints with the masks as the matchers write them."""
    holds_an_end: Callable[[], bool]
    """For a plain batch, True when some matcher's mask has to be completed. A matcher that gave up allows the end and
    nothing else."""


class RowMasks:
    """The constrained rows of `max_slots` slots. One thread uses it and computes the masks. A mask takes 4 to 10 µs;
    spread over threads, masks took longer."""

    def __init__(self, compiler: GrammarCompiler, max_slots: int) -> None:
        self.observe_masks: Callable[[float], None] = lambda seconds: None
        """Called with the seconds that the masks of each draw took."""
        self.compiler = compiler
        self._max_slots = max_slots
        self._rows: dict[int, ConstrainedRow | Future[ConstrainedRow]] = {}
        self._words = np.zeros((0, 0), dtype=np.uint32)
        self._pointer = 0
        self._batch: _Batch | None = None
        """The last batch, while it is plain and its rows are unchanged."""

    def open(self, opened: OpenSlot) -> None:
        """Give the slot to a sequence. The row that it held before is dropped."""
        self._rows.pop(opened.slot, None)
        self._batch = None
        if opened.sampling.grammar is not None or opened.sampling.thought is not None:
            self._rows[opened.slot] = self.compiler.row(opened)

    def close(self, slots: Iterable[int]) -> None:
        """Drop the rows of these slots."""
        for slot in slots:
            if self._rows.pop(slot, None) is not None:
                self._batch = None

    def bind(self, slots: Sequence[int]) -> bool:
        """True when any of the slots is constrained. Costs next to nothing while none is."""
        return not self._rows.keys().isdisjoint(slots)

    def take_drawn(self, tokens: Iterable[SlotTokens]) -> None:
        """Take the tokens that the slots of a collected step drew."""
        if not self._rows:
            return
        for slot_tokens in tokens:
            row = self._rows.get(slot_tokens.slot)
            if isinstance(row, ConstrainedRow):
                is_free = False
                for token in slot_tokens.ids:
                    is_free = row.take(token)
                if is_free:
                    del self._rows[slot_tokens.slot]
                    self._batch = None

    def constraints(self, slots: Sequence[int]) -> RowConstraints:
        """Compute the tokens that each of `slots` may draw; all their earlier tokens are known. The next call reuses
        the masks' memory."""
        begin = time.perf_counter()
        batch = self._batch
        if batch is None or batch.slots != slots:
            batch = self._batch_of(slots)
            self._batch = batch if batch.is_plain and not batch.firsts else None
        row_bytes = batch.words.strides[0]
        for row, compute, pointer, mask in batch.computations:
            if row.is_mask_due:
                compute(pointer, row_bytes)
                row.is_mask_due = False
                if row.are_blanks_over:
                    row.forbid_blanks(mask)
        for first, place in batch.firsts:
            batch.words[place] = first
        is_complete = batch.is_plain and not batch.holds_an_end()
        constraints = batch.constraints if is_complete else _complete(batch)
        self.observe_masks(time.perf_counter() - begin)
        return constraints

    def _batch_of(self, slots: Sequence[int]) -> _Batch:
        places: list[int] = []
        rows: list[ConstrainedRow] = []
        failures: list[SlotFailure] = []
        computations: list[tuple[ConstrainedRow, Callable[[int, int], None], int]] = []
        firsts: list[tuple[Words, int]] = []
        is_plain = True
        for place, slot in enumerate(slots):
            entry = self._rows.get(slot)
            if entry is None:
                continue
            row = entry if isinstance(entry, ConstrainedRow) else self._await_row(slot, entry)
            if isinstance(row, SlotFailure):
                failures.append(row)
                continue
            # The matcher decides for a plain row that is not over; its error is looked up once, after its mask.
            allowance = row.allowance if row.is_over or not row.is_plain else Allowance.MATCHER
            is_plain = is_plain and row.is_plain and not row.is_over
            if allowance is Allowance.ANYTHING:
                continue
            if allowance is Allowance.MATCHER:
                if (first := row.first_mask) is not None:
                    firsts.append((first, len(rows)))
                elif (matcher := row.matcher) is not None:
                    computations.append((row, matcher.unsafe_compute_mask_ptr, len(rows)))
                    row.is_mask_due = True  # another batch, other memory
            places.append(place)
            rows.append(row)
        words, pointer = self._words_of(rows)
        ends = rows[0].ends if rows else None
        masks = TokenMasks.of(np.array(places, dtype=np.int64), words) if rows else None
        is_plain = is_plain and not failures and all(row.ends is ends for row in rows)
        return _Batch(
            slots=tuple(slots),
            rows=tuple(rows),
            computations=tuple(
                (row, compute, pointer + number * words.strides[0], words[number])
                for row, compute, number in computations
            ),
            firsts=tuple(firsts),
            words=words,
            ends=ends,
            is_plain=is_plain,
            holds_an_end=ends.looking(words) if is_plain and ends is not None else lambda: False,
            constraints=RowConstraints(masks, tuple(failures)),
        )

    def _words_of(self, rows: Sequence[ConstrainedRow]) -> tuple[Words, int]:
        """Memory [R, W] that all batches share, and its address. Its content is undefined."""
        if rows and self._words.shape[1] != rows[0].words:
            self._words = np.zeros((self._max_slots, rows[0].words), dtype=np.uint32)
            self._pointer = self._words.ctypes.data
        return self._words[: len(rows)], self._pointer

    def _await_row(self, slot: int, future: Future[ConstrainedRow]) -> ConstrainedRow | SlotFailure:
        """Wait for the slot's row. It is usually ready: no row draws before its grammar is compiled."""
        try:
            row = future.result(READY_S)
        except (GrammarError, VocabularyError) as error:
            return SlotFailure(slot, str(error))
        except TimeoutError:
            return SlotFailure(slot, f"the grammar was not compiled within {READY_S:g} s")
        self._rows[slot] = row
        return row


def _complete(batch: _Batch) -> RowConstraints:
    """Complete the masks where matchers do not decide alone. A matcher's own mask is complete unless it holds an end:
    most are, and checking all at once is cheap."""
    words, masks = batch.words, batch.constraints.masks
    if masks is None or batch.ends is None:
        return batch.constraints
    is_incomplete = batch.ends.are_in(words).tolist()
    valid: list[int] = []
    failures = list(batch.constraints.failures)
    for number, row in enumerate(batch.rows):
        if is_incomplete[number] or not row.is_plain or row.ends is not batch.ends:
            row.fill(words[number])
        if row.failure is None:
            valid.append(number)
        else:
            failures.append(SlotFailure(batch.slots[int(masks.rows[number])], row.failure))
    if len(valid) == len(batch.rows):
        return RowConstraints(masks, tuple(failures))
    rest = TokenMasks.of(masks.rows[valid].numpy(), words[valid]) if valid else None
    return RowConstraints(rest, tuple(failures))
