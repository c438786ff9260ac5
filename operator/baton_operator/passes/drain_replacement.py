"""Replacement of the only Pod of a pool, or the only gateway, while its node is being emptied. Pure.

With one worker, a PodDisruptionBudget can only forbid every eviction or allow the eviction of the last worker. So it
forbids it, and a drain of the node retries. Meanwhile one more worker is started. Once that one serves, the budget lets
one go. If the successor is not ready in time, the eviction is allowed, because a node must not be blocked for ever.

If nodes cannot be read, the budget allows the eviction, and requests wait in the gateway for the successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from baton_control.hashes import content_hash
from baton_operator.kube.kinds import BUDGETS, WORKERS
from baton_operator.kube.object_fields import Manifest, integer, is_leaving, labels_of, mapping, metadata_of
from baton_operator.objects.metadata import ROLE_LABEL
from baton_operator.passes.apply import DesiredObject, with_metadata
from baton_operator.passes.drift import APPLIED
from baton_operator.passes.pod_problems import is_ready
from baton_wire.messages.values import Role

GIVE_UP = timedelta(minutes=30)
"""Time after which a successor that is not ready no longer blocks an eviction; loading a model takes less."""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The node of a Pod."""

    node: str
    """Empty: the Pod has no node yet."""
    is_ready: bool
    created: datetime | None
    """None: the API server did not say."""


@dataclass(frozen=True, slots=True)
class DrainReplacement:
    """The replacements of a deployment's only Pods."""

    least: Mapping[Role, int] = field(default_factory=dict)
    """The number that an eviction must leave, by role: 1, or 0 once the successor was given up. Other roles have the
    usual budget."""
    replaced: frozenset[Role] = frozenset()
    """Roles with one Pod more, because the node of the only one is being emptied."""


def plan_replacement(
    wanted: Mapping[Role, int],
    places: Mapping[Role, tuple[PodPlace, ...]],
    emptying: frozenset[str] | None,
    now: datetime,
) -> DrainReplacement:
    """The replacements that are due. `wanted`: the size of each role; a role that is left out is never replaced.
    `emptying`: nodes that are being emptied; None: unknown."""
    if emptying is None:
        return DrainReplacement()
    least, replaced = {}, set()
    for role in (role for role, count in wanted.items() if count == 1):
        role_places = places.get(role, ())
        successors = [place for place in role_places if place.node not in emptying]
        if len(successors) < len(role_places):
            replaced.add(role)
        least[role] = 0 if any(_is_given_up(place, now) for place in successors) else 1
    return DrainReplacement(least, frozenset(replaced))


def places_of(pods: Iterable[Manifest]) -> dict[Role, tuple[PodPlace, ...]]:
    """The places of gateway and worker Pods, by role, without the Pods that are stopping."""
    places: dict[Role, tuple[PodPlace, ...]] = {}
    for pod in pods:
        role, status = labels_of(pod).get(ROLE_LABEL), mapping(pod.get("status"))
        if role not in set(Role) or is_leaving(pod) or status.get("phase") in ("Succeeded", "Failed"):
            continue
        node = mapping(pod.get("spec")).get("nodeName")
        place = PodPlace(str(node or ""), is_ready(status), _moment(metadata_of(pod).get("creationTimestamp")))
        places[Role(str(role))] = (*places.get(Role(str(role)), ()), place)
    return places


def adjust_object(wanted: DesiredObject, replacement: DrainReplacement) -> DesiredObject:
    """A shared object as the replacement wants it: a budget that keeps the last Pod, or one gateway more."""
    role = labels_of(wanted.body).get(ROLE_LABEL)
    spec = mapping(wanted.body.get("spec"))
    if wanted.resource == BUDGETS and role in replacement.least:
        other_fields = {name: value for name, value in spec.items() if name != "maxUnavailable"}
        spec = {**other_fields, "minAvailable": replacement.least[Role(str(role))]}
    elif wanted.resource == WORKERS and role == Role.GATEWAY and role in replacement.replaced:
        spec = {**spec, "replicas": (integer(spec.get("replicas")) or 0) + 1}
    else:
        return wanted
    digest = content_hash({"of": wanted.digest, "spec": spec})
    return replace(wanted, digest=digest, body=with_metadata({**wanted.body, "spec": spec}, {APPLIED: digest}))


def _is_given_up(place: PodPlace, now: datetime) -> bool:
    return not place.is_ready and place.created is not None and now - place.created > GIVE_UP


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
