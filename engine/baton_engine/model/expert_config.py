"""Mixtures of experts in config.json: how many there are, how many each token takes, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_engine.model.config_fields import ConfigFields

MAX_EXPERTS: Final = 1_024


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """Of the layers that have experts in place of one feed-forward block."""

    count: int
    per_token: int
    intermediate_size: int
    normalised: bool
    """Whether the chosen experts' shares add up to 1."""
    layers: frozenset[int]
    router: str
    """Names in the checkpoint, behind the layer's prefix."""
    expert: str
    """With {number}."""
    gate_up_down: tuple[str, str, str]

    def gate_up(self, number: int) -> tuple[str, str]:
        """Names of an expert's two projections from the hidden size."""
        at = self.expert.format(number=number)
        return f"{at}.{self.gate_up_down[0]}", f"{at}.{self.gate_up_down[1]}"

    def down(self, number: int) -> str:
        return f"{self.expert.format(number=number)}.{self.gate_up_down[2]}"


def read_experts(fields: ConfigFields, model_type: str, num_layers: int) -> ExpertConfig | None:
    """None for families without. Raises ModelConfigError."""
    match model_type:
        case "qwen3_moe":
            return _qwen3_moe(fields, num_layers)
        case "mixtral":
            fields.only("router_jitter_noise", 0.0, "0 or absent")
            count = fields.integer("num_local_experts", 8, maximum=MAX_EXPERTS)
            return ExpertConfig(
                count=count,
                per_token=fields.integer("num_experts_per_tok", 2, maximum=count),
                intermediate_size=fields.integer("intermediate_size"),
                normalised=True,
                layers=frozenset(range(num_layers)),
                router="block_sparse_moe.gate",
                expert="block_sparse_moe.experts.{number}",
                gate_up_down=("w1", "w3", "w2"),
            )
    return None


def _qwen3_moe(fields: ConfigFields, num_layers: int) -> ExpertConfig:
    name = "num_experts" if fields.has("num_experts") else "num_local_experts"
    count = fields.integer(name, 128, maximum=MAX_EXPERTS)
    every = fields.integer("decoder_sparse_step", 1, maximum=1_024)
    dense = fields.raw("mlp_only_layers")
    if dense is None:
        dense = []
    if not isinstance(dense, list) or not all(isinstance(layer, int) and 0 <= layer < num_layers for layer in dense):
        raise fields.error("mlp_only_layers", f"a list of layers, each from 0 to {num_layers - 1}")
    return ExpertConfig(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 8, maximum=count),
        intermediate_size=fields.integer("moe_intermediate_size", 768),
        normalised=fields.flag("norm_topk_prob", False),
        layers=frozenset(layer for layer in range(num_layers) if (layer + 1) % every == 0 and layer not in dense),
        router="mlp.gate",
        expert="mlp.experts.{number}",
        gate_up_down=("gate_proj", "up_proj", "down_proj"),
    )
