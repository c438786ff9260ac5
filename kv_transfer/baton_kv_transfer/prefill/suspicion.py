"""Decode workers that let hand-overs end without an answer: a pure count, after which their link is dialled again.

Heartbeats prove that a link carries frames, not that the other side works on them. A hand-over that waits for its
decode worker and gets no answer until it is given up is a silent one. Two in a row, with no answer between, are more
than chance: the link is cut, both sides forget what belonged to it, and it is dialled anew.
"""

from __future__ import annotations

from baton_kv_transfer.prefill.records import PrefillHandover, PrefillState

IN_A_ROW = 2


def is_silent(handover: PrefillHandover, now: float, least_s: float) -> bool:
    """True if the hand-over waits for its decode worker, and has done so for `least_s` or longer."""
    match handover.state:
        case PrefillState.UNGRANTED:
            waits = not handover.is_answered  # a Wait is an answer: the decode worker has no room yet
        case PrefillState.SENDING:
            waits = bool(handover.in_flight)
        case PrefillState.SEALED:
            waits = True
        case _:
            waits = False
    return waits and now - handover.moved_s >= least_s


class SilentHandovers:
    """How many hand-overs in a row ended silently, by decode worker."""

    def __init__(self) -> None:
        self._in_a_row: dict[bytes, int] = {}

    def answered(self, peer: bytes) -> None:
        """The decode worker gave a verdict, whichever; or it has a new link."""
        self._in_a_row.pop(peer, None)

    def ended(self, peer: bytes) -> bool:
        """Count one more silent hand-over. True: cut the link; the count begins anew."""
        count = self._in_a_row.get(peer, 0) + 1
        if count >= IN_A_ROW:
            self.answered(peer)
            return True
        self._in_a_row[peer] = count
        return False
