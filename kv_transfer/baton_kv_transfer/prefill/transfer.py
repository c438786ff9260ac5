"""The prefill worker's transfer: runs the hand-overs of all its ranks in the transfer thread's loop.

The engine's thread calls `opened`, `computed`, `first_tokens` and `cancelled`; a `PrefillListener` reports to
the worker. The machine decides what happens when; the dialler keeps links, the carrier and its writers move bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import (
    UNANNOUNCED_CAPACITY,
    CutLink,
    HandoverKey,
    KvSource,
    PrefillListener,
    SendTo,
    ignore_duration,
)
from baton_kv_transfer.handover_steps import mark
from baton_kv_transfer.loop_mailbox import Mailbox, posted
from baton_kv_transfer.prefill.carrier import PutCarrier, Staging, ordinary_memory
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.peers import DecodeLink, Dialler
from baton_kv_transfer.prefill.ranks import PrefillRanks
from baton_kv_transfer.prefill.records import DropPuts, Granted, PrefillAction, PrefillStats, Put, Release, Report
from baton_kv_transfer.prefill.retargeting import PrefillKeeper, Target
from baton_kv_transfer.ranks.tensor_parallel import leg_key, rank_geometries
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.bandwidth import LinkReport, is_below, measure
from baton_kv_transfer.transports.device import DeviceMemory
from baton_kv_transfer.transports.seam import SenderParts, Writer
from baton_wire.discovery import Endpoint
from baton_wire.errors import BadFieldsError
from baton_wire.expiring import ExpiringMap
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.pair_link import AtRanks, FirstToken, PairMessage, Seal
from baton_wire.messages.values import Address, PeerRef, Reason, RequestKey, Role

log = logging.getLogger(__name__)
COMPUTED_S = 600.0
"""How long a computed prompt's time is kept. A hand-over that takes longer is not observed."""


@dataclass(frozen=True, slots=True)
class PrefillTransferStats:
    handovers: PrefillStats
    links: int
    lanes: dict[str, int]
    """Linked decode workers by the lane that their bytes travel over."""
    bytes_sent: int
    """Bytes of KV that decode workers took in, over links that are down among them."""
    dial_failures: int
    altered_frames: int
    """Frames of decode workers that did not arrive as they were sent."""
    pairs: tuple[LinkReport, ...]
    """Every linked decode worker."""


