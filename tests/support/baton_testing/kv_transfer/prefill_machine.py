"""The prefill worker's machine with a clock, driven by hand, and builders of the messages that it receives."""

from __future__ import annotations

from collections.abc import Callable

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, SendTo, TransferConfig
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import PrefillAction, PrefillState, Put, Release
from baton_testing.kv_transfer.builders import GEOMETRY, first_tokens
from baton_wire.messages.pair_link import Abandon, Done, FirstToken, Grant, PairMessage, Reject, Span, Wait
from baton_wire.messages.values import Reason

UNIT = GEOMETRY.block_bytes
CONFIG = TransferConfig(max_put_bytes=2 * UNIT, link_wait_s=10.0, unannounced_s=30.0, pin_s=60.0, closing_s=5.0)
D1, D2 = b"1" * 16, b"2" * 16
KEY = HandoverKey(b"r" * 16, 1)
TOKENS, BLOCKS = 14, (9, 4, 5, 2)
FIRST = first_tokens(0, 1)


def grant(start: int = 0, end: int = TOKENS, **changes: object) -> Grant:
    units = -(-end // 4) - start // 4
    spans = (Span(offset=1_000, length=units * UNIT),) if units else ()
    values = {
        "request": KEY.request,
        "attempt": KEY.attempt,
        "transfer": 7,
        "start_tokens": start,
        "end_tokens": end,
        "unit_tokens": 4,
        "spans": spans,
        **changes,
    }
    return Grant(**values)  # type: ignore[arg-type]


WAIT = Wait(request=KEY.request, attempt=KEY.attempt, position=2)
REJECT = Reject(request=KEY.request, attempt=KEY.attempt, reason=Reason.NO_CAPACITY, detail="full")
DONE = Done(request=KEY.request, attempt=KEY.attempt)
CORRUPT = Done(request=KEY.request, attempt=KEY.attempt, reason=Reason.KV_CORRUPT, detail="unit 3")


class Prefill:
    """The machine, its clock, and everything it asked for since the last look."""

    def __init__(self, config: TransferConfig = CONFIG) -> None:
        self.machine = PrefillHandovers(GEOMETRY, config)
        self.now = 0.0
        self.puts: dict[int, Put] = {}
        self.all: list[PrefillAction] = []

    def _took(self, actions: list[PrefillAction]) -> list[PrefillAction]:
        self.puts.update({action.put: action for action in actions if isinstance(action, Put)})
        self.all += actions
        return actions

    def link(self, peer: bytes = D1, block_tokens: int = 4) -> list[PrefillAction]:
        return self._took(self.machine.link_up(peer, DecodePeer(block_tokens, 1 << 20), self.now))

    def unlink(self, peer: bytes = D1) -> list[PrefillAction]:
        return self._took(self.machine.link_down(peer, Reason.PEER_LOST, "silent", self.now))

    def open(self, deadline_s: float = 100.0, peer: bytes = D1) -> list[PrefillAction]:
        return self._took(self.machine.opened(KEY, peer, TOKENS, deadline_s, self.now))

    def compute(self, tokens: int = TOKENS) -> list[PrefillAction]:
        return self._took(self.machine.computed(KEY, tokens, BLOCKS[: -(-tokens // 4)], self.now))

    def compute_layers(self, tokens: int, layers: int) -> list[PrefillAction]:
        blocks = BLOCKS[: -(-tokens // 4)]
        return self._took(self.machine.computing(KEY, tokens, layers, blocks, self.now))

    def draw(self, tokens: tuple[FirstToken, ...] = FIRST) -> list[PrefillAction]:
        return self._took(self.machine.first_tokens(KEY, tokens, self.now))

    def hear(self, message: PairMessage, peer: bytes = D1) -> list[PrefillAction]:
        return self._took(self.machine.message(peer, message, self.now))

    def cancel(self, reason: Reason = Reason.CANCELLED) -> list[PrefillAction]:
        return self._took(self.machine.cancelled(KEY, reason, "", self.now))

    def put_done(self, put: int) -> list[PrefillAction]:
        asked = self.puts[put]
        sums = b"".join(unit.to_bytes(8) for unit in range(asked.units.first, asked.units.end))
        return self._took(self.machine.put_done(KEY, put, sums, self.now))

    def put_failed(self, put: int) -> list[PrefillAction]:
        return self._took(self.machine.put_failed(KEY, put, Reason.PEER_LOST, "broken pipe", self.now))

    def tick(self, now: float) -> list[PrefillAction]:
        self.now = now
        return self._took(self.machine.tick(now))

    @property
    def states(self) -> set[PrefillState]:
        return {state for state, count in self.machine.stats().by_state.items() if count}

    def refused(self, cause: str) -> int:
        return self.machine.stats().refused.get(cause, 0)

    @property
    def releases(self) -> int:
        return sum(isinstance(action, Release) for action in self.all)


def abandon(reason: Reason, detail: str = "", peer: bytes = D1) -> SendTo:
    return SendTo(peer, Abandon(request=KEY.request, attempt=KEY.attempt, reason=reason, detail=detail))


def run(*steps: Callable[[], object]) -> None:
    for step in steps:
        step()


def units(actions: list[PrefillAction]) -> list[tuple[int, int]]:
    return [(action.units.first, action.units.end) for action in actions if isinstance(action, Put)]


def sealed() -> Prefill:
    p = Prefill()
    run(p.link, p.open, lambda: p.hear(grant()), p.compute, p.draw)
    for put in list(p.puts):
        p.put_done(put)
    assert p.states == {PrefillState.SEALED}
    return p
