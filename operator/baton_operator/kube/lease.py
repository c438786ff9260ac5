"""One active operator at a time: a Lease that is renewed, taken over when it is not, and given back at the end.

A store that was restored from a backup gives versions anew that this process has seen before. What it knows is of
another time then, and nothing would tell: so it ends, and begins anew. The Lease is where that shows, within seconds.

Nobody compares wall clocks: who waits takes the Lease over when he has *seen* no change of it for its duration by his
own monotonic clock. Who holds it gives up a margin before others may take it: a process that cannot renew ends.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass

from baton_operator.kube.kinds import LEASES
from baton_operator.kube.kube_api import AlreadyExists, Conflict, KubeApi, KubeError, NotFound
from baton_operator.kube.object_fields import Manifest, annotations_of, mapping, metadata_of, text

log = logging.getLogger(__name__)
MANAGER = "baton-lease"
LONGEST_S = 60.0
"""A Lease's duration counts as at most this, and as at least this process's own."""
MAX_TRANSITIONS = (1 << 31) - 1
ADDRESS = "baton.dev/address"
"""Annotation: where the holder can be reached."""


class LeaseLost(Exception):
    """Somebody else may be active: this process has to end."""


@dataclass(frozen=True, slots=True)
class Times:
    duration_s: float = 15.0
    renew_s: float = 4.0
    give_up_s: float = 10.0
    """Without a renewal for so long, it counts as lost; below `duration_s`, so that there are never two."""
    retry_s: float = 2.0


class Lease:
    """The Lease `name`; `identity` differs for each process, restarts included. `address` is where this process can be
    reached, for others to read."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        identity: str,
        *,
        address: str = "",
        times: Times = Times(),
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._address, self._times, self._now = address, times, now
        self.holder_address: str | None = None
        """Where the process that holds the Lease can be reached, as last seen; None: not known."""
        self.holder = ""
        """Who held it when it could not be had last; empty: nobody did, or it is not known."""
        self._held: Manifest | None = None
        self._seen: tuple[str, float] | None = None
        """The version last seen, and since when."""
        self._newest = 0
        """The highest version that the Lease was seen with."""

    async def acquire(self) -> None:
        """Waits until this process holds the Lease; a server that does not answer only prolongs that. Raises LeaseLost
        where the store was restored from a backup."""
        while True:
            try:
                if await self._try():
                    log.info("holds the Lease %s/%s as %s", self._namespace, self._name, self._identity)
                    return
            except KubeError as error:
                log.warning("Lease %s/%s: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._times.retry_s)

    async def keep(self) -> None:
        """Renews until cancelled. Raises LeaseLost."""
        clock = asyncio.get_running_loop().time
        renewed = clock()
        while True:
            await asyncio.sleep(self._times.renew_s if clock() - renewed < self._times.renew_s else self._times.retry_s)
            started = clock()
            try:
                async with asyncio.timeout(max(renewed + self._times.give_up_s - started, 0.001)):
                    await self._renew()
                renewed = started
            except (KubeError, TimeoutError) as error:
                log.warning("Lease %s/%s not renewed: %s", self._namespace, self._name, error)
            if clock() - renewed >= self._times.give_up_s:
                raise LeaseLost(f"not renewed for {clock() - renewed:.1f} s")

    async def hold(self) -> bool:
        """One attempt to get the Lease, or to renew it; whether this process holds it now. Raises KubeError."""
        if self._held is not None:
            try:
                await self._renew()
            except (LeaseLost, NotFound):
                self._held = None
        self._newest = 0  # whoever asks this way knows nothing else that could be of another time
        return self._held is not None or await self._try()

    async def release(self) -> None:
        """Let another process take over at once. Best effort."""
        if self._held is None:
            return
        spec = {**mapping(self._held.get("spec")), "holderIdentity": "", "leaseDurationSeconds": 1}
        held, self._held = self._held, None
        try:
            await self._api.replace(LEASES, {**held, "spec": spec}, manager=MANAGER)
        except KubeError as error:
            log.info("Lease %s/%s not given back: %s", self._namespace, self._name, error)

    async def _try(self) -> bool:
        try:
            live = await self._api.get(LEASES, self._namespace, self._name)
        except NotFound:
            try:
                self._held = await self._api.create(LEASES, self._made(), manager=MANAGER)
            except AlreadyExists:
                return False
            return True
        self._saw(live)
        if not self._may_take(live):
            self.holder_address = text(annotations_of(live).get(ADDRESS)) or None
            self.holder = text(mapping(live.get("spec")).get("holderIdentity")) or ""
            return False
        try:
            self._held = await self._api.replace(LEASES, self._taken(live), manager=MANAGER)
        except (Conflict, NotFound):
            return False
        return True

    def _may_take(self, live: Manifest) -> bool:
        spec = mapping(live.get("spec"))
        holder, duration = text(spec.get("holderIdentity")), spec.get("leaseDurationSeconds")
        if not holder or holder == self._identity:
            return True
        clock = asyncio.get_running_loop().time()
        version = str(metadata_of(live).get("resourceVersion"))
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, clock)
        wait_s = float(duration) if type(duration) is int else self._times.duration_s
        # Anybody with the right could have written it: too short lets two be active, too long nobody ever again.
        wait_s = max(self._times.duration_s, min(wait_s, LONGEST_S))
        return clock - self._seen[1] >= wait_s

    def _saw(self, live: Manifest) -> None:
        """Raises LeaseLost for a version that is older than one before it."""
        text_of = str(metadata_of(live).get("resourceVersion"))
        version = int(text_of) if text_of.isdigit() else self._newest
        if version < self._newest:
            raise LeaseLost(f"its version went from {self._newest} back to {version}: the store has been restored")
        self._newest = version

    async def _renew(self) -> None:
        assert self._held is not None, "acquired before"
        spec = {**mapping(self._held.get("spec")), "renewTime": self._stamp()}
        try:
            self._held = await self._api.replace(LEASES, {**self._held, "spec": spec}, manager=MANAGER)
            self._saw(self._held)
        except (Conflict, NotFound) as error:
            live = await self._api.get(LEASES, self._namespace, self._name)
            self._saw(live)
            if text(mapping(live.get("spec")).get("holderIdentity")) != self._identity:
                raise LeaseLost(f"held by {mapping(live.get('spec')).get('holderIdentity')!r} now") from error
            self._held = live  # our own renewal whose answer was lost
            raise

    def _made(self) -> Manifest:
        metadata = {"name": self._name, "namespace": self._namespace, "annotations": {ADDRESS: self._address}}
        spec = self._holding(0)
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def _taken(self, live: Manifest) -> Manifest:
        before = mapping(live.get("spec")).get("leaseTransitions")
        transitions = before + 1 if type(before) is int and 0 <= before < MAX_TRANSITIONS else 1
        metadata_kept = {name: metadata_of(live)[name] for name in ("name", "namespace", "uid", "resourceVersion")}
        metadata: Manifest = {**metadata_kept, "annotations": {**annotations_of(live), ADDRESS: self._address}}
        return {**live, "metadata": metadata, "spec": self._holding(transitions)}

    def _holding(self, transitions: int) -> Manifest:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.duration_s)),
            "acquireTime": self._stamp(),
            "renewTime": self._stamp(),
            "leaseTransitions": transitions,
        }

    def _stamp(self) -> str:
        return self._now().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
