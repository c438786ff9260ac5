"""The trace that a request belongs to: its client's, named by the header `traceparent` of W3C Trace Context, or a new
one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = "traceparent"
ID_BYTES = 16
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace of one request."""

    trace_id: str
    """32 hexadecimal digits."""
    parent_id: str
    """The client's span, 16 hexadecimal digits; empty: the trace begins here."""
    is_sampled: bool

    @property
    def exemplar(self) -> dict[str, str]:
        """Return the labels that lead from a measured value to the trace."""
        return {"trace_id": self.trace_id}


def parse_traceparent(values: Sequence[str]) -> TraceContext | None:
    """Return the client's trace. None: it sent no header, several, or a malformed one.

    A later version of the header may have more fields; version 00 has exactly four.
    """
    match = _FORM.fullmatch(values[0].strip(" \t")) if len(values) == 1 else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not int(trace_id, 16) or not int(parent_id, 16):
        return None
    return TraceContext(trace_id, parent_id, bool(int(flags, 16) & _SAMPLED))


def choose_trace(values: Sequence[str], ratio: float, random_id: bytes) -> TraceContext:
    """Return the trace of a request. `values`: its headers `traceparent`; `ratio`: the share of new traces that are
    sampled; `random_id`: the id of a new trace.

    The client decides about its own traces. A new one is sampled by the last eight bytes of its id, so that every
    process that follows the same rule decides alike.
    """
    sent = parse_traceparent(values)
    if sent is not None:
        return sent
    is_sampled = int.from_bytes(random_id[-8:]) < ratio * 2**64
    return TraceContext(random_id.hex(), "", is_sampled)
