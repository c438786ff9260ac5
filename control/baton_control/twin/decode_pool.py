"""A decode pool by itself, with prefill taken as free: the twin's workers and routing, and no other parts."""

from __future__ import annotations

from collections import deque
from math import inf

import numpy as np

from baton_control.sizing.worker_model import WorkerModel
from baton_control.sizing.workload import Floats, Workload
from baton_control.twin.decode import DecodeWorker, least_room


def answers_end(model: WorkerModel, workload: Workload, workers: int) -> Floats:
    """When each answer of the workload ends, in seconds, if so many workers serve from the start and first tokens come
    as the requests arrive."""
    arrivals = [*workload.arrival_s.tolist(), inf]
    tokens = workload.prompt_tokens.tolist()
    to_go = np.maximum(0, workload.output_tokens - 1).tolist()
    done_s = [inf] * len(tokens)
    pool = [DecodeWorker(0.0, 0.0, model) for _ in range(workers)]
    borders = [inf] * workers
    """Of each worker, when its batch changes next."""
    landings: deque[tuple[float, int, int]] = deque()
    """(when its KV has landed, request, worker), in order: all take as long"""
    request = 0

    def reserve(request: int) -> None:
        place = 0 if workers == 1 else min(range(workers), key=lambda each: least_room(pool[each]))
        if pool[place].reserve(request, tokens[request]):
            landings.append((now + model.hand_over_s, request, place))

    while True:
        now = min(borders)
        landing_s = landings[0][0] if landings else inf
        if arrivals[request] < now and arrivals[request] < landing_s:
            now = arrivals[request]
            reserve(request)
            request += 1
        elif landing_s <= now:
            if landing_s == inf:
                return np.array(done_s)
            now, landed, place = landings.popleft()
            worker = pool[place]
            worker.land(landed, tokens[landed], to_go[landed])
            if len(worker.landed) == 1:
                borders[place] = max(now, worker.next_event(now))
        else:
            place = borders.index(now)
            worker = pool[place]
            finished, preempted = worker.arrive_at_border(now)
            for each in finished:
                done_s[each] = now
            for each, held, left in preempted:
                tokens[each], to_go[each] = held, left
                reserve(each)
            if worker.waiting:
                landings.extend((now + model.hand_over_s, each, place) for each in worker.grant_waiting())
            borders[place] = max(now, worker.next_event(now)) if worker.active else inf
