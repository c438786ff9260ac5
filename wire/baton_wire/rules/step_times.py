"""How long a step of a worker takes, as a function of what is in it.

The form is fixed and linear in its coefficients. So they can be derived from a model and an accelerator, and fitted to
the steps that workers report. What a step contains is counted by the caller. Sources: docs/sizing.md#step-times.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

Coefficient = Annotated[float, Meta(ge=0, le=1e4)]


class PrefillTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """seconds = fixed_s + per_token_s · tokens + per_pair_s · (token, attended position) pairs of the step"""

    fixed_s: Coefficient
    per_token_s: Coefficient
    per_pair_s: Coefficient

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.fixed_s + self.per_token_s * tokens + self.per_pair_s * pairs

    def prompt_s(self, tokens: float, cached_tokens: float = 0.0) -> float:
        """Work of one prompt alone, without the fixed part of its step."""
        return self.per_token_s * tokens + self.per_pair_s * attended_pairs(tokens, cached_tokens)

    def slowed(self, times: float) -> PrefillTimes:
        """The same, with every step `times` times as long."""
        return PrefillTimes(self.fixed_s * times, self.per_token_s * times, self.per_pair_s * times)


class DecodeTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """seconds = fixed_s + per_sequence_s · b + over_knee_s · max(0, b - knee) + per_kv_token_s · KV tokens

    `b` is the batch padded to the graph size that runs it. Up to `knee` a step is bound by reading the weights, beyond
    by computing.
    """

    fixed_s: Coefficient
    per_sequence_s: Coefficient
    over_knee_s: Coefficient
    per_kv_token_s: Coefficient
    knee: Coefficient
    pad_to: Annotated[int, Meta(ge=1, le=1024)] = 8

    def padded(self, batch: int) -> int:
        return -(-batch // self.pad_to) * self.pad_to

    def base_s(self, batch: int) -> float:
        """A step of `batch` sequences without the part that grows with their KV."""
        padded = self.padded(batch)
        return self.fixed_s + self.per_sequence_s * padded + self.over_knee_s * max(0.0, padded - self.knee)

    def seconds(self, batch: int, kv_tokens: float) -> float:
        return self.base_s(batch) + self.per_kv_token_s * kv_tokens

    def slowed(self, times: float) -> DecodeTimes:
        """The same, with every step `times` times as long."""
        return replace(
            self,
            fixed_s=self.fixed_s * times,
            per_sequence_s=self.per_sequence_s * times,
            over_knee_s=self.over_knee_s * times,
            per_kv_token_s=self.per_kv_token_s * times,
        )


class PacedTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """The file that a worker's `--paced` names: it waits for these times instead of computing."""

    label: str
    """Where the figures come from."""
    prefill: PrefillTimes
    decode: DecodeTimes
    kv_capacity_tokens: Annotated[int, Meta(ge=1024, le=1 << 26)]
    startup_s: Coefficient = 0.0
    """A worker is not ready before its process is this old."""


def attended_pairs(tokens: float, cached_tokens: float) -> float:
    """Causal attention pairs of `tokens` new tokens after `cached_tokens` cached ones."""
    return tokens * (cached_tokens + tokens / 2)
