"""The simulator of a deployment: gateway queue, prefill workers, KV links and decode workers on one event heap.

The same rules as the real parts: a prompt goes to the prefill worker with the least work and, at the same time,
reserves blocks on the decode worker with the most room; finished KV waits pinned for its grant; a request joins
its decode batch at the next step border. It is deterministic: the caller draws what is random, such as step noise and
start-up times. Left out: single layers, network faults, the gateway's fairness between tenants.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Sequence
from math import inf, nan

import numpy as np

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.decode_worker import DecodeWorker, least_room
from baton_control.sizing.simulator.prefill_worker import PrefillWorker, least_loaded
from baton_control.sizing.simulator.worker_choice import ByLoad, WorkerChoice
from baton_wire.messages.values import Role
from baton_wire.rules.prompt_order import PLAN_S, PromptOrder

Worker = PrefillWorker | DecodeWorker


class Kind(enum.IntEnum):
    """The kind of an event on the heap."""

    PREFILLED = 0
    LANDED = 1
    BORDER = 2
    READY = 3
    DUE = 4


class Simulator:
    """One deployment under one workload. Drive it with `run_until` and change its pools in between."""

    def __init__(
        self,
        model: WorkerModel,
        workload: Workload,
        patience_s: float = inf,
        ttft_s: float | None = None,
        free: Role | None = None,
        plan_s: float = PLAN_S,
        choice: WorkerChoice | None = None,
    ) -> None:
        """`ttft_s`: the target by which prompts wait their turn; without one they go in order of arrival. `free`: the
        pool that takes no time and needs no workers, so that the other is seen by itself. `plan_s`: see `PromptOrder`.
        `choice`: how requests find their workers, by default by load.
        """
        self.model = model
        self.patience_s = patience_s
        self.choice = ByLoad() if choice is None else choice
        self.now = 0.0
        self.arrival_s: list[float] = workload.arrival_s.tolist()
        self.prompt: list[int] = workload.prompt_tokens.tolist()
        self.output: list[int] = workload.output_tokens.tolist()
        self.cached: list[int] = workload.cached_tokens.tolist()
        size = len(self.arrival_s)
        self.first_s = [nan] * size
        """When the client had its first token; not a number: not yet, or refused."""
        self.done_s = [nan] * size
        self.retries = 0
        self.rejected = 0
        self.next_arrival = 0
        self.free = free
        self.gateway: PromptOrder[int] = PromptOrder(ttft_s, plan_s)
        self.gateway_tokens = 0
        self.gateway_missing_tokens = 0
        """Tokens of the queued prompts that workers probably have not cached."""
        self.prefill: list[PrefillWorker] = []
        self.decode: list[DecodeWorker] = []
        self.routable_prefill: list[PrefillWorker] = []
        self.routable_decode: list[DecodeWorker] = []
        self._billed: dict[tuple[Role, str], float] = {}
        """Accelerator seconds of workers that have gone, by kind."""
        self.finished: list[int] = []
        """Requests that ended since the caller last cleared this list."""
        self._prompt_now: list[int] = list(self.prompt)
        self._missing_now = [0] * size
        """Tokens that a queued prompt probably misses."""
        self._to_go = [0] * size if free is Role.DECODE else [max(0, output - 1) for output in self.output]
        self._decode_of: list[DecodeWorker | None] = [None] * size
        self._prefill_of: list[PrefillWorker | None] = [None] * size
        self._granted_s = [inf] * size
        self._attempt = [0] * size
        self._is_computed = [False] * size
        """Prefilled in the present attempt."""
        self._heap: list[tuple[float, int, int, int, int, Worker | None]] = []
        self._order = 0
        self.on_due: Callable[[int], None] = lambda tag: None
        """Called at the time of a wake-up that `wake_at` asked for."""
        self.on_finish: Callable[[int], None] = lambda request: None
        """Called when a request has ended, also by being refused."""

    # --- pools -------------------------------------------------------------------------------------------------

    def add(self, role: Role, ready_s: float, model: WorkerModel | None = None, kind: str = "") -> None:
        """Start a worker that will be routable at `ready_s`; billed from now on. `model`: its step times, if it is of
        another `kind` than the rest of its pool."""
        worker: Worker
        if role is Role.PREFILL:
            self.prefill.append(worker := PrefillWorker(self.now, ready_s, model or self.model, kind))
        else:
            self.decode.append(worker := DecodeWorker(self.now, ready_s, model or self.model, kind))
        self._push(max(ready_s, self.now), Kind.READY, 0, 0, worker)

    def remove(self, role: Role, kind: str = "") -> None:
        """Stop one worker of that kind: the newest that is still starting, else the least loaded, which finishes its
        work first."""
        pool: list[Worker] = [w for w in self._pool(role) if w.kind == kind and not w.draining]
        starting = [worker for worker in pool if worker.ready_s > self.now]
        if starting:
            self._remove_worker(role, starting[-1])
            return
        self._reap(self._drain(pool))

    def _drain(self, pool: list[Worker]) -> Worker:
        """The least loaded worker, which gets nothing more."""
        worker = min(pool, key=lambda w: w.load_s(self.now) if isinstance(w, PrefillWorker) else least_room(w))
        worker.draining = True
        self._unroute(worker)
        if isinstance(worker, PrefillWorker):
            self._return_queue(worker)
        else:
            self._return_waiting(worker)
        return worker

    def flip(self, giver: Role, seconds: float) -> bool:
        """The least loaded routable worker of a pool serves in the other after `seconds`, on the same accelerators.

        It finishes the work of its old role on the side; while it decodes sequences, prefill steps take twice as long.
        False: none is routable.
        """
        pool: list[Worker] = list(self.routable_prefill if giver is Role.PREFILL else self.routable_decode)
        if not pool:
            return False
        worker = self._drain(pool)
        self._bill(worker)
        worker.created_s = inf
        self.add(giver.partner, self.now + seconds, worker.model, worker.kind)
        if isinstance(worker, DecodeWorker):
            self.prefill[-1].former = worker
        self._reap(worker)
        return True

    def kill(self, role: Role) -> None:
        """One routable worker dies; its requests are tried again elsewhere."""
        pool: list[Worker] = [w for w in self._pool(role) if w.ready_s <= self.now]
        if not pool:
            return
        worker = pool[0]
        worker.is_dead = True
        self._unroute(worker)
        self._remove_worker(role, worker)
        if isinstance(worker, PrefillWorker):
            for request in range(self.next_arrival):
                if self._prefill_of[request] is worker:
                    self._retry(request)
        else:
            for request, tokens, to_go in worker.drop_all():
                if tokens:
                    self._prompt_now[request], self._to_go[request] = tokens, to_go
                self._retry(request)
        self._dispatch()

    def workers(self, role: Role) -> int:
        """Workers that were started and not asked to stop."""
        return sum(1 for worker in self._pool(role) if not worker.draining)

    def routable(self, role: Role) -> int:
        return len(self.routable_prefill if role is Role.PREFILL else self.routable_decode)

    def kinds(self, role: Role) -> dict[str, tuple[int, int]]:
        """(workers started and not asked to stop, routable ones) of each kind."""
        routable = set(map(id, self.routable_prefill if role is Role.PREFILL else self.routable_decode))
        counts: dict[str, tuple[int, int]] = {}
        for worker in self._pool(role):
            if not worker.draining:
                workers, serving = counts.get(worker.kind, (0, 0))
                counts[worker.kind] = (workers + 1, serving + (id(worker) in routable))
        return counts

    def billed_s(self) -> float:
        """Accelerator seconds until now, with start-up and drain."""
        return sum(self.billed_by_kind().values())

    def billed_by_kind(self) -> dict[tuple[Role, str], float]:
        """The same by pool and kind."""
        billed = dict(self._billed)
        for role in (Role.PREFILL, Role.DECODE):
            for worker in self._pool(role):
                key = role, worker.kind
                billed[key] = billed.get(key, 0.0) + self._billed_s(worker)
        return billed

    def _bill(self, worker: Worker) -> None:
        key = (Role.PREFILL if isinstance(worker, PrefillWorker) else Role.DECODE), worker.kind
        self._billed[key] = self._billed.get(key, 0.0) + self._billed_s(worker)

    def _billed_s(self, worker: Worker) -> float:
        """Accelerator seconds of one worker until now; none once another role of it is billed."""
        accelerators = worker.model.accelerators[0 if isinstance(worker, PrefillWorker) else 1]
        return max(0.0, self.now - worker.created_s) * accelerators

    def latencies(self) -> tuple[Floats, Floats]:
        """TTFT and TPOT of each request in seconds; infinite for what never ended. One token has no gap: 0."""
        first, output = np.array(self.first_s), np.array(self.output)
        ttft = np.where(np.isnan(first), inf, first - np.array(self.arrival_s))
        tpot = (np.array(self.done_s) - first) / np.maximum(1, output - 1)
        return ttft, np.where(np.isnan(tpot), inf, np.where(output > 1, tpot, 0.0))

    # --- time --------------------------------------------------------------------------------------------------

    def run_until(self, end_s: float) -> None:
        """Everything up to and including `end_s`."""
        arrivals, heap, size = self.arrival_s, self._heap, len(self.arrival_s)
        while True:
            arrival = arrivals[self.next_arrival] if self.next_arrival < size else inf
            event = heap[0][0] if heap else inf
            soonest = min(arrival, event)
            if soonest > end_s or soonest == inf:
                break
            if arrival < event:
                self.now = arrival
                request = self.next_arrival
                self.next_arrival += 1
                self._arrive(request)
            else:
                self.now, _, kind, request, tag, worker = heapq.heappop(heap)
                self._handle(kind, request, tag, worker)
        if end_s < inf:
            self.now = max(self.now, end_s)

    def run_out(self) -> None:
        """Until nothing is left to happen."""
        self.run_until(inf)

    def wake_at(self, at_s: float, tag: int) -> None:
        """Call `on_due` with the tag at that time."""
        self._push(max(at_s, self.now), Kind.DUE, tag, 0, None)

    def arrive(self, prompt: int, output: int, cached: int) -> int:
        """A request arrives now, besides those of the workload, which must be over. Returns its number."""
        request = len(self.arrival_s)
        assert request == self.next_arrival, "requests are numbered in order of arrival"
        columns: list[tuple[list[int], int]] = [
            (self.prompt, prompt), (self.output, output), (self.cached, cached), (self._prompt_now, prompt),
            (self._to_go, 0 if self.free is Role.DECODE else max(0, output - 1)), (self._attempt, 0),
            (self._missing_now, 0),
        ]  # fmt: skip
        for column, value in columns:
            column.append(value)
        self.arrival_s.append(self.now)
        self.first_s.append(nan)
        self.done_s.append(nan)
        self._decode_of.append(None)
        self._prefill_of.append(None)
        self._granted_s.append(inf)
        self._is_computed.append(False)
        self.next_arrival += 1
        self._arrive(request)
        return request

    def _push(self, at_s: float, kind: Kind, request: int, tag: int, worker: Worker | None) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at_s, self._order, kind, request, tag, worker))

    def _handle(self, kind: int, request: int, tag: int, worker: Worker | None) -> None:
        if kind == Kind.BORDER:
            assert isinstance(worker, DecodeWorker)
            if worker.version == tag and not worker.is_dead:
                self._border(worker)
        elif kind == Kind.LANDED:
            if self._attempt[request] == tag:
                self._land(request)
        elif kind == Kind.PREFILLED:
            assert isinstance(worker, PrefillWorker)
            if not worker.is_dead:
                self._finish_prefill(worker)
        elif kind == Kind.DUE:
            self.on_due(request)
        else:
            assert worker is not None
            self._ready(worker)

    # --- a request ---------------------------------------------------------------------------------------------

    def _arrive(self, request: int) -> None:
        if self.free is Role.PREFILL:
            self.first_s[request] = self.now
            if self._to_go[request]:
                self._reserve(request)
            else:
                self._finish(request, self.now)
            return
        prefill = self.model.prefill
        cached = self.choice.expected_cached(request, self)
        tokens = self._prompt_now[request] - cached
        self.gateway.push(request, self.now, prefill.fixed_s + prefill.prompt_s(tokens, cached))
        self._count_queued(request, tokens)
        self._dispatch()

    def _dispatch(self) -> None:
        """Hand queued prompts to prefill workers that can start them with their next step."""
        gateway, now = self.gateway, self.now
        while gateway and self.routable_prefill and (self.routable_decode or self.free is Role.DECODE):
            worker = least_loaded(self.routable_prefill, now)
            is_open = not worker.is_backed_up(1, now, worker.model)
            request = gateway.first(now, len(self.routable_prefill) if is_open else 0)
            if now - self.arrival_s[request] > self.patience_s and self.first_s[request] != self.first_s[request]:
                self._take()
                self.rejected += 1
                self.finished.append(request)
                self.on_finish(request)
                continue
            if not is_open:
                return
            worker, decode, cached = self.choice.choose(request, worker, self)
            tokens = self._prompt_now[request] - cached
            if self.choice.waits_for_room and worker.is_backed_up(tokens, now, worker.model):
                return
            self._take()
            self.choice.sent(request, worker, decode)
            self._prefill_of[request] = worker
            self._granted_s[request] = inf
            self._is_computed[request] = False
            worker.enqueue(request, tokens, cached, worker.model.prefill)
            if self._to_go[request] > 0:
                self._reserve(request, decode)
            self._start(worker)

    def _take(self) -> None:
        request = self.gateway.pop()
        self.gateway_tokens -= self._prompt_now[request]
        self.gateway_missing_tokens -= self._missing_now[request]

    def _count_queued(self, request: int, missing: int) -> None:
        self._missing_now[request] = missing
        self.gateway_tokens += self._prompt_now[request]
        self.gateway_missing_tokens += missing

    def prompt_now(self, request: int) -> int:
        """Tokens of a prompt, with the answer's tokens that it had before it was tried again."""
        return self._prompt_now[request]

    def _reserve(self, request: int, worker: DecodeWorker | None = None) -> None:
        worker = self.choice.choose_decode(request, self) if worker is None else worker
        self._decode_of[request] = worker
        if worker.reserve(request, self._prompt_now[request]):
            self._grant(request)

    def _grant(self, request: int) -> None:
        self._granted_s[request] = self.now
        if self.free is Role.PREFILL:
            self._push(self.now + self.model.hand_over_s, Kind.LANDED, request, self._attempt[request], None)
            return
        worker = self._prefill_of[request]
        if worker is not None and self._is_computed[request]:
            self._send(request, worker, self.now)

    def _start(self, worker: PrefillWorker) -> None:
        end_s = worker.start_batch(self.now, worker.model)
        if end_s is not None:
            self._push(end_s, Kind.PREFILLED, 0, 0, worker)

    def _finish_prefill(self, worker: PrefillWorker) -> None:
        batch, worker.batch = worker.batch, []
        for request in batch:
            if self.first_s[request] != self.first_s[request]:
                self.first_s[request] = self.now + self.model.gateway_s
            if self._to_go[request] == 0:
                worker.pinned_tokens -= self._prompt_now[request]
                self._prefill_of[request] = None
                self._finish(request, self.first_s[request])
                continue
            worker.unsent += 1
            self._is_computed[request] = True
            if self._granted_s[request] < inf:
                self._send(request, worker, self.now)
        self._start(worker)
        self._dispatch()
        if worker.draining:
            self._reap(worker)

    def _send(self, request: int, worker: PrefillWorker, finished_s: float) -> None:
        decode, tokens = self._decode_of[request], self._prompt_now[request]
        held = 0 if decode is None else self.choice.held_tokens(request, decode)
        kv_bytes = self.model.kv.of(tokens) * (1.0 - held / tokens)
        landed_s = worker.send(kv_bytes, self._granted_s[request], finished_s, worker.model)
        self._push(landed_s, Kind.LANDED, request, self._attempt[request], None)

    def _land(self, request: int) -> None:
        prefill = self._prefill_of[request]
        if prefill is not None:
            self._prefill_of[request] = None
            prefill.pinned_tokens -= self._prompt_now[request]
            prefill.unsent -= 1
            if prefill.queue and not prefill.batch:
                self._start(prefill)
            if prefill.draining:
                self._reap(prefill)
        worker = self._decode_of[request]
        assert worker is not None
        worker.land(request, self._prompt_now[request], self._to_go[request])
        if len(worker.landed) == 1:
            self._plan(worker)

    def _border(self, worker: DecodeWorker) -> None:
        finished, preempted = worker.arrive_at_border(self.now)
        for request in finished:
            self._finish(request, self.now)
        for request, tokens, to_go in preempted:
            self._prompt_now[request], self._to_go[request] = tokens, to_go
            self._retry(request)
        if worker.waiting:
            for request in worker.grant_waiting():
                self._grant(request)
        if worker.active:
            self._plan(worker)
        elif worker.draining:
            self._reap(worker)
        if preempted:
            self._dispatch()

    def _plan(self, worker: DecodeWorker) -> None:
        worker.version += 1
        self._push(max(self.now, worker.next_event(self.now)), Kind.BORDER, 0, worker.version, worker)

    def _finish(self, request: int, at_s: float) -> None:
        self.done_s[request] = at_s
        self.finished.append(request)
        self.on_finish(request)

    def _retry(self, request: int) -> None:
        """Back to the front of the gateway's queue, as a longer prompt if it had tokens already."""
        self.retries += 1
        self._attempt[request] += 1
        self._release_legs(request)
        if self.free is Role.PREFILL:
            self._reserve(request)
            return
        self.gateway.push_front(request)
        self._count_queued(request, self._prompt_now[request] - self.choice.expected_cached(request, self))

    def _release_legs(self, request: int) -> None:
        decode, prefill = self._decode_of[request], self._prefill_of[request]
        if decode is not None and not decode.is_dead:
            decode.reserved_tokens -= decode.reserved.pop(request, 0)
            decode.landed = [entry for entry in decode.landed if entry[0] != request]
            for entry in [entry for entry in decode.waiting if entry[0] == request]:
                decode.waiting.remove(entry)
                decode.waiting_tokens -= entry[1]
        if prefill is not None and not prefill.is_dead:
            self._leave_prefill(request, prefill)
        self._decode_of[request] = self._prefill_of[request] = None

    def _leave_prefill(self, request: int, worker: PrefillWorker) -> None:
        for entry in [entry for entry in worker.queue if entry[0] == request]:
            worker.queue.remove(entry)
            worker.queued_tokens -= entry[1]
            worker.queued_s -= worker.model.prefill.prompt_s(entry[1], entry[2])
            return
        if request in worker.batch:
            worker.batch.remove(request)  # its share of the running step is spent anyway
        else:
            worker.unsent -= 1
        worker.pinned_tokens -= self._prompt_now[request]

    # --- life of a worker --------------------------------------------------------------------------------------

    def _pool(self, role: Role) -> Sequence[Worker]:
        return self.prefill if role is Role.PREFILL else self.decode

    def _ready(self, worker: Worker) -> None:
        if worker.is_dead or worker.draining:
            return
        if isinstance(worker, PrefillWorker):
            self.routable_prefill.append(worker)
        else:
            self.routable_decode.append(worker)
        self._dispatch()

    def _unroute(self, worker: Worker) -> None:
        if isinstance(worker, PrefillWorker):
            self.routable_prefill = [other for other in self.routable_prefill if other is not worker]
        else:
            self.routable_decode = [other for other in self.routable_decode if other is not worker]

    def _return_queue(self, worker: PrefillWorker) -> None:
        for request in [entry[0] for entry in reversed(worker.queue)]:
            self._retry(request)
        self._dispatch()

    def _return_waiting(self, worker: DecodeWorker) -> None:
        """Requests without a grant are re-targeted; a finished prefill stays where it is until then."""
        waiting = list(worker.waiting)
        worker.waiting.clear()
        worker.waiting_tokens = 0
        for request, _ in waiting:
            if self.routable_decode:
                self._reserve(request)
            else:
                self._retry(request)

    def _reap(self, worker: Worker) -> None:
        if worker.is_idle and not worker.is_dead:
            self._remove_worker(Role.PREFILL if isinstance(worker, PrefillWorker) else Role.DECODE, worker)

    def _remove_worker(self, role: Role, worker: Worker) -> None:
        worker.is_dead = True
        self._bill(worker)
        if isinstance(worker, PrefillWorker):
            self.prefill = [other for other in self.prefill if other is not worker]
        else:
            self.decode = [other for other in self.decode if other is not worker]
