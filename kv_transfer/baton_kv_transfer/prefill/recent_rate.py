"""The rate of a link in the last minute, while bytes were under way on it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
PIECE_S = 5.0
LEAST_BYTES = 4 << 20
"""As much as one write of the measurement when a link comes up: less is latency, not bandwidth."""


@dataclass(slots=True)
class _Piece:
    number: int
    sent_bytes: int = 0
    busy_s: float = 0.0


class RecentRate:
    """Bytes that a link carried in the last minute over the time in which it carried any. Idle time does not count, so
    the figure compares with what the link reached when it came up."""

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque(maxlen=int(WINDOW_S / PIECE_S))
        self._busy_until_s = float("-inf")

    def add(self, sent_bytes: int, began_s: float, ended_s: float) -> None:
        """Count one write that has ended; writes may overlap."""
        number = int(ended_s / PIECE_S)
        if not self._pieces or self._pieces[-1].number < number:
            self._pieces.append(_Piece(number))
        piece = self._pieces[-1]
        piece.sent_bytes += sent_bytes
        piece.busy_s += max(0.0, ended_s - max(began_s, self._busy_until_s))
        self._busy_until_s = max(self._busy_until_s, ended_s)

    def bytes_per_s(self, now: float) -> float | None:
        """The rate of the last minute; None: too little was written in it."""
        oldest = int(now / PIECE_S) - int(WINDOW_S / PIECE_S)
        pieces = [piece for piece in self._pieces if piece.number > oldest]
        busy_s, sent_bytes = sum(piece.busy_s for piece in pieces), sum(piece.sent_bytes for piece in pieces)
        return sent_bytes / busy_s if busy_s > 0 and sent_bytes >= LEAST_BYTES else None
