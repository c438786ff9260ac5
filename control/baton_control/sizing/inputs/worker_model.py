"""One kind of worker pair: its step times, what fits into it, and the links between the two."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton_control.sizing.inputs.kv_size import KvSize
from baton_wire.rules.step_times import DecodeTimes, PrefillTimes


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """Everything that the simulator knows of one kind of worker pair."""

    prefill: PrefillTimes
    decode: DecodeTimes
    kv_capacity_tokens: int
    """KV tokens of one decode worker. Where layers have windows: in sequences of the longest context."""
    max_sequences: int
    """Decode slots of one worker."""
    max_step_tokens: int
    """Prefill budget of one step; a longer prompt runs alone."""
    kv: KvSize
    """KV bytes that a sequence keeps, and a hand-over moves."""
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
    """Accelerators of one prefill and of one decode worker."""
    prefill_kv_tokens: int | None = None
    """KV tokens of one prefill worker; None: as many as a decode worker."""

    @property
    def prefill_capacity_tokens(self) -> int:
        """KV tokens of one prefill worker."""
        return self.kv_capacity_tokens if self.prefill_kv_tokens is None else self.prefill_kv_tokens

    def with_kv_capacity(self, tokens: int) -> WorkerModel:
        """The same worker if a decode worker has that much room, and a prefill worker more or less as believed."""
        prefill = None
        if self.prefill_kv_tokens is not None:
            prefill = int(self.prefill_kv_tokens * tokens / self.kv_capacity_tokens)
        return replace(self, kv_capacity_tokens=tokens, prefill_kv_tokens=prefill)

    def slowed(self, prefill: float, decode: float) -> WorkerModel:
        """The same worker with steps that take `prefill` and `decode` times as long."""
        return replace(self, prefill=self.prefill.slowed(prefill), decode=self.decode.slowed(decode))
