"""The kopf shell: a second, independent stream of changes to Baton's own kinds, and nothing else.

kopf filters labels on the client and does not tell what was deleted while a stream was down, so that the state of
passes comes from informers; but no single stream of the one kind that users write shall be able to fall silent. The
handlers enqueue a name. No finalizer, no annotation, no Event, no peering comes from kopf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import kopf

from baton_operator.kinds import DEPLOYMENTS, POOLS
from baton_operator.names import Key
from baton_operator.objects.metadata import DEPLOYMENT_LABEL

SERVER_S, CLIENT_S, CONNECT_S = 300.0, 330.0, 10.0


def registry(offer: Callable[[Key], None]) -> kopf.OperatorRegistry:
    """The handlers; `offer` is called in the event loop."""
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


async def watch(offer: Callable[[Key], None], namespaces: tuple[str, ...] | None, stop: asyncio.Event) -> None:
    """Run kopf until `stop` is set or this is cancelled."""
    await kopf.operator(
        registry=registry(offer),
        settings=settings(),
        standalone=True,
        clusterwide=namespaces is None,
        namespaces=namespaces or (),
        stop_flag=stop,
    )
