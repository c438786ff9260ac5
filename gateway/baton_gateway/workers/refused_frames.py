"""Salvages a worker's message that does not fit its type: the entries that fit, and the requests that fail. Pure."""

from __future__ import annotations

from baton_wire.errors import BadFieldsError
from baton_wire.messages.codec import part_of
from baton_wire.messages.gateway_link import MAX_ENTRIES, LegFailed, Tokens
from baton_wire.messages.values import Attempt, Count, Reason, RequestId, TokenEntry


def salvage(refusal: BadFieldsError) -> tuple[Tokens | None, list[LegFailed]]:
    """The tokens that fit, and a failure for each request that the message names in a part that does not.

    The worker failed these requests; another worker may do better.
    """
    if refusal.message != Tokens.__name__:
        if refusal.request is None or refusal.attempt is None:
            return None, []
        return None, [_failed(refusal.request, refusal.attempt, refusal)]
    good: list[TokenEntry] = []
    failed: dict[tuple[bytes, int], LegFailed] = {}
    fields = list(refusal.fields)
    entries = fields[2] if len(fields) > 2 and isinstance(fields[2], list) else []
    for fields_of_entry in entries[:MAX_ENTRIES]:
        entry = part_of(fields_of_entry, TokenEntry)
        if entry is not None:
            good.append(entry)
        elif isinstance(fields_of_entry, list):
            request, attempt = (part_of(key, kind) for key, kind in zip(fields_of_entry, _KEY, strict=False))
            if request is not None and attempt is not None:
                failed[request, attempt] = _failed(request, attempt, refusal)
    step = part_of(fields[1], Count) or 0 if len(fields) > 1 else 0
    taken = tuple(entry for entry in good if (entry.request, entry.attempt) not in failed)
    return Tokens(step, taken) if taken else None, list(failed.values())


_KEY = (RequestId, Attempt)


def _failed(request: bytes, attempt: int, refusal: BadFieldsError) -> LegFailed:
    return LegFailed(request, attempt, Reason.INTERNAL, str(refusal)[:256])
