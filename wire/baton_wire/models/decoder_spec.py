"""The description of a model: a `DecoderSpec` of `LayerSpec`s. Everything about a model is read from these plain
values: names and shapes of its tensors, the arithmetic of its layers, the bytes and operations of a step, and its size
for the operator.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from baton_wire.messages.values import MAX_CONTEXT_TOKENS
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.layer_formats import WeightFormats
from baton_wire.models.pooling import PLAIN_POOLING, PoolingSpec
from baton_wire.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class Attention:
    """The mixer of a layer: grouped-query attention. Names are those in the checkpoint, after `self_attn.`."""

    q_heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig
    scale: float
    """Factor of the products of queries and keys."""
    window: int | None = None
    """How many positions, the query's own included, it attends to; None is all."""
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Queries, keys and values: three tensors, or one that holds them in this order."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMSNorm of queries and keys before the rotation."""
    qk_norm_names: tuple[str, str] | None = ("q_norm", "k_norm")
    """None: these norms have no weights."""
    norms_after_rotation: bool = False
    """True: the weights of these norms are applied after the rotation (Hunyuan)."""
    joins_heads: bool = False
    """True: one such norm over all query heads together and one over all key heads; False: of each head alone."""
    sinks: bool = False
    """One learnt logit for each query head, which takes part in the softmax without a key."""
    even_positions: int | None = None
    """Positions up to which this attention is the layer's. The layer treats later ones in another way (Llama 4: chunks,
    and scaled queries), which is not computed: contexts end there."""

    @property
    def q_width(self) -> int:
        return self.q_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class SiluGate:
    """silu(gate) · up."""


@dataclass(frozen=True, slots=True)
class GeluGate:
    """gelu(gate) · up, by the tanh formula."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """g · sigmoid(alpha · g) · (u + 1), g = min(gate, limit), u = up between -limit and limit (gpt-oss)."""

    limit: float
    alpha: float


Gate = SiluGate | GeluGate | ClampedGate


@dataclass(frozen=True, slots=True)
class Dense:
    """One gated feed-forward block."""

    inner: int
    gate: Gate = SiluGate()
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    """Two tensors, or one that holds the gate first. Names follow that of the block, as `down`."""
    bias: bool = False
    down: str = "down_proj"
    name: str = "mlp"
    """Name after the layer's prefix."""


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """Names of experts that have tensors of their own, after the layer's prefix."""

    expert: str
    """With {number}."""
    gate_up_down: tuple[str, str, str]

    def gate_up(self, number: int) -> tuple[str, str]:
        """Names of an expert's two projections from the hidden size."""
        at = self.expert.format(number=number)
        return f"{at}.{self.gate_up_down[0]}", f"{at}.{self.gate_up_down[1]}"

    def down(self, number: int) -> str:
        return f"{self.expert.format(number=number)}.{self.gate_up_down[2]}"


@dataclass(frozen=True, slots=True)
class StackedTensors:
    """All experts of a layer in one tensor. Names follow the layer's prefix. By default as gpt-oss has them."""

    gate_up: str
    down: str
    columns_first: bool = True
    """True: [experts, columns, features]; False: [experts, features, columns]."""
    in_turn: bool = True
    """True: features of gate and up take turns; False: all of the gate come first."""
    has_biases: bool = True
    apart: ExpertTensors | None = None
    """Names of the experts in checkpoints of compressed-tensors, if its tools write a tensor for each expert."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """One gated block that every token takes, next to the experts that are chosen."""

    block: Dense
    gate: str | None = None
    """Linear layer of one feature, after the layer's prefix: the block is multiplied with its sigmoid."""


