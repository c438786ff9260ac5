"""Additions of a deployment to its workers' Pods: variables, volumes, shared memory and huge pages.

They never replace what Baton sets: Baton's variables win, and its volumes have names and paths of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from baton_control.spec.placing import NodesSpec, PlacementSpec
from baton_control.spec.pod_affinity import NodeExpressionSpec, NodeTermSpec, PodTermSpec
from baton_control.spec.pools import PoolSpec
from baton_control.spec.resources import ResourceSpec
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.cluster import Platform

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SHARED_MEMORY_PATH, HUGEPAGES_PATH = "/dev/shm", "/dev/hugepages"
RANK_SHARED_MIB = 256
"""Part of /dev/shm for each rank: libraries that ranks exchange tensors with may keep their buffers there."""


def environment(given: PoolSpec | None, own: Mapping[str, str]) -> list[Manifest]:
    """The variables of a container. Where both set a name, Baton's value wins."""
    theirs = {} if given is None else {variable.name: variable.value.replace("$", "$$") for variable in given.env}
    return [{"name": name, "value": value} for name, value in ({**theirs, **own}).items()]


def volumes(pool: PoolSpec) -> Iterator[tuple[Manifest, Manifest]]:
    """Volumes with their mounts."""
    for volume in pool.volumes:
        mount: Manifest = {"name": volume.name, "mountPath": volume.mount_path, "readOnly": volume.read_only}
        if volume.claim_name is not None:
            claim: Manifest = {"claimName": volume.claim_name, "readOnly": volume.read_only}
            yield {"name": volume.name, "persistentVolumeClaim": claim}, mount
        else:
            yield {"name": volume.name, "configMap": {"name": volume.config_map_name}}, mount
    if (shared := shared_memory(pool)) is not None:
        memory: Manifest = {"medium": "Memory", "sizeLimit": shared}
        yield {"name": "shm", "emptyDir": memory}, {"name": "shm", "mountPath": SHARED_MEMORY_PATH}
    if pool.hugepages is not None:
        pages: Manifest = {"medium": f"HugePages-{pool.hugepages.page_size}"}
        yield {"name": "hugepages", "emptyDir": pages}, {"name": "hugepages", "mountPath": HUGEPAGES_PATH}


def shared_memory(pool: PoolSpec) -> str | None:
    """The size of /dev/shm: what the pool names, else room for the ranks of a worker; None: the runtime's default.

    It is a limit, not a reservation: what is written there counts as memory of the Pod.
    """
    if pool.shared_memory is not None or pool.tensor_parallel == 1:
        return pool.shared_memory
    return f"{pool.tensor_parallel * RANK_SHARED_MIB}Mi"


def mount(pod: Manifest, volume: Manifest, place: Manifest) -> None:
    """Add a volume to a Pod and mount it in its one container."""
    volumes_of_pod, containers = pod["volumes"], pod["containers"]
    assert isinstance(volumes_of_pod, list)
    assert isinstance(containers, list)
    volumes_of_pod.append(volume)
    containers[0]["volumeMounts"].append(place)


def build_resources(given: ResourceSpec, cpu: str, memory: str, limit: str) -> Manifest:
    """The resources of a Pod: the given ones, and the defaults of a resource that is named nowhere."""
    requests, limits = given.container_amounts()
    if "cpu" not in requests:
        requests["cpu"] = cpu
    if "memory" not in requests:
        requests["memory"], limits["memory"] = memory, limit
    return {"requests": requests, **({"limits": limits} if limits else {})}


def nodes(placement: NodesSpec) -> Manifest:
    """The fields of a Pod that choose its node."""
    tolerations = [toleration.model_dump(by_alias=True, exclude_none=True) for toleration in placement.tolerations]
    given: Manifest = {
        "nodeSelector": dict(placement.node_selector),
        "tolerations": tolerations,
        "affinity": _affinity(placement) if isinstance(placement, PlacementSpec) else {},
    }
    return {key: value for key, value in given.items() if value}


def _affinity(placement: PlacementSpec) -> Manifest:
    affinity: Manifest = {
        "nodeAffinity": _node_affinity(placement.node_affinity),
        "podAffinity": _pod_affinity(placement.pod_affinity),
        "podAntiAffinity": _pod_affinity(placement.pod_anti_affinity),
    }
    return {key: value for key, value in affinity.items() if value}


def _node_affinity(terms: Iterable[NodeTermSpec]) -> Manifest:
    weighted = [(term.weight, {"matchExpressions": [_expression(e) for e in term.match_expressions]}) for term in terms]
    required = [term for weight, term in weighted if weight is None]
    preferred = [{"weight": weight, "preference": term} for weight, term in weighted if weight is not None]
    rules: Manifest = {_REQUIRED: {"nodeSelectorTerms": required}} if required else {}
    return rules | ({_PREFERRED: preferred} if preferred else {})


def _expression(given: NodeExpressionSpec) -> Manifest:
    return {"key": given.key, "operator": given.operator} | ({"values": list(given.values)} if given.values else {})


def _pod_affinity(terms: Iterable[PodTermSpec]) -> Manifest:
    """Affinity terms without namespaces, which select Pods of the same namespace only."""
    weighted = [
        (term.weight, {"labelSelector": {"matchLabels": dict(term.match_labels)}, "topologyKey": term.topology_key})
        for term in terms
    ]
    required = [term for weight, term in weighted if weight is None]
    preferred = [{"weight": weight, "podAffinityTerm": term} for weight, term in weighted if weight is not None]
    rules: Manifest = {_REQUIRED: required} if required else {}
    return rules | ({_PREFERRED: preferred} if preferred else {})


def account_fields(platform: Platform) -> Manifest:
    """The fields of every ServiceAccount. Pods that name pull secrets do not use those of their account."""
    secrets = [{"name": name} for name in platform.pull_secrets]
    return {"automountServiceAccountToken": False, **({"imagePullSecrets": secrets} if secrets else {})}


def with_annotations(manifest: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """A copy of an object with these annotations."""
    metadata = manifest["metadata"]
    assert isinstance(metadata, dict)
    return {**manifest, "metadata": {**metadata, "annotations": dict(annotations)}} if annotations else manifest
