"""The API server in memory behaves as a real one: the same cases run against both (`e2e/test_conformance.py`)."""

from __future__ import annotations

import asyncio

import pytest

from baton_operator.kube.kube_api import Resource
from baton_testing.kube.clock import stamp
from baton_testing.kube.conformance import CASES, NEWER_CASES
from baton_testing.kube.conformance_objects import Case
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import MemoryKube
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
