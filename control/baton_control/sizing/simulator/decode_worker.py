"""A simulated decode worker: continuous batching, advanced many steps at once between the events that change the
batch.

Within one *regime* the batch is fixed, so step i takes base + c·(kv + b·i) and n steps take n·(base + c·kv) +
c·b·n·(n - 1)/2; when a request lands in between, the border after its landing is found by solving that for n. The
cost of a simulation therefore grows with requests, not with tokens.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil, sqrt

from baton_control.sizing.inputs.worker_model import WorkerModel

WATERMARK = 0.98
"""The share of the KV pool that reservations may fill; the rest is for the running sequences to grow."""
PER_SEQUENCE = 256.0
"""Tokens that a sequence counts on top of its own when a worker is chosen."""


class DecodeWorker:
    """State of one worker; the simulator owns the clock and calls in order of time."""

    __slots__ = (
        "active",
        "base_s",
        "border_s",
        "created_s",
        "draining",
        "finishing",
        "is_dead",
        "kind",
        "kv_tokens",
        "landed",
        "model",
        "per_kv_s",
        "planned_steps",
        "preempted",
        "ready_s",
        "reserved",
        "reserved_tokens",
        "steps",
        "version",
        "waiting",
        "waiting_tokens",
    )

    def __init__(self, created_s: float, ready_s: float, model: WorkerModel, kind: str = "") -> None:
        self.created_s = created_s
        self.ready_s = ready_s
        self.model = model
        self.kind = kind
        """The type of accelerator, where a pool may have several."""
        self.per_kv_s = model.decode.per_kv_token_s
        self.draining = False
        self.is_dead = False
        self.active: dict[int, tuple[int, int, int]] = {}
        """request → (step after which it has all tokens, step at which it joined, tokens it came with); newest last"""
        self.finishing: list[tuple[int, int]] = []
        """heap of (step after which it has all tokens, request); entries of preempted requests are stale"""
        self.landed: list[tuple[int, int, int]] = []
        """(request, tokens, steps to go), admitted at the next border"""
        self.reserved: dict[int, int] = {}
        self.reserved_tokens = 0
        self.waiting: deque[tuple[int, int]] = deque()
        self.waiting_tokens = 0
        self.kv_tokens = 0
        self.steps = 0
        self.border_s = 0.0
        self.base_s = 0.0
        self.planned_steps = 0
        self.version = 0
        self.preempted = 0

    @property
    def is_idle(self) -> bool:
        return not self.active and not self.landed and not self.reserved and not self.waiting

    def reserve(self, request: int, tokens: int) -> bool:
        """Blocks for a prompt, or a place in the queue for them."""
        if not self.waiting and self._fits(tokens):
            self.reserved[request] = tokens
            self.reserved_tokens += tokens
            return True
        self.waiting.append((request, tokens))
        self.waiting_tokens += tokens
        return False

    def grant_waiting(self) -> list[int]:
        """Requests whose turn has come."""
        granted = []
        while self.waiting and self._fits(self.waiting[0][1]):
            request, tokens = self.waiting.popleft()
            self.waiting_tokens -= tokens
            self.reserved[request] = tokens
            self.reserved_tokens += tokens
            granted.append(request)
        return granted

    def _fits(self, tokens: int) -> bool:
        held = self.kv_tokens + self.reserved_tokens
        if held == 0:
            return True  # one request alone always runs, however long: the gateway refused longer ones
        room = held + tokens <= self.model.kv_capacity_tokens * WATERMARK
        return room and len(self.active) + len(self.reserved) < self.model.max_sequences

    def land(self, request: int, tokens: int, steps_to_go: int) -> None:
        """The KV of a reserved request is verified; it joins the batch at the next border."""
        self.landed.append((request, tokens, steps_to_go))

    def next_event(self, now: float) -> float:
        """When something changes next: a finish, a full pool, or the border at which landed requests join."""
        batch = len(self.active)
        if batch == 0:
            self.border_s = now
            self.planned_steps = 0
            return now
        finishing = self.finishing
        while finishing[0][1] not in self.active or self.active[finishing[0][1]][0] != finishing[0][0]:
            heapq.heappop(finishing)
        steps = finishing[0][0] - self.steps
        if batch > 1:
            room = self.model.kv_capacity_tokens - self.kv_tokens - self.reserved_tokens
            steps = min(steps, max(1, room // batch))
        if self.landed:
            steps = min(steps, self._steps_until(now))
        self.planned_steps = steps
        return self.border_s + self._seconds(steps)

    def arrive_at_border(self, now: float) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Do the planned steps and change the batch; returns the finished and the preempted requests.

        A preempted request is (request, tokens it has now, tokens still to come): the newest goes first.
        """
        steps, active = self.planned_steps, self.active
        self.steps += steps
        self.kv_tokens += steps * len(active)
        self.border_s = now
        self.planned_steps = 0
        finished = []
        while self.finishing and self.finishing[0][0] <= self.steps:
            step, request = heapq.heappop(self.finishing)
            entry = active.get(request)
            if entry is not None and entry[0] == step:
                del active[request]
                self.kv_tokens -= entry[2] + step - entry[1]
                finished.append(request)
        preempted = self._preempt()
        for request, tokens, to_go in self.landed:
            self.reserved_tokens -= self.reserved.pop(request)
            self.kv_tokens += tokens
            active[request] = (self.steps + to_go, self.steps, tokens)
            heapq.heappush(self.finishing, (self.steps + to_go, request))
        self.landed.clear()
        self.base_s = self.model.decode.base_s(len(active))
        return finished, preempted

    def drop_all(self) -> list[tuple[int, int, int]]:
        """Drop every request, as the worker died: (request, tokens to prefill again, tokens still to come) each.

        Tokens of a request that had not joined the batch are 0 here: the caller knows what it came with.
        """
        lost = [
            (request, tokens + self.steps - joined, max(1, finish - self.steps))
            for request, (finish, joined, tokens) in self.active.items()
        ]
        lost += [(request, 0, 0) for request in self.reserved]
        lost += [(request, 0, 0) for request, _ in self.waiting]
        self.active.clear()
        self.landed.clear()
        self.reserved.clear()
        self.waiting.clear()
        self.kv_tokens = self.reserved_tokens = self.waiting_tokens = 0
        return lost

    def _preempt(self) -> list[tuple[int, int, int]]:
        out = []
        while len(self.active) > 1:
            if self.kv_tokens + self.reserved_tokens + len(self.active) <= self.model.kv_capacity_tokens:
                break
            request, (finish, joined, tokens) = self.active.popitem()
            held = tokens + self.steps - joined
            self.kv_tokens -= held
            self.preempted += 1
            out.append((request, held, finish - self.steps))
        return out

    def _seconds(self, steps: int) -> float:
        growth = self.per_kv_s * len(self.active)
        return steps * (self.base_s + self.per_kv_s * self.kv_tokens) + growth * steps * (steps - 1) / 2

    def _steps_until(self, now: float) -> int:
        """How many steps end at the first border at or after `now`."""
        elapsed = now - self.border_s
        if elapsed <= 0:
            return 0
        half = self.per_kv_s * len(self.active) / 2
        linear = self.base_s + self.per_kv_s * self.kv_tokens - half
        if half <= 0:
            return max(1, ceil(elapsed / linear - 1e-9))
        return max(1, ceil((sqrt(linear * linear + 4 * half * elapsed) - linear) / (2 * half) - 1e-9))


def least_room(worker: DecodeWorker) -> float:
    """Sort key for routing: KV held, promised and asked for, as of the last event, and a little for each sequence."""
    return worker.kv_tokens + worker.reserved_tokens + worker.waiting_tokens + PER_SEQUENCE * len(worker.active)
