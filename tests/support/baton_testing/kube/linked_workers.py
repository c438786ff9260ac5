"""Gateways that link every ready worker, and the workers' roles: they flip a moment after an order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from baton_control.names import Key
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import FlexibleWorker
from baton_operator.kube.kinds import PODS
from baton_operator.objects.metadata import ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.telemetry import GatewayReport
from baton_testing.kube.cluster import is_ready, is_worker
from baton_testing.kube.store import Json, Store
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Role

LEAST_S, MOST_S = 0.1, 0.6
"""Seconds from an order until the worker reports that it was carried out."""


@dataclass(slots=True)
class _Worker:
    epoch: bytes
    role: Role
    flip: int = 0


class LinkedWorkers:
    def __init__(self, store: Store, rng: random.Random, on_told: Callable[[Key], None]) -> None:
        self._store, self._rng, self._on_told = store, rng, on_told
        self._workers: dict[str, _Worker] = {}
        """By the uid of their Pod."""

    def role(self, pod: Json) -> Role:
        """The state of a ready worker. It began as what its Pod said when its container started, and that is its
        template's."""
        return self._worker(pod).role

    def _worker(self, pod: Json) -> _Worker:
        uid = str(pod["metadata"]["uid"])
        if uid not in self._workers:
            number = len(self._workers)
            begins = pod["spec"]["containers"][0]["name"]
            role = Role.PREFILL if begins == "worker" else Role(pod["metadata"]["labels"][ROLE_LABEL])
            self._workers[uid] = _Worker(number.to_bytes(16, "big"), role)
        return self._workers[uid]

    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport:
        ready = [pod for pod in self._store.all(PODS, key.namespace) if is_worker(pod) and is_ready(pod)]
        routable = Counter((self.role(pod), str(pod["metadata"]["labels"][TEMPLATE_LABEL])) for pod in ready)
        workers = [(pod["status"]["podIP"], self._worker(pod)) for pod in ready]
        flexible = tuple(FlexibleWorker(host, worker.epoch, worker.role, worker.flip) for host, worker in workers)
        return GatewayReport(routable, flexible=flexible)

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        for flip in flips:
            after_s = self._rng.uniform(LEAST_S, MOST_S)
            asyncio.get_running_loop().call_later(after_s, self._carry_out, key, flip)

    def _carry_out(self, key: Key, order: FlipOrder) -> None:
        for worker in self._workers.values():
            if worker.epoch == order.worker and worker.flip < order.number:
                worker.role, worker.flip = order.role, order.number
                self._on_told(key)
