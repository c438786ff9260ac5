"""What a prefill worker does with a gateway's request: compute it for a hand-over, or say why not. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.events import SequenceSpec
from baton_wire.messages.gateway_link import Prefill
from baton_wire.messages.values import Reason
from baton_worker.serving.intake import Limits, Refusal, sequence_spec


@dataclass(frozen=True, slots=True)
class Condition:
    """What the decision depends on besides the request."""

    draining: bool
    is_open: bool
    """Whether the same (request, attempt) is already being worked on."""


def decide(message: Prefill, limits: Limits, condition: Condition, now: float) -> SequenceSpec | Refusal:
    """Accept the prompt, held for its hand-over after the first token, or refuse it with a typed reason."""
    if condition.is_open:
        return Refusal(Reason.BAD_REQUEST, "request and attempt are already open here")
    if condition.draining:
        return Refusal(Reason.DRAINING, "this worker is draining")
    return sequence_spec(message, limits, now, hold=True)
