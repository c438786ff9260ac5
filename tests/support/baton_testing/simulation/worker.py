"""The common part of simulated prefill and decode workers: gateway connections to the production service, discovery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from baton_kv_transfer.handover import HandoverKey
from baton_testing.simulation.engine import SimEngine
from baton_testing.simulation.network import Connection, End, Network, Path
from baton_testing.simulation.process import SimProcess, require
from baton_testing.simulation.scenario import CONTEXT_TOKENS, Shape
from baton_testing.simulation.streams import Stream
from baton_testing.simulation.transfers import Watch
from baton_wire.liveness import Liveness
from baton_wire.messages import codec
from baton_wire.messages.gateway_link import AskCachedPlaces, HeldTurn, Hello, Holding, ToWorker, WorkerState
from baton_wire.messages.values import Message, PairFingerprint, Role
from baton_wire.rules.gateway_rounds import GatewayRounds, Urgency
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.cached_places import PlacesReport
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.serving.gateway_links import GatewayLink, urgency_of
from baton_worker.serving.messenger import Messenger

LIMITS = RequestLimits(vocab_size=50, max_context_tokens=CONTEXT_TOKENS, max_choices=4)
STATE_S = 0.1
SERVED = "toy"


class SimService(Protocol):
    draining: bool

    @property
    def open_requests(self) -> int: ...

    def handle(self, link: GatewayLink, message: Message) -> None: ...

    def link_lost(self, link: GatewayLink) -> None: ...

    def state(self) -> WorkerState: ...

    def leave(self) -> None: ...

    def drain(self) -> None: ...


@dataclass(slots=True)
class _Nothing:
    """A counter or histogram that is not read."""

    def inc(self, amount: float = 1.0) -> None: ...

    def __getitem__(self, label: object) -> _Nothing:
        return self

    def __getattr__(self, name: str) -> _Nothing:
        return self


def no_metrics() -> WorkerMetrics:
    return cast(WorkerMetrics, _Nothing())


class WorkerWorld(Network, Protocol):
    shape: Shape
    parts: Any
    make_liveness: Callable[..., Liveness]
    streams: list[Stream]
    retargets: int
    """Times that KV was sent on to another decode worker."""

    def path(self, one: str, other: str) -> Path: ...

    def is_reported(self, key: HandoverKey) -> bool: ...

    def path_of(self, epoch: bytes, address: str) -> Path: ...


class SimGatewayLink:
    """The worker's end of one gateway connection, as its service sees it."""

    def __init__(self, end: End) -> None:
        self.end = end

    def send(self, message: Message) -> None:
        self.end.send(codec.encode(message))


class SimWorker(SimProcess):
    """Also the party of its gateway connections."""

    role: Role
    """Its current role."""
    flips = False
    service: SimService
    engine: SimEngine

    def __init__(
        self, world: WorkerWorld, name: str, epoch: bytes, address: str, fingerprint: PairFingerprint, block_tokens: int
    ) -> None:
        super().__init__(world, name, epoch, address)
        self.world = world
        self.fingerprint, self.block_tokens = fingerprint, block_tokens
        self._links: dict[End, SimGatewayLink] = {}
        self._last_report: WorkerState | None = None
        self._holders: GatewayRounds[End] = GatewayRounds()
        self.places = PlacesReport()
        self.is_faulted = False
        """Something was injected here: what fails of its requests is explained."""

    def accept_gateway(self, connection: Connection) -> None:
        end = connection.acceptor
        link = self._links[end] = SimGatewayLink(end)
        link.send(self._hello())
        self._tell_all()
        for message in self.places.announce_all():
            link.send(message)
        if len(self._links) == 1:
            self.later(STATE_S, self._report)

    def _hello(self) -> Hello:
        return Hello(
            role=self.role,
            epoch=self.epoch,
            fingerprint=self.fingerprint,
            template_hash="t",
            pair_port=1 if self.flips or self.role is Role.DECODE else None,
            served_name=SERVED,
            vocab_size=LIMITS.vocab_size,
            max_context_tokens=LIMITS.max_context_tokens,
            max_choices=LIMITS.max_choices,
            max_sequences=self.world.shape.slots,
            block_tokens=self.block_tokens,
            blocks_total=self.num_blocks,
            bundle_hash="0" * 64,
            bundle_bytes=1,
            keeps_answers=self.flips or (self.role is Role.PREFILL and self.world.shape.keeps_answers),
            flips=self.flips,
        )

    def sides(self) -> tuple[Messenger, ...]:
        """Its messengers, of each side one."""
        return (cast(Messenger, self.service),)

    @property
    def watches(self) -> tuple[Watch, ...]:
        """The watches of its pair links, for each side."""
        raise NotImplementedError

    @property
    def num_blocks(self) -> int:
        raise NotImplementedError

    def _report(self) -> None:
        if self.service.state() != self._last_report:
            self._tell_all()
        self._announce_places()
        if self._links:
            self.later(STATE_S, self._report)

    def _announce_places(self) -> None:
        for changes in self.engine.places.take():
            self.places.record(changes)
        for message in self.places.announce(self.now):
            for link in self._links.values():
                link.send(message)

    def _tell_all(self) -> None:
        self._last_report = state = self.service.state()
        turns = self._holders.turns(list(self._links))
        for end, link in self._links.items():
            turn = HeldTurn(*turns[end]) if end in turns else None
            link.send(msgspec.structs.replace(state, turn=turn, gateways=len(self._links)))

    def _tell_holding(self, end: End, urgency: Urgency | None) -> None:
        if self._holders.update(end, urgency):
            self._tell_all()

    def received(self, end: End, message: bytes) -> None:
        link = cast(GatewayLink, self._links[end])
        decoded = codec.decode(message, ToWorker)
        if isinstance(decoded, Holding):
            self._tell_holding(end, urgency_of(decoded, self.now))
        elif isinstance(decoded, AskCachedPlaces):
            for answer in self.places.announce_all():
                self._links[end].send(answer)
        else:
            self.service.handle(link, decoded)

    def lost(self, end: End, detail: str) -> None:
        link = self._links.pop(end)
        self._holders.update(end, None)
        self._tell_all()
        self.service.link_lost(cast(GatewayLink, link))
        held = [key for side in self.sides() for key in side._open.keys_of(cast(GatewayLink, link))]
        require(not held, "I2", f"{self.name} still holds {held} for a gateway that is gone")
