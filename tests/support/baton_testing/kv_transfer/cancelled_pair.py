"""A hand-over that is cancelled at one exact point of its life: after its n-th event, at one side or at both."""

from __future__ import annotations

from baton_testing.kv_transfer.defects import Defect, Result
from baton_testing.kv_transfer.spoilt_pair import SpoiltPair
from baton_wire.messages.values import Reason

SIDES = ("prefill", "decode", "both")


class CancelledPair(SpoiltPair):
    """`cancel_at(n, side)` makes one hand-over; events are messages, writes and scatters, in the order they happen."""

    def __init__(self, seed: int, *, one_sided: bool) -> None:
        self._point = -1
        self._side = ""
        self.events = 0
        super().__init__(seed, one_sided=one_sided)

    def cancel_at(self, point: int, side: str) -> Result:
        """Cancel after `point` events; later than the last one means after the end. Books are empty afterwards."""
        self._point, self._side, self.events = point, side, 0
        result = self.run(Defect.NONE)
        self._point = -1
        return result

    def _work(self) -> None:
        while self.calls or self.events == self._point:
            if self.events == self._point:
                self._point = -1
                self._cancel()
            elif self.calls:
                self.calls.popleft()()
                self.events += 1

    def _cancel(self) -> None:
        if self._side in ("prefill", "both"):
            self._at_prefill(self.prefill.cancelled(self.key, Reason.CANCELLED, "", self.now))
        if self._side in ("decode", "both"):
            self._at_decode(self.decode.cancelled(self.key, Reason.CANCELLED, "", self.now))
