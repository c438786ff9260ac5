"""Both hand-over machines against peers that say anything at any time, step by step; `finish` demands empty books."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, HandoverFailed, Landed, Scatter
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, Reservation, TransferConfig
from baton_kv_transfer.landing import LandingWindow
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import PrefillAction, PrefillState, Put, Release, Report
from baton_testing.kv_transfer.builders import GEOMETRY, first_tokens
from baton_wire.messages.pair_link import Abandon, Done, FirstToken, Grant, PairMessage, Reject, Seal, Span, Wait
from baton_wire.messages.values import Finish, Reason

UNIT = GEOMETRY.block_bytes
CONFIG = TransferConfig(max_put_bytes=UNIT, link_wait_s=3.0, unannounced_s=4.0, pin_s=5.0, closing_s=1.0)
PEERS = [bytes([n]) * 16 for n in range(3)]
KEYS = [HandoverKey(bytes([n]) * 16, attempt) for n in range(4) for attempt in (1, 2)]


class PrefillFuzz:
    """Anything that may happen to a prefill worker; puts end later, in any order, or not before the link is cut."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = PrefillHandovers(GEOMETRY, CONFIG)
        self.now = 0.0
        self.linked: set[bytes] = set()
        self.puts: list[Put] = []
        self.counts: Counter[tuple[str, HandoverKey]] = Counter()
        self.holding: set[HandoverKey] = set()

    def act(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            match action:
                case Put():
                    assert action.key in self.holding
                    self.puts.append(action)
                case Release(key):
                    assert key in self.holding, "released without being held"
                    assert not any(put.key == key for put in self.puts), "released under an open put"
                    self.holding.discard(key)
                    self.counts["release", key] += 1
                case Report(key):
                    assert key in self.holding
                case _:
                    continue

    def step(self) -> None:
        self.now += self.chance.random() * 0.2
        chance, key, peer = self.chance, self.chance.choice(KEYS), self.chance.choice(PEERS)
        happenings: list[Callable[[], None]] = [
            lambda: self._link(peer),
            lambda: self._unlink(peer),
            lambda: self._open(key, peer),
            lambda: self.act(self.machine.computed(key, chance.randint(0, 14), (1, 2, 3, 4), self.now)),
            lambda: self.act(self.machine.first_tokens(key, self._tokens(), self.now)),
            lambda: self.act(self.machine.cancelled(key, chance.choice(list(Reason)), "", self.now)),
            lambda: self.act(self.machine.tick(self.now)),
            self._end_put,
            self._end_put,
            lambda: self._hear(peer, self._message(key)),
            lambda: self._hear(peer, self._message(key)),
            lambda: self._go_on(),
            lambda: self._go_on(),
            lambda: self._go_on(),
        ]
        chance.choice(happenings)()

    def _go_on(self) -> None:
        """Do what an honest world would do next for one of the open hand-overs."""
        for key, handover in list(self.machine._handovers.items())[:1]:
            if handover.state is PrefillState.SEALED:
                self._hear(handover.peer, Done(request=key.request, attempt=key.attempt))
                continue
            self._hear(handover.peer, self._good_grant(key))
            if key in self.machine._handovers:
                self.act(self.machine.computed(key, 14, (1, 2, 3, 4), self.now))
                self.act(self.machine.first_tokens(key, self._tokens(), self.now))

    def _tokens(self) -> tuple[FirstToken, ...]:
        return first_tokens(0, finish=Finish.STOP if self.chance.random() < 0.2 else None)

    def _link(self, peer: bytes) -> None:
        if peer not in self.linked:
            self.linked.add(peer)
            self.act(self.machine.link_up(peer, DecodePeer(self.chance.choice((2, 4, 4, 4, 8)), 64 * UNIT), self.now))

    def _unlink(self, peer: bytes) -> None:
        if peer in self.linked and self.chance.random() < 0.1:
            self.linked.discard(peer)
            self.act(self.machine.link_down(peer, Reason.PEER_LOST, "", self.now))

    def _open(self, key: HandoverKey, peer: bytes) -> None:
        if key not in self.holding:
            self.holding.add(key)
            self.counts["open", key] += 1
            self.act(self.machine.opened(key, peer, 14, self.now + self.chance.choice((0.5, 8.0)), self.now))

    def _end_put(self) -> None:
        if self.puts:
            put = self.puts.pop(self.chance.randrange(len(self.puts)))
            if self.chance.random() < 0.8:
                self.act(self.machine.put_done(put.key, put.put, b"c" * 8, self.now))
            else:
                self.act(self.machine.put_failed(put.key, put.put, Reason.PEER_LOST, "", self.now))

    def _hear(self, peer: bytes, message: PairMessage) -> None:
        if peer in self.linked:
            self.act(self.machine.message(peer, message, self.now))

    def _good_grant(self, key: HandoverKey) -> Grant:
        start = self.chance.choice((0, 4, 8, 12))
        length = (4 - start // 4) * UNIT
        return Grant(
            request=key.request,
            attempt=key.attempt,
            transfer=self.chance.randint(1, 3),
            start_tokens=start,
            end_tokens=14,
            unit_tokens=4,
            spans=(Span(offset=0, length=length),),
        )

    def _message(self, key: HandoverKey) -> PairMessage:
        chance = self.chance
        identity = {"request": key.request, "attempt": key.attempt}
        messages: list[PairMessage] = [
            Wait(**identity, position=chance.randint(0, 5)),  # type: ignore[arg-type]
            Reject(**identity, reason=chance.choice(list(Reason))),  # type: ignore[arg-type]
            Done(**identity, reason=chance.choice((None, *Reason))),  # type: ignore[arg-type]
            Grant(
                **identity,  # type: ignore[arg-type]
                transfer=chance.randint(1, 1 << 40),
                start_tokens=chance.randint(0, 20),
                end_tokens=chance.randint(0, 20),
                unit_tokens=chance.randint(1, 8),
                spans=tuple(
                    Span(offset=chance.randint(0, 1 << 20), length=chance.choice((0, 1, UNIT, 4 * UNIT)))
                    for _ in range(chance.randint(0, 4))
                ),
            ),
        ]
        return chance.choice(messages)

    def finish(self) -> None:
        """Every put ends, then time passes: nothing may be left."""
        for _ in range(4):
            while self.puts:
                self._end_put()
            self.now += 100.0
            self.act(self.machine.tick(self.now))
        stats = self.machine.stats()
        assert not any(stats.by_state.values()), stats
        assert stats.unannounced_messages == stats.puts_in_flight == 0
        assert not self.holding
        for (kind, key), count in self.counts.items():
            assert kind == "release" or self.counts["release", key] == count


class DecodeFuzz:
    """Anything that may happen to a decode worker."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = DecodeHandovers(GEOMETRY, 9 * UNIT, CONFIG, one_sided=seed % 3 == 0)
        self.now = 0.0
        self.linked: set[bytes] = set()
        self.links: list[bytes] = []
        """Whose each link was, in order."""
        self.scatters: list[Scatter] = []
        self.holding: set[HandoverKey] = set()
        self.began = self.ended = 0

    def act(self, actions: list[DecodeAction]) -> None:
        for action in actions:
            match action:
                case Scatter():
                    assert action.key in self.holding
                    assert not any(scatter.key == action.key for scatter in self.scatters), "two scatters at once"
                    self.scatters.append(action)
                case Landed(key) | HandoverFailed(key):
                    assert key in self.holding, "ended without being expected"
                    assert not any(scatter.key == key for scatter in self.scatters), "ended under a running scatter"
                    self.holding.discard(key)
                    self.ended += 1
                case _:
                    continue

    def step(self) -> None:
        self.now += self.chance.random() * 0.2
        chance, key, peer = self.chance, self.chance.choice(KEYS), self.chance.choice(PEERS)
        happenings: list[Callable[[], None]] = [
            lambda: self._link(peer),
            lambda: self._unlink(peer),
            lambda: self._expect(key, peer),
            lambda: self._expect(key, peer),
            lambda: self.act(self.machine.queued(key, peer, 1, self.now + 5.0, self.now)),
            lambda: self.act(self.machine.refused(key, peer, Reason.NO_CAPACITY, "", self.now)),
            lambda: self.act(self.machine.cancelled(key, chance.choice(list(Reason)), "", self.now)),
            lambda: self.act(self.machine.tick(self.now)),
            lambda: self._prove_ended(peer) if peer not in self.linked else None,
            lambda: self._write(peer),
            lambda: self._write(peer),
            self._end_scatter,
            self._end_scatter,
            lambda: self._hear(peer, key),
            self._go_on,
            self._go_on,
            self._go_on,
        ]
        chance.choice(happenings)()

    def _link(self, peer: bytes) -> None:
        if peer not in self.linked:
            self.linked.add(peer)
            self.links.append(peer)
            tokens = self.chance.choice((2, 4, 4, 4, 8))
            self.act(self.machine.link_up(peer, tokens, self.now, link=len(self.links)))

    def _unlink(self, peer: bytes) -> None:
        if peer in self.linked and self.chance.random() < 0.1:
            self.linked.discard(peer)
            self.act(self.machine.link_down(peer, "", self.now))

    def _prove_ended(self, peer: bytes) -> None:
        for link, linked in enumerate(self.links, 1):
            if linked == peer:
                self.act(self.machine.writes_ended(link, self.now))

    def _expect(self, key: HandoverKey, peer: bytes) -> None:
        if key not in self.holding:
            self.holding.add(key)
            self.began += 1
            tokens = self.chance.choice((4, 14, 40))
            cached = self.chance.choice((0, 4))
            until = self.now + self.chance.choice((0.5, 8.0))
            blocks = tuple(range(tokens))
            reservation = Reservation(tokens, cached, blocks, (0,), until)
            self.act(self.machine.expected(key, peer, reservation, self.now))

    def _write(self, peer: bytes) -> None:
        offset, length = self.chance.randrange(9) * UNIT // 2, self.chance.choice((1, UNIT // 2, UNIT, 4 * UNIT))
        window = self.machine.claim(peer, self.chance.randint(1, 30), offset, length)
        if isinstance(window, LandingWindow) and self.chance.random() < 0.9:
            self.act(self.machine.arrived(window, self.now))

    def _go_on(self) -> None:
        """Do what an honest world would do next for one of the open hand-overs."""
        for handover in list(self.machine._handovers.values())[:1]:
            if handover.transfer is None or handover.layout is None or handover.peer not in self.linked:
                continue
            for span in handover.spans:
                window = self.machine.claim(handover.peer, handover.transfer, span.offset, span.length)
                if isinstance(window, LandingWindow):
                    self.act(self.machine.arrived(window, self.now))
            seal = Seal(
                request=handover.key.request,
                attempt=handover.key.attempt,
                transfer=handover.transfer,
                checksums=bytes(handover.layout.checksum_bytes),
                first_tokens=first_tokens(0),
            )
            self.act(self.machine.message(handover.peer, seal, self.now))

    def _end_scatter(self) -> None:
        if self.scatters:
            scatter = self.scatters.pop(self.chance.randrange(len(self.scatters)))
            if self.chance.random() < 0.9:
                size = 8 * scatter.units.count * 2 * GEOMETRY.layers
                self.act(self.machine.scattered(scatter.key, scatter.units.first, bytes(size), self.now))
            else:
                self.act(self.machine.scatter_failed(scatter.key, scatter.units.first, "", self.now))

    def _hear(self, peer: bytes, key: HandoverKey) -> None:
        if peer not in self.linked:
            return
        message: PairMessage
        if self.chance.random() < 0.6:
            message = Seal(
                request=key.request,
                attempt=key.attempt,
                transfer=self.chance.randint(1, 30),
                checksums=bytes(8 * 4 * self.chance.randint(0, 4)),
                first_tokens=first_tokens(self.chance.choice((0, 0, 0, 1))),
            )
        else:
            message = Abandon(request=key.request, attempt=key.attempt, reason=self.chance.choice(list(Reason)))
        self.act(self.machine.message(peer, message, self.now))

    def finish(self) -> None:
        """Scatters end, the peers are gone, time passes: nothing may be left."""
        for peer in sorted(self.linked):
            self.act(self.machine.link_down(peer, "", self.now))
        for _ in range(4):
            while self.scatters:
                self._end_scatter()
            self.now += 100.0
            self.act(self.machine.tick(self.now))
        for peer in PEERS:
            self._prove_ended(peer)
        stats = self.machine.stats()
        assert not any(stats.by_state.values()), stats
        assert stats.lingering == 0
        assert stats.landing.free_bytes == stats.landing.total_bytes
        assert not self.holding
        assert self.began == self.ended
