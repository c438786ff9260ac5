"""What a decode worker answers about one hand-over, apart from its Grant (`grant`). Pure."""

from __future__ import annotations

from baton_kv_transfer.handover import HandoverKey
from baton_wire.messages.pair_link import Abandon, Done, Reject, Wait
from baton_wire.messages.values import Reason

MAX_DETAIL = 256


def wait(key: HandoverKey, position: int) -> Wait:
    return Wait(request=key.request, attempt=key.attempt, position=position)


def reject(key: HandoverKey, reason: Reason, detail: str) -> Reject:
    return Reject(request=key.request, attempt=key.attempt, reason=reason, detail=detail[:MAX_DETAIL])


def verified(key: HandoverKey) -> Done:
    return Done(request=key.request, attempt=key.attempt)


def spoilt(key: HandoverKey, reason: Reason, detail: str) -> Done:
    """A sealed hand-over that is not admitted."""
    return Done(request=key.request, attempt=key.attempt, reason=reason, detail=detail[:MAX_DETAIL])


def abandon(key: HandoverKey, reason: Reason, detail: str = "") -> Abandon:
    return Abandon(request=key.request, attempt=key.attempt, reason=reason, detail=detail[:MAX_DETAIL])
