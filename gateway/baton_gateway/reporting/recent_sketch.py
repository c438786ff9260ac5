"""A sketch of the values of the last minute, in pieces of a few seconds that are forgotten one by one. Pure."""

from __future__ import annotations

from collections import deque

from baton_wire.sketch import Sketch, merged

WINDOW_S = 60.0
PIECE_S = 5.0


class RecentSketch:
    """The values that were added in the last `WINDOW_S`, to within `PIECE_S`. `now` only goes forward."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, Sketch]] = deque(maxlen=int(WINDOW_S / PIECE_S))

    def add(self, value: float, now: float) -> None:
        """Add a value. Raises ValueError for one that is not finite or is negative."""
        number = int(now / PIECE_S)
        if not self._pieces or self._pieces[-1][0] < number:
            self._pieces.append((number, Sketch()))
        self._pieces[-1][1].add(value)

    def sketch(self, now: float) -> Sketch:
        """One sketch of the values of the last minute."""
        oldest = int(now / PIECE_S) - int(WINDOW_S / PIECE_S)
        return merged(piece for number, piece in self._pieces if number > oldest)
