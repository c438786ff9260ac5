"""One active operator at a time: a Lease that is renewed, taken over when it is not renewed, and released at the end.

A store that was restored from a backup hands out resource versions that this process has seen before. Its caches are
then newer than the store, and no watch reports that. The version of the Lease shows it within seconds, and the process
ends to begin anew.

No wall clocks are compared. A waiting process takes the Lease over when it has *seen* no change for the Lease's
duration by its own monotonic clock. The holder gives up some seconds before that: a process that cannot renew ends.
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
"""The longest duration of a Lease that is believed; the shortest is this process's own."""
MAX_TRANSITIONS = (1 << 31) - 1
ADDRESS = "baton.dev/address"
"""Annotation: where the holder can be reached."""


class LeaseLost(Exception):
    """Another process may be active: this process has to end."""


@dataclass(frozen=True, slots=True)
class Times:
    duration_s: float = 15.0
    renew_s: float = 4.0
    give_up_s: float = 10.0
    """Time without a renewal after which the Lease counts as lost; below `duration_s`, so that two processes are never
    active."""
    retry_s: float = 2.0


class Lease:
    """The Lease `name`. `identity` differs for each process, restarts included. `address`: where others reach this
    process."""

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
        """The address of the process that holds the Lease, as last seen; None: unknown."""
        self.holder = ""
        """The holder that kept this process from the Lease last; empty: none did, or it is unknown."""
        self._held: Manifest | None = None
        self._seen: tuple[str, float] | None = None
        """The version last seen, and since when."""
        self._newest = 0
        """The highest version that the Lease was seen with."""

    async def acquire(self) -> None:
        """Wait until this process holds the Lease, also while the server does not answer. Raises LeaseLost when the
        store was restored from a backup."""
        while True:
            try:
                if await self._try():
                    log.info("holds the Lease %s/%s as %s", self._namespace, self._name, self._identity)
                    return
            except KubeError as error:
                log.warning("Lease %s/%s: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._times.retry_s)

    async def keep(self) -> None:
        """Renew until cancelled. Raises LeaseLost."""
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
        """Try once to get or renew the Lease. Returns whether this process holds it now. Raises KubeError."""
        if self._held is not None:
            try:
                await self._renew()
            except (LeaseLost, NotFound):
                self._held = None
        self._newest = 0  # callers of `hold` keep nothing that a restored store would make wrong
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
                self._held = await self._api.create(LEASES, self._new_lease(), manager=MANAGER)
            except AlreadyExists:
                return False
            return True
        self._note_version(live)
        if not self._may_take(live):
            self.holder_address = text(annotations_of(live).get(ADDRESS)) or None
            self.holder = text(mapping(live.get("spec")).get("holderIdentity")) or ""
            return False
        try:
            self._held = await self._api.replace(LEASES, self._taken_over(live), manager=MANAGER)
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
        # Others may have written it: too short a duration lets two be active, too long a one lets none.
        wait_s = max(self._times.duration_s, min(wait_s, LONGEST_S))
        return clock - self._seen[1] >= wait_s

    def _note_version(self, live: Manifest) -> None:
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
            self._note_version(self._held)
        except (Conflict, NotFound) as error:
            live = await self._api.get(LEASES, self._namespace, self._name)
            self._note_version(live)
            if text(mapping(live.get("spec")).get("holderIdentity")) != self._identity:
                raise LeaseLost(f"held by {mapping(live.get('spec')).get('holderIdentity')!r} now") from error
            self._held = live  # our own renewal whose answer was lost
            raise

    def _new_lease(self) -> Manifest:
        metadata = {"name": self._name, "namespace": self._namespace, "annotations": {ADDRESS: self._address}}
        spec = self._holding(0)
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def _taken_over(self, live: Manifest) -> Manifest:
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
