"""The volumes of a fetched model: the claim that the fetch Job writes, and what workers mount.

| `model.cache` | the Job writes | a worker mounts |
|---|---|---|
| `Shared`, `ReadWriteMany` | the claim | the same claim |
| `Shared`, `ReadWriteOnce` | the claim | the same claim, so that all Pods are on one node |
| `Shared`, `ReadOnlyMany` | a claim ReadWriteOnce | a clone of it, made once the model is there |
| `Shared`, `ReadOnlyMany`, `claimName` | nothing: it finds the model | that claim |
| `PerWorker` | the claim | a clone of its own, which goes with its Pod |
| `ImageVolume` | there is no Job | the image, mounted by the kubelet |

`claimName` names the claim that the Job writes, which then is somebody else's: it is never made, changed or deleted.
"""

from __future__ import annotations

from baton_control.hashes import content_hash
from baton_control.names import cache_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import ModelSource
from baton_control.spec.served_model import AccessMode, CacheType
from baton_operator.kube.object_fields import Manifest, mapping, mappings
from baton_operator.objects.cluster import model_key, model_source, needs_fetch
from baton_operator.objects.pod_additions import nodes

CLAIM_LABEL = "baton.dev/claim"
"""On Pods that have to be on the node of a claim: the hash of its name."""
_KIND = "PersistentVolumeClaim"


def fetch_claim(deployment: LLMDeployment) -> str:
    """The name of the claim that the fetch Job writes."""
    return deployment.spec.model.cache.claim_name or cache_name(deployment.metadata.name)


def worker_claims(deployment: LLMDeployment) -> tuple[str, ...]:
    """The names of the claims that a worker waits for; none that come with its Pod."""
    return (_worker_claim(deployment),) if needs_fetch(deployment) else ()


def claim_specs(deployment: LLMDeployment) -> dict[str, Manifest]:
    """The specs of the claims to make, by name, in the order of creation."""
    cache = deployment.spec.model.cache
    if cache.claim_name is not None:
        return {}
    name, once = fetch_claim(deployment), AccessMode.READ_WRITE_ONCE
    is_cloned = _is_cloned(deployment)
    specs = {name: _spec(deployment, once if is_cloned else cache.access_mode)}
    if is_cloned:
        specs[_worker_claim(deployment)] = _spec(deployment, AccessMode.READ_ONLY_MANY, clone_of=name)
    return specs


def is_clone(claim: Manifest) -> bool:
    """True for a claim whose content is another claim's: it is made once that one has the model."""
    return "dataSource" in mapping(claim.get("spec"))


def fetch_volume(deployment: LLMDeployment) -> Manifest:
    """The source of the Job's volume."""
    cache = deployment.spec.model.cache
    is_read = cache.claim_name is not None and cache.access_mode is AccessMode.READ_ONLY_MANY
    return {"persistentVolumeClaim": {"claimName": fetch_claim(deployment)} | ({"readOnly": True} if is_read else {})}


def worker_volume(deployment: LLMDeployment) -> Manifest:
    """The source of a worker's volume with a remote model."""
    cache, source = deployment.spec.model.cache, model_source(deployment)
    if cache.type is CacheType.IMAGE_VOLUME:
        return {"image": {"reference": image_reference(source), "pullPolicy": "IfNotPresent"}}
    if cache.type is CacheType.PER_WORKER:
        spec = _spec(deployment, cache.access_mode, clone_of=fetch_claim(deployment))
        return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    claim: Manifest = {"claimName": _worker_claim(deployment)}
    # A disk that is attached for reading alone could not be written by the Job of the next model on that node.
    is_written_there = cache.access_mode is AccessMode.READ_WRITE_ONCE
    return {"persistentVolumeClaim": claim if is_written_there else claim | {"readOnly": True}}


def image_reference(source: ModelSource) -> str:
    """The image of an `oci://` source, pinned."""
    return f"{source.place}@{source.revision}"


def on_claims_node(deployment: LLMDeployment, pod: Manifest) -> Manifest:
    """A PodTemplateSpec whose Pods share a node with all others of the claim, where only one node can mount it. The
    first Pod chooses the node: a required term that the Pod itself fits holds where no other does."""
    cache = deployment.spec.model.cache
    is_pinned = cache.type is CacheType.SHARED and cache.access_mode is AccessMode.READ_WRITE_ONCE
    if not is_pinned or not needs_fetch(deployment):
        return pod
    label = {CLAIM_LABEL: content_hash(fetch_claim(deployment))}
    term: Manifest = {"labelSelector": {"matchLabels": label}, "topologyKey": "kubernetes.io/hostname"}
    metadata, spec = mapping(pod["metadata"]), mapping(pod["spec"])
    affinity = mapping(spec.get("affinity"))
    near = mapping(affinity.get("podAffinity"))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near = near | {required: [*mappings(near.get(required)), term]}
    return {
        "metadata": metadata | {"labels": {**mapping(metadata.get("labels")), **label}},
        "spec": spec | {"affinity": affinity | {"podAffinity": near}},
    }


def fetch_nodes(deployment: LLMDeployment) -> Manifest:
    """The fields that choose the Job's node. A volume of a node or a zone is where its first Pod is, which is the Job:
    unless it has a placement of its own, it goes where workers of both pools may go."""
    spec = deployment.spec
    own = nodes(spec.model.fetch.placement)
    if own or spec.model.cache.access_mode is AccessMode.READ_WRITE_MANY or not needs_fetch(deployment):
        return own
    placements = (spec.prefill.placement, spec.decode.placement)
    tolerations = [mapping(entry) for pool in placements for entry in mappings(nodes(pool).get("tolerations"))]
    given: Manifest = {
        "nodeSelector": {key: value for pool in placements for key, value in pool.node_selector.items()},
        "tolerations": list({content_hash(entry): entry for entry in tolerations}.values()),
    }
    rules = mapping(mapping(nodes(spec.decode.placement).get("affinity")).get("nodeAffinity"))
    given["affinity"] = {"nodeAffinity": rules} if rules else {}
    return {key: value for key, value in given.items() if value}


def _worker_claim(deployment: LLMDeployment) -> str:
    name = fetch_claim(deployment)
    # Each source has a clone of its own: a clone never gets what is fetched later.
    return f"{name}-{model_key(deployment.spec.model.source)}" if _is_cloned(deployment) else name


def _is_cloned(deployment: LLMDeployment) -> bool:
    cache = deployment.spec.model.cache
    is_shared = cache.type is CacheType.SHARED and cache.claim_name is None
    return is_shared and cache.access_mode is AccessMode.READ_ONLY_MANY


def _spec(deployment: LLMDeployment, mode: AccessMode, clone_of: str | None = None) -> Manifest:
    cache = deployment.spec.model.cache
    spec: Manifest = {"accessModes": [mode.value], "resources": {"requests": {"storage": cache.size}}}
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return spec if clone_of is None else spec | {"dataSource": {"kind": _KIND, "name": clone_of}}
