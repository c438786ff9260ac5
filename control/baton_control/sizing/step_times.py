"""How long a step of a worker takes, as a function of what is in it; and what fits into a worker.

The form is fixed and linear in its coefficients, so that they can be fitted online (`fitting`) or derived from a
model's shape and an accelerator (`roofline`). What a step contains is counted by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PrefillTimes:
    """seconds = fixed_s + per_token_s · tokens + per_pair_s · (token, attended position) pairs of the step"""

    fixed_s: float
    per_token_s: float
    per_pair_s: float

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.fixed_s + self.per_token_s * tokens + self.per_pair_s * pairs

    def prompt_s(self, tokens: float, cached_tokens: float = 0.0) -> float:
        """Work of one prompt alone, without the fixed part of its step."""
        return self.per_token_s * tokens + self.per_pair_s * attended_pairs(tokens, cached_tokens)


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    """seconds = fixed_s + per_sequence_s · b + over_knee_s · max(0, b - knee) + per_kv_token_s · KV tokens

    `b` is the batch padded to the graph size that runs it. Up to `knee` a step is bound by reading the weights, beyond
    by computing.
    """

    fixed_s: float
    per_sequence_s: float
    over_knee_s: float
    per_kv_token_s: float
    knee: float
    pad_to: int = 8

    def base_s(self, batch: int) -> float:
        """A step of `batch` sequences without the part that grows with their KV."""
        padded = -(-batch // self.pad_to) * self.pad_to
        return self.fixed_s + self.per_sequence_s * padded + self.over_knee_s * max(0.0, padded - self.knee)

    def seconds(self, batch: int, kv_tokens: float) -> float:
        return self.base_s(batch) + self.per_kv_token_s * kv_tokens


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """Everything that the twin knows of one kind of worker pair."""

    prefill: PrefillTimes
    decode: DecodeTimes
    kv_capacity_tokens: int
    """Of one worker, prefill or decode."""
    max_sequences: int
    """Decode slots of one worker."""
    max_step_tokens: int
    """Prefill budget of one step; a longer prompt runs alone."""
    kv_bytes_per_token: float
    link_bytes_per_s: float
    layers: int
    hand_over_s: float = 2e-3
    """Seal, scatter and verify after the last bytes, and the messages around them."""
    gateway_s: float = 4e-3
    """Tokenising, routing and delivery, added to every first token."""
    hold_s: float | None = None
    """Prompts wait at the gateway while every prefill worker has more work than this; None: than fills its next step,
    which at the speed of real hardware makes no difference (docs/sizing.md)."""
    accelerators: tuple[int, int] = (1, 1)
    """Of one prefill and of one decode worker."""

    def slowed(self, prefill: float, decode: float) -> WorkerModel:
        """The same worker with steps that take `prefill` and `decode` times as long."""
        p, d = self.prefill, self.decode
        return replace(
            self,
            prefill=PrefillTimes(p.fixed_s * prefill, p.per_token_s * prefill, p.per_pair_s * prefill),
            decode=replace(
                d,
                fixed_s=d.fixed_s * decode,
                per_sequence_s=d.per_sequence_s * decode,
                over_knee_s=d.over_knee_s * decode,
                per_kv_token_s=d.per_kv_token_s * decode,
            ),
        )


def attended_pairs(tokens: float, cached_tokens: float) -> float:
    """Causal attention pairs of `tokens` new tokens behind `cached_tokens` cached ones."""
    return tokens * (cached_tokens + tokens / 2)
