"""What each tenant has of one model, waiting and at the workers, and what of it a newcomer has before it. Pure.

Turns are fair (`admission`, `baton_wire.rules.prompt_order`): until a newcomer's turn, another tenant is served at most
as much for its weight as the newcomer's own has and brings (the bound of weighted fair queueing: Demers, Keshav and
Shenker, 1989). So a long line of one tenant is ahead of its own newcomers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import FADING, WaitBound, Work


@dataclass(slots=True)
class TenantWork:
    """One tenant's requests of one model, from their arrival to their end."""

    tenant: Tenant
    bound: WaitBound = field(default_factory=WaitBound)
    queued: Work = field(default_factory=Work)
    """Of requests that admission has not let in."""
    let_in: Work = field(default_factory=Work)
    """Of those that it has, and that no worker has been told of."""
    told_tokens: float = 0.0
    """Of prompts that workers were told of and have not answered."""
    sequences: int = 0
    """At the workers."""
    requests: int = 0
    waiting: int = 0
    """Requests that no worker has been told of."""
    mean_s: float | None = None
    """For how long a request is at work, from its turn to its end; None: none has ended."""

    def took(self, seconds: float) -> None:
        """A request was at work for so long."""
        mean_s = seconds if self.mean_s is None else self.mean_s
        self.mean_s = FADING * mean_s + (1 - FADING) * seconds

    def competing(self, startable: float) -> Work:
        """What waits for workers. `startable`: the part of the queued that its own quota does not hold back."""
        return self.let_in + self.queued * startable


@dataclass(frozen=True, slots=True)
class Part:
    """What one tenant has of a pool's work, in tokens."""

    weight: float
    waiting: float
    """At this gateway."""
    told: float = 0.0
    """At the workers."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Tokens before a newcomer."""

    waiting: float
    """Of those that wait at this gateway."""
    fair: float
    """Of all, the workers' included, if turns had always been fair: what one other tenant has brought refuses nobody
    else."""
    own: float
    """Of all, the tenant's own."""
    crowd: float
    """As `fair`, before a newcomer whose tenant has nothing yet: much only where many tenants have work."""


def ahead(own: Part, others: Sequence[Part], newcomer: float, usual: float = 0.0, unknown: float = 0.0) -> Ahead:
    """`newcomer`, `usual`: what it brings, and what requests of several tenants bring as a rule; turns are for whole
    requests. `unknown`: tokens at the workers whose tenant is not known; they count as one tenant's.
    """
    piece = max(newcomer, usual)
    mine = own.waiting + own.told
    limit, first = (mine + piece) / own.weight, piece / own.weight
    waiting, fair = own.waiting, mine + min(unknown, mine + piece)
    crowd = min(mine, piece) + min(unknown, piece)
    for part in others:
        both = part.waiting + part.told
        waiting += min(part.waiting, limit * part.weight)
        fair += min(both, limit * part.weight)
        crowd += min(both, first * part.weight)
    return Ahead(waiting, fair, mine, crowd)
