"""Sizing that is imported with its first decision: an operator without deployments in mode SLO loads no numpy.

The event loop waits for that import once: 0.12 s on 2 × EPYC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, Sized
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import TelemetryStore
from baton_wire.messages.values import Role

if TYPE_CHECKING:
    from baton_control.sizing.slo_sizing import SloSizing


class SizingOnDemand:
    """Implements `scaling.Sizing` by an `SloSizing` that is made when it is first asked."""

    def __init__(self, stores: Callable[[Key], TelemetryStore], clock: Callable[[], float]) -> None:
        self._stores, self._clock = stores, clock
        self._made: SloSizing | None = None

    def decide(
        self,
        key: Key,
        deployment: LLMDeployment,
        pools: Mapping[Role, PoolNow],
        memory: str | None,
        epoch_s: float,
        gateways: int | None = None,
    ) -> Sized:
        if self._made is None:
            from baton_control.sizing.slo_sizing import SloSizing

            self._made = SloSizing(self._stores, self._clock)
        return self._made.decide(key, deployment, pools, memory, epoch_s, gateways)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deployment that is gone."""
        if self._made is not None:
            self._made.forget(key)
