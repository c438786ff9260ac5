"""The connections of the hand-over simulation, one for each pair of ranks that exchange heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.ranks.tensor_parallel import RankPair
from baton_testing.kv_transfer.memory_transport import MemoryWriter
from baton_testing.ranks.nodes import PREFILL_GEOMETRY, Faults, SimDecode, SimPrefill
from baton_testing.virtual_time.event_heap import EventHeap
from baton_wire.messages.pair_link import PairMessage
from baton_wire.messages.values import Reason

DETECTION_S = 3.0


class Surroundings(Protocol):
    """The part of the world that a link uses."""

    heap: EventHeap
    faults: Faults

    def delay(self, most_s: float) -> float: ...

    def chance(self, share: float) -> bool: ...


class SimLink:
    """The connection of two ranks: ordered messages each way, cut and made again; generations keep old messages out."""

    def __init__(self, world: Surroundings, prefill: SimPrefill, decode: SimDecode, pair: RankPair) -> None:
        self.world, self.prefill, self.decode = world, prefill, decode
        self.ranks = (pair.prefill, pair.decode)
        self.names = (prefill.rank_name(pair.prefill), decode.rank_name(pair.decode))
        self.generation = 0
        self.up_at_prefill = self.up_at_decode = self.is_cut = False
        self.numbers: list[int] = []
        """Under which decode knows this link, in order."""
        self.arrival = dict.fromkeys(self.names, 0.0)

    def make(self) -> None:
        if not (self.prefill.alive and self.decode.alive) or self.up_at_prefill or self.up_at_decode:
            return
        self.generation += 1
        generation = self.generation
        self.is_cut, self.up_at_decode = False, True
        self.world.heap.note(f"{self} up")
        now = self.world.heap.now
        peer, (_, rank) = self.prefill.peer(self.ranks[0]), self.ranks
        self.decode.links += 1
        self.numbers.append(self.decode.links)
        up = self.decode.machine.link_up(rank, peer, PREFILL_GEOMETRY.block_tokens, now, link=self.decode.links)
        self.decode.act(up)
        self.world.heap.after(self.world.delay(0.05), lambda: self._up_at_prefill(generation))

    def _up_at_prefill(self, generation: int) -> None:
        if generation != self.generation or not self.prefill.alive or not self.up_at_decode:
            return
        self.up_at_prefill = True
        slow = self.world.chance(self.world.faults.slow_writes)
        rank, decode_rank = self.ranks
        self.prefill.writers[rank, self.names[1]] = MemoryWriter(
            self.names[0],
            self.decode.landings[decode_rank].memory,
            self._deliver,
            lambda: self.world.delay(2.0 if slow else 0.01),
            lambda detail: self.cut(),
        )
        facts = DecodePeer(self.decode.geometry.block_tokens, self.decode.machine.ranks[decode_rank].landing_bytes)
        self.prefill.act(self.prefill.machine.link_up(rank, self.decode.peer(decode_rank), facts, self.world.heap.now))

    def _deliver(self, delay_s: float, call: Callable[[], None]) -> None:
        """A dead sender posts nothing more."""
        self.world.heap.after(delay_s, lambda: call() if self.prefill.alive else None)

    def send(self, sender: bytes, message: PairMessage) -> None:
        """Dropped where the sender has no link: a machine need not know."""
        if not (self.up_at_prefill if sender == self.names[0] else self.up_at_decode):
            return
        generation = self.generation
        at = max(self.arrival[sender], self.world.heap.now + self.world.delay(self.world.faults.message_delay_s)) + 1e-6
        self.arrival[sender] = at
        self.world.heap.after(at - self.world.heap.now, lambda: self._receive(sender, message, generation))

    def _receive(self, sender: bytes, message: PairMessage, generation: int) -> None:
        now = self.world.heap.now
        if generation != self.generation:
            return
        if sender == self.names[0] and self.decode.alive and self.up_at_decode:
            self.decode.act(self.decode.machine.message(self.ranks[1], self.prefill.peer(self.ranks[0]), message, now))
        elif sender == self.names[1] and self.prefill.alive:
            if not self.up_at_prefill:
                self.world.heap.after(0.01, lambda: self._receive(sender, message, generation))
            else:
                peer = self.decode.peer(self.ranks[1])
                self.prefill.act(self.prefill.machine.message(self.ranks[0], peer, message, now))

    def cut(self) -> None:
        """Nothing passes any more; each side notices in its own time."""
        if self.is_cut or not (self.up_at_prefill or self.up_at_decode):
            return
        self.is_cut = True
        self.generation += 1
        self.world.heap.note(f"{self} cut")
        self.world.heap.after(self.world.delay(DETECTION_S), self._down_at_prefill)
        self.world.heap.after(self.world.delay(DETECTION_S), self._down_at_decode)
        self.world.heap.after(DETECTION_S + self.world.delay(1.0), self.make)

    def _down_at_prefill(self) -> None:
        if self.up_at_prefill and self.prefill.alive:
            self.up_at_prefill = False
            self.world.heap.note(f"{self} down at prefill")
            rank, decode_rank = self.ranks
            self.prefill.writers.pop((rank, self.names[1])).close("link down")
            peer, now = self.decode.peer(decode_rank), self.world.heap.now
            self.prefill.act(self.prefill.machine.link_down(rank, peer, Reason.PEER_LOST, "cut", now))
        self.up_at_prefill = False

    def _down_at_decode(self) -> None:
        if self.up_at_decode and self.decode.alive:
            self.up_at_decode = False
            self.world.heap.note(f"{self} down at decode")
            rank, decode_rank = self.ranks
            self.decode.landings[decode_rank].memory.drop(self.names[0])
            peer = self.prefill.peer(rank)
            self.decode.act(self.decode.machine.link_down(decode_rank, peer, "cut", self.world.heap.now))
        self.up_at_decode = False

    def __str__(self) -> str:
        return f"link {self.prefill.name}.{self.ranks[0]}-{self.decode.name}.{self.ranks[1]}"
