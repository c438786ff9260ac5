"""The API server in memory behaves as a real one: the same cases run against both (`e2e/test_conformance.py`)."""

from __future__ import annotations

import asyncio

import pytest

from baton_operator.kube.kinds import POOLS
from baton_operator.kube.kube_api import Change, Resource
from baton_testing.kube.clock import stamp
from baton_testing.kube.conformance import CASES, NEWER_CASES
from baton_testing.kube.conformance_objects import Case, pool
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import BOOKMARK_S, MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual


@pytest.mark.parametrize("case", [*CASES, *NEWER_CASES], ids=lambda case: case.__name__)
def test_the_model_keeps_to_what_real_servers_do(case: Case) -> None:
    async def run() -> None:
        clock = asyncio.get_running_loop().time
        store = Store(Kinds(), lambda: stamp(clock()))

        async def scale(resource: Resource, namespace: str, name: str, replicas: int) -> None:
            store.scale(resource, namespace, name, replicas, "kubectl")

        await case(MemoryKube(store), "space", scale)

    run_virtual(run())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_bookmark_skips_no_change_of_the_same_moment(is_first: bool) -> None:
    """A fault that was here: an edit in the very second of a bookmark was seen with the next list, minutes later."""

    async def run() -> list[Change]:
        loop, reports = asyncio.get_running_loop(), []
        api = MemoryKube(Store(Kinds(), lambda: stamp(loop.time())))
        since = (await api.list(POOLS, "space")).resource_version
        at = loop.time() + BOOKMARK_S

        async def watch() -> None:
            async for event in api.watch(POOLS, "space", since, timeout_s=2.5 * BOOKMARK_S):
                reports.append(event.change)

        async def edit() -> None:
            await asyncio.sleep(at - loop.time())
            await api.create(POOLS, pool("space"), manager="a")

        both = (edit(), watch()) if is_first else (watch(), edit())
        await asyncio.gather(*both)
        return reports

    assert Change.ADDED in run_virtual(run())
