"""Two installations over one namespace: the second stays out and says so, until the first has gone for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from baton_operator.kube.claims import LOOK_S, TIMES, Claims, claim_name
from baton_operator.kube.kinds import LEASES
from baton_operator.kube.kube_api import Forbidden, Resource
from baton_operator.kube.object_fields import Manifest
from baton_testing.kube.cluster import moment
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual

NAME = claim_name(None)


def play(script: Callable[[Store], Awaitable[None]]) -> None:
    async def main() -> None:
        await script(Store(Kinds(), moment(asyncio.get_running_loop().time)))

    run_virtual(main())


def test_the_second_installation_stays_out_until_the_first_renews_no_more() -> None:
    async def script(store: Store) -> None:
        changed: list[str] = []
        first = Claims(MemoryKube(store), NAME, "one/baton-operator")
        second = Claims(MemoryKube(store), NAME, "two/baton-operator", changed.append)
        assert await first.other("team") == ""
        assert await second.other("team") == "one/baton-operator"
        renewing = asyncio.create_task(first.keep(lambda: ["team"]))
        looking = asyncio.create_task(second.keep(lambda: ["team"]))
        await asyncio.sleep(3600.0)
        assert (first.others(), second.others()) == ({}, {"team": "one/baton-operator"})
        assert changed == ["team"], "told once, not at each look"
        renewing.cancel()
        await asyncio.sleep(TIMES.duration_s + TIMES.renew_s + LOOK_S)
        assert (second.others(), changed) == ({}, ["team", "team"])
        assert await first.other("team") == "two/baton-operator"
        looking.cancel()

    play(script)


def test_processes_of_one_installation_and_other_classes_are_never_in_each_others_way() -> None:
    async def script(store: Store) -> None:
        one, again = (Claims(MemoryKube(store), NAME, "one/baton-operator") for _ in range(2))
        assert [await claims.other("team") for claims in (one, again, one, again)] == [""] * 4
        gold = Claims(MemoryKube(store), claim_name("gold"), "two/baton-operator-gold")
        assert await gold.other("team") == ""
        assert {lease["metadata"]["name"] for lease in store.all(LEASES, "team")} == {"baton-claim", "baton-claim-gold"}

    play(script)


def test_a_namespace_without_deployments_is_not_held() -> None:
    async def script(store: Store) -> None:
        wanted = ["team"]
        first, second = (Claims(MemoryKube(store), NAME, identity) for identity in ("one/a", "two/b"))
        assert await first.other("team") == ""
        keeping = asyncio.create_task(first.keep(lambda: wanted))
        await asyncio.sleep(TIMES.duration_s)
        wanted.clear()
        assert await second.other("team") == "one/a"
        await asyncio.sleep(2 * TIMES.duration_s)
        assert await second.other("team") == ""
        keeping.cancel()

    play(script)


class WithoutLeases(MemoryKube):
    """Rights of an older chart."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        if resource == LEASES:
            raise Forbidden("leases is forbidden")
        return await super().get(resource, namespace, name)


def test_who_may_not_ask_works_on() -> None:
    async def script(store: Store) -> None:
        assert await Claims(MemoryKube(store), NAME, "one/a").other("team") == ""
        assert await Claims(WithoutLeases(store), NAME, "two/b").other("team") == ""

    play(script)
