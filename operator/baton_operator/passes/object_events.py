"""What Events say about objects that are stuck, asked for only while they are: in quiet times no request is made.

Rights may be those of an older chart: without them nothing is known, and the deployment's status says less.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping

from baton_operator.kube.kinds import EVENTS
from baton_operator.kube.kube_api import KubeApi, KubeError
from baton_operator.kube.object_fields import Manifest, mapping, metadata_of, uid_of
from baton_operator.passes.pod_problems import CREATING_S, ObjectEvent, waiting_pods

log = logging.getLogger(__name__)
AGAIN_S = 10.0
"""An object's Events are read so often at most."""
MOST = 2
"""Objects that one pass asks about: the Pods of a template are stuck for the same reason."""
MAX_KNOWN = 4096


class EventReader:
    """For all deployments. `clock` is monotonic."""

    def __init__(self, api: KubeApi, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._known: dict[str, tuple[float, ObjectEvent | None]] = {}

    async def about_pods(
        self, pods: Iterable[Manifest], now: datetime.datetime
    ) -> tuple[Mapping[str, ObjectEvent], float | None]:
        """What is said about Pods whose containers are not made yet, by uid, and when to come again in seconds. What
        is said about one is taken to hold for its siblings with the same labels."""
        waiting = waiting_pods(pods, now)
        groups: dict[str, list[Manifest]] = {}
        for pod, age in waiting:
            if age >= CREATING_S:
                groups.setdefault(str(sorted(mapping(metadata_of(pod).get("labels")).items())), []).append(pod)
        events: dict[str, ObjectEvent] = {}
        for members in list(groups.values())[:MOST]:
            event = await self.about(members[0])
            events |= {uid_of(pod): event for pod in members} if event is not None else {}
        if not waiting:
            return events, None
        youngest = min(age for _, age in waiting)
        return events, AGAIN_S if groups else max(CREATING_S - youngest, 0.5)

    async def about(self, manifest: Manifest) -> ObjectEvent | None:
        """The newest Event about an object; None: there is none, or it cannot be known."""
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
            log.info("the Events of %s are not known: %s", metadata.get("name"), error)
        else:
            event = newest_event(listing.items)
        self._known.pop(uid, None)
        self._known[uid] = (now, event)
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return event


def newest_event(events: Iterable[Manifest]) -> ObjectEvent | None:
    """The newest Event but those of the scheduler, whose say is over when a Pod has a node; of two at the same second
    the Warning."""
    others = (event for event in events if event.get("reason") != "FailedScheduling")
    ordered = sorted(others, key=lambda event: (_time(event), event.get("type") == "Warning"))
    if not ordered:
        return None
    last = ordered[-1]
    return ObjectEvent(str(last.get("reason")), str(last.get("message") or ""), last.get("type") == "Warning")


def _time(event: Manifest) -> str:
    """As text in the order of time; Events of the new API have no lastTimestamp."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
