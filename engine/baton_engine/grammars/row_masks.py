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
import numpy.typing as npt
from llguidance import LLMatcher

from baton_engine.grammars.constrained_row import Allowance, ConstrainedRow
from baton_engine.grammars.grammar_compiler import READY_S, GrammarCompiler, GrammarError
from baton_engine.grammars.vocabulary import VocabularyError, Words
from baton_engine.running.sampler import TokenMasks
from baton_engine.scheduling.step_plan import OpenSlot, SlotFailure, SlotTokens


@dataclass(frozen=True, slots=True)
class RowConstraints:
    """What binds the rows of one draw."""

    masks: TokenMasks | None
    failures: tuple[SlotFailure, ...]
    """Slots whose draw means nothing."""


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
        self._last_places: list[int] = []
        self._placed_array = np.zeros(0, dtype=np.int64)

    def open(self, opened: OpenSlot) -> None:
        """A sequence takes a slot; whatever the slot held is over."""
        self._rows.pop(opened.slot, None)
        if opened.sampling.grammar is not None or opened.sampling.thought is not None:
            self._rows[opened.slot] = self.compiler.row(opened)

    def close(self, slots: Iterable[int]) -> None:
        """The slots are given back."""
        for slot in slots:
            self._rows.pop(slot, None)

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
                for token in each.ids:
                    row.take(token)
                if row.is_free:
                    del self._rows[each.slot]

    def constraints(self, slots: Sequence[int]) -> RowConstraints:
        """What may be drawn for each of `slots`, whose earlier tokens are all known. The masks' memory is used again by
        the next call."""
        begin = time.perf_counter()
        places: list[int] = []
        rows: list[ConstrainedRow] = []
        failures: list[SlotFailure] = []
        matchers: list[tuple[LLMatcher, int]] = []
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
            if allowance is Allowance.ANYTHING:
                continue
            if allowance is Allowance.MATCHER and row.matcher is not None:
                matchers.append((row.matcher, len(rows)))
            places.append(place)
            rows.append(row)
        words = self._computed(len(rows), rows[0].words if rows else self._words.shape[1], matchers)
        kept: list[int] = []
        # A matcher's own mask is as it shall be unless it holds an end: most are, and looking at all at once is cheap.
        ends = rows[0].ends if rows else None
        is_unfinished = [] if ends is None else ends.are_in(words).tolist()
        for number, row in enumerate(rows):
            if is_unfinished[number] or not row.is_plain or row.ends is not ends:
                row.fill(words[number])
            if row.failure is None:
                kept.append(number)
            else:
                failures.append(SlotFailure(slots[places[number]], row.failure))
        masks = None
        if kept:
            allowed = words if len(kept) == len(rows) else words[kept]
            masks = TokenMasks(self._placed([places[number] for number in kept]), allowed.view(np.int32))
        self.observe_masks(time.perf_counter() - begin)
        return RowConstraints(masks, tuple(failures))

    def _placed(self, places: list[int]) -> npt.NDArray[np.int64]:
        """As an array, the last one's if they are the same: batches change seldom."""
        if places != self._last_places:
            self._last_places, self._placed_array = places, np.array(places, dtype=np.int64)
        return self._placed_array

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

    def _computed(self, rows: int, width: int, matchers: list[tuple[LLMatcher, int]]) -> Words:
        """[rows, width]: masks of the matchers, each in its row; the others hold whatever they held."""
        if self._words.shape[1] != width:
            self._words = np.zeros((self._max_slots, width), dtype=np.uint32)
            self._pointer = self._words.ctypes.data
        words, pointer, row_bytes = self._words[:rows], self._pointer, self._words.strides[0]
        for matcher, row in matchers:
            matcher.unsafe_compute_mask_ptr(pointer + row * row_bytes, row_bytes)
        return words
