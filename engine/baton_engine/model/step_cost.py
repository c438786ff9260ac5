"""The least work of a step on the device: floating-point operations and bytes of memory. Pure arithmetic.

The numerators of MFU and MBU, by their usual definitions (PaLM, Chowdhery et al. 2022, appendix B; "model bandwidth
utilisation" as in Databricks' inference guide): what the model needs, not what the kernels happen to do. So padding,
re-reads and skipped work whose result is not needed change nothing.

    FLOPs = 2 · (tokens · layer weights + drawing rows · head) + 4 · layers · q_heads · head_dim · attended pairs
    bytes = weights once + KV written + KV that decode rows read

Layers with a window attend to and read the positions in it alone.

A token is multiplied with the weights of the experts that it takes. Of E experts, T tokens that take k each read
E · (1 - (1 - k / E)^T), if the router chooses evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from baton_engine.scheduling.step_load import StepLoad
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.sharding.shard_spec import shard_spec
from baton_wire.models.sharding.tensor_parts import vocabulary_part
from baton_wire.models.sizes import head_bytes, layer_sizes


@dataclass(frozen=True, slots=True)
class StepCost:
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of one model in one dtype."""

    layer_weights: int
    """Elements that every token is multiplied with, all layers together."""
    head_weights: int
    pair_flops: float
    """FLOPs of one query position attending to one key position, all layers and heads."""
    weight_bytes: int
    """Bytes of all weights that every step reads."""
    kv_token_bytes: int
    """Bytes of one token's KV in all layers."""
    expert_bytes: int = 0
    """Bytes of the experts of all layers together."""
    expert_share: float = 1.0
    """Share of the experts that a token takes."""
    windows: Mapping[int, float] = field(default_factory=dict)
    """Window in tokens -> share of the layers that have it."""

    def of(self, load: StepLoad) -> StepCost:
        tokens = load.prefill_tokens + load.decode_rows
        pairs, read = load.prefill_pairs + load.kv_tokens, float(load.kv_tokens)
        for windowed in load.windowed:
            share = self.windows[windowed.window]
            pairs -= share * (load.prefill_pairs + load.kv_tokens - windowed.prefill_pairs - windowed.kv_tokens)
            read -= share * (load.kv_tokens - windowed.kv_tokens)
        flops = 2.0 * (tokens * self.layer_weights + load.rows * self.head_weights) + self.pair_flops * pairs
        experts = self.expert_bytes * (1.0 - (1.0 - self.expert_share) ** tokens)
        moved = self.weight_bytes + experts + self.kv_token_bytes * (tokens + read)
        return StepCost(flops, float(moved))


def cost_model(config: DecoderSpec, element_bytes: int, kv_element_bytes: int) -> CostModel:
    """The cost model of a model whose unquantised weights and KV take this many bytes an element. Quantised weights
    count in their stored size. Embedding rows that are looked up are left out."""
    sizes, head = layer_sizes(config, element_bytes), config.vocab_size * config.hidden_size
    attention, share = config.attention, sizes.expert_share
    windows = Counter(layer.mixer.window for layer in config.layers)
    return CostModel(
        layer_weights=round(sizes.weights + sizes.expert_weights * share),
        head_weights=head,
        pair_flops=4.0 * config.num_layers * attention.q_width,
        weight_bytes=sizes.bytes + head_bytes(config, element_bytes),
        kv_token_bytes=2 * config.num_layers * attention.kv_width * kv_element_bytes,
        expert_bytes=sizes.expert_bytes,
        expert_share=share,
        windows={window: count / config.num_layers for window, count in windows.items() if window is not None},
    )


def rank_costs(config: DecoderSpec, ranks: int, element_bytes: int, kv_element_bytes: int) -> list[CostModel]:
    """The cost model of each rank's share. KV of a head counts at every rank that holds it."""
    costs = []
    for rank in range(ranks):
        share = shard_spec(config, rank, ranks)
        whole, part = cost_model(share, element_bytes, kv_element_bytes), len(vocabulary_part(share, rank, ranks))
        missing = head_bytes(share, element_bytes) * (config.vocab_size - part) // config.vocab_size
        costs.append(replace(whole, head_weights=part * config.hidden_size, weight_bytes=whole.weight_bytes - missing))
    return costs
