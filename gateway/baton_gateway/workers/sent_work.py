"""The prompts and sequences that this process sent to workers and that have not ended: its own knowledge of their load.

A worker reports ten times a second. What its tokens say meanwhile is counted here: the first token of a prompt says
that it is computed, and a last token that a slot is free. A worker's messages keep their order, so its next report
has counted them. Plain bookkeeping.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_gateway.workers.linked_workers import LinkedWorker
from baton_wire.messages.values import TokenEntry


@dataclass(slots=True, eq=False)
class _SentRun:
    attempt: int
    computing: LinkedWorker | None = None
    """The worker that computes the prompt; None: its first token has come."""
    tokens: int = 0
    """The tokens that it has to compute."""
    decoding: LinkedWorker | None = None
    sequences: int = 0
    """Sequences that have not ended at the worker that decodes them."""


@dataclass(slots=True)
class SentWork:
    """Open runs by id. Tells their workers' records what has ended."""

    _runs: dict[bytes, _SentRun] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._runs)

    def record_prompt(self, run: bytes, attempt: int, worker: LinkedWorker, tokens: int) -> None:
        """A worker was sent a prompt of which it computes this many tokens."""
        sent = self._attempt(run, attempt)
        sent.computing, sent.tokens = worker, tokens

    def record_sequences(self, run: bytes, attempt: int, worker: LinkedWorker, sequences: int) -> None:
        """A worker was sent sequences to decode."""
        sent = self._attempt(run, attempt)
        sent.decoding, sent.sequences = worker, sequences

    def take(self, entry: TokenEntry) -> bool:
        """Take the first or the last tokens of a sequence. Returns whether a worker has more room than before."""
        sent = self._runs.get(entry.request)
        if sent is None or sent.attempt != entry.attempt:
            return False
        has_room = self._take_computed(sent)
        if entry.finish is not None and sent.decoding is not None and sent.sequences > 0:
            sent.sequences -= 1
            sent.decoding.record_ended(1)
            return True
        return has_room

    def take_encoded(self, run: bytes) -> bool:
        """Take the result of an encoded prompt. Returns whether a worker has more room than before."""
        sent = self._runs.get(run)
        return sent is not None and self._take_computed(sent)

    def end(self, run: bytes) -> bool:
        """End a run: its workers were told to drop what they have of it. Its prompt counts until they report. Returns
        whether a worker has more room than before."""
        sent = self._runs.pop(run, None)
        if sent is None or sent.decoding is None or not sent.sequences:
            return False
        sent.decoding.record_ended(sent.sequences)
        return True

    def _attempt(self, run: bytes, attempt: int) -> _SentRun:
        sent = self._runs.get(run)
        if sent is None or sent.attempt != attempt:
            self.end(run)
            sent = self._runs[run] = _SentRun(attempt)
        return sent

    def _take_computed(self, sent: _SentRun) -> bool:
        worker = sent.computing
        if worker is None:
            return False
        worker.record_computed(sent.tokens)
        sent.computing = None
        return True
