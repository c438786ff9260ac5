"""The constrained rows of a runner by slot, and the masks of a draw.

A mask needs every id that its row drew before. So on a device that runs behind the host, a draw with masks is launched
when the step before it has been collected: see `baton_engine.running.runner`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from baton_engine.grammars.constrained_row import Allowance, ConstrainedRow, EndIds
from baton_engine.grammars.grammar_compiler import READY_S, GrammarCompiler, GrammarError
from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.grammars.vocabulary import VocabularyError, Words
from baton_engine.scheduling.step_plan import OpenSlot, SlotFailure, SlotTokens


@dataclass(frozen=True, slots=True)
class RowConstraints:
    """What binds the rows of one draw."""

    masks: TokenMasks | None
    failures: tuple[SlotFailure, ...]
    """Slots whose draw means nothing."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The constrained rows of one draw, of the slots that draw."""

    slots: tuple[int, ...]
    rows: tuple[ConstrainedRow, ...]
    computations: tuple[tuple[ConstrainedRow, Callable[[int, int], None], int, Words], ...]
    """Of the matchers' masks, each with its row, its address and itself [W]."""
    firsts: tuple[tuple[Words, int], ...]
    """Masks [W] of answers that begin, each with its row."""
    words: Words
    """[R, W]: the masks."""
    ends: EndIds | None
    """Those of the first row; None without rows."""
    is_plain: bool
    """Grammars alone bind these rows, none has ended, and they end alike: until a slot is opened or closed, or an
    answer ends, the next draw of the same slots has this batch too."""
    constraints: RowConstraints
    """With the masks as the matchers write them."""
    holds_an_end: Callable[[], bool]
    """Of a plain batch: whether some matcher's mask is to be finished. One that gave up allows the end and nothing
    else."""


class RowMasks:
    """Rows of `max_slots` slots; for one thread, which also computes the masks. One takes 4 to 10 µs; spread over
    threads they took longer."""

    def __init__(self, compiler: GrammarCompiler, max_slots: int) -> None:
        self.observe_masks: Callable[[float], None] = lambda seconds: None
        """Told the seconds that the masks of each draw took."""
        self.compiler = compiler
        self._max_slots = max_slots
        self._rows: dict[int, ConstrainedRow | Future[ConstrainedRow]] = {}
        self._words = np.zeros((0, 0), dtype=np.uint32)
        self._pointer = 0
        self._batch: _Batch | None = None
        """The last one, while it is plain and its rows are as they were."""

    def open(self, opened: OpenSlot) -> None:
        """A sequence takes a slot; whatever the slot held is over."""
        self._rows.pop(opened.slot, None)
        self._batch = None
        if opened.sampling.grammar is not None or opened.sampling.thought is not None:
            self._rows[opened.slot] = self.compiler.row(opened)

    def close(self, slots: Iterable[int]) -> None:
        """The slots are given back."""
        for slot in slots:
            if self._rows.pop(slot, None) is not None:
                self._batch = None

    def bind(self, slots: Sequence[int]) -> bool:
        """Whether any of these slots is constrained. Costs next to nothing while no slot is."""
        return not self._rows.keys().isdisjoint(slots)

    def drawn(self, tokens: Iterable[SlotTokens]) -> None:
        """What the slots of a collected step drew."""
        if not self._rows:
            return
        for each in tokens:
            row = self._rows.get(each.slot)
            if isinstance(row, ConstrainedRow):
                is_free = False
                for token in each.ids:
                    is_free = row.take(token)
                if is_free:
                    del self._rows[each.slot]
                    self._batch = None

    def constraints(self, slots: Sequence[int]) -> RowConstraints:
        """What may be drawn for each of `slots`, whose earlier tokens are all known. The masks' memory is used again by
        the next call."""
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
        found = batch.constraints if batch.is_plain and not batch.holds_an_end() else _finished(batch)
        self.observe_masks(time.perf_counter() - begin)
        return found

    def _batch_of(self, slots: Sequence[int]) -> _Batch:
        places: list[int] = []
        rows: list[ConstrainedRow] = []
        failures: list[SlotFailure] = []
        computations: list[tuple[ConstrainedRow, Callable[[int, int], None], int]] = []
        firsts: list[tuple[Words, int]] = []
        is_plain = True
        for place, slot in enumerate(slots):
            held = self._rows.get(slot)
            if held is None:
                continue
            row = held if isinstance(held, ConstrainedRow) else self._ready(slot, held)
            if isinstance(row, SlotFailure):
                failures.append(row)
                continue
            # A plain row that is not over is its matcher's; whether that gave up is asked once, behind its mask.
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
        """[R, W] of the memory that all batches share, and where it begins. It holds whatever it held."""
        if rows and self._words.shape[1] != rows[0].words:
            self._words = np.zeros((self._max_slots, rows[0].words), dtype=np.uint32)
            self._pointer = self._words.ctypes.data
        return self._words[: len(rows)], self._pointer

    def _ready(self, slot: int, made: Future[ConstrainedRow]) -> ConstrainedRow | SlotFailure:
        """As a rule it is there: the scheduler lets no row draw before its grammar is compiled."""
        try:
            row = made.result(READY_S)
        except (GrammarError, VocabularyError) as error:
            return SlotFailure(slot, str(error))
        except TimeoutError:
            return SlotFailure(slot, f"the grammar was not compiled within {READY_S:g} s")
        self._rows[slot] = row
        return row


def _finished(batch: _Batch) -> RowConstraints:
    """What is not the matchers' to say is written into the masks. A matcher's own mask is as it shall be unless it
    holds an end: most are, and looking at all at once is cheap."""
    words, masks = batch.words, batch.constraints.masks
    if masks is None or batch.ends is None:
        return batch.constraints
    is_unfinished = batch.ends.are_in(words).tolist()
    kept: list[int] = []
    failures = list(batch.constraints.failures)
    for number, row in enumerate(batch.rows):
        if is_unfinished[number] or not row.is_plain or row.ends is not batch.ends:
            row.fill(words[number])
        if row.failure is None:
            kept.append(number)
        else:
            failures.append(SlotFailure(batch.slots[int(masks.rows[number])], row.failure))
    if len(kept) == len(batch.rows):
        return RowConstraints(masks, tuple(failures))
    rest = TokenMasks.of(masks.rows[kept].numpy(), words[kept]) if kept else None
    return RowConstraints(rest, tuple(failures))
