"""What a step needs at least of the device: floating-point operations and bytes of memory. Pure arithmetic.

The numerators of MFU and MBU, by their usual definitions (PaLM, Chowdhery et al. 2022, appendix B; "model bandwidth
utilisation" as in Databricks' inference guide): what the model needs, not what the kernels happen to do. So padding,
re-reads and work that is skipped because nobody reads its result change nothing.

    FLOPs = 2 · (tokens · layer weights + drawing rows · head) + 4 · layers · q_heads · head_dim · attended pairs
    bytes = weights once + KV written + KV that decode rows read
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.model.model_config import ModelConfig
from baton_engine.model.parameters import linear_sizes
from baton_engine.running.step_load import StepLoad


@dataclass(frozen=True, slots=True)
class StepCost:
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of one model in one dtype. A window bounds neither: the figures are upper bounds for sliding attention."""

    layer_weights: int
    """Elements that every token is multiplied with, all layers together."""
    head_weights: int
    pair_flops: float
    """Of one query position attending to one key position, all layers and heads."""
    weight_bytes: int
    kv_token_bytes: int

    def of(self, load: StepLoad) -> StepCost:
        tokens = load.prefill_tokens + load.decode_rows
        pairs = load.prefill_pairs + load.kv_tokens
        flops = 2.0 * (tokens * self.layer_weights + load.rows * self.head_weights) + self.pair_flops * pairs
        moved = self.weight_bytes + self.kv_token_bytes * (tokens + load.kv_tokens)
        return StepCost(flops, float(moved))


def cost_model(config: ModelConfig, element_bytes: int, kv_element_bytes: int) -> CostModel:
    """For unquantised weights and KV whose elements take that many bytes; quantised weights count as they are stored.
    Embedding rows that are looked up are left out."""
    attended = config.num_q_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * attended + 2 * kv) + 3 * config.hidden_size * config.intermediate_size
    weights = config.num_layers * layer
    head = config.vocab_size * config.hidden_size
    return CostModel(
        layer_weights=weights,
        head_weights=head,
        pair_flops=4.0 * config.num_layers * attended,
        weight_bytes=sum(
            _stored_bytes(config, name, *size, element_bytes) for name, size in linear_sizes(config).items()
        ),
        kv_token_bytes=2 * config.num_layers * kv * kv_element_bytes,
    )


def _stored_bytes(config: ModelConfig, name: str, features: int, columns: int, element_bytes: int) -> int:
    stored = config.formats.of(name)
    return features * columns * element_bytes if stored is None else stored.stored_bytes(features, columns)
