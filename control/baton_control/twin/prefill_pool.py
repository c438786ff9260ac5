"""A prefill pool by itself, with decode taken as free: the twin's workers and order of prompts, and no other parts.

Sizing asks this thousands of times an hour, mostly about pools that have an idle worker when a prompt comes.
"""

from __future__ import annotations

import heapq
from math import inf

import numpy as np

from baton_control.sizing.worker_model import WorkerModel
from baton_control.sizing.workload import Floats, Workload
from baton_control.twin.prefill import PrefillWorker, least_loaded
from baton_wire.rules.prompt_order import PromptOrder


def first_tokens(
    model: WorkerModel, workload: Workload, workers: int, prefix_affinity: float, ttft_s: float | None
) -> Floats:
    """When each request of the workload has its first token, in seconds, if so many workers serve from the start."""
    times = model.prefill
    found = prefix_affinity + (1.0 - prefix_affinity) / workers
    cached = np.minimum((workload.cached_tokens * found).astype(np.int64), workload.prompt_tokens - 1)
    new = workload.prompt_tokens - cached
    pairs = new * (cached + new / 2)
    alone_s = (times.fixed_s + times.per_token_s * new + times.per_pair_s * pairs).tolist()
    prompts = list(zip(new.tolist(), cached.tolist(), strict=True))
    arrivals = [*workload.arrival_s.tolist(), inf]
    first_s = [inf] * len(prompts)
    order: PromptOrder[int] = PromptOrder(ttft_s)
    pool = [PrefillWorker(0.0, 0.0) for _ in range(workers)]
    ends: list[tuple[float, int, int]] = []
    """heap of (when a step ends, its number, its worker)"""
    started = request = 0
    while True:
        now = arrivals[request]
        if ends and ends[0][0] <= now:
            now, _, place = heapq.heappop(ends)
            worker = pool[place]
            for done in worker.batch:
                first_s[done] = now + model.gateway_s
            worker.batch = []
            worker.pinned_tokens = 0
            end_s = worker.start_batch(now, model)
            if end_s is not None:
                started += 1
                heapq.heappush(ends, (end_s, started, place))
        elif now == inf:
            return np.array(first_s)
        else:
            request += 1
            if len(ends) < workers and not order:  # its turn at once, with an idle worker
                place = next(place for place, worker in enumerate(pool) if not worker.batch)
                pool[place].batch = [request - 1]
                pool[place].busy_until = now + alone_s[request - 1]
                started += 1
                heapq.heappush(ends, (pool[place].busy_until, started, place))
                continue
            order.push(request - 1, now, alone_s[request - 1])
        while order:
            new_tokens, cached_tokens = prompts[order.first(now)]
            worker = least_loaded(pool, now)
            if worker.is_backed_up(new_tokens, now, model):
                break
            worker.enqueue(order.pop(), new_tokens, cached_tokens, times)
            end_s = worker.start_batch(now, model)
            if end_s is not None:
                started += 1
                heapq.heappush(ends, (end_s, started, pool.index(worker)))
