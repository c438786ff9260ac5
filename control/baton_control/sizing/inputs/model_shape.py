"""The sizes of a decoder-only model that decide its cost, read from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton_control.errors import FieldProblem, ManifestError
from baton_control.sizing.inputs.kv_size import KvSize
from baton_wire.kv_shape import KvGroup
from baton_wire.models.decoder_spec import Dense, Experts
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.kv_groups import kv_groups
from baton_wire.models.parsing import parse_spec
from baton_wire.models.sizes import layer_sizes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of a model with one window."""

    window: int | None
    """In tokens; None: they attend to every position."""
    layers: int
    room: int
    """For how many layers their blocks have room. All groups of layers that share blocks are equally large."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Decoder with grouped-query attention and gated feed-forward blocks, one in a layer or experts."""

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

    expert_layers: int = 0
    """Layers with experts in place of one feed-forward block."""
    experts: int = 0
    """Experts in each such layer."""
    experts_per_token: int = 0
    expert_inner: int = 0

    kinds: tuple[LayerKind, ...] = ()
    """By their windows; none: no layer has one."""

    @property
    def block_parameters(self) -> int:
        """Parameters of all layers that are multiplied once per token, without embeddings."""
        return self._layer_parameters(self.experts_per_token)

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All that are held, every expert among them."""
        return self._layer_parameters(self.experts) + self.embedding_parameters * (1 if self.tied_embeddings else 2)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in memory."""
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        return int(self._layers_bytes + embeddings * self.element_bytes)

    @property
    def step_weight_bytes(self) -> float:
        """Bytes of the weights that a decode step reads. A full batch reads every expert, so any batch is taken to."""
        return self._layers_bytes + self.embedding_parameters * self.element_bytes

    def kv_share(self, ranks: int) -> float:
        """The part of the model's K and V that each of `ranks` ranks holds and reads. With fewer heads than ranks, each
        has one head, and several have the same."""
        return max(1.0 / ranks, 1.0 / self.kv_heads)

    def rank_weight_bytes(self, ranks: int) -> float:
        """Bytes of the weights in the memory of one rank: its share of the layers and of the head, all embeddings."""
        embeddings = self.embedding_parameters * self.element_bytes
        return self._rank_layers_bytes(ranks) + embeddings * (1.0 if self.tied_embeddings else 1.0 + 1.0 / ranks)

    def rank_step_bytes(self, ranks: int) -> float:
        """Bytes of the weights that one rank reads in a decode step."""
        return self._rank_layers_bytes(ranks) + self.embedding_parameters * self.element_bytes / ranks

    def _rank_layers_bytes(self, ranks: int) -> float:
        """The rank's share of the layers, with the projections of the KV heads that it holds."""
        kv_projections = 2 * self.kv_heads * self.head_dim * self.hidden * self.layers
        kv_bytes = kv_projections * (self.layer_weight_bytes or self.element_bytes)
        return (self._layers_bytes - kv_bytes) / ranks + kv_bytes * self.kv_share(ranks)

    def admits(self, ranks: int) -> bool:
        """True if heads and inner sizes can be shared out over that many ranks. Blocks of quantised weights, which a
        shape does not know, may forbid it all the same."""
        sizes = (self.heads, self.feed_forward, self.expert_inner)
        has_kv = self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0
        return has_kv and all(size % ranks == 0 for size in sizes)

    @property
    def _layers_bytes(self) -> float:
        return self._layer_parameters(self.experts) * (self.layer_weight_bytes or self.element_bytes)

    def _layer_parameters(self, experts: int) -> int:
        """Parameters with that many experts in each layer that has them."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        dense = (self.layers - self.expert_layers) * 3 * self.hidden * self.feed_forward
        sparse = self.expert_layers * self.hidden * (3 * experts * self.expert_inner + self.experts)
        return self.layers * (attention + 2 * self.hidden) + dense + sparse

    @property
    def step_parameters(self) -> int:
        """Parameters that a token is multiplied with in a decode step: its layers' and the output projection's."""
        return self.block_parameters + self.embedding_parameters

    @property
    def kv_layer_bytes(self) -> int:
        """K and V of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def kv(self) -> KvSize:
        """K and V of a sequence in all layers."""
        of_layer = float(self.kv_layer_bytes)
        full, windows = 0.0, []
        for kind in self.kinds or (LayerKind(None, self.layers, self.layers),):
            if kind.window is None:
                full += kind.room * of_layer
            else:
                windows.append((kind.window, kind.room * of_layer))
        return KvSize(full, tuple(windows))

    def attending(self, positions: float) -> tuple[float, float]:
        """(layers whose attention grows with the context, positions that all other layers see together) for a token
        after that many positions."""
        windowed = [(kind.window, kind.layers) for kind in self.kinds if kind.window is not None]
        full = self.layers - sum(layers for _, layers in windowed)
        return float(full), float(sum(min(window, positions) * layers for window, layers in windowed))


def shape_from_config(name: str, config: Mapping[str, object]) -> ModelShape:
    """The shape of the model that a parsed config.json describes. Raises ManifestError naming the field."""
    try:
        spec = parse_spec(dict(config))
        element_bytes = DTYPE_BYTES[spec.dtype or "bfloat16"]
        sizes = layer_sizes(spec, element_bytes)
    except ModelConfigError as error:
        field, _, problem = str(error).partition(": ")
        raise ManifestError((FieldProblem(field, problem),)) from error
    attention = spec.attention
    blocks = [layer.feed_forward for layer in spec.layers]
    experts = [block for block in blocks if isinstance(block, Experts)]
    return ModelShape(
        name=name,
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        heads=attention.q_heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        feed_forward=next((block.inner for block in blocks if isinstance(block, Dense)), 0),
        vocabulary=spec.vocab_size,
        tied_embeddings=spec.tied_head,
        element_bytes=element_bytes,
        layer_weight_bytes=(sizes.bytes + sizes.expert_bytes) / (sizes.weights + sizes.expert_weights),
        max_context_tokens=spec.max_context_tokens,
        expert_layers=len(experts),
        experts=experts[0].count if experts else 0,
        experts_per_token=experts[0].per_token if experts else 0,
        expert_inner=experts[0].inner if experts else 0,
        kinds=_kinds(kv_groups(spec)),
    )


def _kinds(groups: Sequence[KvGroup]) -> tuple[LayerKind, ...]:
    room = max((len(group.layers) for group in groups), default=0)
    return tuple(
        LayerKind(window, sum(len(group.layers) for group in same), room * len(same))
        for window in dict.fromkeys(group.window for group in groups)
        if (same := [group for group in groups if group.window == window])
    )


LLAMA_8B = ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14_336, 128_256, False)
LLAMA_70B = ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28_672, 128_256, False)
LLAMA_1B = ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128_256, True)
QWEN3_8B = ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12_288, 151_936, False)
QWEN3_06B = ModelShape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151_936, True)
KNOWN_SHAPES = {shape.name: shape for shape in (LLAMA_8B, LLAMA_70B, LLAMA_1B, QWEN3_8B, QWEN3_06B)}
