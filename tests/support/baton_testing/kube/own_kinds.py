"""Informers in the place of kopf: they watch Baton's own kinds at an API server in memory, on virtual time."""

from __future__ import annotations

import asyncio
import random

from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.informer import RELIST_S, Informer
from baton_operator.kube.kube_api import KubeApi
from baton_operator.runtime import Runtime


async def run(
    runtime: Runtime,
    custom: CustomResources,
    api: KubeApi,
    *,
    relist_s: float = RELIST_S,
    rng: random.Random,
) -> None:
    """The runtime and the stream of its own kinds, until cancelled."""
    informers = [
        Informer(api, cache, scope, relist_s=relist_s, rng=rng, reach=custom.reach)
        for cache in custom.caches.values()
        for scope in custom.scopes
    ]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.run())
        for informer in informers:
            tasks.create_task(informer.run())
