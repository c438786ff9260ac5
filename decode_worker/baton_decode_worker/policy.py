"""What a decode worker does with a gateway's request: reserve for a hand-over, prefill it here, or say why not.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.events import SequenceSpec
from baton_wire.messages.gateway_link import Reserve
from baton_wire.messages.values import Reason
from baton_worker.serving.intake import Limits, Refusal, sequence_spec


@dataclass(frozen=True, slots=True)
class Condition:
    """What the decision depends on besides the request."""

    draining: bool
    is_open: bool
    """Whether the same (request, attempt) is already being worked on."""


@dataclass(frozen=True, slots=True)
class PrefillHere:
    """No prefill worker takes part: this worker computes the prompt itself."""

    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class AwaitHandover:
    """Hold blocks for all tokens; their KV comes from the prefill worker with this epoch."""

    spec: SequenceSpec
    prefill_epoch: bytes


def decide(message: Reserve, limits: Limits, condition: Condition, now: float) -> PrefillHere | AwaitHandover | Refusal:
    """Accept the request in one of two ways, or refuse it with a typed reason."""
    if condition.is_open:
        return Refusal(Reason.BAD_REQUEST, "request and attempt are already open here")
    if condition.draining:
        return Refusal(Reason.DRAINING, "this worker is draining")
    spec = sequence_spec(message, limits, now, hold=False)
    if isinstance(spec, Refusal):
        return spec
    if message.prefill_epoch is None:
        return PrefillHere(spec)
    return AwaitHandover(spec, message.prefill_epoch)
