"""The order in which prompts wait at a gateway while every prefill worker is busy: by their target, late ones last.

The prompt that has to start soonest to meet the TTFT target goes first (least slack first, Dertouzos 1974).
Prompts that are late already go last. Served in order of arrival, a backlog would make all prompts after it late as
well. Gateways keep their prompts in this order, and the simulator predicts it.

Late prompts go in the order of arrival, each as if it had come `PATIENCE` times its own duration later. So a session's
next turn, of which little is to be computed, does not wait for a backlog of long first prompts; and a long prompt waits
for later short ones no longer than `PATIENCE` times what it takes itself.

When more waits than can be computed in time, some prompts will be late. Then the longest prompts are deferred, as few
as possible (Moore 1968, with Hodgson's rule): a long one would make several short ones late. With several tenants it is
the longest prompt of the tenant that has most in line for its weight, so that a flood of short ones makes itself late.
Deferred prompts come after all that are in time, and return to the line as soon as there is room for them.

Where the prompts of several tenants wait, the tenant that was served the least for its weight goes first, and its
own prompts in this order. So a flood that was let in delays no other tenant. A tenant that was served no more than
its share goes before others that were, even with a late prompt: the others might always have prompts in time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from baton_wire.liveness import REPORT_S
from baton_wire.rules.gateway_rounds import HeldRank, Urgency

BUSY_S = 0.5
"""Work that surely keeps a worker from falling idle before more can reach it."""
BUSY_SHARE = 0.3
"""Share of the TTFT target that the work before a prompt at a prefill worker may take. A worker computes in order of
arrival, late or not: with 0.5 s before it under a target of 0.5 s, every prompt of a full pool would be late."""
BEGIN_SHARE = 0.6
"""Share of the target by which a prompt must be computed if it were alone. The rest is for delays at the worker: the
step that runs there ends first. In simulated runs 0.6 misses a third less than 1, 0.8 a tenth less."""

PATIENCE = 40.0
"""Times its own duration that a late prompt waits for shorter ones that come after it."""

PLAN_S = 0.02
"""Least time between two plans of what to defer: a plan looks at all prompts that are in time."""
PLAN_PROMPT_S = 3e-5
"""More time between plans for each prompt: looking at one takes a tenth of this."""

T = TypeVar("T")


def busy_s(ttft_s: float | None) -> float:
    """A prefill worker with more work than this gets no more: prompts wait where any worker can still have them. Less
    than for `REPORT_S` can be over before more reaches it."""
    return BUSY_S if ttft_s is None else min(BUSY_S, max(REPORT_S, BUSY_SHARE * ttft_s))


class _Timed(NamedTuple, Generic[T]):
    """A prompt that is still in time. A heap orders them by the first two fields."""

    latest_s: float
    """When it has to start."""
    number: int
    own_s: float
    prompt: T
    tenant: str
    weight: float
    late_key: float
    """Smaller ones go first once they are late."""


class _Late(NamedTuple, Generic[T]):
    """A late prompt. A heap orders them by the first two fields."""

    key: float
    number: int
    prompt: _Timed[T]


class _Turn(NamedTuple, Generic[T]):
    """The first of one tenant's prompts."""

    rank: HeldRank
    prompt: _Timed[T]
    lead: float = 0.0
    """Service that the tenant got beyond its share."""

    @property
    def urgent_rank(self) -> HeldRank:
        return self.rank if self.lead > 0 else HeldRank.IN_TIME

    @property
    def key(self) -> tuple[HeldRank, float, HeldRank, float, int]:
        """Smaller ones go first."""
        start_s = self.prompt.late_key if self.rank is HeldRank.LATE else self.prompt.latest_s
        return self.urgent_rank, self.lead, self.rank, start_s, self.prompt.number


