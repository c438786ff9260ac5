"""A network between the operator and its API server that fails exactly where a test wants it to.

Calls are counted; the one with a certain number fails in a certain way. Watch streams can tell late, twice, in another
order, or lose something.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from baton_operator.kube.kube_api import (
    Change,
    Conflict,
    KubeApi,
    KubeError,
    Listing,
    Resource,
    TooManyRequests,
    Unavailable,
    WatchEvent,
)
from baton_operator.kube.object_fields import Manifest


class Fault(enum.StrEnum):
    STOPPED_BEFORE = "stopped before"
    """The operator's process ends, and the call never arrives."""
    STOPPED_AFTER = "stopped after"
    """The call has its effect; the operator never learns of it."""
    CONFLICT = "409"
    TOO_MANY = "429"
    REFUSED = "500"
    """No effect, no answer that says so."""
    LOST_ANSWER = "timeout after commit"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which call fails, counted from 0, and how."""

    call: int = -1
    fault: Fault = Fault.REFUSED


@dataclass(frozen=True, slots=True)
class Streams:
    """How watch streams misbehave: chances for each event."""

    late_s: float = 0.0
    """Every event comes late by up to this time; order is kept."""
    lost: float = 0.0
    twice: float = 0.0
    swapped: float = 0.0

    @property
    def is_calm(self) -> bool:
        return self == CALM


NO_FAULT, CALM = Plan(), Streams()


class FaultyKube:
    """`KubeApi` over another one. `stop` ends the operator; the call that it interrupts never returns."""

    def __init__(
        self, inner: KubeApi, plan: Plan, stop: Callable[[], None], streams: Streams, rng: random.Random
    ) -> None:
        self._inner, self._plan, self._stop = inner, plan, stop
        self._streams, self._rng = streams, rng
        self.made: list[str] = []
        """The calls in order."""
        self.refuses: Callable[[str], KubeError | None] = lambda what: None
        """The server's errors for calls by name, `apply services/chat-gateway` for instance; None: it obeys."""
        self.is_done = plan.call < 0
        """The fault has happened."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        number = await self._before(f"get {resource.plural}/{name}")
        answer = await self._inner.get(resource, namespace, name)
        await self._after(number)
        return answer

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        number = await self._before(f"list {resource.plural}")
        answer = await self._inner.list(resource, namespace, selector, fields=fields)
        await self._after(number)
        return answer

    async def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        await self._before(f"watch {resource.plural}")
        stream = self._inner.watch(resource, namespace, resource_version, selector, timeout_s=timeout_s)
        if self._streams.is_calm:
            async for event in stream:
                yield event
            return
        held: WatchEvent | None = None
        async for event in stream:
            if event.change is Change.BOOKMARK:
                if held is None:
                    yield event
                continue
            if self._rng.random() < self._streams.lost:
                continue
            if self._streams.late_s:
                await asyncio.sleep(self._rng.uniform(0.0, self._streams.late_s))
            if held is None and self._rng.random() < self._streams.swapped:
                held = event
                continue
            yield event
            if held is not None:
                yield held
                held = None
            if self._rng.random() < self._streams.twice:
                yield event

    async def apply(
        self,
        resource: Resource,
        manifest: Manifest,
        *,
        manager: str,
        force: bool,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Manifest:
        number = await self._before(
            f"{'try' if dry_run else 'apply'} {resource.plural}/{_name(manifest)} {subresource or ''}"
        )
        answer = await self._inner.apply(
            resource, manifest, manager=manager, force=force, subresource=subresource, dry_run=dry_run
        )
        await self._after(number)
        return answer

    async def create(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        number = await self._before(f"create {resource.plural}/{_name(manifest)}")
        answer = await self._inner.create(resource, manifest, manager=manager)
        await self._after(number)
        return answer

    async def replace(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        number = await self._before(f"replace {resource.plural}/{_name(manifest)}")
        answer = await self._inner.replace(resource, manifest, manager=manager)
        await self._after(number)
        return answer

    async def set_managed_fields(
        self, resource: Resource, namespace: str, name: str, entries: Sequence[Manifest], *, uid: str, version: str
    ) -> Manifest:
        number = await self._before(f"own {resource.plural}/{name}")
        answer = await self._inner.set_managed_fields(resource, namespace, name, entries, uid=uid, version=version)
        await self._after(number)
        return answer

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        number = await self._before(f"delete {resource.plural}/{name}")
        await self._inner.delete(resource, namespace, name, uid=uid, resource_version=resource_version)
        await self._after(number)

    async def served(self, group: str, version: str) -> frozenset[str]:
        return await self._inner.served(group, version)

    async def _before(self, what: str) -> int:
        """The call's number."""
        number = len(self.made)
        self.made.append(what)
        if (refusal := self.refuses(what)) is not None:
            raise refusal
        if number != self._plan.call:
            return number
        self.is_done = True
        match self._plan.fault:
            case Fault.STOPPED_BEFORE:
                await self._end()
            case Fault.CONFLICT:
                raise Conflict("the object has been modified; please apply your changes to the latest version")
            case Fault.TOO_MANY:
                raise TooManyRequests("too many requests", 1.0)
            case Fault.REFUSED:
                raise Unavailable("500: etcdserver: leader changed")
        return number

    async def _after(self, number: int) -> None:
        if number != self._plan.call:
            return
        match self._plan.fault:
            case Fault.STOPPED_AFTER:
                await self._end()
            case Fault.LOST_ANSWER:
                raise Unavailable("timeout: the answer was lost")

    async def _end(self) -> None:
        self._stop()
        await asyncio.Event().wait()


def _name(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata.get("name", metadata.get("generateName")))
