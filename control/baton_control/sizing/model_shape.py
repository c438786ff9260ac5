"""The sizes of a decoder-only model that decide its cost, read from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.errors import FieldProblem, ManifestError, shown

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dense decoder with grouped-query attention and a gated feed-forward block."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    tied_embeddings: bool
    element_bytes: int = 2
    layer_weight_bytes: float | None = None
    """Bytes of a weight of the layers where these are quantised, scales included; None: element_bytes."""
    max_context_tokens: int = 131_072

    @property
    def block_parameters(self) -> int:
        """Parameters of all layers, without embeddings: each is multiplied once per token."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden)

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.block_parameters + self.embedding_parameters * (1 if self.tied_embeddings else 2)

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory."""
        return int(self._layers_bytes + (self.parameters - self.block_parameters) * self.element_bytes)

    @property
    def step_weight_bytes(self) -> float:
        """What a decode step reads of the weights."""
        return self._layers_bytes + self.embedding_parameters * self.element_bytes

    @property
    def _layers_bytes(self) -> float:
        return self.block_parameters * (self.layer_weight_bytes or self.element_bytes)

    @property
    def step_parameters(self) -> int:
        """Parameters that a decode step reads: all layers and the output projection, not the input embedding."""
        return self.block_parameters + self.embedding_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


def shape_from_config(name: str, config: Mapping[str, object]) -> ModelShape:
    """The shape in a parsed config.json. Raises ManifestError naming each missing or absurd field."""
    problems: list[FieldProblem] = []

    def integer(field: str, default: int | None = None) -> int:
        value = config.get(field, default)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 24:
            problems.append(
                FieldProblem(field, f"{shown(value)} is not allowed: must be an integer from 1 to {1 << 24}")
            )
            return 1
        return value

    hidden, heads = integer("hidden_size"), integer("num_attention_heads")
    dtype = config.get("torch_dtype", config.get("dtype", "bfloat16"))
    if dtype not in DTYPE_BYTES:
        problems.append(FieldProblem("torch_dtype", f"{shown(dtype)} is not allowed: one of {', '.join(DTYPE_BYTES)}"))
    if config.get("num_experts") or config.get("num_local_experts"):
        problems.append(FieldProblem("num_experts", "mixtures of experts are not modelled yet"))
    shape = ModelShape(
        name=name,
        layers=integer("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=integer("num_key_value_heads", heads),
        head_dim=integer("head_dim", max(1, hidden // heads)),
        feed_forward=integer("intermediate_size"),
        vocabulary=integer("vocab_size"),
        tied_embeddings=config.get("tie_word_embeddings", False) is True,
        element_bytes=DTYPE_BYTES.get(str(dtype), 2),
        layer_weight_bytes=_layer_weight_bytes(config.get("quantization_config")),
        max_context_tokens=integer("max_position_embeddings", 131_072),
    )
    if problems:
        raise ManifestError(tuple(problems))
    return shape


def _layer_weight_bytes(section: object) -> float | None:
    """Of a `quantization_config`, whose details a worker judges: 4 bits where it says so, else 8; with 2 bytes of scale
    for each group."""
    if not isinstance(section, Mapping):
        return None
    groups = section.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else section
    if not isinstance(weights, Mapping):
        return None
    bits = weights.get("bits", weights.get("num_bits", 8))
    group = weights.get("group_size")
    scale = 2.0 / group if isinstance(group, int) and group > 0 else 0.0
    return (0.5 if bits == 4 else 1.0) + scale


LLAMA_8B = ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14_336, 128_256, False)
LLAMA_70B = ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28_672, 128_256, False)
LLAMA_1B = ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128_256, True)
QWEN3_8B = ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12_288, 151_936, False)
QWEN3_06B = ModelShape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151_936, True)
KNOWN_SHAPES = {shape.name: shape for shape in (LLAMA_8B, LLAMA_70B, LLAMA_1B, QWEN3_8B, QWEN3_06B)}
