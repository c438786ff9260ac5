"""The decoder: embedding, layers of attention and gated MLP, final norm, head. One implementation for every supported
family.

What differs between families is which optional weights a layer has (biases inside `Linear`, QK norms) and its window.
Weights arrive ready from `models/assembly.py`; the KV pool and the rows of the step are passed in. No state of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from baton_engine.layers.attention import StepRows, attend, attend_last, index_step
from baton_engine.layers.linear import Linear
from baton_engine.layers.mlp import GatedMlp
from baton_engine.layers.norm import RmsNorm
from baton_engine.layers.rope import RopeTables
from baton_kernels.kv_scales import KV_FP8
from baton_kernels.rope_kv_write import rope_kv_write


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    qkv: Linear  # hidden_size → (q_heads + 2 · kv_heads) · head_dim
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    output: Linear  # q_heads · head_dim → hidden_size
    mlp_norm: RmsNorm
    mlp: GatedMlp
    next_norm: RmsNorm
    """Input norm of the next layer; after the last one the final norm."""
    window: int | None


@dataclass(frozen=True, slots=True)
class Decoder:
    embedding: Tensor  # [vocab_size, hidden_size]
    first_norm: RmsNorm
    layers: tuple[DecoderLayer, ...]
    windows: frozenset[int | None]
    """Of all layers."""
    head: Linear  # hidden_size → vocab_size
    rope: RopeTables
    num_q_heads: int
    norm_eps: float
    attention_scale: float
    kv_scales: Tensor
    """[layers, 2, kv_heads] float32 (`kv_scales.py`): what a float8 pool divides keys and values by."""

    def hidden_states(
        self, token_ids: Tensor, rows: StepRows, kv_pool: Tensor, written: Callable[[int], None] | None = None
    ) -> Tensor:
        """Run T rows: token_ids [T] int64 → the head's input for the wanted rows [S or T, hidden_size].

        The KV of all T rows goes into the pool; `written` is told after each layer's how many layers have theirs there
        (on a GPU: will have, once the kernels launched so far are done).
        """
        rope, last = self.rope, rows.last
        scales = self.kv_scales if kv_pool.dtype == KV_FP8 else None
        index = index_step(rows, kv_pool, rope, self.num_q_heads, self.windows, self.layers[-1].window)
        x = functional.embedding(token_ids, self.embedding)
        residual, x = x, self.first_norm(x)
        for number, layer in enumerate(self.layers):
            q = rope_kv_write(
                layer.qkv(x),
                rows.positions,
                rope.cos,
                rope.sin,
                rows.slot_mapping,
                kv_pool,
                number,
                self.num_q_heads,
                layer.q_norm,
                layer.k_norm,
                self.norm_eps,
                index.rope,
                scales,
            )
            if written is not None:
                written(number + 1)
            if last is not None and number == len(self.layers) - 1:
                if not last.rows.numel():
                    return x[:0]
                q, residual = q.index_select(0, last.rows), residual.index_select(0, last.rows)
                attended = attend_last(q, kv_pool, scales, number, last, index, self.attention_scale, layer.window)
            else:
                attended = attend(q, kv_pool, scales, number, rows, index, self.attention_scale, layer.window)
            x, residual = layer.mlp_norm.after(layer.output, attended.flatten(1), residual)
            x, residual = layer.next_norm.after(layer.mlp, x, residual)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size] → float32 logits [N, vocab_size]."""
        return self.head(hidden).float()