class PromptOrder(Generic[T]):
    """Prompts that wait for a prefill worker. Without a target they go in order of arrival.

    >>> order: PromptOrder[str] = PromptOrder(ttft_s=1.0)
    >>> order.push("long", arrival_s=0.0, own_s=0.05)
    >>> order.push("longer", arrival_s=0.0, own_s=0.5)
    >>> order.first(now=0.0), order.pop()
    ('longer', 'longer')
    >>> order.first(now=0.2)
    'long'
    """

    def __init__(self, ttft_s: float | None, plan_s: float = PLAN_S) -> None:
        """`plan_s`: the least time between two decisions about which prompts to set aside."""
        self.ttft_s = ttft_s
        self._plan_s = plan_s
        self._retried: deque[T] = deque()
        """Their clients have waited before: they go first."""
        self._in_time: list[_Timed[T]] = []
        """A heap."""
        self._deferred: list[_Timed[T]] = []
        """A heap of prompts that would make more of the others late."""
        self._late: dict[str, list[_Late[T]]] = {}
        """A heap of each tenant that has late prompts: they may be many, and a turn is that of one tenant's first."""
        self._tenants: Counter[str] = Counter()
        """Prompts of each tenant, without retried ones."""
        self._turn: _Turn[T] | None = None
        """Turn of the tenant that goes first, when `first` compared several."""
        self._pushed = 0
        self._plans_s = float("-inf")
        """When the next plan is due."""

    def __len__(self) -> int:
        late = sum(len(late) for late in self._late.values())
        return len(self._retried) + len(self._in_time) + len(self._deferred) + late

    def __iter__(self) -> Iterator[T]:
        """All prompts, in no order."""
        timed = itertools.chain(self._in_time, self._deferred, self._late_prompts())
        return itertools.chain(self._retried, (entry.prompt for entry in timed))

    @property
    def num_in_time(self) -> int:
        """The number of prompts that were in time when `first` looked last."""
        return len(self._in_time)

    def push(self, prompt: T, arrival_s: float, own_s: float, tenant: str = "", weight: float = 1.0) -> None:
        """`own_s`: seconds that a worker needs for it. A prompt that takes longer than its target waits as if it took
        none. `weight`: weight of its tenant among others."""
        slack_s = 0.0
        if self.ttft_s is not None:
            by_s = BEGIN_SHARE * self.ttft_s
            slack_s = by_s - own_s if own_s <= by_s else by_s
        self._pushed += 1
        self._tenants[tenant] += 1
        self._turn = None
        late_key = arrival_s + PATIENCE * own_s
        entry = _Timed(arrival_s + slack_s, self._pushed, own_s, prompt, tenant, weight, late_key)
        heapq.heappush(self._in_time, entry)

    def push_front(self, prompt: T) -> None:
        self._retried.appendleft(prompt)
        self._turn = None

    def first(self, now: float, workers: float = 0.0, lead: Callable[[str], float] | None = None) -> T:
        """The prompt whose turn it is; there must be one. `workers`: workers that compute side by side, or a part of
        one; 0: nothing is deferred. `lead`: service that a tenant got beyond its share; None: tenants are not
        compared."""
        if self.ttft_s is not None:
            while timed := self._soonest(now):
                entry = heapq.heappop(timed)
                late = self._late.setdefault(entry.tenant, [])
                heapq.heappush(late, _Late(entry.late_key, entry.number, entry))
            if workers and now >= self._plans_s:
                self._defer_longest(now, workers)
                in_time = len(self._in_time) + len(self._deferred)
                self._plans_s = now + max(self._plan_s, PLAN_PROMPT_S * in_time)
        self._turn = None
        if self._retried:
            return self._retried[0]
        if lead is not None and len(self._tenants) > 1:
            self._turn = self._fairest_turn(lead)
        return self._head().prompt

    def _head(self) -> _Timed[T]:
        """The first of the prompts that are not retried; there must be one."""
        if self._turn is not None:
            return self._turn.prompt
        timed = self._in_time or self._deferred
        return timed[0] if timed else min(late[0] for late in self._late.values()).prompt

    def _fairest_turn(self, lead: Callable[[str], float]) -> _Turn[T]:
        """The first prompt of the tenant with the least lead. Looks at all prompts that are not late."""
        turns: dict[str, _Turn[T]] = {}
        for rank, prompts in ((HeldRank.IN_TIME, self._in_time), (HeldRank.SET_ASIDE, self._deferred)):
            for prompt in prompts:
                turn = turns.get(prompt.tenant)
                if turn is None or (turn.rank is rank and prompt < turn.prompt):
                    turns[prompt.tenant] = _Turn(rank, prompt)
        for tenant, late in self._late.items():
            turns.setdefault(tenant, _Turn(HeldRank.LATE, late[0].prompt))
        leading = (turn._replace(lead=lead(tenant)) for tenant, turn in turns.items())
        return min(leading, key=lambda turn: turn.key)

    def _late_prompts(self) -> Iterator[_Timed[T]]:
        return (entry.prompt for late in self._late.values() for entry in late)

    def _soonest(self, now: float) -> list[_Timed[T]] | None:
        """The heap whose head became late first of all; None if no prompt is late."""
        late = [timed for timed in (self._in_time, self._deferred) if timed and timed[0].latest_s < now]
        return min(late, key=lambda timed: timed[0][:2], default=None)

    def pop(self) -> T:
        """Remove the prompt that `first` just returned."""
        if self._retried:
            return self._retried.popleft()
        head = self._head()
        self._turn = None
        self._tenants[head.tenant] -= 1
        if not self._tenants[head.tenant]:
            del self._tenants[head.tenant]
        for timed in (self._in_time, self._deferred):
            if timed and timed[0] is head:
                heapq.heappop(timed)
                return head.prompt
            if head in timed:
                timed.remove(head)
                heapq.heapify(timed)
                return head.prompt
        late = self._late[head.tenant]
        heapq.heappop(late)
        if not late:
            del self._late[head.tenant]
        return head.prompt

    def own_s(self) -> float:
        """Seconds that a worker needs for the prompt that `first` just returned; 0 for a late or retried prompt."""
        if self._retried or self._rank() is HeldRank.LATE:
            return 0.0
        return self._head().own_s

    def _rank(self) -> HeldRank:
        if self._turn is not None:
            return self._turn.rank
        return HeldRank.IN_TIME if self._in_time else HeldRank.SET_ASIDE if self._deferred else HeldRank.LATE

    def urgency(self) -> Urgency:
        """Urgency of the prompt that `first` would return now, if none became late since its last call."""
        if self._retried:
            return Urgency(HeldRank.IN_TIME)
        rank = self._rank()
        if rank is HeldRank.LATE and self._turn is not None:
            return Urgency(self._turn.urgent_rank)
        return Urgency(rank) if rank is HeldRank.LATE else Urgency(rank, self._head().latest_s)

    def drop_late(self, is_over: Callable[[T], bool]) -> None:
        """Drop late prompts whose clients have gone: their turn may be far away."""
        for tenant, late in list(self._late.items()):
            if kept := [entry for entry in late if not is_over(entry.prompt.prompt)]:
                heapq.heapify(kept)
                self._late[tenant] = kept
            else:
                del self._late[tenant]
        waiting = itertools.chain(self._in_time, self._deferred, self._late_prompts())
        self._tenants, self._turn = Counter(timed.tenant for timed in waiting), None

    def _defer_longest(self, now: float, workers: float) -> None:
        """Go through prompts in order; whenever one could not start in time after those before it, defer the
        longest."""
        timed, line, before_s = sorted(self._in_time + self._deferred), _Line[T](), 0.0
        self._in_time, self._deferred = timed, []
        if not timed or now + sum(prompt.own_s for prompt in timed) / workers <= timed[0].latest_s:
            return
        for prompt in timed:
            line.add(prompt)
            while now + before_s / workers > prompt.latest_s:
                longest = line.pop_longest()
                self._deferred.append(longest)
                if longest is prompt:
                    break
                before_s -= longest.own_s
            else:
                before_s += prompt.own_s
        deferred = {prompt.number for prompt in self._deferred}
        self._in_time = [prompt for prompt in timed if prompt.number not in deferred]  # sorted, so a heap
        heapq.heapify(self._deferred)


