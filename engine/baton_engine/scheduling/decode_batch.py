"""The running rows, advanced all at once: a step's host cost does not grow with the batch.

Every row of the batch moves by one token per assembled step, so a row's context length follows from one shared count of
steps. A row has to be checked only at known steps (it needs a block, or the step is its last): a calendar lists them.
"""

from __future__ import annotations

from baton_engine.scheduling.sequence import Sequence, SequenceStage


class DecodeBatch:
    """All sequences in stage RUNNING, by slot, in the order of joining."""

    def __init__(self) -> None:
        self.rows: dict[int, Sequence] = {}
        self._tick = 0  # assembled steps
        self._calendar: dict[int, list[Sequence]] = {}
        self._slots: tuple[int, ...] = ()
        self._by_slot: dict[int, Sequence] = {}
        self._changed = False

    def kv_tokens(self, sequence: Sequence) -> int:
        """Context length of a row: tokens whose KV the assembled steps write."""
        return sequence.base + self._tick

    def join(self, sequence: Sequence) -> None:
        """Add a sequence with `kv_tokens` of context as a row. The caller then plans its next check by `schedule`."""
        assert sequence.slot is not None
        self.rows[sequence.slot] = sequence
        sequence.stage = SequenceStage.RUNNING
        sequence.base = sequence.kv_tokens - self._tick
        self._changed = True

    def leave(self, sequence: Sequence, stage: SequenceStage) -> None:
        """Take the row out of all further steps."""
        assert sequence.slot is not None
        del self.rows[sequence.slot]
        sequence.kv_tokens = self.kv_tokens(sequence)
        sequence.stage = stage
        self._changed = True

    def schedule(self, sequence: Sequence, kv_tokens: int) -> None:
        """Plan the row's next check: before the step in which its context length is `kv_tokens`."""
        sequence.due_tick = kv_tokens - sequence.base
        self._calendar.setdefault(sequence.due_tick, []).append(sequence)

    def take_due(self) -> list[Sequence]:
        """Take the rows to check before the step that is being planned."""
        due = self._calendar.pop(self._tick, None)
        if due is None:
            return []
        # A sequence that left and joined again may be listed twice.
        return [row for row in dict.fromkeys(due) if row.stage is SequenceStage.RUNNING and row.due_tick == self._tick]

    def assemble(self) -> tuple[tuple[int, ...], dict[int, Sequence]]:
        """Put all rows into the step. Returns its slots and their sequences; steps share both while the batch stays the
        same."""
        if self._changed:
            self._slots, self._by_slot = tuple(self.rows), dict(self.rows)
            self._changed = False
        if self._slots:
            self._tick += 1
        return self._slots, self._by_slot
