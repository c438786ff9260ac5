"""A worker's engine, built and not yet running: `engine` or `paced` builds it, `serving` or a batch runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.kv_pool import KvPool
from baton_engine.model.step_cost import CostModel
from baton_engine.running.layer_notices import LayerListener
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_kernels.ahead.kernel_folder import CompiledHere
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.encoding import EncodingLimits
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.hardware import Peak
from baton_worker.building.bundle_files import TokenizerBundle
from baton_worker.config import WorkerConfig

MAX_CHOICES = 16


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The most that one request may ask of a worker; the numbers are also in its Hello."""

    vocab_size: int
    max_context_tokens: int
    max_choices: int
    follows_grammars: bool = True
    keeps_answers: bool = False
    """A prefill worker decodes what it computed where a gateway asks for it."""
    encoding: EncodingLimits | None = None
    """The results that the worker computes of prompts besides answers; None: nothing."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A built engine with its limits and measures; it knows nothing of links."""

    bundle: TokenizerBundle
    geometry: KvGeometry
    """The shape of the worker's KV, with all heads of the model."""
    pools: Sequence[KvPool]
    """The pool of each rank, with the rank's heads; blocks are numbered alike in all."""
    landing_bytes: int
    """Memory for arriving KV besides the pool; 0 where none arrives."""
    scheduler: Scheduler
    stepper: Stepper
    limits: RequestLimits
    fingerprint: PairFingerprint
    watch_layers: Callable[[LayerListener], None] = field(default=lambda listener: None)
    """Report finished layers to a listener while prompts are computed; a paced runner has none to report."""
    masks: RowMasks | None = None
    """None: grammars are refused (paced)."""
    costs: CostModel | None = None
    """None when nothing is computed (paced)."""
    peak: Peak | None = None
    """One device's; None: not known."""
    rank_costs: Sequence[CostModel] = ()
    """The costs of each rank's share; empty for a worker of one rank."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each part of the start took, in order."""
    kernels: CompiledHere | None = None
    """None where none are compiled (CPUs, paced)."""
    watch_loss: Callable[[Callable[[BaseException], None]], None] = field(default=lambda on_lost: None)
    """Call a function, from any thread, when a rank is lost; a worker of one rank has none to lose."""
    close: Callable[[], None] = field(default=lambda: None)
    """End what the engine runs besides this process. Nothing uses the engine any more."""

    @property
    def pool(self) -> KvPool:
        """The first rank's pool."""
        return self.pools[0]


def scheduler_of(
    config: WorkerConfig, pool: KvPool, max_context_tokens: int, masks: RowMasks | None = None
) -> Scheduler:
    settings = EngineConfig(
        num_blocks=pool.num_blocks,
        block_tokens=pool.geometry.block_tokens,
        max_slots=config.max_sequences,
        max_context_tokens=max_context_tokens,
        max_step_tokens=config.max_step_tokens,
        chunk_tokens=config.chunk_tokens,
        max_waiting=config.max_waiting,
        windows=pool.geometry.windows,
        devices=config.tensor_parallel * config.pipeline_parallel,
    )
    return Scheduler(settings) if masks is None else Scheduler(settings, masks.compiler.is_ready)


def limits_of(
    config: WorkerConfig,
    vocab_size: int,
    max_context_tokens: int,
    *,
    follows_grammars: bool = True,
    encoding: EncodingLimits | None = None,
) -> RequestLimits:
    choices = min(MAX_CHOICES, config.max_sequences)
    encoding = encoding if config.hands_over else None
    return RequestLimits(vocab_size, max_context_tokens, choices, follows_grammars, config.keep_answers, encoding)
