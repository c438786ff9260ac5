"""One model's requests from their arrival to their end, by ticket: what waits, what is at the workers, and whose it is.

A tenant is known while it has a request here. So the number of tenants is bounded by that of requests.

A tenant that takes less than an eighth of what there is, is *light*: others go behind it. Several light ones go by
their targets alone, as one tenant's requests do.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.requests.tenant_work import Ahead, Part, TenantWork, ahead
from baton_gateway.requests.waiting_line import FADING, WaitBound, Work
from baton_gateway.workers.pool_load import PoolService

FIRST_OUTPUT_TOKENS = 200.0
"""What an answer is taken to have until the first one has ended."""
ABOUT_S = 60.0
"""For how long after its last request a tenant may come back any moment."""
LIGHT_SHARE = 0.125
"""Of what there is: who takes less goes before others, whatever the weights."""
LEAST_LEAD_S = 1e-6
"""Of a tenant that brings much and was sent nothing yet."""
RECENT_S = 10.0
"""What was sent so long ago counts a third of what is sent now."""


class _Place(enum.Enum):
    QUEUED = enum.auto()
    LET_IN = enum.auto()
    TOLD = enum.auto()
    ANSWERED = enum.auto()


@dataclass(slots=True)
class _Entry:
    owner: TenantWork
    work: Work
    place: _Place
    began_s: float | None = None
    sequences: int = 0


class ModelLine:
    """All tenants' requests of one model."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._tenants: dict[str, TenantWork] = {}
        self._held = Work()
        self._waiting = 0
        self._mean_output: float | None = None
        self._sent: dict[str, tuple[float, float]] = {}
        """By tenant: prefill workers' seconds that were sent of late, older ones fading, and as of when."""
        self._token_s = 0.0
        """Of a prompt, as it took a prefill worker last."""
        self._latest: tuple[str, float] = ("", -math.inf)
        self._before: tuple[str, float] = ("", -math.inf)
        """Name and last arrival of the two tenants that asked last."""
        self.bound = WaitBound()
        """Of all tenants together."""

    def __len__(self) -> int:
        """Requests that no worker has been told of."""
        return self._waiting

    @property
    def held(self) -> Work:
        """Of all that no worker has been told of."""
        return self._held if self._waiting else Work()

    @property
    def num_tenants(self) -> int:
        return len(self._tenants)

    def tenant(self, name: str) -> TenantWork | None:
        """None: it has no request here."""
        return self._tenants.get(name)

    # The way of a request ---------------------------------------------------------------------------------------------

    def joins(
        self, ticket: int, work: Work, tenant: Tenant = DEFAULT_TENANT, *, is_queued: bool = True, now: float = 0.0
    ) -> None:
        """`is_queued`: admission has not let it in yet."""
        owner = self._tenants.setdefault(tenant.name, TenantWork(tenant))
        owner.tenant = tenant
        self._entries[ticket] = _Entry(owner, work, _Place.QUEUED)
        owner.requests += 1
        owner.waiting += 1
        owner.queued += work
        self._waiting += 1
        self._held += work
        if tenant.name != self._latest[0]:
            self._before = self._latest
        self._latest = tenant.name, now
        if not is_queued:
            self.begins(ticket, now)

    def begins(self, ticket: int, now: float) -> None:
        """Admission let it in."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.place is _Place.QUEUED:
            entry.place, entry.began_s = _Place.LET_IN, now
            entry.owner.queued -= entry.work
            entry.owner.let_in += entry.work

    def told(self, ticket: int) -> None:
        """A worker was told of it. No effect when one was before."""
        entry = self._entries.get(ticket)
        if entry is not None and self._stops_waiting(entry):
            entry.place = _Place.TOLD
            entry.owner.told_tokens += entry.work.prompt_tokens

    def answered(self, ticket: int) -> None:
        """Its first token came. No effect when one had come before."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.place is _Place.TOLD:
            entry.place = _Place.ANSWERED
            entry.owner.told_tokens -= entry.work.prompt_tokens

    def at_work(self, ticket: int, sequences: int) -> None:
        """So many of its sequences are at the workers now."""
        entry = self._entries.get(ticket)
        if entry is not None:
            entry.owner.sequences += sequences - entry.sequences
            entry.sequences = sequences

    def leaves(self, ticket: int, now: float = 0.0) -> None:
        """It ended. No effect when it is not here."""
        self.at_work(ticket, 0)
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return
        owner = entry.owner
        if not self._stops_waiting(entry) and entry.place is _Place.TOLD:
            owner.told_tokens -= entry.work.prompt_tokens
        if entry.began_s is not None and entry.place in (_Place.TOLD, _Place.ANSWERED):
            owner.took(now - entry.began_s)
        owner.requests -= 1
        if not owner.requests:
            del self._tenants[owner.tenant.name]

    def _stops_waiting(self, entry: _Entry) -> bool:
        """False: it does not wait."""
        owner, work = entry.owner, entry.work
        if entry.place is _Place.QUEUED:
            owner.queued -= work
        elif entry.place is _Place.LET_IN:
            owner.let_in -= work
        else:
            return False
        owner.waiting -= 1
        self._waiting -= 1
        self._held -= work
        if not owner.waiting:
            owner.queued = owner.let_in = Work()  # sums of floats do not come back to zero by themselves
        if not self._waiting:
            self._held = Work()
        return True

    def sent(self, tenant: Tenant, own_s: float, tokens: int, now: float) -> None:
        """A run of the tenant was sent; a prefill worker computes so many tokens of it, for so long."""
        if own_s > 0 and tokens:
            self._token_s = own_s / tokens
        self._sent[tenant.name] = self._recent_s(tenant.name, now) + own_s, now
        if len(self._sent) > 2 * len(self._tenants) + 1:
            known = self._tenants.keys()
            self._sent = {name: of for name, of in self._sent.items() if name in known or now - of[1] < RECENT_S}

    def _recent_s(self, tenant: str, now: float) -> float:
        seconds, at_s = self._sent.get(tenant, (0.0, now))
        return seconds * math.exp((at_s - now) / RECENT_S)

    # What is known of it ----------------------------------------------------------------------------------------------

    def lead(self, tenant: str, workers: float, now: float) -> float:
        """Prefill workers' seconds that were sent of late, for its weight; 0 of a light tenant, which takes less of so
        many workers even with what waits."""
        work, recent_s = self._tenants.get(tenant), self._recent_s(tenant, now)
        if work is None:
            return 0.0
        demand_s = recent_s + work.let_in.prompt_tokens * self._token_s
        if demand_s <= LIGHT_SHARE * RECENT_S * workers:
            return 0.0
        return max(LEAST_LEAD_S, recent_s) / work.tenant.weight

    def is_light(self, tenant: str, workers: float, now: float) -> bool:
        """Beside others: of a tenant that asks alone nobody would have anything."""
        return self.is_shared(tenant, now) and self.lead(tenant, workers, now) == 0.0

    @property
    def num_sequences(self) -> int:
        """At the workers, of all tenants."""
        return sum(work.sequences for work in self._tenants.values())

    def most_sequences(self) -> int:
        """That any tenant has at the workers."""
        return max((work.sequences for work in self._tenants.values()), default=0)

    def sequences(self, tenant: str) -> int:
        """That the tenant has at the workers."""
        owner = self._tenants.get(tenant)
        return 0 if owner is None else owner.sequences

    def is_shared(self, tenant: str, now: float) -> bool:
        """Whether another tenant has asked of late, and so may ask again any moment."""
        return any(name != tenant and now - at_s <= ABOUT_S for name, at_s in (self._latest, self._before))

    def sent_before(self, tenant: str, tokens: float) -> float:
        """Prompt tokens at the workers that go before so many of this tenant in fair turns there."""
        owner = self._tenants.get(tenant)
        own = 0.0 if owner is None else owner.told_tokens
        others = (work.told_tokens for work in self._tenants.values() if work is not owner)
        return own + sum(min(told, own + tokens) for told in others)

    def ended(self, output_tokens: float) -> None:
        """A sequence had so many tokens when it ended."""
        mean = output_tokens if self._mean_output is None else self._mean_output
        self._mean_output = FADING * mean + (1 - FADING) * output_tokens

    @property
    def output_tokens(self) -> float:
        """What a sequence comes to, by those that ended."""
        return FIRST_OUTPUT_TOKENS if self._mean_output is None else self._mean_output

    def ahead(
        self,
        tenant: Tenant,
        newcomer: Work,
        prefill: PoolService,
        decode: PoolService,
        startable: Callable[[str], float],
    ) -> tuple[Ahead, Ahead]:
        """Prompt tokens and output tokens before a newcomer of this tenant. `startable`: the part of a tenant's queue
        that its own quota does not hold back.

        Whose the tokens at the workers are is known of this process's, at most as many as it sent. Those of other
        processes count as one other tenant's.
        """
        told = sum(work.told_tokens for work in self._tenants.values())
        sequences = self.num_sequences
        prompt_scale = min(1.0, prefill.waiting_tokens / told) if told > 0 else 0.0
        output_scale = min(self.output_tokens, decode.waiting_tokens / sequences) if sequences else 0.0
        own = Part(tenant.weight, 0.0), Part(tenant.weight, 0.0)
        prompts: list[Part] = []
        outputs: list[Part] = []
        for name, work in self._tenants.items():
            waits = work.competing(1.0 if work.tenant.max_running is None else startable(name))
            prompt = Part(work.tenant.weight, waits.prompt_tokens, work.told_tokens * prompt_scale)
            output = Part(work.tenant.weight, waits.output_tokens, work.sequences * output_scale)
            if name == tenant.name:
                own = prompt, output
            else:
                prompts.append(prompt)
                outputs.append(output)
        usual = self._usual(tenant.name)
        foreign_prompts = max(0.0, prefill.waiting_tokens - told * prompt_scale)
        foreign_outputs = max(0.0, decode.waiting_tokens - sequences * output_scale)
        return (
            ahead(own[0], prompts, newcomer.prompt_tokens, usual.prompt_tokens, foreign_prompts),
            ahead(own[1], outputs, newcomer.output_tokens, usual.output_tokens, foreign_outputs),
        )

    def _usual(self, tenant: str) -> Work:
        """What a request that waits brings, of other tenants but the one with the most: that one may make them large to
        be in others' way.
        """
        others = [work for name, work in self._tenants.items() if name != tenant and work.waiting]
        most = max(others, key=lambda work: work.queued.prompt_tokens + work.let_in.prompt_tokens, default=None)
        count, total = 0, Work()
        for work in others:
            if work is not most:
                count += work.waiting
                total = total + work.queued + work.let_in
        return total * (1 / count) if count else Work()
