"""The rendering of a spec: parsed, rendered and hashed once for all passes with equal inputs.

Passes outnumber changes by far. Renderings are cached by the values of their inputs, not by versions of objects: equal
inputs give the same result, whatever happened in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from baton_control.accelerator_types import in_force
from baton_control.hashes import Revision, content_hash
from baton_control.names import gateway_name
from baton_control.spec.api import API_VERSION, LLMDeployment
from baton_control.spec.manifest import parse_live
from baton_control.worker_specs import pool_roles
from baton_operator.kube.kinds import ACCOUNTS, INFERENCE_POOLS, OPTIONAL, SECRETS, resource_of
from baton_operator.kube.kube_api import Resource
from baton_operator.kube.object_fields import Manifest, annotations_of, mapping, metadata_of
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import flexible_workers_of, pool_facade, standing_objects, workers_of
from baton_operator.objects.metadata import REFETCH_ANNOTATION, RESTART_ANNOTATION, roles_text
from baton_operator.objects.optional import has_inference_pool
from baton_operator.passes import accelerators
from baton_operator.passes.apply import DesiredObject, desired_object, with_metadata
from baton_operator.passes.device_notes import device_notes
from baton_operator.passes.refused_env import read_written_spec
from baton_operator.passes.snapshot import KEYS_ANNOTATION, Snapshot
from baton_operator.passes.template_records import UPGRADE_ANNOTATION, Record, Stored, current_record, newest_record
from baton_wire.messages.values import POOL_ROLES, Role

KEPT = 256
"""Most renderings that are cached, for deployments with passes every few seconds. One takes some 100 KB."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a rendering depends on."""

    text: bytes
    """The LLMDeployment without status, labels and annotations, as JSON: for Python, true equals 1."""
    upgrade: str
    owner: Owner
    records: tuple[Stored, ...]
    platform: Platform
    masters: Mapping[str, bytes]
    served: frozenset[Resource]
    """The optional kinds that the server has."""
    restart: str = ""
    """Mark of the last requested restart; empty: none was requested."""
    refetch: str = ""
    """Mark of the last requested fetch; empty: none was requested."""
    is_held: bool = False
    """True: this is the last good spec while a newer one is refused, and no new template is rendered."""
    types: Mapping[Role, str] = field(default_factory=dict)
    """The chosen accelerator types in the status."""


@dataclass(frozen=True, slots=True)
class Rendering:
    deployment: LLMDeployment
    record: Record
    """The templates that the deployment is to be made from."""
    secret: Manifest
    """The link keys."""
    keys: str
    """Their hash."""
    standing: tuple[DesiredObject, ...]
    """All other objects but the workers and the pools, in the order of creation."""
    pools: Mapping[Role, DesiredObject]
    """The facades without their replicas."""
    pods: Mapping[tuple[Role, Revision], Manifest]
    """Every recorded worker template; the newest record wins, though equal hashes mean equal templates."""
    notes: tuple[str, ...]
    """Harmless omissions, in words."""
    text: str = ""
    """The LLMDeployment that all this follows from."""
    _workers: dict[tuple[Role | None, Revision, str], DesiredObject] = field(default_factory=dict, compare=False)

    def workers(self, role: Role, revision: Revision, pod: Manifest, replicas: int, owner: Owner) -> DesiredObject:
        """The worker Deployment of the template `pod`."""
        key = (role, revision, str(replicas))
        if key not in self._workers:
            self._workers[key] = desired_object(workers_of(self.deployment, role, revision, pod, replicas, owner))
        return self._workers[key]

    def flexible_workers(
        self, revision: Revision, pod: Manifest, roles: Mapping[Role, int], owner: Owner
    ) -> DesiredObject:
        """The flexible workers of one template, with the number for each role."""
        key = (None, revision, roles_text(roles))
        if key not in self._workers:
            self._workers[key] = desired_object(flexible_workers_of(self.deployment, revision, pod, roles, owner))
        return self._workers[key]

    @property
    def objects(self) -> tuple[Manifest, ...]:
        return tuple(desired.body for desired in self.standing)


def inputs_of(seen: Snapshot, platform: Platform, masters: Mapping[str, bytes], served: frozenset[Resource]) -> Inputs:
    metadata = metadata_of(seen.raw)
    raw: Manifest = {name: seen.raw[name] for name in ("apiVersion", "kind", "spec") if name in seen.raw}
    raw["metadata"] = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
    upgrade = str(annotations_of(seen.raw).get(UPGRADE_ANNOTATION, ""))
    text = msgspec.json.encode(raw, order="sorted")
    restart, refetch = (
        content_hash(asked) if (asked := annotations_of(seen.raw).get(name)) else ""
        for name in (RESTART_ANNOTATION, REFETCH_ANNOTATION)
    )
    types = accelerators.status_types(seen.before)
    return Inputs(text, upgrade, seen.owner, seen.records, platform, masters, served, restart, refetch, types=types)


