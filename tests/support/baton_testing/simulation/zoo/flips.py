"""Faulty variants of the flexible worker and of routing to it: what a flip must not do."""

from __future__ import annotations

from typing import Any

from baton_flexible_worker.service import FlexibleService
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.values import Message, Reason, RequestKey, Role
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.messenger import Messenger, leg_failed


class TakesLateFlips(FlexibleService):
    """An order without a number, as a label or an environment variable is one: the last that comes decides."""

    def apply_flip(self, number: int, role: Role) -> None:
        self.flip, self.role = number, role


class RefusesOtherWork(FlexibleService):
    """A worker that takes only what its role is for: gateways that do not know of the flip yet are refused."""

    def handle(self, link: GatewayLink, message: Message) -> None:
        wrong = Reserve if self.role is Role.PREFILL else Prefill
        if isinstance(message, wrong) and getattr(message, "prefill_epoch", b"") is not None:
            key = RequestKey(message.request, message.attempt)
            link.send(leg_failed(key, Reason.BAD_REQUEST, f"a {self.role} worker does not do this"))
        else:
            super().handle(link, message)


class DropsWorkWithTheRole(FlexibleService):
    """Drained by killing: what the former role had begun ends with the flip, and its gateways are asked to retry."""

    def apply_flip(self, number: int, role: Role) -> None:
        before = self.role
        super().apply_flip(number, role)
        if self.role is not before:
            left: Any = self.prefill if before is Role.PREFILL else self.decode
            for key, link in list(left._open._links.items()):
                left._cancel(key, None)
                link.send(leg_failed(key, Reason.DRAINING, "this worker has another role now"))


class HearsOfItsRoleAlone(FlexibleService):
    """One side at a time: what the engine says of requests of the other side is lost with the flip."""

    def _side_of(self, key: RequestKey) -> Messenger:
        return self.prefill if self.role is Role.PREFILL else self.decode


class ForgetsTheOtherSidesGateways(FlexibleService):
    """A lost gateway is reported to the side of the present role alone."""

    def link_lost(self, link: GatewayLink) -> None:
        (self.prefill if self.role is Role.PREFILL else self.decode).link_lost(link)