class PrefillTransfer:
    """Hand-overs from this prefill worker to any number of decode workers."""

    def __init__(
        self,
        parts: TransferParts,
        sources: Sequence[KvSource],
        listener: PrefillListener,
        *,
        device: DeviceMemory | None = None,
        staging: Staging = ordinary_memory,
        observe_handover: Callable[[RequestKey, float], None] = ignore_duration,
    ) -> None:
        """`sources`: the KV pool of each rank. `device`: the pool of a worker of one rank where it is a GPU's memory;
        transports that reach it write straight from it. `staging` gives memory to pack into where bytes cannot be sent
        from where they are. `observe_handover` gets the seconds from all KV computed to verified of each hand-over, on
        the transfer thread.

        Raises UnfitPairError where the ranks do not fit the model's heads, ValueError for several pools and a
        `device`.
        """
        if device is not None and len(sources) > 1:
            raise ValueError(f"device: given with {len(sources)} pools; allowed with 1")
        self.mailbox = Mailbox()
        self._config = parts.config
        self._listener = listener
        shapes = rank_geometries(parts.geometry, len(sources))
        machines = [PrefillHandovers(shape, self._config) for shape in shapes]
        self._handovers = PrefillKeeper(PrefillRanks(parts.geometry, machines, self._config), self._config)
        rows = parts.rows()
        regions = [region for source in sources if (region := source.region()) is not None]
        sender_parts = SenderParts(parts.epoch, self._config.lanes, regions, device)
        self._senders = {row.name: row.send(sender_parts) for row in rows}
        hello = parts.hello(Role.PREFILL, rows, len(sources))
        self._dialler = Dialler(hello, parts.keys, self._config, self._senders, self, parts.network)
        self._executor = parts.executor or ThreadPoolExecutor(1, thread_name_prefix="baton-checksums")
        self._owns_executor = parts.executor is None
        self._carrier = PutCarrier(sources, shapes, self._config, self._executor, self, staging)
        self._observe_handover = observe_handover
        self._computed_s: ExpiringMap[HandoverKey, float] = ExpiringMap(COMPUTED_S, UNANNOUNCED_CAPACITY)
        """When prompts were computed whose KV is not verified yet."""
        self._peers: dict[bytes, Address] = {}
        self._measuring: dict[bytes, asyncio.Task[None]] = {}
        self._bytes_before = 0
        self._ticker: asyncio.Task[None] | None = None
        self._complaints = Complaints(log)
        self._stats = self._look()

    # Life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin in the running loop, which is the transfer thread's.

        Raises TransferError when a transport does not come up.
        """
        for sender in self._senders.values():
            await sender.start()
        self.mailbox.open()
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End every hand-over (each gets its `on_release`), then the links."""
        for key in self._handovers.open_keys():
            self._act(self._handovers.cancelled(key, Reason.DRAINING, "the prefill worker stops", self._now()))
        await self._dialler.stop()
        await self._carrier.drained()
        for sender in self._senders.values():
            await sender.stop()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._owns_executor:
            self._executor.shutdown(wait=False)
        self._stats = self._look()
        self.mailbox.close()

    # From any thread -------------------------------------------------------------------------------------------------

    @posted
    def discovered(self, endpoints: Sequence[Endpoint]) -> None:
        """Keep links to these decode workers (their pair port, or else their port)."""
        addresses = [Address(host=endpoint.host, port=endpoint.pair_port or endpoint.port) for endpoint in endpoints]
        self._dialler.discovered(addresses)

    @posted
    def opened(self, key: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None:
        """A prefill was accepted whose KV of `total_tokens` tokens goes to `peer`."""
        mark(key, "opened")
        now = self._now()
        self._act(self._handovers.opened(HandoverKey.of(key), peer.epoch, total_tokens, deadline_s, now))
        self._find(peer, deadline_s, now)

    @posted
    def retargeted(self, key: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None:
        """The KV of the request that was opened as `key` goes to `peer` from now on, as `next_attempt`."""
        now = self._now()
        target = Target(HandoverKey(key.request, next_attempt), peer.epoch)
        self._act(self._handovers.retargeted(HandoverKey.of(key), target, deadline_s, now))
        self._find(peer, deadline_s, now)

    @posted
    def computed(self, key: RequestKey, tokens: int, blocks: tuple[int, ...]) -> None:
        """KV of [0, tokens) is in `blocks`, at every rank."""
        self._act(self._handovers.computed(HandoverKey.of(key), tokens, blocks, self._now()))

    @posted
    def computing(self, key: RequestKey, tokens: int, layers: int, blocks: tuple[int, ...], rank: int = 0) -> None:
        """KV of [0, tokens) is complete in the first `layers` layers of one rank; the others are still computed."""
        self._act(self._handovers.computing(leg_key(HandoverKey.of(key), rank), tokens, layers, blocks, self._now()))

    def first_tokens(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        """Every choice drew its first token."""
        mark(key, "first token drawn")
        self._first_tokens(key, first_tokens)

    @posted
    def _first_tokens(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        now = self._now()
        self._computed_s.put(HandoverKey.of(key), now, now)
        self._act(self._handovers.first_tokens(HandoverKey.of(key), first_tokens, now))

    @posted
    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None:
        """The request is no longer wanted, or the engine gave it up. Unknown ones are ignored."""
        self._act(self._handovers.cancelled(HandoverKey.of(key), reason, detail, self._now()))

    def stats(self) -> PrefillTransferStats:
        """As of the last tick."""
        return self._stats

    # Links -----------------------------------------------------------------------------------------------------------

    def on_up(self, linked: DecodeLink) -> None:
        self._peers.pop(linked.epoch, None)
        hello = linked.hello
        facts = DecodePeer(hello.block_tokens, hello.landing_bytes, ranks=hello.tensor_parallel)
        self._act(self._handovers.link_up(linked.epoch, facts, self._now()))
        self._measuring[linked.epoch] = asyncio.create_task(self._measure(linked))

    def on_message(self, linked: DecodeLink, message: PairMessage) -> None:
        self._act(self._handovers.message(linked.epoch, message, self._now()))

    def on_refused(self, linked: DecodeLink, refusal: BadFieldsError) -> None:
        self._complaints.say("a message of a decode worker is refused", f"{linked.epoch.hex()[:8]}: {refusal}")
        self._spoilt(linked.epoch, refusal)

    def _spoilt(self, peer: bytes, refusal: BadFieldsError) -> None:
        if refusal.request is not None and refusal.attempt is not None:
            detail = str(refusal)
            self._act(self._handovers.spoilt(peer, refusal.request, refusal.attempt, detail, self._now()))

    def on_down(self, linked: DecodeLink, detail: str) -> None:
        self._measuring.pop(linked.epoch).cancel()
        self._bytes_before += linked.writer.bytes_sent
        self._act(self._handovers.link_down(linked.epoch, Reason.PEER_LOST, detail, self._now()))

    def on_seen(self, address: Address, epoch: bytes) -> None:
        gone = [peer for peer, where in self._peers.items() if where == address and peer != epoch]
        for peer in gone:
            del self._peers[peer]
            if peer not in self._dialler.links:
                detail = f"another process answers at {address}"
                self._act(self._handovers.link_down(peer, Reason.PEER_LOST, detail, self._now()))

    def on_unfit(self, epoch: bytes, detail: str) -> None:
        self._act(self._handovers.link_down(epoch, Reason.UNFIT_PAIR, detail, self._now()))

    # Puts ------------------------------------------------------------------------------------------------------------

    def writer_to(self, peer: bytes) -> Writer | None:
        linked = self._dialler.links.get(peer)
        return None if linked is None else linked.writer

    def on_put_sent(self, put: Put, began_s: float) -> None:
        linked = self._dialler.links.get(put.peer)
        if linked is not None:
            linked.recent.add(put.length, began_s, self._now())

    def on_put_done(self, put: Put, checksums: bytes) -> None:
        mark(put.key, "put done")
        self._act(self._handovers.put_done(put.key, put.put, checksums, self._now()))

    def on_put_failed(self, put: Put, reason: Reason, detail: str) -> None:
        self._act(self._handovers.put_failed(put.key, put.put, reason, detail, self._now()))

    # Inside ----------------------------------------------------------------------------------------------------------

    async def _measure(self, linked: DecodeLink) -> None:
        """Once, when the link is new. A slow one is reported, not refused: it is the only way there is."""
        config = self._config
        linked.bytes_per_s = await measure(linked.writer.probe, config.measure_s, config.liveness.dead_s)
        if is_below(linked.bytes_per_s, config.min_bytes_per_s):
            rates = f"{linked.bytes_per_s or 0:.3g} B/s, the minimum is {config.min_bytes_per_s or 0:.3g} B/s"
            log.warning("link to decode worker %s over %s: %s", linked.address, linked.writer.lane, rates)

    def _find(self, peer: PeerRef, deadline_s: float, now: float) -> None:
        """Have a link to this very process, or say that there is none."""
        if peer.epoch in self._dialler.links:
            return
        if any(linked.address == peer.address for linked in self._dialler.links.values()):
            detail = f"another process answers at {peer.address}"
            self._act(self._handovers.link_down(peer.epoch, Reason.PEER_LOST, detail, now))
            return
        self._peers[peer.epoch] = peer.address
        self._dialler.want(peer.address, min(deadline_s, now + self._config.link_wait_s))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _send(self, linked: DecodeLink, message: PairMessage) -> None:
        try:
            linked.link.send(message)
        except BadFieldsError as refusal:
            self._complaints.say("a message to a decode worker is not sent", str(refusal))
            self._spoilt(linked.epoch, refusal)

    def _act(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            match action:
                case SendTo(peer, message):
                    linked = self._dialler.links.get(peer)
                    if linked is not None:
                        self._send(linked, message)
                    if isinstance(message, Seal) or (
                        isinstance(message, AtRanks) and isinstance(message.message, Seal)
                    ):
                        mark(message, "seal sent")
                case CutLink(peer, detail):
                    self._dialler.cut(peer, detail)
                case Put():
                    self._carrier.add(action)
                case DropPuts(key):
                    self._carrier.drop(key)
                case Granted(key):
                    mark(key, "granted")
                    self._listener.on_granted(key.request_key)
                case Release(key, _, reason):
                    computed_s = self._computed_s.pop(key)
                    if reason is None and computed_s is not None:
                        self._observe_handover(key.request_key, self._now() - computed_s)
                    self._listener.on_release(key.request_key)
                case Report(key, reason, detail, failed, kept):
                    attempt = failed or key.attempt
                    self._listener.on_report(key.request_key, reason, detail, attempt, kept)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick_s)
            self._act(self._handovers.tick(self._now()))
            self._computed_s.expire(self._now())
            self._stats = self._look()

    def _look(self) -> PrefillTransferStats:
        links = list(self._dialler.links.values())
        lanes: dict[str, int] = {}
        for linked in links:
            lanes[linked.writer.lane] = lanes.get(linked.writer.lane, 0) + 1
        return PrefillTransferStats(
            handovers=self._handovers.stats(),
            links=len(links),
            lanes=lanes,
            bytes_sent=self._bytes_before + sum(linked.writer.bytes_sent for linked in links),
            dial_failures=self._dialler.failures,
            altered_frames=self._dialler.altered.count,
            pairs=tuple(self._pair(linked, self._now()) for linked in links),
        )

    def _pair(self, linked: DecodeLink, now: float) -> LinkReport:
        return LinkReport(
            peer=str(linked.address),
            transport=linked.transport,
            lane=linked.writer.lane,
            bytes_per_s=linked.bytes_per_s,
            below_minimum=is_below(linked.bytes_per_s, self._config.min_bytes_per_s),
            recent_bytes_per_s=linked.recent.bytes_per_s(now),
        )
