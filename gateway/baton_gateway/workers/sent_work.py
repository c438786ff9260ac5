"""The prompts and sequences that this process sent to workers and that have not ended: its own knowledge of their load.

A worker reports ten times a second. What its messages say meanwhile is counted here: the first token of a prompt says
that it is computed, and a last token, or a leg that failed, that slots are free. A Cancel frees them too. A worker's
messages keep their order, so its next report has counted them. Plain bookkeeping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton_gateway.workers.linked_workers import LinkedWorker
from baton_gateway.workers.outbox import ToWorker
from baton_wire.messages.encoding import Encode
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, Reserve
from baton_wire.messages.values import TokenEntry


@dataclass(slots=True, eq=False)
class _SentRun:
    attempt: int
    computing: LinkedWorker | None = None
    """The worker that computes the prompt; None: its first token has come."""
    tokens: int = 0
    """The tokens that it has to compute."""
    decoding: LinkedWorker | None = None
    choices: set[int] = field(default_factory=set)
    """Choices that have not ended at the worker that decodes them."""


@dataclass(slots=True)
class SentWork:
    """Open runs by id. Counts in their workers' records what was sent and what has ended."""

    _runs: dict[bytes, _SentRun] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._runs)

    def record(self, worker: LinkedWorker, message: ToWorker, missing_tokens: int | None = None) -> bool:
        """Count a message that was sent to a worker. `missing_tokens`: tokens of its prompt that the worker probably
        has not cached; None: all of them. Returns whether a worker has more room than before."""
        if isinstance(message, Cancel):
            return self._cancel(worker, message)
        if not isinstance(message, Prefill | Reserve | Encode):
            return False
        sent = self._attempt(message.request, message.attempt)
        tokens = len(message.tokens) // 4 if missing_tokens is None else missing_tokens
        choices = () if isinstance(message, Encode) else message.choices
        is_computed = not isinstance(message, Reserve) or message.prefill_epoch is None
        worker.record_sent(tokens, len(choices) or 1, is_computed=is_computed)
        if is_computed:
            sent.computing, sent.tokens = worker, tokens
        if isinstance(message, Reserve):
            sent.decoding, sent.choices = worker, set(choices)
        return False

    def take(self, entry: TokenEntry) -> bool:
        """Take the first or the last tokens of a sequence. Returns whether a worker has more room than before."""
        sent = self._runs.get(entry.request)
        if sent is None or sent.attempt != entry.attempt:
            return False
        has_room = self._take_computed(sent)
        return (entry.finish is not None and self._take_ended(sent, (entry.choice,))) or has_room

    def take_encoded(self, run: bytes) -> None:
        """Take the result of an encoded prompt."""
        sent = self._runs.get(run)
        if sent is not None:
            self._take_computed(sent)

    def take_failed(self, epoch: bytes, failed: LegFailed) -> bool:
        """Take a worker's message that its part of a run ended early. Returns whether it has more room than before."""
        sent = self._runs.get(failed.request)
        if sent is None or sent.attempt != failed.attempt:
            return False
        has_room = not failed.kept and _is(sent.computing, epoch) and self._take_computed(sent)
        return (_is(sent.decoding, epoch) and self._take_ended(sent, sent.choices)) or has_room

    def end(self, run: bytes) -> bool:
        """End a run: its workers drop what they have of it. Its prompt counts until they report. Returns
        whether a worker has more room than before."""
        sent = self._runs.pop(run, None)
        return sent is not None and self._take_ended(sent, sent.choices)

    def _attempt(self, run: bytes, attempt: int) -> _SentRun:
        sent = self._runs.get(run)
        if sent is None or sent.attempt != attempt:
            self.end(run)
            sent = self._runs[run] = _SentRun(attempt)
        return sent

    def _cancel(self, worker: LinkedWorker, cancel: Cancel) -> bool:
        sent = self._runs.get(cancel.request)
        if sent is None or sent.attempt != cancel.attempt or sent.decoding is not worker:
            return False
        return self._take_ended(sent, sent.choices if cancel.choice is None else (cancel.choice,))

    def _take_computed(self, sent: _SentRun) -> bool:
        worker = sent.computing
        if worker is None:
            return False
        worker.record_computed(sent.tokens)
        sent.computing = None
        return True

    def _take_ended(self, sent: _SentRun, choices: Iterable[int]) -> bool:
        """Count choices that have ended, each once: a finish may be repeated, or come after its Cancel."""
        ended = sent.choices.intersection(choices)
        if not ended or sent.decoding is None:
            return False
        sent.choices -= ended
        sent.decoding.record_ended(len(ended))
        return True


def _is(worker: LinkedWorker | None, epoch: bytes) -> bool:
    return worker is not None and worker.hello.epoch == epoch
