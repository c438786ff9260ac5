"""A decode pool by itself, with prefill taken as free: the twin's workers and routing, and no other parts."""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil, inf, sqrt

import numpy as np

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.decode_worker import PER_SEQUENCE, WATERMARK, DecodeWorker, least_room


def answers_end(model: WorkerModel, workload: Workload, workers: int) -> Floats:
    """When each answer of the workload ends, in seconds, if so many workers serve from the start and first tokens come
    as the requests arrive."""
    done_s = _with_room(model, workload, workers)
    return _with_full_pools(model, workload, workers) if done_s is None else done_s


def answers_alone(model: WorkerModel, workload: Workload) -> Floats:
    """What each answer takes behind its first token, in seconds, if there is no other."""
    steps, per_kv_s = np.maximum(0, workload.output_tokens - 1), model.decode.per_kv_token_s
    linear = model.decode.base_s(1) + per_kv_s * workload.prompt_tokens
    return np.asarray(model.hand_over_s + steps * linear + per_kv_s * steps * (steps - 1) / 2)


def _with_room(model: WorkerModel, workload: Workload, workers: int) -> Floats | None:  # noqa: C901
    """The same, written out for speed; None when somebody would be preempted. Else `DecodeWorker` to the last digit."""
    arrivals = [*workload.arrival_s.tolist(), inf]
    tokens = workload.prompt_tokens.tolist()
    to_go = np.maximum(0, workload.output_tokens - 1).tolist()
    done_s, joined = [inf] * len(tokens), [0] * len(tokens)
    hand_over_s, per_kv_s, capacity = model.hand_over_s, model.decode.per_kv_token_s, model.kv_capacity_tokens
    most_tokens, most = capacity * WATERMARK, model.max_sequences
    base_s = [model.decode.base_s(0)]
    """By the size of the batch."""
    places = range(workers)
    batch, coming, kv, reserved, steps, planned = ([0] * workers for _ in range(6))
    since, pace, rooms = ([0.0] * workers for _ in range(3))
    finishing: list[list[tuple[int, int]]] = [[] for _ in places]
    landed: list[list[int]] = [[] for _ in places]
    waiting: list[deque[int]] = [deque() for _ in places]
    borders = [inf] * workers
    landings: deque[tuple[float, int, int]] = deque()
    request, border, landing_s, arrival_s = 0, inf, inf, arrivals[0]
    while True:
        if arrival_s < border and arrival_s < landing_s:
            place = rooms.index(min(rooms)) if workers > 1 else 0
            size = tokens[request]
            held = kv[place] + reserved[place]
            rooms[place] += size
            if waiting[place] or (held and (held + size > most_tokens or batch[place] + coming[place] >= most)):
                waiting[place].append(request)
            else:
                reserved[place] += size
                coming[place] += 1
                landings.append((arrival_s + hand_over_s, request, place))
                landing_s = landings[0][0]
            request += 1
            arrival_s = arrivals[request]
            continue
        if landing_s <= border:
            if landing_s == inf:
                return np.array(done_s)
            now, joining, place = landings.popleft()
            landing_s = landings[0][0] if landings else inf
            landed[place].append(joining)
            if len(landed[place]) > 1:
                continue
            count = batch[place]
        else:
            now, place = border, borders.index(border)
            count, step = batch[place], steps[place] + planned[place]
            held = kv[place] + planned[place] * count
            ends = finishing[place]
            while ends and ends[0][0] <= step:
                end, ended = heapq.heappop(ends)
                held -= tokens[ended] + end - joined[ended]
                done_s[ended] = now
                count -= 1
            if count > 1 and held + reserved[place] + count > capacity:
                return None
            for joining in landed[place]:
                reserved[place] -= tokens[joining]
                held += tokens[joining]
                joined[joining] = step
                heapq.heappush(ends, (step + to_go[joining], joining))
                count += 1
            coming[place] -= len(landed[place])
            landed[place].clear()
            queue, missing = waiting[place], 0
            while queue:
                size, promised = tokens[queue[0]], held + reserved[place]
                if promised and (promised + size > most_tokens or count + coming[place] >= most):
                    missing = sum(tokens[each] for each in queue)
                    break
                reserved[place] += size
                coming[place] += 1
                landings.append((now + hand_over_s, queue.popleft(), place))
                landing_s = landings[0][0]
            while len(base_s) <= count:
                base_s.append(model.decode.base_s(len(base_s)))
            batch[place], kv[place], steps[place], since[place] = count, held, step, now
            planned[place], pace[place] = 0, base_s[count]
            rooms[place] = held + reserved[place] + missing + PER_SEQUENCE * count
            if not count:
                borders[place] = inf
                border = min(borders)
                continue
        if not count:
            since[place], planned[place], borders[place] = now, 0, now
        else:
            more = finishing[place][0][0] - steps[place]
            held = kv[place]
            if count > 1 and held + reserved[place] + more * count > capacity:
                more = min(more, max(1, (capacity - held - reserved[place]) // count))
            linear = pace[place] + per_kv_s * held
            growth = per_kv_s * count
            if landed[place]:
                elapsed = now - since[place]
                if elapsed <= 0:
                    more = min(more, 0)
                else:
                    half = growth / 2
                    least = linear - half
                    if half <= 0:
                        until = elapsed / least
                    else:
                        until = (sqrt(least * least + 4 * half * elapsed) - least) / (2 * half)
                    steps_until = ceil(until - 1e-9)
                    if steps_until < more:
                        more = steps_until if steps_until > 1 else min(more, 1)
            planned[place] = more
            end_s = since[place] + (more * linear + growth * more * (more - 1) / 2)
            borders[place] = end_s if end_s > now else now
        border = min(borders) if workers > 1 else borders[0]


def _with_full_pools(model: WorkerModel, workload: Workload, workers: int) -> Floats:
    """The same, whatever is full."""
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
