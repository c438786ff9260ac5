"""What this gateway process tells whoever sizes the pools: arrivals, lengths, latencies, backlog, linked workers.

Counts gather between two summaries, however long that is: time without a link loses nothing. Everything is bounded by
its kind, never by traffic. Plain bookkeeping; sending is `operator_link`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

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
from baton_wire.sketch import Sketch


@dataclass(frozen=True, slots=True)
class _Prompt:
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
        self._mean_prompt: float | None = None
        self._answers = AnswerLengths()
        self._prompt_tokens, self._output_tokens, self._cached_tokens = Sketch(), Sketch(), Sketch()
        self.ttft, self.tpot = Sketch(), Sketch()
        """What clients saw, in seconds; of a sequence that ended, the mean gap between its tokens."""

    # What happens -----------------------------------------------------------------------------------------------------

    def began(self, now: float) -> None:
        """The process serves from now on."""
        self._since = now

    def offered(self, waits: bool) -> None:
        """A request arrived and was taken: at once, or into the queue."""
        if waits:
            self._queued += 1
        else:
            self._accepted += 1

    def refused(self) -> None:
        """A request arrived and was told no."""
        self._refused += 1
        self._unserved += 1

    def branched(self, more: int) -> None:
        """A request turned out to be several sequences (prompts, choices)."""
        self._accepted += more

    def prompt(self, tokens: int, cached: int, max_tokens: int, choices: int) -> None:
        """A prompt was routed for the first time. Further choices of it find all of it cached."""
        self._prompt_tokens.add(tokens)
        self._cached_tokens.add(cached)
        mean = tokens if self._mean_prompt is None else self._mean_prompt
        self._mean_prompt = mean + 0.05 * (tokens - mean)
        for choice in range(choices):
            self._drawn(_Prompt(tokens, cached if choice == 0 else tokens, max_tokens))

    def output(self, now: float, prompt_tokens: int, tokens: int) -> None:
        """A sequence ended after so many tokens."""
        if tokens > 0:
            self._answers.ended(now, prompt_tokens, tokens)
            self._output_tokens.add(tokens)

    def unserved(self) -> None:
        """A request failed, or was told no after it had been taken."""
        self._unserved += 1

    # What is told -----------------------------------------------------------------------------------------------------

    def look(self, now: float, running: Iterable[tuple[int, int]]) -> None:
        """Before a summary. `running`: (tokens of its prompt, tokens so far) of each answer that has begun."""
        self._answers.look(now, running)

    def backlog(self, waiting: int, parked: int, oldest_s: float, without_prompt: int) -> Backlog:
        """`without_prompt`: requests that no worker has been told of."""
        mean = self._mean_prompt
        tokens = 0 if not without_prompt else None if mean is None else int(mean * without_prompt)
        return Backlog(waiting, parked, max(0.0, oldest_s), tokens)

    def summary(
        self, now: float, at_s: float, backlog: Backlog, workers: Iterable[LinkedWorker], config_hash: str
    ) -> Summary:
        """Everything since the last one; counting begins anew. Its number tells the receiver whether one was lost."""
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

    def _drawn(self, prompt: _Prompt) -> None:
        """Reservoir sampling: each prompt of the window is kept with the same probability."""
        self._num_prompts += 1
        if len(self._prompts) < MAX_SHAPES:
            self._prompts.append(prompt)
        elif (place := self._random.randrange(self._num_prompts)) < MAX_SHAPES:
            self._prompts[place] = prompt


def worker_measures(workers: list[LinkedWorker]) -> list[WorkerMeasures]:
    """What is known of the linked workers; their gathered step timings are taken."""
    live = {(worker.role, worker.hello.fingerprint) for worker in workers if worker.condition is WorkerCondition.LIVE}
    return [
        _measures(worker, any(role is not worker.role and fit == worker.hello.fingerprint for role, fit in live))
        for worker in workers
    ]


def _measures(worker: LinkedWorker, has_partner: bool) -> WorkerMeasures:
    hello, state = worker.hello, worker.state
    load = None if worker.doubted else state
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
        timings=worker.taken_timings(),
        lanes=None if state is None else state.lanes,
        flips=hello.flips,
        flip=worker.flip_told,
    )
