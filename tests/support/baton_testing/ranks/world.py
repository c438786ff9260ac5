"""A small world of prefill and decode workers around the production hand-over machines, on one seeded event heap.

Everything that is not a machine is played: engines that compute and reserve (`nodes`), and here a gateway that
opens, cancels and retries, links that delay, break and come back, processes that die and return under a new epoch,
writes that land late, bytes that flip. Violations of the invariants raise AssertionError where they happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from baton_kv_transfer.decode.group import AtDecodeRank, DecodeGroup
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import CutLink, HandoverKey, SendTo
from baton_kv_transfer.landing import SpanState
from baton_kv_transfer.prefill.group import AtPrefillRank, PrefillGroup
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import DropPuts, Put, Release, Report
from baton_kv_transfer.ranks.tensor_parallel import rank_pairs
from baton_testing.kv_transfer.builders import FakePool
from baton_testing.ranks.links import DETECTION_S, SimLink
from baton_testing.ranks.nodes import PREFILL_GEOMETRY, Faults, Request, SimDecode, SimPrefill
from baton_testing.ranks.one_link import OneLinkDecode, OneLinkPrefill
from baton_testing.virtual_time.event_heap import EventHeap
from baton_wire.messages.pair_link import AtRanks, FirstToken, PairMessage
from baton_wire.messages.values import Finish, Reason


def _short(key: HandoverKey) -> str:
    return f"r{int.from_bytes(key.request)}/{key.attempt}"


class World:
    """Everything of one seed."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        make_prefill: Callable[..., PrefillHandovers] = PrefillHandovers,
        make_decode: Callable[..., DecodeHandovers] = DecodeHandovers,
        make_prefill_group: Callable[..., PrefillGroup | OneLinkPrefill] | None = None,
        make_decode_group: Callable[..., DecodeGroup | OneLinkDecode] | None = None,
        num_requests: int = 14,
    ) -> None:
        self.heap = EventHeap(seed)
        self.faults = faults
        self.geometry = replace(PREFILL_GEOMETRY, kv_heads=faults.kv_heads)
        self.make_prefill, self.make_decode = make_prefill, make_decode
        self.make_prefill_group = make_prefill_group or (OneLinkPrefill if faults.one_link else PrefillGroup)
        self.make_decode_group = make_decode_group or (OneLinkDecode if faults.one_link else DecodeGroup)
        self.prefills: dict[bytes, SimPrefill] = {}
        self.decodes: dict[bytes, SimDecode] = {}
        self.links: dict[tuple[bytes, bytes], SimLink] = {}
        self.requests: dict[HandoverKey, Request] = {}
        self.landed_keys: set[HandoverKey] = set()
        self.failures: dict[HandoverKey, list[Reason]] = {}
        self.corrupted: set[HandoverKey] = set()
        self._born = 0
        for _ in range(2):
            self.start_prefill()
            self.start_decode()
        for number in range(num_requests):
            self.heap.after(self.delay(5.0), lambda number=number: self.submit(number, 1))  # type: ignore[misc]
        for _ in range(faults.link_cuts):
            self.heap.after(self.delay(6.0), self._cut_some)
        for _ in range(faults.deaths):
            self.heap.after(self.delay(6.0), self._kill_some)

    # Chance

    def delay(self, most_s: float) -> float:
        return self.heap.random.random() ** 2 * most_s

    def chance(self, share: float) -> bool:
        return self.heap.random.random() < share

    def note(self, who: str, action: object) -> None:
        self.heap.note(f"{who:<8} {self._text(action)}")

    def _text(self, action: object) -> str:
        match action:
            case AtPrefillRank(rank, inner) | AtDecodeRank(rank, inner):
                return f"{rank}: {self._text(inner)}"
            case SendTo(peer, AtRanks(rank, peer_rank, message)):
                return f"{rank}-{peer_rank} {self._text(SendTo(peer, message))}"
            case SendTo(peer, message):
                body = {name: getattr(message, name) for name in message.__struct_fields__[2:]}
                key = HandoverKey(*(getattr(message, name) for name in message.__struct_fields__[:2]))
                return f"→ {self._name(peer)} {type(message).__name__} {_short(key)} {body}"
            case Put(key, peer, put, transfer, units):
                return f"put {put} → {self._name(peer)} {_short(key)} transfer {transfer} {units}"
            case Scatter(key, units, landing):
                return f"scatter {_short(key)} {units} from {landing}"
            case Release(key) | DropPuts(key) | Landed(key):
                return f"{type(action).__name__} {_short(key)}"
            case HandoverFailed(key, reason, detail) | Report(key, reason, detail):
                return f"{type(action).__name__} {_short(key)} {reason} {detail}"
            case CutLink(peer, detail):
                return f"cut {self._name(peer)}: {detail}"
            case Request():
                ends = f"{self._name(action.prefill)} → {self._name(action.decode)}"
                return (
                    f"{_short(action.key)} {ends} tokens {action.tokens} cached {action.cached_units * 4} choices "
                    f"{action.choices} finishes {action.finishes} until {action.deadline_s:.3f}"
                )
            case _:
                return str(action)

    def _name(self, epoch: bytes) -> str:
        workers = (*self.prefills.values(), *self.decodes.values())
        ranks = ((worker, rank) for worker in workers for rank in range(worker.ranks))
        return next(f"{worker.name}.{rank}" for worker, rank in ranks if worker.rank_name(rank) == epoch)

    # Processes

    def start_prefill(self) -> None:
        self._born += 1
        epoch = self._born.to_bytes(16)
        born = SimPrefill(self, f"P{self._born}", epoch)
        self.prefills[epoch] = born
        for decode in list(self.decodes.values()):
            self._link(born, decode)

    def start_decode(self) -> None:
        self._born += 1
        epoch = self._born.to_bytes(16)
        born = SimDecode(self, f"D{self._born}", epoch, block_tokens=4 if self.chance(0.6) else 2)
        self.decodes[epoch] = born
        for prefill in list(self.prefills.values()):
            self._link(prefill, born)

    def _link(self, prefill: SimPrefill, decode: SimDecode) -> None:
        pairs = rank_pairs(self.geometry.kv_heads, prefill.ranks, decode.ranks)
        for pair in pairs[:1] if self.faults.one_link else pairs:
            link = SimLink(self, prefill, decode, pair)
            self.links[link.names] = link
            self.heap.after(self.delay(0.5), link.make)

    def _kill_some(self) -> None:
        victims: list[SimPrefill | SimDecode] = [*self.prefills.values(), *self.decodes.values()]
        victim = self.heap.random.choice([candidate for candidate in victims if candidate.alive])
        self.heap.note(f"{victim.name} dies")
        victim.alive = False
        for link in self.links.values():
            if victim in (link.prefill, link.decode):
                link.cut()
        for request in self.requests.values():
            if victim.epoch in (request.prefill, request.decode):
                self.heap.after(self.delay(DETECTION_S), lambda key=request.key: self.cancel(key))  # type: ignore[misc]
        if isinstance(victim, SimPrefill):
            self.heap.after(DETECTION_S + self.delay(1.0), lambda: self._prove_gone(victim))
            self.heap.after(self.delay(2.0), self.start_prefill)
        else:
            for landing in victim.landings:
                landing.memory.is_gone = True
            self.heap.after(self.delay(2.0), self.start_decode)

    def _prove_gone(self, gone: SimPrefill) -> None:
        for link in [
            candidate for candidate in self.links.values() if candidate.prefill is gone and candidate.decode.alive
        ]:
            for number in link.numbers:
                link.decode.act(link.decode.machine.writes_ended(link.ranks[1], number, self.heap.now))

    def _cut_some(self) -> None:
        live = [link for link in self.links.values() if link.up_at_prefill and link.up_at_decode]
        if live:
            self.heap.random.choice(live).cut()

    def send(self, sender: bytes, receiver: bytes, message: PairMessage) -> None:
        """Over their link; dropped where there is none, as by the drivers (the name of a rank whose link is down)."""
        link = self.links.get((sender, receiver)) or self.links.get((receiver, sender))
        if link is not None:
            link.send(sender, message)

    def cut(self, one: bytes, other: bytes) -> None:
        (self.links.get((one, other)) or self.links[other, one]).cut()

    # The gateway

    def submit(self, number: int, attempt: int) -> None:
        prefills = [prefill for prefill in self.prefills.values() if prefill.alive]
        decodes = [decode for decode in self.decodes.values() if decode.alive]
        if not prefills or not decodes:
            self.heap.after(0.5, lambda: self.submit(number, attempt))
            return
        prefill, decode = self.heap.random.choice(prefills), self.heap.random.choice(decodes)
        tokens = self.heap.random.randint(1, 40)
        request = Request(
            HandoverKey(number.to_bytes(16), attempt),
            prefill.epoch,
            decode.epoch,
            tokens,
            cached_units=self.heap.random.choice((0, 0, tokens // 8, tokens // 4)),
            choices=self.heap.random.choice(((0,), (0, 1, 2))),
            finishes=self.chance(0.1),
            deadline_s=self.heap.now + self.heap.random.choice((1.0, 8.0, 8.0, 8.0)),
        )
        self.requests[request.key] = request
        self.note("gateway", request)
        prefill.later(self.delay(0.3), lambda: self._begin_prefill(prefill, request))
        decode.later(self.delay(0.3), lambda: decode.reserve(request))
        if self.chance(self.faults.cancel):
            self.heap.after(self.delay(1.5), lambda: self.cancel(request.key))

    def cancel(self, key: HandoverKey) -> None:
        request = self.requests[key]
        if request.cancelled:
            return
        request.cancelled = True
        prefill, decode = self.prefills[request.prefill], self.decodes[request.decode]
        prefill.later(
            self.delay(0.1), lambda: prefill.act(prefill.machine.cancelled(key, Reason.CANCELLED, "", self.heap.now))
        )
        decode.later(
            self.delay(0.1), lambda: decode.act(decode.machine.cancelled(key, Reason.CANCELLED, "", self.heap.now))
        )
        self.note("gateway", f"cancels {_short(key)}")

    def failed(self, key: HandoverKey, reason: Reason) -> None:
        self.failures.setdefault(key, []).append(reason)
        assert key not in self.landed_keys, f"{key} failed after it landed: {reason}"
        if reason is Reason.KV_CORRUPT:
            assert key in self.corrupted, f"{key}: corruption that was not injected"
        self.cancel(key)
        if reason not in (Reason.CANCELLED, Reason.FINISHED, Reason.TOO_LONG) and key.attempt < 3:
            again = HandoverKey(key.request, key.attempt + 1)
            if again not in self.requests:
                self.submit(int.from_bytes(key.request), key.attempt + 1)

    def landed(self, key: HandoverKey) -> None:
        self.landed_keys.add(key)

    def _begin_prefill(self, prefill: SimPrefill, request: Request) -> None:
        if request.cancelled:
            return
        blocks = prefill.blocks.take(-(-request.tokens // 4), request.key)
        if blocks is None:
            prefill.later(0.2, lambda: self._begin_prefill(prefill, request))
            return
        request.source = blocks
        whole = FakePool(self.geometry, max(blocks, default=0) + 1)
        whole.random_bytes = self.heap.random.randbytes
        whole.fill(blocks)
        request.kv = whole.tokens(blocks, 0, request.tokens)
        request.final = {block: whole.block(block) for block in blocks}
        for pool in prefill.pools:
            pool.fill(blocks)  # what is not computed yet is anything
        prefill.opened.add(request.key)
        now = self.heap.now
        prefill.act(prefill.machine.opened(request.key, request.decode, request.tokens, request.deadline_s, now))
        self._compute(prefill, request, 0)

    def _compute(self, prefill: SimPrefill, request: Request, done: int) -> None:
        if request.key in prefill.released:
            return
        start, done = done, min(request.tokens, done + self.heap.random.choice((3, 8, 40)))
        if self.chance(0.5):
            for rank in range(prefill.ranks):
                late = self.delay(0.1)
                prefill.later(late, lambda rank=rank: self._compute_first_layer(prefill, request, rank, start, done))  # type: ignore[misc]
            prefill.later(0.1 + self.delay(0.1), lambda: self._computed(prefill, request, start, done))
        else:
            self._computed(prefill, request, start, done)

    def _compute_first_layer(self, prefill: SimPrefill, request: Request, rank: int, start: int, done: int) -> None:
        if request.key in prefill.released:
            return
        prefill.reveal(request, start, done, rank, layers=1)
        blocks = request.source[: -(-done // 4)]
        prefill.act(prefill.machine.computing(rank, request.key, done, 1, blocks, self.heap.now))

    def _computed(self, prefill: SimPrefill, request: Request, start: int, done: int) -> None:
        if request.key in prefill.released:
            return
        blocks = request.source[: -(-done // 4)]
        prefill.reveal(request, start, done)
        prefill.act(prefill.machine.computed(request.key, done, blocks, self.heap.now))
        if done < request.tokens:
            prefill.later(self.delay(0.2), lambda: self._compute(prefill, request, done))
        else:
            prefill.later(self.delay(0.05), lambda: self._draw(prefill, request))

    def _draw(self, prefill: SimPrefill, request: Request) -> None:
        finish = Finish.STOP if request.finishes else None
        request.first_tokens = tuple(
            FirstToken(choice=choice, token=choice, finish=finish) for choice in request.choices
        )
        prefill.act(prefill.machine.first_tokens(request.key, request.first_tokens, self.heap.now))

    # The end

    def run(self, until_s: float = 45.0) -> None:
        try:
            self.heap.run(until_s)
            self.check_at_rest()
        except AssertionError as error:
            error.add_note("\n".join(["trace:", *self.heap.trace]))
            raise

    def check_at_rest(self) -> None:
        """Nothing is held by anybody, and everything that began has ended once."""
        for prefill in self.prefills.values():
            if prefill.alive:
                for stats in prefill.machine.stats():
                    assert sum(stats.by_state.values()) == 0, f"{prefill.name}: {stats}"
                    assert stats.puts_in_flight == stats.unannounced_messages == 0, f"{prefill.name}: {stats}"
                assert not prefill.machine.open_keys()
                assert prefill.opened == prefill.released, f"{prefill.name} holds {prefill.opened - prefill.released}"
                assert not prefill.blocks.owner
                assert not prefill.unstarted
        for decode in self.decodes.values():
            if decode.alive:
                unproven = self.faults.one_sided and self.faults.link_cuts + self.faults.deaths > 0
                for seen in decode.machine.stats():
                    assert sum(seen.by_state.values()) == 0, f"{decode.name}: {seen}"
                    assert seen.lingering == 0 or unproven, f"{decode.name}: {seen}"
                    held = seen.landing.total_bytes - seen.landing.free_bytes
                    quarantined = seen.landing.by_state[SpanState.QUARANTINED] if unproven else 0
                    assert held == quarantined, f"{decode.name}: {seen}"
                assert not decode.machine.open_keys()
                assert decode.expected == decode.ended, f"{decode.name} holds {decode.expected - decode.ended}"
                assert not decode.blocks.owner
                assert not decode.line
