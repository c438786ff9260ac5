"""The snapshot of one deployment: what the caches know of it, read once at the beginning of a pass without a
request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from pydantic import ValidationError

from baton_control.hashes import Revision
from baton_control.names import Key, gateway_name, keys_name, pool_name
from baton_operator.kube.cache import REPLICA_OWNERS, Cache
from baton_operator.kube.kinds import (
    ACCOUNTS,
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    POOLS,
    RECORDS,
    REMOVABLE,
    SERVICES,
    WORKERS,
)
from baton_operator.kube.kube_api import Resource
from baton_operator.kube.object_fields import (
    Manifest,
    annotations_of,
    condition_of,
    integer,
    is_controlled,
    is_leaving,
    labels_of,
    mapping,
    mappings,
    metadata_of,
    name_of,
    uid_of,
)
from baton_operator.objects.cluster import Owner
from baton_operator.objects.link_keys import is_key_marker
from baton_operator.objects.metadata import ADOPT_ANNOTATION, ROLE_LABEL, belongs
from baton_operator.passes.observe import WorkerSet, refusal, worker_sets
from baton_operator.passes.pod_problems import is_ready, our_pods
from baton_operator.passes.pool_size import WRITTEN, Facade
from baton_operator.passes.template_records import Stored, read_record
from baton_operator.passes.worker_pods import PodCounts, WorkerPod, count_pods, worker_pods
from baton_operator.schema.status import DeploymentStatus, PoolConditionType
from baton_wire.messages.values import POOL_ROLES, Role

KEYS_ANNOTATION = "baton.dev/keys"
"""On the gateway's account: the hash of the key Secret that was applied, which cannot be read."""
Caches = Mapping[Resource, Cache]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One deployment with its objects."""

    key: Key
    raw: Manifest
    owner: Owner
    generation: int
    before: DeploymentStatus
    """Its present status; empty: it cannot be read."""
    records: tuple[Stored, ...]
    live_records: Mapping[str, Manifest]
    sets: tuple[WorkerSet, ...]
    live_sets: Mapping[str, Manifest]
    pods: tuple[WorkerPod, ...]
    pools: Mapping[Role, Manifest]
    """The live facades that belong to the deployment and stay."""
    gateways_ready: int
    """Gateway Pods that are Ready. They are counted here, because a Deployment's own count freezes without its
    controller."""
    leaving_gateways: frozenset[str]
    """Names of gateway Pods that are stopping."""
    gateway_refusal: str
    gateway_lateness: str
    """A sentence if new gateways did not get ready in time; empty: they did, or still may."""
    keys: str | None
    """Hash of the key Secret that was applied last; None: none was."""
    has_keys: bool = True
    """True if that Secret still exists, by its marker."""
    live_pods: tuple[Manifest, ...] = ()
    """Live Pods of gateways, workers and fetch Jobs."""
    claims: tuple[Manifest, ...] = ()
    """Live volume claims."""
    fetches: tuple[Manifest, ...] = ()
    """Live Jobs that fetch a model."""
    withdrawable: tuple[tuple[Resource, Manifest], ...] = ()
    """Live objects of optional kinds."""
    gateway_service: Manifest = field(default_factory=dict)
    """The live Service for clients, if it belongs to the deployment; empty: there is none."""
    pod_counts: Mapping[tuple[Role, str], PodCounts] = field(default_factory=dict)

    @property
    def templates(self) -> dict[tuple[Role, Revision], Manifest]:
        """The Pod templates of the live worker Deployments: all that is left of a template whose record is lost."""
        specs = {live.name: mapping(self.live_sets[live.name].get("spec")) for live in self.sets}
        return {(live.role, live.revision): mapping(specs[live.name].get("template")) for live in self.sets}


def take_snapshot(key: Key, caches: Caches) -> Snapshot | None:
    """Take the snapshot; None: there is no such deployment, or it is being deleted together with its objects."""
    raw = caches[DEPLOYMENTS].get(*key)
    if raw is None or is_leaving(raw):
        return None
    owner = Owner(uid_of(raw), adopts=annotations_of(raw).get(ADOPT_ANNOTATION) == "true")
    workers = {name_of(manifest): manifest for manifest in caches[WORKERS].of(key)}
    records = {name_of(manifest): manifest for manifest in _ours(caches[RECORDS].of(key), owner)}
    pods = worker_pods(caches[PODS].of(key), key.name)
    teams = count_pods(pods)
    fetches = _ours(caches[JOBS].of(key), owner)
    jobs = frozenset(name_of(job) for job in fetches)
    gateway = next(iter(_ours((workers.get(gateway_name(key.name), {}),), owner)), {})
    service = caches[SERVICES].get(key.namespace, gateway_name(key.name)) or {}
    account = caches[ACCOUNTS].get(key.namespace, gateway_name(key.name)) or {}
    keys = annotations_of(account).get(KEYS_ANNOTATION) if is_controlled(account, owner.uid) else None
    facades = {role: caches[POOLS].get(key.namespace, pool_name(key.name, role)) or {} for role in POOL_ROLES}
    records_read = (read_record(manifest) for manifest in records.values())
    live_pods = our_pods(caches[PODS].of(key), key.name, jobs)
    return Snapshot(
        key=key,
        raw=raw,
        owner=owner,
        generation=integer(metadata_of(raw).get("generation")) or 0,
        before=read_status(raw),
        records=tuple(record for record in records_read if record is not None),
        live_records=records,
        sets=worker_sets(workers.values(), owner, teams),
        live_sets=workers,
        pods=pods,
        pools={role: pool for role, pool in facades.items() if _ours((pool,), owner)},
        gateways_ready=sum(_is_ready_gateway(pod) for pod in live_pods) if gateway else 0,
        leaving_gateways=frozenset(name_of(pod) for pod in live_pods if _is_leaving_gateway(pod)),
        gateway_refusal=refusal(gateway),
        gateway_lateness=_lateness(gateway),
        keys=keys if isinstance(keys, str) else None,
        has_keys=is_key_marker(caches[RECORDS].get(key.namespace, keys_name(key.name)) or {}),
        live_pods=live_pods,
        claims=_ours(caches[CLAIMS].of(key), owner),
        fetches=fetches,
        withdrawable=tuple(
            (kind, manifest) for kind in REMOVABLE if kind in caches for manifest in _ours(caches[kind].of(key), owner)
        ),
        gateway_service=next(iter(_ours((service,), owner)), {}),
        pod_counts=teams,
    )


def _is_ready_gateway(pod: Manifest) -> bool:
    return _is_gateway(pod) and not is_leaving(pod) and is_ready(mapping(pod.get("status")))


def _is_leaving_gateway(pod: Manifest) -> bool:
    return _is_gateway(pod) and is_leaving(pod)


def _is_gateway(pod: Manifest) -> bool:
    return labels_of(pod).get(ROLE_LABEL) == Role.GATEWAY


def _lateness(gateway: Manifest) -> str:
    is_late = condition_of(mapping(gateway.get("status")), "Progressing").get("reason") == "ProgressDeadlineExceeded"
    return "new gateways do not get ready" if is_late else ""


def read_facade(pool: Manifest) -> Facade:
    """The facade in a live LLMPool."""
    owners = pool.get(REPLICA_OWNERS)
    conditions = mappings(mapping(pool.get("status")).get("conditions"))
    written = annotations_of(pool).get(WRITTEN)
    modes = [
        str(condition.get("reason")) for condition in conditions if condition.get("type") == PoolConditionType.SIZED
    ]
    return Facade(
        replicas=integer(mapping(pool.get("spec")).get("replicas")) or 0,
        owners=frozenset(str(manager) for manager in owners) if isinstance(owners, list) else None,
        mode=modes[0] if modes else None,
        written=int(written) if isinstance(written, str) and written.isdigit() else None,
    )


def read_status(raw: Manifest) -> DeploymentStatus:
    """The status of a live object; fields that this version cannot read count as absent."""
    given = mapping(raw.get("status"))
    try:
        return DeploymentStatus.model_validate_json(msgspec.json.encode(given))
    except ValidationError:
        pass
    known = DeploymentStatus()
    for name, value in given.items():
        try:
            read = DeploymentStatus.model_validate_json(msgspec.json.encode({name: value}))
        except ValidationError:
            continue
        known = known.model_copy(update={field_name: getattr(read, field_name) for field_name in read.model_fields_set})
    return known


def _ours(manifests: tuple[Manifest, ...], owner: Owner) -> tuple[Manifest, ...]:
    return tuple(manifest for manifest in manifests if belongs(manifest, owner) and not is_leaving(manifest))
