"""A worker's engine, built and not yet running: what `assembly` or `paced` makes and `serving` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton_engine.layer_notices import LayerListener
from baton_engine.scheduler import Scheduler
from baton_engine.step_cost import CostModel
from baton_engine.stepper import Stepper
from baton_kv_transfer.keys import KeyDirectory
from baton_kv_transfer.layout import KvGeometry
from baton_kv_transfer.wire.values import PairFingerprint
from baton_worker.accelerator import Peak
from baton_worker.bundle import TokenizerBundle
from baton_worker.capacity import Capacity
from baton_worker.intake import Limits
from baton_worker.pool_memory import PoolMemory


@dataclass(frozen=True, slots=True)
class EngineParts:
    bundle: TokenizerBundle
    geometry: KvGeometry
    capacity: Capacity
    keys: KeyDirectory
    memory: PoolMemory
    scheduler: Scheduler
    stepper: Stepper
    limits: Limits
    fingerprint: PairFingerprint
    watch_layers: Callable[[LayerListener], None] = field(default=lambda listener: None)
    """Have a listener told of layers while prompts are computed; a paced runner has none to tell of."""
    costs: CostModel | None = None
    """None when nothing is computed (paced)."""
    peak: Peak | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each part of the start took, in order."""
