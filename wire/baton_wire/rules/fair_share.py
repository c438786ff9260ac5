"""How work of different flows shares a worker: whose turn it is, and how much one flow may hold. Pure.

A *flow* shares one turn: today it is all sequences of one client's request. Turns follow start-time fair queueing
(Goyal, Vin and Cheng 1996): each piece of work has a start tag, and smaller tags go first. A flow's next piece starts
where its last one ended, so that many pieces of one flow come after the first piece of another. Pieces of flows that
have nothing else open keep the order in which they came.

What a flow may hold follows the dynamic threshold of shared buffers (Choudhury and Hahne 1998): a multiple of what is
free. So a flow alone takes nearly all, and a newcomer always finds some.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKER_GREED = 8.0
"""A flow may hold this many times what it leaves free: alone 8/9 of the slots, two flows 8/17 each."""
GATEWAY_GREED = 4.0
"""The same in what a gateway lets out: less, because other gateways let out too and workers report ten times a
second."""


def may_take(own: float, more: float, free: float, greed: float) -> bool:
    """True if a flow that holds `own` may take `more` of `free`. A flow that holds nothing may take anything.

    >>> [may_take(own=own, more=10.0, free=100.0, greed=8.0) for own in (0.0, 710.0, 711.0)]
    [True, True, False]
    """
    return own <= 0 or own + more <= greed * (free - more)


@dataclass(slots=True)
class _Flow:
    open: int = 0
    """Pieces that have not ended."""
    next_start: float = 0.0


class StartTags:
    """Start tags for the pieces of flows. Costs are in any unit, such as tokens."""

    def __init__(self) -> None:
        self._virtual = 0.0
        self._flows: dict[bytes, _Flow] = {}

    def __len__(self) -> int:
        """Flows with open pieces."""
        return len(self._flows)

    def is_alone(self, flow: bytes) -> bool:
        """True if the flow has one piece open at most."""
        return flow not in self._flows or self._flows[flow].open <= 1

    def opened(self, flow: bytes, cost: float) -> float:
        """Add a piece of the flow; returns its start tag."""
        entry = self._flows.setdefault(flow, _Flow())
        tag = max(self._virtual, entry.next_start)
        entry.open += 1
        entry.next_start = tag + cost
        return tag

    def began(self, tag: float, cost: float) -> None:
        """A piece is being served: virtual time advances by what each open flow would have got meanwhile, so that a
        flow's later pieces get their turn although newcomers never end.
        """
        self._virtual = max(self._virtual, tag) + cost / max(1, len(self._flows))

    def closed(self, flow: bytes) -> None:
        """A piece has ended, served or not."""
        entry = self._flows[flow]
        entry.open -= 1
        if entry.open == 0:
            del self._flows[flow]