def last_good(given: Inputs) -> Inputs | None:
    """The inputs of the last spec that was carried out; None: none was, or it was not noted. An operator of another API
    version may have noted it; fields have the same names in all versions, so that only the version differs."""
    before = newest_record(given.records)
    if before is None or before.good is None:
        return None
    raw = mapping(msgspec.json.decode(before.good)) | {"apiVersion": API_VERSION}
    text = msgspec.json.encode(raw, order="sorted")
    return replace(given, text=text, upgrade=before.record.upgrade, is_held=True)


def render(given: Inputs) -> Rendering:
    """Render a spec. Raises ManifestError for a spec that is wrong, NotAllowedError for one that asks for what the
    installation does not allow, UnsupportedError for one that this version cannot run."""
    recorded = newest_record(given.records)
    as_written = read_written_spec(msgspec.json.decode(given.text), given.platform.pod_policy, recorded)
    deployment, unknown = parse_live(as_written.raw)
    before = recorded if given.is_held else None
    if before is None:
        given.platform.pod_policy.check(deployment)
    deployment = in_force(deployment, {**accelerators.recorded_types(deployment, given.records), **given.types})
    if before is not None:
        record = before.record
    else:
        record = current_record(
            deployment,
            given.platform,
            given.upgrade,
            given.records,
            restart=given.restart,
            full_env=as_written.full,
        )
    absent = {kind for kind in OPTIONAL if kind not in given.served}
    has_pools = given.platform.inference_pool and INFERENCE_POOLS not in absent
    platform = replace(
        given.platform,
        worker_image=record.worker_image,  # of fetch Jobs too
        inference_pool=has_pools,
    )
    gateway_pod = record.rendered[Role.GATEWAY].pod
    objects = standing_objects(
        deployment,
        platform,
        given.owner,
        given.masters,
        gateway_pod,
        version=record.version,
        refetch=given.refetch,
    )
    secret = next(manifest for manifest in objects if manifest["kind"] == SECRETS.kind)
    keys = content_hash(secret)
    others = [_with_keys(manifest, deployment, keys) for manifest in objects if manifest is not secret]
    asked = {resource_of(manifest) for manifest in others}
    asked |= {INFERENCE_POOLS} if given.platform.inference_pool else set()
    missing = sorted(asked & absent, key=lambda kind: kind.plural)
    notes = [f"unknown fields are ignored: {', '.join(unknown)}"] if unknown else []
    notes += [f"left out: {problem}" for problem in as_written.left_out]
    notes += [f"{kind.kind}s are left out: {kind.api_version} is not served, or not granted" for kind in missing]
    if has_pools and not has_inference_pool(deployment, platform):
        notes.append("InferencePools are left out: gateway.tls is given, and a Gateway speaks plain HTTP to a pool")
    notes += device_notes(deployment)
    pods: dict[tuple[Role, Revision], Manifest] = {}
    for known_record in (
        *(stored.record for stored in sorted(given.records, key=lambda stored: stored.number)),
        record,
    ):
        pods |= {(role, known_record.rendered[role].revision): known_record.rendered[role].pod for role in POOL_ROLES}
    return Rendering(
        deployment=deployment,
        record=record,
        secret=secret,
        keys=keys,
        standing=tuple(desired_object(manifest) for manifest in others if resource_of(manifest) not in absent),
        pools={role: desired_object(pool_facade(deployment, role, given.owner)) for role in pool_roles(deployment)},
        pods=pods,
        notes=tuple(notes),
        text=given.text.decode(),
    )


class Renderings:
    """A cache of the latest renderings, of the deployments with the latest passes."""

    def __init__(self, make: Callable[[Inputs], Rendering] = render) -> None:
        self._make = make
        self._kept: OrderedDict[str, tuple[Inputs, Rendering]] = OrderedDict()

    def of(self, given: Inputs) -> Rendering:
        """The rendering of these inputs, cached or made now. Raises what `render` raises."""
        uid = given.owner.uid
        entry = self._kept.get(uid)
        if entry is None or entry[0] != given:
            entry = (given, self._make(given))
        self._kept[uid] = entry
        self._kept.move_to_end(uid)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return entry[1]

    def last(self, owner: Owner) -> Rendering | None:
        """The last rendering of this deployment; None: it is not cached."""
        entry = self._kept.get(owner.uid)
        return None if entry is None else entry[1]


def _with_keys(manifest: Manifest, deployment: LLMDeployment, keys: str) -> Manifest:
    is_marked = manifest["kind"] == ACCOUNTS.kind and metadata_of(manifest)["name"] == gateway_name(
        deployment.metadata.name
    )
    return with_metadata(manifest, annotations={KEYS_ANNOTATION: keys}) if is_marked else manifest
