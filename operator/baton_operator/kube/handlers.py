"""The kopf shell: a second, independent stream of changes to Baton's own kinds, and nothing else.

kopf filters labels on the client and does not tell what was deleted while a stream was down, so that the state of
passes comes from informers; but no single stream of the one kind that users write shall be able to fall silent. The
handlers enqueue a name. No finalizer, no annotation, no Event, no peering comes from kopf.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import kopf

from baton_control.names import Key
from baton_operator.kube.kinds import DEPLOYMENTS, POOLS
from baton_operator.objects.metadata import DEPLOYMENT_LABEL

log = logging.getLogger(__name__)
SERVER_S, CLIENT_S, CONNECT_S, AGAIN_S = 300, 330, 10, 30.0


def registry(offer: Callable[[Key], None]) -> kopf.OperatorRegistry:
    """The handlers; `offer` is called in the event loop of kopf."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:  # Any: what kopf hands on
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(DEPLOYMENTS.group, DEPLOYMENTS.version, DEPLOYMENTS.plural, registry=made)
    async def deployment_changed(namespace: str | None, name: str | None, **_: object) -> None:
        if namespace and name:
            offer(Key(namespace, name))

    @kopf.on.event(POOLS.group, POOLS.version, POOLS.plural, labels={DEPLOYMENT_LABEL: kopf.PRESENT}, registry=made)
    async def pool_changed(namespace: str | None, labels: kopf.Labels, **_: object) -> None:
        if namespace:
            offer(Key(namespace, labels[DEPLOYMENT_LABEL]))

    return made


def settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = True
    made.watching.server_timeout = SERVER_S
    made.watching.client_timeout = CLIENT_S
    made.watching.connect_timeout = CONNECT_S
    made.networking.request_timeout = 30.0
    made.networking.connect_timeout = CONNECT_S
    made.process.ultimate_exiting_timeout = None
    return made


class Shell:
    """kopf in a thread and an event loop of its own: when it ends, it cancels every task that it finds in its loop.

    Where it ends by itself, it is started again after a while: its stream is the second one, and the operator works
    without it.
    """

    def __init__(self, offer: Callable[[Key], None], namespaces: tuple[str, ...] | None) -> None:
        """`offer` is called in the event loop that `start` is called in."""
        self._offer, self._namespaces = offer, namespaces
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def offer(key: Key) -> None:
            if not self._stop.is_set():
                loop.call_soon_threadsafe(self._offer, key)

        self._thread = threading.Thread(target=self._run, args=(offer,), name="kopf", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Quick: the thread ends on its own, and with the process at the latest."""
        self._stop.set()

    def _run(self, offer: Callable[[Key], None]) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._watch(offer))
            except Exception:  # whatever ends kopf, the operator's own streams go on
                log.exception("kopf has failed")
            if not self._stop.wait(AGAIN_S):
                log.warning("kopf has ended by itself: it is started again")

    async def _watch(self, offer: Callable[[Key], None]) -> None:
        await kopf.operator(
            registry=registry(offer),
            settings=settings(),
            standalone=True,
            clusterwide=self._namespaces is None,
            namespaces=self._namespaces or (),
            stop_flag=self._stop,
        )