class _Line(Generic[T]):
    """Prompts in line, to find the longest one of the tenant with most work for its weight."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, list[tuple[float, int, _Timed[T]]]] = {}
        """(-own seconds, -number, prompt) of each tenant, a heap: of equally long prompts the latest first."""
        self._work: dict[str, float] = {}
        """Seconds of each tenant, divided by its weight."""
        self._most: list[tuple[float, str]] = []
        """(-work, tenant), a heap; entries with outdated work are skipped."""

    def add(self, prompt: _Timed[T]) -> None:
        heapq.heappush(self._by_tenant.setdefault(prompt.tenant, []), (-prompt.own_s, -prompt.number, prompt))
        self._change(prompt, prompt.own_s)

    def pop_longest(self) -> _Timed[T]:
        """Remove the longest prompt of that tenant; there must be one."""
        while True:
            work_s, tenant = self._most[0]
            if self._by_tenant[tenant] and -work_s == self._work[tenant]:
                break
            heapq.heappop(self._most)
        _, _, longest = heapq.heappop(self._by_tenant[tenant])
        self._change(longest, -longest.own_s)
        return longest

    def _change(self, prompt: _Timed[T], seconds: float) -> None:
        work = self._work.get(prompt.tenant, 0.0) + seconds / prompt.weight
        self._work[prompt.tenant] = work
        heapq.heappush(self._most, (-work, prompt.tenant))
