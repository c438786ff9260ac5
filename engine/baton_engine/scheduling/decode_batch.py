"""The running rows, advanced all at once: a step's host cost does not grow with the batch.

Every row of the batch moves by one token per assembled step, so a row's context length follows from one shared count of
steps. A row needs attention only at known steps (it needs a block, or it is its last); those are kept in a calendar.
"""

from __future__ import annotations

from baton_engine.scheduling.sequence import Sequence, SequenceStage


class DecodeBatch:
    """Sequences in stage RUNNING, by slot in the order of joining."""

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
        """A sequence with `kv_tokens` of context becomes a row; the caller says by `call` when it needs attention."""
        assert sequence.slot is not None
        self.rows[sequence.slot] = sequence
        sequence.stage = SequenceStage.RUNNING
        sequence.base = sequence.kv_tokens - self._tick
        self._changed = True

    def leave(self, sequence: Sequence, stage: SequenceStage) -> None:
        """The row is in no further step."""
        assert sequence.slot is not None
        del self.rows[sequence.slot]
        sequence.kv_tokens = self.kv_tokens(sequence)
        sequence.stage = stage
        self._changed = True

    def call(self, sequence: Sequence, kv_tokens: int) -> None:
        """The row needs attention before the step in which its context length is `kv_tokens`."""
        sequence.due = kv_tokens - sequence.base
        self._calendar.setdefault(sequence.due, []).append(sequence)

    def take_due(self) -> list[Sequence]:
        """Rows that need attention before the step that is being planned."""
        due = self._calendar.pop(self._tick, None)
        if due is None:
            return []
        # A sequence that left and came back may stand here twice.
        return [row for row in dict.fromkeys(due) if row.stage is SequenceStage.RUNNING and row.due == self._tick]

    def assemble(self) -> tuple[tuple[int, ...], dict[int, Sequence]]:
        """The slots of this step and their sequences; both are shared between steps while the batch stays the same."""
        if self._changed:
            self._slots, self._by_slot = tuple(self.rows), dict(self.rows)
            self._changed = False
        if self._slots:
            self._tick += 1
        return self._slots, self._by_slot
