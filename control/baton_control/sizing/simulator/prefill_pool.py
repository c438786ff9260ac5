"""A prefill pool by itself, with decode taken as free: the twin's workers and order of prompts, and no other parts.

Sizing asks this thousands of times an hour. So `PrefillWorker` and `PromptOrder` are written out here, to the last
digit, and what cannot change between two steps is not looked at again.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from math import inf

import numpy as np

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Ints, Workload
from baton_control.sizing.simulator.prefill_worker import PINNED_SHARE
from baton_wire.rules.prompt_order import BEGIN_SHARE, PLAN_PROMPT_S, PLAN_S

QUESTION_PLAN_S = 0.2
"""So often a question of sizing reckons who is set aside. Gateways do so more often. That takes up to four times as
long and sees as many late, within a point near the limit."""
Timed = tuple[float, int]
"""(latest start, request)"""


def first_tokens(  # noqa: C901
    model: WorkerModel,
    workload: Workload,
    workers: int,
    prefix_affinity: float,
    ttft_s: float | None,
    plan_s: float = PLAN_S,
) -> Floats:
    """When each request of the workload has its first token, in seconds, if so many workers serve from the start.

    `plan_s`: so often at most it is reckoned who has to be set aside.
    """
    times = model.prefill
    fresh, attended = _to_compute(workload, prefix_affinity + (1.0 - prefix_affinity) / workers)
    single_s = times.fixed_s + times.per_token_s * fresh + times.per_pair_s * attended
    slack_s = np.zeros(len(fresh))
    if ttft_s is not None:
        slack_s = np.where(single_s <= BEGIN_SHARE * ttft_s, BEGIN_SHARE * ttft_s - single_s, BEGIN_SHARE * ttft_s)
    latest_s = (workload.arrival_s + slack_s).tolist()
    alone_s, new, pairs = single_s.tolist(), fresh.tolist(), attended.tolist()
    own_s = (times.per_token_s * fresh + times.per_pair_s * attended).tolist()
    whole = workload.prompt_tokens.tolist()
    fixed_s, per_token_s, per_pair_s, gateway_s = times.fixed_s, times.per_token_s, times.per_pair_s, model.gateway_s
    budget, room, hold_s = model.max_step_tokens, model.kv_capacity_tokens * PINNED_SHARE, model.hold_s
    arrivals = [*workload.arrival_s.tolist(), inf]
    first_s = [inf] * len(new)
    in_time: list[Timed] = []
    aside: list[Timed] = []
    """Those who would make more of the others late. Both ascend."""
    late: deque[int] = deque()
    plans_s = -inf
    idle = bytearray(b"\1" * workers)
    queues: list[list[int]] = [[] for _ in range(workers)]
    queued_tokens, queued_s, busy_until = [0] * workers, [0.0] * workers, [0.0] * workers
    free_s = [0.0] * workers
    """When each has done what is before it; of those at work."""
    ends: list[tuple[float, int, int]] = []
    """heap of (when a step ends, its number, its worker)"""
    started = request = 0
    freest = -1
    """Who has least before it, while all are at work; the same until a step ends or somebody gets a prompt."""

    def begin(place: int, now: float) -> None:
        """The next step of an idle worker that has prompts."""
        nonlocal started
        batch, tokens = queues[place], queued_tokens[place]
        if len(batch) > 1 and (tokens > budget or sum([whole[each] for each in batch]) > room):
            count = tokens = held = 0
            for each in batch:
                if count and (tokens + new[each] > budget or held + whole[each] > room):
                    break
                count += 1
                tokens += new[each]
                held += whole[each]
                queued_s[place] -= own_s[each]
            batch, queues[place] = batch[:count], batch[count:]
        else:
            queues[place] = []
        queued_tokens[place] -= tokens
        if not queues[place]:
            queued_s[place] = 0.0  # what rounding left
        idle[place] = 0
        pair_count = sum([pairs[each] for each in batch])
        busy_until[place] = end_s = now + (fixed_s + per_token_s * tokens + per_pair_s * pair_count)
        free_s[place] = end_s + queued_s[place]
        token_s = end_s + gateway_s
        for each in batch:
            first_s[each] = token_s
        started += 1
        heapq.heappush(ends, (end_s, started, place))

    while True:
        now = arrivals[request]
        if ends and ends[0][0] <= now:
            now, _, place = heapq.heappop(ends)
            idle[place] = 1
            freest = -1
            if queues[place]:
                begin(place, now)
        elif now == inf:
            return np.array(first_s)
        else:
            turn = request
            request += 1
            if not in_time and not aside and not late:  # its turn at once
                if len(ends) < workers:  # with an idle worker
                    if now >= plans_s:
                        plans_s = now + plan_s
                    place = idle.find(1)
                    idle[place] = 0
                    free_s[place] = busy_until[place] = end_s = now + alone_s[turn]
                    first_s[turn] = end_s + gateway_s
                    started += 1
                    freest = -1
                    heapq.heappush(ends, (end_s, started, place))
                    continue
                if freest < 0:
                    freest = free_s.index(min(free_s))
                tokens_before = queued_tokens[freest]
                if hold_s is None and (not tokens_before or tokens_before + new[turn] <= budget):  # in a next step
                    if now >= plans_s:
                        plans_s = now + plan_s
                    queues[freest].append(turn)
                    queued_tokens[freest] += new[turn]
                    queued_s[freest] += own_s[turn]
                    free_s[freest] += own_s[turn]
                    freest = -1
                    continue
            insort(in_time, (latest_s[turn], turn))
        while in_time or aside or late:
            if freest < 0:
                freest = idle.find(1)
            if freest < 0:
                freest = free_s.index(min(free_s))
            tokens_before = queued_tokens[freest]
            if hold_s is not None:
                if not idle[freest] and queued_s[freest] + (busy_until[freest] - now) > hold_s:
                    break
            elif tokens_before and tokens_before + 1 > budget:
                break
            if ttft_s is not None:
                while in_time and in_time[0][0] < now:
                    is_aside = aside and aside[0] < in_time[0]
                    late.append((aside if is_aside else in_time).pop(0)[1])
                while aside and aside[0][0] < now:
                    late.append(aside.pop(0)[1])
                if now >= plans_s:
                    in_time, aside = line(in_time, aside, alone_s, now, workers)
                    plans_s = now + max(plan_s, PLAN_PROMPT_S * (len(in_time) + len(aside)))
            timed = in_time or aside
            turn = timed[0][1] if timed else late[0]
            if hold_s is None and tokens_before and tokens_before + new[turn] > budget:
                break
            if timed:
                del timed[0]
            else:
                late.popleft()
            place, freest = freest, -1
            queues[place].append(turn)
            queued_tokens[place] += new[turn]
            queued_s[place] += own_s[turn]
            free_s[place] += own_s[turn]
            if idle[place]:
                begin(place, now)


def seldom_meeting(model: WorkerModel, workload: Workload, ttft_s: float) -> Floats:
    """`first_tokens` of one worker, as questions reckon them, where few requests meet another: those alone are
    played."""
    fresh, attended = _to_compute(workload, 1.0)
    alone_s = model.prefill.fixed_s + model.prefill.per_token_s * fresh + model.prefill.per_pair_s * attended
    worked_s = np.cumsum(alone_s + QUESTION_PLAN_S)  # one that came just before may have been reckoned with
    free_s = worked_s + np.maximum.accumulate(workload.arrival_s - np.append(0.0, worked_s[:-1]))
    is_before_next = free_s[:-1] > workload.arrival_s[1:]
    meeting = np.flatnonzero(np.append(is_before_next, False) | np.append(False, is_before_next))
    first_s = np.asarray(workload.arrival_s + alone_s + model.gateway_s)
    first_s[meeting] = first_tokens(model, workload.taken(meeting), 1, 1.0, ttft_s, QUESTION_PLAN_S)
    return first_s


def _to_compute(workload: Workload, found: float) -> tuple[Ints, Floats]:
    """Of each request the tokens to compute and their (token, attended position) pairs. `found`: of the tokens that may
    be cached, the share that is."""
    cached = np.minimum((workload.cached_tokens * found).astype(np.int64), workload.prompt_tokens - 1)
    fresh = workload.prompt_tokens - cached
    return fresh, fresh * (cached + fresh / 2)


def line(
    in_time: list[Timed], aside: list[Timed], own_s: list[float], now: float, workers: int
) -> tuple[list[Timed], list[Timed]]:
    """Who stays in line and who is set aside, in order: the longest, as soon as one could not start in time behind
    those before it (`PromptOrder`, for one tenant). `own_s`: of each request, what a worker computes it."""
    timed = sorted(in_time + aside) if aside else in_time
    if not timed or now + sum([own_s[each] for _, each in timed]) / workers <= timed[0][0]:
        return timed, []
    before_s, fit = 0.0, 0
    for latest_s, each in timed:
        if now + before_s / workers > latest_s:
            break
        before_s += own_s[each]
        fit += 1
    if fit == len(timed):
        return timed, []
    kept = [(-own_s[each], -each) for _, each in timed[:fit]]
    heapq.heapify(kept)
    gone: set[int] = set()
    for latest_s, each in timed[fit:]:
        heapq.heappush(kept, (-own_s[each], -each))
        while now + before_s / workers > latest_s:
            longest = -heapq.heappop(kept)[1]
            gone.add(longest)
            if longest == each:
                break
            before_s -= own_s[longest]
        else:
            before_s += own_s[each]
    return [each for each in timed if each[1] not in gone], [each for each in timed if each[1] in gone]
