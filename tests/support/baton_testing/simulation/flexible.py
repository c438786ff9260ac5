"""A simulated flexible worker: the production service with both sides around one engine, and both transfers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from baton_testing.simulation.decode import SimDecode
from baton_testing.simulation.engine import SimEngine, engine_config
from baton_testing.simulation.network import End
from baton_testing.simulation.prefill import PREFILL_BLOCK_TOKENS, SimPrefill
from baton_testing.simulation.process import require
from baton_testing.simulation.streams import StreamNetwork
from baton_testing.simulation.transfers import Watch
from baton_testing.simulation.worker import LIMITS, SimWorker, WorkerWorld, no_metrics
from baton_wire.messages import codec
from baton_wire.messages.gateway_link import Flip, ToWorker
from baton_wire.messages.values import PairFingerprint, Role
from baton_worker.serving.messenger import Messenger


class SimFlexible(SimPrefill, SimDecode):
    """Blocks are those of the role that it begins in."""

    flips = True

    def __init__(
        self, world: WorkerWorld, name: str, epoch: bytes, address: str, fingerprint: PairFingerprint, role: Role
    ) -> None:
        parts, shape = world.parts, world.shape
        is_prefill = role is Role.PREFILL
        block_tokens = PREFILL_BLOCK_TOKENS if is_prefill else shape.decode_block_tokens
        SimWorker.__init__(self, world, name, epoch, address, fingerprint, block_tokens)
        self.thread = self.add_loop()
        limits = replace(LIMITS, keeps_answers=True)
        make_sides: dict[str, Any] = {"make_prefill": parts.prefill_service, "make_decode": parts.decode_service}
        service = parts.flexible_service(role, limits, no_metrics(), self.loop, lambda: self.now, **make_sides)
        config = engine_config(shape, shape.prefill_blocks if is_prefill else shape.decode_blocks, block_tokens)
        make = (parts.prefill_scheduler, parts.stepper, parts.runner)
        listeners = (service.on_events, service.on_cancel, service.prefill.on_layers)
        self.engine = SimEngine(self, config, *make, shape.ahead, *listeners)
        service.attach(self.engine)
        self.service = self.flexible = service
        self.orders: dict[int, Role] = {}
        """Flips that reached it, by number."""
        self.ordered = role
        """The role that it is ordered to take."""
        self.pair_network = StreamNetwork(world, self, self.thread)
        self.begin_decode(service.decode)
        self.begin_prefill(service.prefill)

    @property
    def role(self) -> Role:  # type: ignore[override]
        return cast(Role, self.flexible.role)

    @property
    def watches(self) -> tuple[Watch, ...]:
        return (self.prefill_transfer.watch, self.decode_transfer.watch)

    def sides(self) -> tuple[Messenger, ...]:
        return (self.prefill_service, self.decode_service)

    def received(self, end: End, message: bytes) -> None:
        order = codec.decode(message, ToWorker)
        if isinstance(order, Flip):
            self.orders.setdefault(order.number, order.role)
            self.note(f"is ordered flip {order.number} to {order.role}")
        super().received(end, message)

    def check(self) -> None:
        """I15: the highest number decides, whatever came in whichever order."""
        self.engine.check()
        self.check_prefill()
        self.check_decode()
        if self.orders:
            last = max(self.orders)
            is_right = (self.role, self.flexible.flip) == (self.orders[last], last)
            require(is_right, "I15", f"{self.name} is {self.role} by flip {self.flexible.flip}, orders {self.orders}")

    def leftovers(self) -> str | None:
        if self.service.open_requests:
            return f"{self.name} io: {self.service.open_requests} open requests"
        return self.prefill_leftovers() or self.decode_leftovers() or self.engine.leftovers()
