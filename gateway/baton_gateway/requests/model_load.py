"""One model's load: its requests from arrival to end, by ticket, waiting or at the workers, and their tenants.

A tenant is known while it has a request here. So the number of tenants is bounded by that of requests.

A tenant that takes less than an eighth of the capacity is *light* and goes before others. Several light tenants go by
their targets alone, as one tenant's requests do. The others go by their dominant share for their weight: that of the
prefill workers' time or that of the decode workers' slots, whichever is larger (Ghodsi et al., dominant resource
fairness, 2011).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.requests.tenant_load import TenantLoad, TenantShare, WorkAhead, estimate_work_ahead
from baton_gateway.requests.wait_prediction import FADING, WaitBound, Work
from baton_gateway.workers.pool_load import PoolService

FIRST_OUTPUT_TOKENS = 200.0
"""The assumed length of answers until the first one has ended."""
ABOUT_S = 60.0
"""How long after its latest request a tenant may ask again at any moment."""
LIGHT_SHARE = 0.125
"""A share of the capacity: a tenant that takes less goes before others, whatever the weights."""
SHORT_SHARE = 0.5
"""Slots are compared while this share of them was taken lately: else they are not what tenants wait for."""
LEAST_LEAD = 1e-6
"""The lead of a tenant that brings much while nothing of it was sent."""
RECENT_S = 10.0
"""Prefill time sent this long ago counts 1/e of what is sent now, and so do slots that were taken."""


@dataclass(frozen=True, slots=True)
class OwnCapacity:
    """This process's part of a model's workers."""

    workers: float
    """Prefill workers."""
    slots: float
    """Sequences that decode workers run at once; 0: slots are not short, or there are none."""


class _Place(enum.Enum):
    QUEUED = enum.auto()
    ADMITTED = enum.auto()
    SENT = enum.auto()
    ANSWERED = enum.auto()


@dataclass(slots=True)
class _Entry:
    owner: TenantLoad
    work: Work
    place: _Place
    began_s: float | None = None
    sequences: int = 0


def _decayed(recent: tuple[float, float], sequences: int, now: float) -> float:
    """Recent seconds of slots, with those of the sequences since the latest update."""
    seconds, at_s = recent
    rest = math.exp(min(0.0, at_s - now) / RECENT_S)
    return seconds * rest + sequences * RECENT_S * (1 - rest)


class ModelLoad:
    """All tenants' requests for one model."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._tenants: dict[str, TenantLoad] = {}
        self._held = Work()
        self._waiting = 0
        self._mean_output: float | None = None
        self._sent: dict[str, tuple[float, float]] = {}
        """By tenant: recent seconds of prefill workers, decayed, and the time of their latest update."""
        self._slot_s: dict[str, tuple[float, float]] = {}
        """By tenant: recent seconds of decode workers' slots, decayed, and the time of their latest update."""
        self._all_slot_s = 0.0, 0.0
        """The same of all tenants together."""
        self._running = 0
        self._token_s = 0.0
        """Seconds per prompt token of the latest route to a prefill worker."""
        self._latest: tuple[str, float] = ("", -math.inf)
        self._before: tuple[str, float] = ("", -math.inf)
        """Name and latest arrival of the two tenants that asked last."""
        self.bound = WaitBound()
        """The bound of all tenants together."""

    def __len__(self) -> int:
        """Requests that were not sent to a worker."""
        return self._waiting

    @property
    def held(self) -> Work:
        """The work of all requests that were not sent to a worker."""
        return self._held if self._waiting else Work()

    @property
    def num_tenants(self) -> int:
        return len(self._tenants)

    def tenant(self, name: str) -> TenantLoad | None:
        """The tenant's load; None: it has no request here."""
        return self._tenants.get(name)

    # A request's life -------------------------------------------------------------------------------------------------

    def add(
        self, ticket: int, work: Work, tenant: Tenant = DEFAULT_TENANT, *, is_queued: bool = True, now: float = 0.0
    ) -> None:
        """A request arrived. `is_queued`: admission has not let it in yet."""
        owner = self._tenants.setdefault(tenant.name, TenantLoad(tenant))
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
            self.admit(ticket, now)

    def admit(self, ticket: int, now: float) -> None:
        """Admission let it in."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.place is _Place.QUEUED:
            entry.place, entry.began_s = _Place.ADMITTED, now
            entry.owner.queued -= entry.work
            entry.owner.admitted += entry.work

    def set_prompt_tokens(self, ticket: int, tokens: int) -> None:
        """Set the prompt tokens that are to be computed for it, since it is known by now what is cached of them. No
        effect once a worker was sent it."""
        entry = self._entries.get(ticket)
        if entry is None or entry.place not in (_Place.QUEUED, _Place.ADMITTED):
            return
        more, owner = Work(tokens - entry.work.prompt_tokens), entry.owner
        entry.work += more
        self._held += more
        if entry.place is _Place.QUEUED:
            owner.queued += more
        else:
            owner.admitted += more

    def mark_sent(self, ticket: int) -> None:
        """A worker was sent it. No effect if one was before."""
        entry = self._entries.get(ticket)
        if entry is not None and self._stops_waiting(entry):
            entry.place = _Place.SENT
            entry.owner.sent_tokens += entry.work.prompt_tokens

    def mark_answered(self, ticket: int) -> None:
        """Its first token arrived. No effect on later ones."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.place is _Place.SENT:
            entry.place = _Place.ANSWERED
            entry.owner.sent_tokens -= entry.work.prompt_tokens

    def set_running(self, ticket: int, sequences: int, now: float) -> None:
        """Set how many of its sequences are at the workers."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.sequences != sequences:
            name = entry.owner.tenant.name
            self._slot_s[name] = self._recent_slot_s(name, now), now
            self._all_slot_s = _decayed(self._all_slot_s, self._running, now), now
            self._running += sequences - entry.sequences
            if len(self._slot_s) > 2 * len(self._tenants) + 1:
                self._slot_s = self._without_gone(self._slot_s, now)
            entry.owner.sequences += sequences - entry.sequences
            entry.sequences = sequences

    def remove(self, ticket: int, now: float) -> None:
        """Remove a request that ended. No effect if it is not here."""
        self.set_running(ticket, 0, now)
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return
        owner = entry.owner
        if not self._stops_waiting(entry) and entry.place is _Place.SENT:
            owner.sent_tokens -= entry.work.prompt_tokens
        if entry.began_s is not None and entry.place in (_Place.SENT, _Place.ANSWERED):
            owner.record_duration(now - entry.began_s)
        owner.requests -= 1
        if not owner.requests:
            del self._tenants[owner.tenant.name]

    def _stops_waiting(self, entry: _Entry) -> bool:
        """Stop counting it as waiting; False: it does not wait."""
        owner, work = entry.owner, entry.work
        if entry.place is _Place.QUEUED:
            owner.queued -= work
        elif entry.place is _Place.ADMITTED:
            owner.admitted -= work
        else:
            return False
        owner.waiting -= 1
        self._waiting -= 1
        self._held -= work
        if not owner.waiting:
            owner.queued = owner.admitted = Work()  # sums of floats do not return to exactly zero
        if not self._waiting:
            self._held = Work()
        return True

    def record_prefill(self, tenant: Tenant, own_s: float, tokens: int, now: float) -> None:
        """A run of the tenant was sent to a prefill worker, which computes `tokens` of it in `own_s`."""
        if own_s > 0 and tokens:
            self._token_s = own_s / tokens
        self._sent[tenant.name] = self._recent_s(tenant.name, now) + own_s, now
        if len(self._sent) > 2 * len(self._tenants) + 1:
            self._sent = self._without_gone(self._sent, now)

    def _without_gone(self, recent: dict[str, tuple[float, float]], now: float) -> dict[str, tuple[float, float]]:
        """Keep what is known of tenants that have requests, or had some lately."""
        return {
            name: (seconds, at_s)
            for name, (seconds, at_s) in recent.items()
            if name in self._tenants or now - at_s < RECENT_S
        }

    def _recent_s(self, tenant: str, now: float) -> float:
        seconds, at_s = self._sent.get(tenant, (0.0, now))
        return seconds * math.exp((at_s - now) / RECENT_S)

    def _recent_slot_s(self, tenant: str, now: float) -> float:
        seconds, at_s = self._slot_s.get(tenant, (0.0, now))
        return _decayed((seconds, at_s), self.sequences(tenant), now)

    def capacity(self, workers: float, slots: float, now: float) -> OwnCapacity:
        """The capacity that tenants are compared by. `slots`: those of decode workers. They count while most of them
        were taken lately."""
        recent_slots = _decayed(self._all_slot_s, self._running, now) / RECENT_S
        return OwnCapacity(workers, slots if recent_slots >= SHORT_SHARE * slots else 0.0)

    # Estimates --------------------------------------------------------------------------------------------------------

    def lead(self, tenant: str, capacity: OwnCapacity, now: float) -> float:
        """The recent dominant share of the capacity for the tenant's weight. 0: the tenant is light, because it takes
        less than its part of either pool, including its waiting requests."""
        load = self._tenants.get(tenant)
        if load is None:
            return 0.0
        recent_s, all_s = self._recent_s(tenant, now), max(LEAST_LEAD, RECENT_S * capacity.workers)
        demand_s = recent_s + load.admitted.prompt_tokens * self._token_s
        recent_slots = self._recent_slot_s(tenant, now) / RECENT_S
        # Sequences of now count as well: else all slots that come free at once would go to the same tenant.
        slots = (recent_slots + load.sequences) / 2
        is_light = demand_s <= LIGHT_SHARE * all_s
        if is_light and (not capacity.slots or slots + load.waiting <= LIGHT_SHARE * capacity.slots):
            return 0.0
        share = recent_s / all_s
        # By the mean alone: a burst makes slots no dominant resource.
        if capacity.slots and recent_slots > share * capacity.slots:
            share = slots / capacity.slots
        return max(LEAST_LEAD, share) / load.tenant.weight

    def is_light(self, tenant: str, capacity: OwnCapacity, now: float) -> bool:
        """Return whether the tenant is light. A tenant that asks alone is not: there is no other to go before."""
        return self.is_shared(tenant, now) and self.lead(tenant, capacity, now) == 0.0

    def relative_weight(self, tenant: str) -> float:
        """The tenant's weight in relation to the mean of those that have requests."""
        owner = self._tenants.get(tenant)
        if owner is None or len(self._tenants) == 1:
            return 1.0
        weights = [load.tenant.weight for load in self._tenants.values()]
        return owner.tenant.weight * len(weights) / sum(weights)

    @property
    def num_sequences(self) -> int:
        """Sequences of all tenants at the workers."""
        return self._running

    def most_sequences(self) -> int:
        """The most sequences that any tenant has at the workers."""
        return max((tenant_load.sequences for tenant_load in self._tenants.values()), default=0)

    def sequences(self, tenant: str) -> int:
        """The tenant's sequences at the workers."""
        owner = self._tenants.get(tenant)
        return 0 if owner is None else owner.sequences

    def is_shared(self, tenant: str, now: float) -> bool:
        """Return whether another tenant has asked recently, and so may ask again at any moment."""
        return any(name != tenant and now - at_s <= ABOUT_S for name, at_s in (self._latest, self._before))

    def sent_before(self, tenant: str, tokens: float) -> float:
        """Prompt tokens at the workers that go before `tokens` more of this tenant in fair turns."""
        owner = self._tenants.get(tenant)
        own = 0.0 if owner is None else owner.sent_tokens
        others = (tenant_load.sent_tokens for tenant_load in self._tenants.values() if tenant_load is not owner)
        return own + sum(min(sent, own + tokens) for sent in others)

    def record_output(self, output_tokens: float) -> None:
        """A sequence ended with this many tokens."""
        mean = output_tokens if self._mean_output is None else self._mean_output
        self._mean_output = FADING * mean + (1 - FADING) * output_tokens

    @property
    def output_tokens(self) -> float:
        """The usual length of a sequence, by those that ended."""
        return FIRST_OUTPUT_TOKENS if self._mean_output is None else self._mean_output

    def work_ahead(
        self,
        tenant: Tenant,
        newcomer: Work,
        prefill: PoolService,
        decode: PoolService,
        share_ahead: Callable[[str], float],
    ) -> tuple[WorkAhead, WorkAhead]:
        """Prompt tokens and output tokens before a new request of this tenant. `share_ahead`: the share of a
        tenant's queue that can go before it.

        The tenants of this process's tokens at the workers are known. Tokens of other processes count as one other
        tenant's.
        """
        sent = sum(tenant_load.sent_tokens for tenant_load in self._tenants.values())
        sequences = self.num_sequences
        prompt_scale = min(1.0, prefill.waiting_tokens / sent) if sent > 0 else 0.0
        output_scale = min(self.output_tokens, decode.waiting_tokens / sequences) if sequences else 0.0
        own = TenantShare(tenant.weight, 0.0), TenantShare(tenant.weight, 0.0)
        prompts: list[TenantShare] = []
        outputs: list[TenantShare] = []
        for name, tenant_load in self._tenants.items():
            waits = tenant_load.waiting_work(share_ahead(name))
            prompt = TenantShare(tenant_load.tenant.weight, waits.prompt_tokens, tenant_load.sent_tokens * prompt_scale)
            output = TenantShare(tenant_load.tenant.weight, waits.output_tokens, tenant_load.sequences * output_scale)
            if name == tenant.name:
                own = prompt, output
            else:
                prompts.append(prompt)
                outputs.append(output)
        usual = self._usual(tenant.name)
        foreign_prompts = max(0.0, prefill.waiting_tokens - sent * prompt_scale)
        foreign_outputs = max(0.0, decode.waiting_tokens - sequences * output_scale)
        return (
            estimate_work_ahead(own[0], prompts, newcomer.prompt_tokens, usual.prompt_tokens, foreign_prompts),
            estimate_work_ahead(own[1], outputs, newcomer.output_tokens, usual.output_tokens, foreign_outputs),
        )

    def _usual(self, tenant: str) -> Work:
        """The mean work of other tenants' waiting requests, without the tenant with the most: it may make its requests
        large to delay others.
        """
        others = [load for name, load in self._tenants.items() if name != tenant and load.waiting]
        most = max(others, key=lambda load: load.queued.prompt_tokens + load.admitted.prompt_tokens, default=None)
        count, total = 0, Work()
        for load in others:
            if load is not most:
                count += load.waiting
                total = total + load.queued + load.admitted
        return total * (1 / count) if count else Work()
