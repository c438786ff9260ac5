"""Refusals among the answers of a batch: how many there are with which status, and the first of them in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from baton_gateway.batches.lines import refusal_text

REFUSED = 400
"""The least status of a refusal."""


class _Response(msgspec.Struct):
    status_code: int


class _Answer(msgspec.Struct):
    response: _Response


def refusal_of(line: bytes) -> tuple[int, str] | None:
    """The status and the reason of an answer that refuses its request; None: it does not. `line`: a whole answer.

    >>> refusal_of(b'{"custom_id": "a", "response": {"status_code": 404, "body": {"error": {"message": "no"}}}}')
    (404, 'a: no')
    """
    status = msgspec.json.decode(line, type=_Answer).response.status_code
    return None if status < REFUSED else (status, refusal_text(line))


@dataclass(slots=True)
class Refusals:
    """A count of refusals."""

    by_status: Counter[int] = field(default_factory=Counter)
    first: str = ""
    """The request that was refused first, and why; empty: none was."""

    @property
    def total(self) -> int:
        """The number of refusals."""
        return self.by_status.total()

    def note(self, status: int, reason: str) -> None:
        """Count a refusal."""
        self.by_status[status] += 1
        self.first = self.first or reason

    def in_words(self) -> str:
        """The number, with each status.

        >>> Refusals(Counter({404: 3})).in_words(), Refusals(Counter({404: 3, 400: 1})).in_words()
        ('3 refused, with 404', '4 refused: 3 with 404, 1 with 400')
        """
        if len(self.by_status) == 1:
            return f"{self.total:,} refused, with {next(iter(self.by_status))}"
        counts = ", ".join(f"{count:,} with {status}" for status, count in self.by_status.most_common())
        return f"{self.total:,} refused" + (f": {counts}" if counts else "")
