"""Messages about one hand-over, made of its key, and the key of such a message. Pure."""

from __future__ import annotations

from baton_kv_transfer.grant import DecodePeer, LinkedPeer
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.layout import StreamLayout
from baton_wire.messages.pair_link import Abandon, Done, Grant, Reject, Seal, Span, Standing, Wait
from baton_wire.messages.values import Reason

MAX_DETAIL = 256
_AboutOne = Grant | Wait | Reject | Done | Seal | Abandon | Standing


def key_of(message: _AboutOne, peer: LinkedPeer | DecodePeer | None) -> HandoverKey:
    """Which hand-over a message of this peer is about."""
    return HandoverKey(message.request, message.attempt, 0 if peer is None else peer.leg.rank)


def grant(key: HandoverKey, transfer: int, layout: StreamLayout, spans: tuple[Span, ...]) -> Grant:
    """The decode worker's message: the stream of `layout` may be written through `spans`."""
    return Grant(
        request=key.request,
        attempt=key.attempt,
        transfer=transfer,
        start_tokens=layout.start_tokens,
        end_tokens=layout.end_tokens,
        unit_tokens=layout.unit_tokens,
        groups=layout.groups,
        spans=spans,
    )


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
