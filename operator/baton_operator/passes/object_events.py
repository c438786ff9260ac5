"""Reads Events about stuck objects. It makes requests only while objects are stuck.

An older chart may lack the rights. Then nothing is known from Events, and the deployment's status says less.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping

from baton_operator.kube.kinds import EVENTS
from baton_operator.kube.kube_api import KubeApi, KubeError
from baton_operator.kube.object_fields import Manifest, labels_of, metadata_of, uid_of
from baton_operator.passes.pod_problems import CREATING_S, ObjectEvent, waiting_pods

log = logging.getLogger(__name__)
AGAIN_S = 10.0
"""Least time between two reads of an object's Events."""
MOST = 2
"""Most objects that one pass asks about: the Pods of a template are stuck for the same reason."""
MAX_KNOWN = 4096


class EventReader:
    """Reads Events for all deployments. `clock` is monotonic."""

    def __init__(self, api: KubeApi, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._known: dict[str, tuple[float, ObjectEvent | None]] = {}

    async def about_pods(
        self, pods: Iterable[Manifest], now: datetime.datetime
    ) -> tuple[Mapping[str, ObjectEvent], float | None]:
        """The newest Events about Pods whose containers are not created yet, by uid, and the seconds until the next
        read. An Event about one Pod counts for all Pods with the same labels."""
        waiting = waiting_pods(pods, now)
        groups: dict[str, list[Manifest]] = {}
        for pod, age in waiting:
            if age >= CREATING_S:
                groups.setdefault(str(sorted(labels_of(pod).items())), []).append(pod)
        events: dict[str, ObjectEvent] = {}
        for members in list(groups.values())[:MOST]:
            event = await self.about(members[0])
            events |= {uid_of(pod): event for pod in members} if event is not None else {}
        if not waiting:
            return events, None
        youngest = min(age for _, age in waiting)
        return events, AGAIN_S if groups else max(CREATING_S - youngest, 0.5)

    async def about(self, manifest: Manifest) -> ObjectEvent | None:
        """The newest Event about an object; None: there is none, or Events cannot be read."""
        uid, now = uid_of(manifest), self._clock()
        at, event = self._known.get(uid, (now - AGAIN_S, None))
        if now - at < AGAIN_S:
            return event
        metadata = metadata_of(manifest)
        try:
            listing = await self._api.list(
                EVENTS, str(metadata.get("namespace")), fields=f"involvedObject.uid={uid}"
            )  # fmt: skip
        except KubeError as error:
            log.info("the Events of %s cannot be read: %s", metadata.get("name"), error)
        else:
            event = newest_event(listing.items)
        self._known.pop(uid, None)
        self._known[uid] = (now, event)
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return event


def newest_event(events: Iterable[Manifest]) -> ObjectEvent | None:
    """The newest Event without those of the scheduler, which are outdated once a Pod has a node. Of two Events in the
    same second, the Warning is newer."""
    others = (event for event in events if event.get("reason") != "FailedScheduling")
    ordered = sorted(others, key=lambda event: (_time(event), event.get("type") == "Warning"))
    if not ordered:
        return None
    last = ordered[-1]
    return ObjectEvent(str(last.get("reason")), str(last.get("message") or ""), last.get("type") == "Warning")


def _time(event: Manifest) -> str:
    """The time of an Event, as text in the order of time; Events of the new API have no lastTimestamp."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
