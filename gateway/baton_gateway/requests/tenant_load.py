"""Each tenant's load of one model, waiting and at the workers, and how much of it goes before a new request. Pure.

Turns are fair (`admission`, `baton_wire.rules.prompt_order`): until the turn of a new request, another tenant is served
at most as much for its weight as the request's own tenant has and brings (the bound of weighted fair queueing: Demers,
Keshav and Shenker, 1989). So a tenant's long queue delays only its own new requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.wait_prediction import FADING, WaitBound, Work


@dataclass(slots=True)
class TenantLoad:
    """One tenant's requests of one model, from their arrival to their end."""

    tenant: Tenant
    bound: WaitBound = field(default_factory=WaitBound)
    queued: Work = field(default_factory=Work)
    """Requests that admission has not let in."""
    admitted: Work = field(default_factory=Work)
    """Admitted requests that were not sent to a worker."""
    sent_tokens: float = 0.0
    """Tokens of prompts that were sent to workers and are unanswered."""
    sequences: int = 0
    """Sequences at the workers."""
    requests: int = 0
    waiting: int = 0
    """Requests that were not sent to a worker."""
    mean_s: float | None = None
    """The usual duration of a request, from its turn to its end; None: none has ended."""

    def record_duration(self, seconds: float) -> None:
        """A request ended this long after its turn."""
        mean_s = seconds if self.mean_s is None else self.mean_s
        self.mean_s = FADING * mean_s + (1 - FADING) * seconds

    def waiting_work(self, share: float) -> Work:
        """Work that waits for workers. `share`: the share of the queue that counts."""
        return self.admitted + self.queued * share


@dataclass(frozen=True, slots=True)
class TenantShare:
    """One tenant's tokens in a pool."""

    weight: float
    waiting: float
    """Tokens at this gateway."""
    sent: float = 0.0
    """Tokens at the workers."""


@dataclass(frozen=True, slots=True)
class WorkAhead:
    """Tokens that are served before a new request."""

    waiting: float
    """Tokens that wait at this gateway."""
    fair: float
    """Tokens here and at the workers, if turns had always been fair: one other tenant's flood refuses nothing of a
    third one."""
    own: float
    """The tenant's own tokens, here and at the workers."""
    crowd: float
    """As `fair`, for a tenant that has nothing yet: large only where many tenants have work."""


def estimate_work_ahead(
    own: TenantShare, others: Sequence[TenantShare], newcomer: float, usual: float = 0.0, unknown: float = 0.0
) -> WorkAhead:
    """Estimate the tokens before a new request of `newcomer` tokens. `usual`: the tokens of several tenants' usual
    requests, because turns are for whole requests. `unknown`: tokens at the workers whose tenant is not known; they
    count as one tenant's.
    """
    piece = max(newcomer, usual)
    mine = own.waiting + own.sent
    limit, first = (mine + piece) / own.weight, piece / own.weight
    waiting, fair = own.waiting, mine + min(unknown, mine + piece)
    crowd = min(mine, piece) + min(unknown, piece)
    for other in others:
        both = other.waiting + other.sent
        waiting += min(other.waiting, limit * other.weight)
        fair += min(both, limit * other.weight)
        crowd += min(both, first * other.weight)
    return WorkAhead(waiting, fair, mine, crowd)
