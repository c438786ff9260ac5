"""A worker's engine, built and not yet running: what `assembly` or `paced` makes and `serving` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton_engine.memory.kv_pool import KvPool
from baton_engine.model.step_cost import CostModel
from baton_engine.running.layer_notices import LayerListener
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.scheduler import Scheduler
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.hardware import Peak
from baton_worker.building.bundle_files import TokenizerBundle
from baton_worker.building.capacity import Capacity
from baton_worker.serving.intake import RequestLimits


@dataclass(frozen=True, slots=True)
class EngineParts:
    bundle: TokenizerBundle
    geometry: KvGeometry
    capacity: Capacity
    keys: KeyDirectory
    pool: KvPool
    scheduler: Scheduler
    stepper: Stepper
    limits: RequestLimits
    fingerprint: PairFingerprint
    watch_layers: Callable[[LayerListener], None] = field(default=lambda listener: None)
    """Have a listener told of layers while prompts are computed; a paced runner has none to tell of."""
    costs: CostModel | None = None
    """None when nothing is computed (paced)."""
    peak: Peak | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each part of the start took, in order."""
