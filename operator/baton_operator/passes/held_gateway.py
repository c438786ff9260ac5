"""The hold of the gateways' former template until workers of the new images are ready. Pure.

Images of another release may speak another wire version, and then a new gateway can use no old worker. Gateways that
were replaced first would have no worker until the new ones have loaded their model. So with new images the workers go
first: the former gateways serve with the former workers, until as many new workers are ready as `maxSurge` allows.
Where the rollout can start no worker before it stops one, or where no former worker of a pool can serve, there is
nothing to wait for, and nothing is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from baton_control.hashes import content_hash
from baton_control.names import gateway_name
from baton_control.rollout import Limits, Wanted
from baton_operator.kube.object_fields import Manifest, mapping, mappings
from baton_operator.passes.apply import DesiredObject, with_metadata
from baton_operator.passes.drift import APPLIED
from baton_operator.passes.observe import TemplateKey, WorkerSet
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.template_records import Record, Stored
from baton_operator.passes.worker_pods import PodCounts
from baton_wire.messages.values import POOL_ROLES, Role

GATEWAYS_WAIT = "gateways keep their images until workers of the new ones are ready"


def find_held_gateway(
    snapshot: Snapshot,
    record: Record,
    sets: Sequence[WorkerSet],
    wanted: Mapping[Role, Wanted],
    limits: Limits,
    starting: Set[Role],
    *,
    paused: bool,
) -> Stored | None:
    """The record whose gateway template has to stay for now; None: the gateways may have that of `record`. `starting`:
    pools in which workers of the wanted template start now, or as soon as others have made room."""
    gateway = snapshot.live_sets.get(gateway_name(snapshot.key.name), {})
    former = _find_former(record, snapshot.records, gateway)
    if former is None:
        return None
    new = _new_templates(record, snapshot.records)
    waits = _must_wait(new, sets, snapshot.pod_counts, wanted, limits, starting, paused=paused)
    return former if waits else None


def _find_former(record: Record, records: Iterable[Stored], gateway: Manifest) -> Stored | None:
    """The record that the live gateways were made from, if it has another image than `record`; None: they have that
    image, or there is no such record. Where a webhook rewrites images, no record has the live one, and the newest with
    another image counts. `gateway`: their Deployment, empty if there is none."""
    image = _image(mapping(mapping(gateway.get("spec")).get("template")))
    newest_first = sorted(records, key=lambda stored: -stored.number)
    others = [stored for stored in newest_first if stored.record.gateway_image != record.gateway_image]
    if not others or image == record.gateway_image:
        return None
    return next((stored for stored in others if stored.record.gateway_image == image), others[0])


def _must_wait(
    new: frozenset[TemplateKey],
    sets: Iterable[WorkerSet],
    pod_counts: Mapping[TemplateKey, PodCounts],
    wanted: Mapping[Role, Wanted],
    limits: Limits,
    starting: Set[Role],
    *,
    paused: bool,
) -> bool:
    """True while the gateways have to wait for workers of the new images, whose templates are `new`. A rollout that is
    paused, or that holds because new workers fail, starts none until somebody acts: the former pair serves on."""
    former: Counter[Role] = Counter()
    started: Counter[Role] = Counter()
    ready: Counter[Role] = Counter()
    unplaced: Counter[Role] = Counter()
    fails = False
    for worker_set in sets:
        counts = pod_counts.get(worker_set.key, PodCounts())
        if worker_set.is_leaving:
            continue
        if worker_set.key not in new:
            former[worker_set.role] += _may_serve(worker_set, counts)
        else:
            started[worker_set.role] += worker_set.wanted
            ready[worker_set.role] += counts.ready
            unplaced[worker_set.role] += counts.unschedulable
            fails = fails or counts.failing > 0
    pools = {role: pool.workers for role, pool in wanted.items() if pool.workers > 0}
    can_start = paused or fails or all(started[role] > 0 or role in starting for role in pools)
    if not pools or not can_start or any(former[role] == 0 for role in pools):
        return False
    needed = {
        role: max(min(limits.surge(workers), started[role] - unplaced[role]), 1) for role, workers in pools.items()
    }
    return any(ready[role] < count for role, count in needed.items())


def _may_serve(worker_set: WorkerSet, counts: PodCounts) -> int:
    """The workers of a template that serve, or may again: those that crash, have no node or are late do not."""
    if worker_set.is_late and not counts.ready:
        return 0
    return max(worker_set.wanted - counts.failing - counts.unschedulable, 0)


def _new_templates(record: Record, records: Iterable[Stored]) -> frozenset[TemplateKey]:
    """The worker templates with the images of `record`, its own and those of older records with the same images."""
    alike = [stored.record for stored in records if stored.record.gateway_image == record.gateway_image]
    return frozenset(
        (role, known.rendered[role].revision.template) for known in (record, *alike) for role in POOL_ROLES
    )


def with_template(gateway: DesiredObject, held: Stored) -> DesiredObject:
    """The gateways' Deployment with the template of a former record."""
    spec = {**mapping(gateway.body.get("spec")), "template": held.record.rendered[Role.GATEWAY].pod}
    digest = content_hash({"of": gateway.digest, "spec": spec})
    return replace(gateway, digest=digest, body=with_metadata({**gateway.body, "spec": spec}, {APPLIED: digest}))


def _image(template: Manifest) -> object:
    containers = mappings(mapping(template.get("spec")).get("containers"))
    return containers[0].get("image") if containers else None
