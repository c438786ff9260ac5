"""The order in which prompts wait at a gateway while every prefill worker is busy: by their target, late ones last.

Whose first token has to start soonest to come within the TTFT target goes first (least slack first, Dertouzos 1974).
What is late already goes last, in the order in which it became so. In turn, a backlog would make everybody behind it
late as well. Gateways keep their prompts so, and the twin predicts it.

When more waits than can be computed in time, somebody will be late. Then the longest prompts are set aside, as few as
have to be (Moore 1968, with Hodgson's rule): a long one would make several short ones late. Of several tenants that is
the longest of whoever has most in line for its weight, so that a flood of short ones makes itself late. They come
behind all that are in time, and back in line as soon as there is room for them.

Where the prompts of several tenants wait, the tenant that was served the least for its weight goes first, and each
one's own prompts in this order. So a flood that was let in delays nobody else. A tenant that was served no more than
its share goes before others that were, even with a prompt that is late: their prompts in time may never cease.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from baton_wire.liveness import REPORT_S
from baton_wire.rules.gateway_rounds import HeldRank, Urgency

BUSY_S = 0.5
"""Work that surely keeps a worker from falling idle before more can reach it."""
BUSY_SHARE = 0.3
"""Of the TTFT target, what a prompt may find before it at a prefill worker. What waits at a worker goes in order of
arrival, late or not: with 0.5 s before it under a target of 0.5 s, every prompt of a full pool would be late."""
BEGIN_SHARE = 0.6
"""Of the target, by when a prompt shall have been computed if it were alone. The rest is for what it meets at the
worker: the step that runs there ends first. In simulated runs 0.6 misses a third less than 1, 0.8 a tenth less."""

PLAN_S = 0.02
"""So often at most it is reckoned who has to be set aside: that looks at all who are in time."""
PLAN_PROMPT_S = 3e-5
"""And less often the more there are: looking at one takes a tenth of this."""

T = TypeVar("T")


def busy_s(ttft_s: float | None) -> float:
    """A prefill worker with more work than this gets no more: prompts wait where any worker can still have them. Less
    than for `REPORT_S` can be over before more reaches it."""
    return BUSY_S if ttft_s is None else min(BUSY_S, max(REPORT_S, BUSY_SHARE * ttft_s))


class _Timed(NamedTuple, Generic[T]):
    """A prompt that is in time yet. In a heap the first two tell."""

    latest_s: float
    """When it has to start."""
    number: int
    own_s: float
    prompt: T
    tenant: str
    weight: float


class _Turn(NamedTuple, Generic[T]):
    """The first of one tenant's prompts."""

    rank: HeldRank
    prompt: _Timed[T]
    lead: float = 0.0
    """What the tenant was served beyond its share."""

    @property
    def urgent_rank(self) -> HeldRank:
        return self.rank if self.lead > 0 else HeldRank.IN_TIME

    @property
    def key(self) -> tuple[HeldRank, float, HeldRank, float, int]:
        """Smaller ones go first."""
        return self.urgent_rank, self.lead, self.rank, self.prompt.latest_s, self.prompt.number


