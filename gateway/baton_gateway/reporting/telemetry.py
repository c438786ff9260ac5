"""Telemetry for the process that sizes the pools: arrivals, lengths, latencies, backlog and linked workers.

Counts accumulate between two summaries, however long that takes, so time without a link loses nothing. The size of
everything is bounded, whatever the traffic. Plain bookkeeping; `operator_link` sends.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from baton_gateway.workers.linked_workers import LinkedWorker
from baton_wire.messages.measures import (
    MAX_SHAPES,
    ArrivalCounts,
    Backlog,
    RequestLengths,
    Served,
    WorkerCondition,
    WorkerMeasures,
)
from baton_wire.messages.operator_link import MAX_WORKERS, Summary
from baton_wire.rules.answer_lengths import AnswerLengths
from baton_wire.rules.context_reuse import ContextReuse
from baton_wire.sketch import Sketch


class _Prompt(msgspec.Struct, frozen=True):
    tokens: int
    cached: int
    max_tokens: int


class LoadTelemetry:
    """Counts since the last summary. `now` is the event loop's clock."""

    def __init__(self, now: float = 0.0, random: Random | None = None) -> None:
        self._random = random or Random()
        self._since = now
        self._number = 0
        self._accepted = self._queued = self._refused = self._unserved = 0
        self._prompts: list[_Prompt] = []
        self._num_prompts = 0
        self._mean_missing: float | None = None
        """Tokens of a prompt that its worker had not cached."""
        self._answers = AnswerLengths()
        self._prompt_tokens, self._output_tokens, self._cached_tokens = Sketch(), Sketch(), Sketch()
        self.contexts = ContextReuse()
        """How soon contexts are used again."""
        self.ttft, self.tpot = Sketch(), Sketch()
        """Latencies that clients saw, in seconds; `tpot` has the mean gap between the tokens of each ended sequence."""

    # Events -----------------------------------------------------------------------------------------------------------

    def began(self, now: float) -> None:
        """The process serves from now on."""
        self._since = now

    def offered(self, waits: bool) -> None:
        """A request arrived and was accepted: at once, or into the queue."""
        if waits:
            self._queued += 1
        else:
            self._accepted += 1

    def refused(self) -> None:
        """A request arrived and was refused."""
        self._refused += 1
        self._unserved += 1

    def branched(self, more: int) -> None:
        """A request turned out to be several sequences (prompts, choices)."""
        self._accepted += more

    def prompt(self, tokens: int, cached: int, max_tokens: int, choices: int) -> None:
        """A prompt was routed for the first time, to a worker that had `cached` tokens of it. Further choices of it
        find all of it cached."""
        self._prompt_tokens.add(tokens)
        self._cached_tokens.add(cached)
        missing = tokens - cached
        mean = missing if self._mean_missing is None else self._mean_missing
        self._mean_missing = mean + 0.05 * (missing - mean)
        for choice in range(choices):
            self._sample(_Prompt(tokens, cached if choice == 0 else tokens, max_tokens))

    def output(self, now: float, prompt_tokens: int, tokens: int) -> None:
        """A sequence ended after `tokens` tokens."""
        if tokens > 0:
            self._answers.ended(now, prompt_tokens, tokens)
            self._output_tokens.add(tokens)

    def unserved(self) -> None:
        """A request failed, or was refused after it had been accepted."""
        self._unserved += 1

    # Reports ----------------------------------------------------------------------------------------------------------

    def look(self, now: float, running: Iterable[tuple[int, int]]) -> None:
        """Take the running answers into account before a summary. `running`: (prompt tokens, tokens so far) of each."""
        self._answers.look(now, running)

    def backlog(self, waiting: int, parked: int, oldest_s: float, without_prompt: int) -> Backlog:
        """The backlog now. `without_prompt`: requests that were not sent to a worker."""
        mean = self._mean_missing
        tokens = 0 if not without_prompt else None if mean is None else int(mean * without_prompt)
        return Backlog(waiting, parked, max(0.0, oldest_s), tokens)

    def summary(
        self, now: float, at_s: float, backlog: Backlog, workers: Iterable[LinkedWorker], config_hash: str
    ) -> Summary:
        """The summary since the last one; counts restart. By its number the receiver notices a lost one."""
        self._number += 1
        measures = worker_measures(list(workers))
        summary = Summary(
            number=self._number,
            at_s=at_s,
            seconds=max(0.0, now - self._since),
            arrived=self._arrived(),
            served=Served(self.ttft.take(), self.tpot.take(), self._unserved),
            backlog=backlog,
            workers=tuple(measures[:MAX_WORKERS]),
            workers_left_out=max(0, len(measures) - MAX_WORKERS),
            config_hash=config_hash,
            contexts=self.contexts.take(now),
        )
        self._since, self._unserved = now, 0
        return summary

    def _arrived(self) -> ArrivalCounts:
        sample = tuple(
            RequestLengths(prompt.tokens, self._likely_output(prompt), prompt.cached) for prompt in self._prompts
        )
        arrived = ArrivalCounts(
            accepted=self._accepted,
            queued=self._queued,
            refused=self._refused,
            prompt_tokens=self._prompt_tokens.take(),
            output_tokens=self._output_tokens.take(),
            cached_tokens=self._cached_tokens.take(),
            sample=sample,
        )
        self._accepted = self._queued = self._refused = self._num_prompts = 0
        self._prompts = []
        return arrived

    def _likely_output(self, prompt: _Prompt) -> int:
        return max(1, min(self._answers.likely(prompt.tokens, self._random.random()), prompt.max_tokens))

    def _sample(self, prompt: _Prompt) -> None:
        """Reservoir sampling: each prompt of the window is kept with the same probability."""
        self._num_prompts += 1
        if len(self._prompts) < MAX_SHAPES:
            self._prompts.append(prompt)
        elif (place := self._random.randrange(self._num_prompts)) < MAX_SHAPES:
            self._prompts[place] = prompt


def worker_measures(workers: list[LinkedWorker]) -> list[WorkerMeasures]:
    """The measures of the linked workers. Takes their accumulated step timings."""
    live = {(worker.role, worker.hello.fingerprint) for worker in workers if worker.condition is WorkerCondition.LIVE}
    return [
        _measures(worker, _needs_none(worker) or (worker.role.partner, worker.hello.fingerprint) in live)
        for worker in workers
    ]


def _needs_none(worker: LinkedWorker) -> bool:
    """True for a worker that serves without a partner: it only encodes."""
    return worker.hello.encoding is not None and not worker.hello.encoding.generates


def _measures(worker: LinkedWorker, has_partner: bool) -> WorkerMeasures:
    hello, state = worker.hello, worker.state
    load = None if worker.has_implausible_load else state
    return WorkerMeasures(
        role=worker.role,
        epoch=hello.epoch,
        template_hash=hello.template_hash,
        address=worker.address,
        condition=worker.condition,
        has_partner=has_partner,
        running=None if load is None else load.running,
        waiting=None if load is None else load.waiting,
        waiting_tokens=None if load is None else load.waiting_tokens,
        block_tokens=hello.block_tokens,
        blocks_total=hello.blocks_total,
        blocks_free=None if load is None else load.blocks_free,
        kv_bytes=None if state is None else state.kv_bytes,
        startup_s=None if state is None else state.startup_s,
        timings=worker.take_timings(),
        lanes=None if state is None else state.lanes,
        flips=hello.flips,
        flip=worker.reported_flip,
    )
