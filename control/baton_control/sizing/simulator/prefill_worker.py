"""A simulated prefill worker: whole prompts batched under a token budget, finished KV pinned until it was sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.simulator.decode_worker import DecodeWorker
from baton_wire.rules.step_times import PrefillTimes, attended_pairs

PINNED_SHARE = 0.8
"""The share of the KV pool that running prompts and finished KV may take together."""


class PrefillWorker:
    """State of one worker; the simulator owns the clock and calls in order of time."""

    __slots__ = (
        "batch",
        "batch_pairs",
        "batch_tokens",
        "busy_until",
        "created_s",
        "draining",
        "former",
        "is_dead",
        "kind",
        "link_free_s",
        "model",
        "pinned_tokens",
        "queue",
        "queued_s",
        "queued_tokens",
        "ready_s",
        "seconds_batched",
        "started_s",
        "unsent",
    )

    def __init__(self, created_s: float, ready_s: float, model: WorkerModel, kind: str = "") -> None:
        self.created_s = created_s
        self.ready_s = ready_s
        self.model = model
        self.kind = kind
        """The type of accelerator, where a pool may have several."""
        self.draining = False
        self.is_dead = False
        self.former: DecodeWorker | None = None
        """The decode worker that it was before a flip, as long as that has work."""
        self.queue: deque[tuple[int, int, int]] = deque()
        """(request, tokens to compute, tokens cached)"""
        self.queued_tokens = 0
        self.queued_s = 0.0
        self.batch: list[int] = []
        self.batch_tokens, self.batch_pairs = 0, 0.0
        """Tokens to compute in the running step, and (token, attended position) pairs."""
        self.started_s = 0.0
        self.busy_until = 0.0
        self.pinned_tokens = 0
        self.link_free_s = 0.0
        self.unsent = 0
        """Finished prompts whose KV has not left yet."""
        self.seconds_batched = 0.0

    def enqueue(self, request: int, tokens: int, cached: int, times: PrefillTimes) -> None:
        self.queue.append((request, tokens, cached))
        self.queued_tokens += tokens
        self.queued_s += times.prompt_s(tokens, cached)

    def load_s(self, now: float) -> float:
        """Seconds of work before a new prompt could start."""
        return self.queued_s + (self.busy_until - now if self.batch else 0.0)

    def is_backed_up(self, tokens: int, now: float, model: WorkerModel) -> bool:
        """True where a prompt of that many tokens waits at the gateway rather than here."""
        if model.hold_s is not None:
            return self.load_s(now) > model.hold_s
        return bool(self.queue) and self.queued_tokens + tokens > model.max_step_tokens

    def start_batch(self, now: float, model: WorkerModel) -> float | None:
        """Take prompts up to the budget; returns when the step ends, None when there is nothing to do or no room."""
        if self.batch or not self.queue:
            return None
        room = model.prefill_capacity_tokens * PINNED_SHARE - self.pinned_tokens
        tokens_sum, pairs_sum = 0, 0.0
        while self.queue:
            request, tokens, cached = self.queue[0]
            if self.batch and tokens_sum + tokens > model.max_step_tokens:
                break
            if (self.batch or self.pinned_tokens) and tokens + cached > room:
                break
            self.queue.popleft()
            self.batch.append(request)
            self.queued_tokens -= tokens
            self.queued_s -= model.prefill.prompt_s(tokens, cached)
            self.pinned_tokens += tokens + cached
            room -= tokens + cached
            tokens_sum += tokens
            pairs_sum += attended_pairs(tokens, cached)
        if not self.batch:
            return None
        if not self.queue:
            self.queued_s = 0.0  # what rounding left
        self.batch_tokens, self.batch_pairs = tokens_sum, pairs_sum
        self.started_s = now
        shared = 1.0 if self.former is None or self.former.is_dead else 2.0
        self.busy_until = now + shared * model.prefill.seconds(tokens_sum, pairs_sum)
        self.seconds_batched += self.busy_until - now
        return self.busy_until

    def send(self, kv_bytes: float, granted_s: float, finished_s: float, model: WorkerModel) -> float:
        """When the KV of a prompt has landed: streamed while it is computed if granted by then, else after the grant.

        Streaming cannot hide the last layer; a link that is busy with earlier prompts delays all of it.
        """
        seconds = kv_bytes / model.link_bytes_per_s
        start = max(
            self.link_free_s, min(max(granted_s, self.started_s), finished_s) if granted_s <= finished_s else granted_s
        )
        self.link_free_s = start + seconds
        last_layer = finished_s + seconds / model.layers
        return max(self.link_free_s, last_layer) + model.hand_over_s

    @property
    def is_idle(self) -> bool:
        return not self.batch and not self.queue and self.unsent == 0


def least_loaded(workers: Sequence[PrefillWorker], now: float) -> PrefillWorker:
    """The first idle worker, else the one that is free first."""
    best, best_s = workers[0], inf
    for worker in workers:
        load_s = worker.queued_s + (worker.busy_until - now if worker.batch else 0.0)
        if load_s < best_s:
            best, best_s = worker, load_s
            if load_s <= 0.0:
                break
    return best
