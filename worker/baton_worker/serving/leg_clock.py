"""When things happened to the legs at this worker, for the gateways' records. Pure but for one attribute.

The io thread notes everything except that KV has landed, which the transfer thread notes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton_engine.scheduling.events import (
    ChunkLaunched,
    Computed,
    Computing,
    Drawn,
    Preempted,
    Reserved,
    SchedulerEvent,
)
from baton_wire.messages.values import LegTimes, RequestKey

SPARE_LEGS = 256
"""Legs that may be noted beyond the open ones before those that ended are forgotten."""


@dataclass(slots=True, eq=False)
class _Leg:
    received_s: float
    began_s: float | None = None
    computed_s: float | None = None
    chunks: int = 0
    reserved_s: float | None = None
    landed_s: float | None = None
    is_reported: bool = False
    preempted_s: float | None = None
    """When it was preempted; None: it is not."""
    preemptions: int = 0

    def take(self, event: SchedulerEvent, now: float) -> None:
        """Note an event other than `Drawn`."""
        match event:
            case Computing() | ChunkLaunched() if not self.is_reported:
                self.began_s = now if self.began_s is None else self.began_s
                self.chunks += 1
            case Computed() if self.began_s is not None:
                self.computed_s = now
            case Reserved():
                self.reserved_s = now
            case Preempted():
                self.preempted_s = now if self.preempted_s is None else self.preempted_s
                self.preemptions += 1

    def report(self, now: float) -> LegTimes | None:
        """Return the times that go with an entry that is sent now; None: it reports none."""
        if self.is_reported and self.preempted_s is None:
            return None
        waited_s = 0.0 if self.preempted_s is None else max(0.0, now - self.preempted_s)
        preemptions, self.preemptions, self.preempted_s = self.preemptions, 0, None
        if self.is_reported:
            return LegTimes(self._since(now) or 0.0, preemptions=preemptions, preempted_s=waited_s)
        self.is_reported = True
        return LegTimes(
            self._since(now) or 0.0,
            self._since(self.began_s),
            self._since(self.computed_s),
            self.chunks,
            self._since(self.reserved_s),
            self._since(self.landed_s),
            preemptions,
            waited_s,
        )

    def _since(self, at_s: float | None) -> float | None:
        return None if at_s is None else max(0.0, at_s - self.received_s)


class LegClock:
    """The legs that are open at this worker, by the keys that the engine knows."""

    def __init__(self) -> None:
        self._legs: dict[RequestKey, _Leg] = {}

    def __len__(self) -> int:
        return len(self._legs)

    def received(self, key: RequestKey, now: float, is_open: Callable[[RequestKey], bool], num_open: int) -> None:
        """Note that a leg was received. Legs that are not open any more are forgotten now and then."""
        if len(self._legs) > 2 * num_open + SPARE_LEGS:
            self._legs = {known: leg for known, leg in self._legs.items() if is_open(known)}
        self._legs[key] = _Leg(now)

    def take(self, event: SchedulerEvent, now: float) -> None:
        """Note an event other than `Drawn`."""
        if (leg := self._legs.get(event.key)) is not None:
            leg.take(event, now)

    def landed(self, key: RequestKey, now: float) -> None:
        """Note that the KV of a leg has landed. Safe from any thread."""
        if (leg := self._legs.get(key)) is not None:
            leg.landed_s = now

    def report(self, event: Drawn, now: float) -> LegTimes | None:
        """Return the times that go with these tokens; None: they report none.

        The first token of a sequence that landed comes with its KV. The second one says how long it waited for a slot
        and a step, so it carries the times.
        """
        leg = self._legs.get(event.key)
        if leg is None or (leg.landed_s is not None and event.first_index == 0 and event.finish is None):
            return None
        return leg.report(now)
