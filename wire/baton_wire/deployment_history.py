"""A deployment's history: what changed lately, in one bounded document. Pure.

The process that sizes the pools keeps it, next to the facts that it compares with from one look to the next, and sends
the changes alone to gateways for their page. No key, prompt or answer is in it, and no value of a variable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from baton_wire.messages.operator_link import MAX_HISTORY_BYTES as MAX_HISTORY_BYTES

MAX_CHANGES = 200
MAX_TEXT_CHARS = 240
MAX_SUBJECT_CHARS = 80
MAX_REASON_CHARS = 600
MAX_POOLS = 4
MAX_ENTRIES_BYTES = MAX_HISTORY_BYTES - MAX_POOLS * 6 * (MAX_REASON_CHARS + 2 * MAX_SUBJECT_CHARS + 4) - 96
"""Room for the changes, next to reasons in their longest encoding."""
_encode = msgspec.json.Encoder().encode


class ChangeKind(enum.StrEnum):
    """The kind of a change."""

    DECISION = "decision"
    """A pool got another size."""
    LIMIT = "limit"
    """A pool's size is the most that it may have."""
    RESTART = "restart"
    """A process ended and was started again."""
    SPEC = "spec"
    VERSION = "version"
    CONDITION = "condition"
    """A condition of the deployment on its cluster says that something is not as it should be."""


class HistoryChange(msgspec.Struct, frozen=True):
    """One change."""

    at: Annotated[float, Meta(ge=0, le=1e11)]
    """Wall clock."""
    kind: ChangeKind
    subject: Annotated[str, Meta(max_length=MAX_SUBJECT_CHARS)]
    """A pool, a process or a field of the spec."""
    text: Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class DeploymentHistory(msgspec.Struct, frozen=True):
    """The changes, the oldest first."""

    entries: Annotated[tuple[HistoryChange, ...], Meta(max_length=MAX_CHANGES)] = ()
    reasons: dict[str, str] = {}
    """Why each pool has its present size."""
    wanted: dict[str, int] = {}
    """How many workers each pool is to have; empty: not announced."""

    @property
    def wanted_workers(self) -> int | None:
        """The number of workers that all pools are to have together; None: not known, or none at present."""
        return sum(self.wanted.values()) or None

    def with_reasons(self, reasons: Mapping[str, str], wanted: Mapping[str, int] | None = None) -> DeploymentHistory:
        """Return the history with the present reasons, and with the number of workers that each pool is to have."""
        return DeploymentHistory(
            self.entries,
            {
                _cut(pool, MAX_SUBJECT_CHARS): _cut(why, MAX_REASON_CHARS)
                for pool, why in list(reasons.items())[:MAX_POOLS]
            },
            {_cut(pool, MAX_SUBJECT_CHARS): count for pool, count in list((wanted or {}).items())[:MAX_POOLS]},
        )

    def with_changes(self, changes: Iterable[HistoryChange]) -> DeploymentHistory:
        """Return the history with later changes; the oldest ones make room for them."""
        entries = (*self.entries, *changes)[-MAX_CHANGES:]
        size = sum(len(_encode(entry)) + 1 for entry in entries)
        first = 0
        while size > MAX_ENTRIES_BYTES:
            size -= len(_encode(entries[first])) + 1
            first += 1
        return DeploymentHistory(entries[first:], self.reasons, self.wanted)


def make_change(at: float, kind: ChangeKind, subject: str, text: str) -> HistoryChange:
    """Return a change whose texts are cut to their longest length."""
    return HistoryChange(at, kind, _cut(subject, MAX_SUBJECT_CHARS), _cut(text, MAX_TEXT_CHARS))


def encode_history(history: DeploymentHistory) -> bytes:
    """Encode a history as JSON."""
    return _encode(history)


def decode_history(content: bytes) -> DeploymentHistory:
    """Decode a history. Raises ValueError for one that breaks a bound."""
    if len(content) > MAX_HISTORY_BYTES:
        raise ValueError(f"a history of {len(content)} bytes: at most {MAX_HISTORY_BYTES}")
    return msgspec.json.decode(content, type=DeploymentHistory)


def _cut(text: str, most: int) -> str:
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
