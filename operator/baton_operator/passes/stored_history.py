"""The history of a deployment on its cluster, kept in the annotations of one ControllerRevision, `NAME-history`.

Status, conditions and Pods show only the latest decisions, the present limit and the last end of containers that still
exist. Here they stay, next to changes of the spec and of the images: 200 changes at most, in less than 120 kB. A
deployment's history is written when it has changed, or when somebody else edited the object, at most once a minute. The
operator may write this kind anyway, and watches it, so that the history needs no right and no read of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from baton_control.history_facts import (
    HISTORY_ANNOTATION,
    HistoryFacts,
    StoredHistory,
    find_changes,
    flatten_spec,
    read_stored,
)
from baton_control.names import history_name
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.kube_api import KubeError
from baton_operator.kube.object_fields import Manifest, annotations_of, mapping
from baton_operator.objects.cluster import Owner
from baton_operator.objects.metadata import object_head
from baton_operator.passes.apply import Applied, Applier, NameTaken, desired_object
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.template_records import Record
from baton_wire.deployment_history import ChangeKind, DeploymentHistory, HistoryChange

WRITE_S = 60.0
"""Least time between two writes of a deployment's history."""
MAX_FACTS_BYTES = 64 << 10
"""A longer spec is not kept: its changes are then unknown."""
_encode = msgspec.json.Encoder().encode
_ChangeKey = tuple[float, str, str, str]


def merge_history(kept: StoredHistory, present: DeploymentHistory, facts: HistoryFacts, at: float) -> StoredHistory:
    """Return the kept history with the changes that show at present, and with those since the kept facts. `at`: the
    wall clock."""
    known = {_change_key(change) for change in kept.history.entries}
    new = [change for change in present.entries if _change_key(change) not in known]
    new += [change for change in find_changes(kept.facts, facts, at) if kept.facts != HistoryFacts()]
    entries = sorted((*kept.history.entries, *new), key=lambda change: change.at)
    history = DeploymentHistory().with_changes(entries).with_reasons(present.reasons, present.wanted)
    return StoredHistory(history, facts)


def _change_key(change: HistoryChange) -> _ChangeKey:
    """Return what tells a change from others. The messages of conditions that still hold have numbers that vary."""
    text = change.text
    if change.kind is ChangeKind.LIMIT:
        text = ""
    elif change.kind is ChangeKind.CONDITION:
        text = text.partition(":")[0]
    return change.at, change.kind.value, change.subject, text


def facts_of(spec: Mapping[str, object], record: Record) -> HistoryFacts:
    """Return the facts that no status shows: the spec, and the images that run."""
    images = dict.fromkeys((record.worker_image, record.gateway_image))
    facts = HistoryFacts(version=", ".join(images), spec=flatten_spec(spec))
    return facts if len(_encode(facts)) <= MAX_FACTS_BYTES else HistoryFacts(version=facts.version)


def history_manifest(stored: StoredHistory, deployment: LLMDeployment, owner: Owner) -> Manifest:
    """Return the object that keeps a history. The reasons of the present sizes are not in it: they vary."""
    head = object_head("apps/v1", "ControllerRevision", history_name(deployment.metadata.name), deployment, owner)
    kept = msgspec.structs.replace(stored, history=stored.history.with_reasons({}))
    metadata = {**mapping(head["metadata"]), "annotations": {HISTORY_ANNOTATION: _encode(kept).decode()}}
    return head | {"metadata": metadata, "revision": 0, "data": {}}


def read_history(live: Manifest) -> StoredHistory:
    """Read the history in a live object; an empty one where there is none that can be read."""
    return read_stored(annotations_of(live).get(HISTORY_ANNOTATION))


@dataclass(slots=True)
class _Kept:
    stored: StoredHistory = field(default_factory=StoredHistory)
    is_read: bool = False
    """True: what the live object had is in it. A restored object is the deployment's only when it is adopted."""
    write_at_s: float = 0.0
    """The earliest time of the next write."""


class HistoryBook:
    """The histories of all deployments. `clock` is monotonic."""

    def __init__(self, applier: Applier, clock: Callable[[], float]) -> None:
        self._applier, self._clock = applier, clock
        self._kept: dict[str, _Kept] = {}
        """By the deployment's uid."""

    def note(self, seen: Snapshot, present: DeploymentHistory, facts: HistoryFacts, at: float) -> DeploymentHistory:
        """Note what a pass saw, and return the whole history. `at`: the wall clock."""
        kept = self._kept.setdefault(seen.owner.uid, _Kept())
        live = seen.live_records.get(history_name(seen.key.name))
        if live is not None and not kept.is_read:
            former = read_history(live)
            kept.stored, kept.is_read = merge_history(former, kept.stored.history, former.facts, at), True
        kept.stored = merge_history(kept.stored, present, facts, at)
        return kept.stored.history

    async def write(self, seen: Snapshot, deployment: LLMDeployment) -> float | None:
        """Make the live object as the history is by now, unless the last write was less than `WRITE_S` ago. Returns the
        seconds until the next comparison; None: only the next pass compares again. A refused write loses nothing: it is
        tried again as late."""
        kept, now = self._kept[seen.owner.uid], self._clock()
        if now < kept.write_at_s:
            return kept.write_at_s - now
        desired = desired_object(history_manifest(kept.stored, deployment, seen.owner))
        with contextlib.suppress(KubeError, NameTaken):
            if await self._applier.ensure(desired, seen.owner) is Applied.UNCHANGED:
                return None
        kept.write_at_s = now + WRITE_S
        return WRITE_S

    def forget(self, uid: str) -> None:
        """Drop the history of a deployment that is gone."""
        self._kept.pop(uid, None)