class PromptOrder(Generic[T]):
    """Prompts that wait for a prefill worker. Without a target they go in order of arrival."""

    def __init__(self, ttft_s: float | None, plan_s: float = PLAN_S) -> None:
        """`plan_s`: the least time between two decisions about which prompts to set aside."""
        self.ttft_s = ttft_s
        self._plan_s = plan_s
        self._retried: deque[T] = deque()
        """Their clients have waited before: they go first."""
        self._in_time: list[_Timed[T]] = []
        """heap"""
        self._set_aside: list[_Timed[T]] = []
        """heap, of those that would make more of the others late"""
        self._late: deque[_Timed[T]] = deque()
        self._tenants: Counter[str] = Counter()
        """Prompts of each, without those that are retried."""
        self._turn: _Turn[T] | None = None
        """Of the tenant that goes first, when `first` compared several."""
        self._pushed = 0
        self._plans_s = float("-inf")
        """When it is reckoned again."""

    def __len__(self) -> int:
        return len(self._retried) + len(self._in_time) + len(self._set_aside) + len(self._late)

    def __iter__(self) -> Iterator[T]:
        """In no order."""
        timed = itertools.chain(self._in_time, self._set_aside, self._late)
        return itertools.chain(self._retried, (each.prompt for each in timed))

    def push(self, prompt: T, arrival_s: float, own_s: float, tenant: str = "", weight: float = 1.0) -> None:
        """`own_s`: seconds that a worker computes it. What takes longer than its target waits as if it took none.
        `weight`: of its tenant, beside others."""
        slack_s = 0.0
        if self.ttft_s is not None:
            by_s = BEGIN_SHARE * self.ttft_s
            slack_s = by_s - own_s if own_s <= by_s else by_s
        self._pushed += 1
        self._tenants[tenant] += 1
        self._turn = None
        heapq.heappush(self._in_time, _Timed(arrival_s + slack_s, self._pushed, own_s, prompt, tenant, weight))

    def push_front(self, prompt: T) -> None:
        self._retried.appendleft(prompt)
        self._turn = None

    def first(self, now: float, workers: float = 0.0, lead: Callable[[str], float] | None = None) -> T:
        """Whose turn it is; there is one. `workers`: that compute them side by side, or a part of one; 0: nobody is set
        aside. `lead`: what a tenant was served beyond its share; None: tenants are not compared."""
        if self.ttft_s is not None:
            while timed := self._soonest(now):
                self._late.append(heapq.heappop(timed))
            if workers and now >= self._plans_s:
                self._set_longest_aside(now, workers)
                in_time = len(self._in_time) + len(self._set_aside)
                self._plans_s = now + max(self._plan_s, PLAN_PROMPT_S * in_time)
        self._turn = None
        if self._retried:
            return self._retried[0]
        if lead is not None and len(self._tenants) > 1:
            self._turn = self._fairest_turn(lead)
        return self._head().prompt

    def _head(self) -> _Timed[T]:
        """Of those that are not retried; there is one."""
        if self._turn is not None:
            return self._turn.prompt
        return (self._in_time or self._set_aside or self._late)[0]

    def _fairest_turn(self, lead: Callable[[str], float]) -> _Turn[T]:
        """Looks at all prompts: the first of each tenant, and of these that of the tenant with the least lead."""
        turns: dict[str, _Turn[T]] = {}
        ranked: tuple[tuple[HeldRank, Iterable[_Timed[T]]], ...] = (
            (HeldRank.IN_TIME, self._in_time),
            (HeldRank.SET_ASIDE, self._set_aside),
            (HeldRank.LATE, self._late),
        )
        for rank, prompts in ranked:
            for prompt in prompts:
                turn = turns.get(prompt.tenant)
                if turn is None or (turn.rank is rank and rank is not HeldRank.LATE and prompt < turn.prompt):
                    turns[prompt.tenant] = _Turn(rank, prompt)
        leading = (turn._replace(lead=lead(tenant)) for tenant, turn in turns.items())
        return min(leading, key=lambda turn: turn.key)

    def _soonest(self, now: float) -> list[_Timed[T]] | None:
        """Whichever has at its head who became late first of all; None if nobody is late."""
        late = [timed for timed in (self._in_time, self._set_aside) if timed and timed[0].latest_s < now]
        return min(late, key=lambda timed: timed[0][:2], default=None)

    def pop(self) -> T:
        """Take what `first` just said."""
        if self._retried:
            return self._retried.popleft()
        head = self._head()
        self._turn = None
        self._tenants[head.tenant] -= 1
        if not self._tenants[head.tenant]:
            del self._tenants[head.tenant]
        for timed in (self._in_time, self._set_aside):
            if timed and timed[0] is head:
                heapq.heappop(timed)
                return head.prompt
            if head in timed:
                timed.remove(head)
                heapq.heapify(timed)
                return head.prompt
        self._late.remove(head)
        return head.prompt

    def own_s(self) -> float:
        """Of what `first` just said: seconds that a worker computes it; 0 of what is late or has waited before."""
        if self._retried or self._rank() is HeldRank.LATE:
            return 0.0
        return self._head().own_s

    def _rank(self) -> HeldRank:
        if self._turn is not None:
            return self._turn.rank
        return HeldRank.IN_TIME if self._in_time else HeldRank.SET_ASIDE if self._set_aside else HeldRank.LATE

    def urgency(self) -> Urgency:
        """Of what `first` would say now, if nothing became late since it was asked."""
        if self._retried:
            return Urgency(HeldRank.IN_TIME)
        rank = self._rank()
        if rank is HeldRank.LATE and self._turn is not None:
            return Urgency(self._turn.urgent_rank)
        return Urgency(rank) if rank is HeldRank.LATE else Urgency(rank, self._head().latest_s)

    def drop_late(self, is_over: Callable[[T], bool]) -> None:
        """Forget late prompts that nobody waits for any more: their turn may be far away."""
        self._late = deque(timed for timed in self._late if not is_over(timed.prompt))
        waiting = itertools.chain(self._in_time, self._set_aside, self._late)
        self._tenants, self._turn = Counter(timed.tenant for timed in waiting), None

    def _set_longest_aside(self, now: float, workers: float) -> None:
        """In their order, as soon as one could not start in time behind those before it, the longest so far goes."""
        timed, kept, before_s = sorted(self._in_time + self._set_aside), _Kept[T](), 0.0
        self._in_time, self._set_aside = timed, []
        if not timed or now + sum(each.own_s for each in timed) / workers <= timed[0].latest_s:
            return
        for each in timed:
            kept.add(each)
            while now + before_s / workers > each.latest_s:
                longest = kept.pop_longest()
                self._set_aside.append(longest)
                if longest is each:
                    break
                before_s -= longest.own_s
            else:
                before_s += each.own_s
        aside = {each.number for each in self._set_aside}
        self._in_time = [each for each in timed if each.number not in aside]  # sorted, so a heap
        heapq.heapify(self._set_aside)


class _Kept(Generic[T]):
    """Prompts in line, to know the longest of the tenant with most work for its weight."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[float, int, _Timed[T]]]] = {}
        """(-own seconds, -number, prompt) of each tenant, a heap: of the longest whoever came last"""
        self._work: dict[str, float] = {}
        """Seconds of each tenant, divided by its weight."""
        self._most: list[tuple[float, str]] = []
        """(-work, tenant), a heap; those with work of before are passed over"""

    def add(self, prompt: _Timed[T]) -> None:
        heapq.heappush(self._of.setdefault(prompt.tenant, []), (-prompt.own_s, -prompt.number, prompt))
        self._change(prompt, prompt.own_s)

    def pop_longest(self) -> _Timed[T]:
        """There is one."""
        while True:
            work_s, tenant = self._most[0]
            if self._of[tenant] and -work_s == self._work[tenant]:
                break
            heapq.heappop(self._most)
        _, _, longest = heapq.heappop(self._of[tenant])
        self._change(longest, -longest.own_s)
        return longest

    def _change(self, prompt: _Timed[T], seconds: float) -> None:
        work = self._work.get(prompt.tenant, 0.0) + seconds / prompt.weight
        self._work[prompt.tenant] = work
        heapq.heappush(self._most, (-work, prompt.tenant))