@dataclass(frozen=True, slots=True)
class CorrectedChoice:
    """Experts are chosen by score plus a bias; their shares come from the scores alone."""

    bias: str | None
    """Tensor with a number for each expert, after the layer's prefix. None: the greatest logits are chosen."""
    groups: int = 1
    """Groups of equally many experts; a group is as good as its two best experts."""
    groups_per_token: int = 1
    """Groups that a token may take experts of."""
    scale: float = 1.0
    """Factor of all shares."""
    is_softmax: bool = False
    """True: scores are a softmax over all experts; False: sigmoids of logits."""
    least_sum: float = 1e-20
    """Sum of the chosen scores below which shares no longer add up to 1."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward blocks of which each token takes some."""

    count: int
    per_token: int
    inner: int
    normalised: bool
    """True if the chosen experts' shares add up to 1."""
    router: str
    """Name after the layer's prefix."""
    tensors: ExpertTensors | StackedTensors
    gate: Gate = SiluGate()
    router_bias: bool = False
    corrected: CorrectedChoice | None = None
    """None: the greatest logits are chosen, and shares are a softmax."""
    shared: SharedExpert | None = None
    scales_inputs: bool = False
    """True: an expert's input is multiplied with its share, not its output."""


FeedForward = Dense | Experts


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Names of a layer's norms after its prefix. None: there is no such norm."""

    before_mixer: str | None = "input_layernorm"
    after_mixer: str | None = None
    """Norm of what the mixer adds to the residual stream."""
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    mixer: Attention
    feed_forward: FeedForward
    norms: LayerNorms = LayerNorms()
    residual_scale: float = 1.0
    """Factor of what the mixer and the feed-forward block add to the residual stream."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Everything the decoder needs to know about a model, apart from its weights. At least one layer; all layers have
    equally many heads of one size."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    norms_from_one: bool
    """True if norms multiply by 1 + weight."""
    max_position_embeddings: int
    tied_head: bool
    eos_token_ids: tuple[int, ...]
    dtype: str | None
    """The checkpoint's own dtype; None when the config does not say."""
    embedding_scale: float = 1.0
    logit_divisor: float = 1.0
    """Logits are divided by it before they are capped."""
    logit_cap: float | None = None
    """c of c · tanh(logits / c)."""
    formats: WeightFormats = field(default_factory=WeightFormats)
    """How the weights of linear layers are stored."""
    further_layers: int = 0
    """Layers in the file after the last one, which predict further tokens. They are not served."""
    wrapper: str | None = None
    """`model_type` of the model for images and text that it was taken out of."""
    generates: bool = True
    """False for a model without a head for tokens, as embedding models and classifiers are published."""
    labels: int = 0
    """Rows of a classification head; 0: there is none."""
    label_activation: bool = True
    """True if scores are probabilities: a sigmoid of one label, a softmax of several. False: they are logits."""
    pooling: PoolingSpec = PLAIN_POOLING

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> Attention:
        """Attention of the first layer: heads and their size are the same in all layers."""
        return self.layers[0].mixer

    @property
    def num_kv_heads(self) -> int:
        return self.attention.kv_heads

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The different ones, in the order of the layers."""
        return tuple(dict.fromkeys(layer.mixer.rope for layer in self.layers))

    @property
    def max_context_tokens(self) -> int:
        """Longest context that positions are made for and that is computed. YaRN configs may state the length before
        extension."""
        reach = max(rope.reach(self.max_position_embeddings) for rope in self.ropes)
        return min((reach, *(even for layer in self.layers if (even := layer.mixer.even_positions) is not None)))

    def context_within(self, asked: int | None) -> int:
        """The context to serve: what is asked for, or all that the model is made for. Raises ModelConfigError."""
        allowed = min(self.max_context_tokens, MAX_CONTEXT_TOKENS)
        if asked is not None and not 1 <= asked <= allowed:
            raise ModelConfigError(
                f"max_context_tokens: {asked} is not supported; allowed: 1 to {allowed}, which the model is made for"
            )
        return asked or allowed

    def rope_digest(self, context: int) -> str:
        """SHA-256 over the RoPE options of a served context, hexadecimal: equal on two workers whose rotated keys may
        be mixed."""

        def rotation(rope: RopeConfig) -> dict[str, object]:
            options = {name: value for name, value in asdict(rope).items() if name != "even_positions"}  # of queries
            return {"rope": options, "type": type(rope.scaling).__name__, "long": rope.is_long(context)}

        content = [rotation(rope) for rope in self.ropes]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
