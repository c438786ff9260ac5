"""The objects that fetch a model: a volume, and a Job that alone has the credentials and the way to the internet.

The Job runs `baton_model_fetch`. Its name is the hash of its template, so that a Job is never edited and an upgrade of
the operator starts none. Workers mount the volume read-only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton_control.hashes import content_hash
from baton_control.names import cache_name, fetch_account_name, fetch_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import ModelSource, Scheme
from baton_operator.kube.object_fields import Manifest, labels_of, mapping, mappings, metadata_of, name_of
from baton_operator.objects.cluster import Owner, Platform, model_key, model_source
from baton_operator.objects.fetch_progress import PROGRESS_FILE, PROGRESS_S
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL, object_head, selector
from baton_operator.objects.pod_additions import build_resources, nodes, with_annotations

CACHE_PATH, CREDENTIALS_PATH = "/cache", "/etc/baton/credentials"
REFUSED = 3
"""Exit status of the program when a retry would not help."""
TRIES = 12
"""Retries of one Job; each Pod continues where the one before stopped. Kubernetes waits longer each time, up to 6
min."""
_PUBLIC: tuple[Manifest, ...] = (
    {
        "ipBlock": {
            "cidr": "0.0.0.0/0",
            "except": [
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
                "192.168.0.0/16",
            ],
        }
    },
    {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
)
"""The public internet, without the networks of clusters, machines and their metadata servers."""
_COMPONENT = {ROLE_LABEL: FETCH_ROLE, "app.kubernetes.io/component": FETCH_ROLE}


@dataclass(frozen=True, slots=True)
class FetchState:
    """The state of a fetch, by its Job."""

    is_done: bool
    failure: str = ""
    """Why the fetch was given up; empty: it goes on."""


def fetch_objects(
    deployment: LLMDeployment, platform: Platform, owner: Owner, tells_progress: bool = True
) -> tuple[Manifest, ...]:
    """The objects that fetch a deployment's model, in the order of creation; none if its model is not fetched.
    `tells_progress`: the image reports progress, which older images do not."""
    source = model_source(deployment)
    if not source.is_remote:
        return ()
    account = _object_head("v1", "ServiceAccount", fetch_account_name(deployment.metadata.name), deployment, owner)
    marked = with_annotations(account, deployment.spec.model.fetch.service_account_annotations)
    return (
        _policy(deployment, platform, owner, source),
        marked | {"automountServiceAccountToken": False},
        _claim(deployment, owner),
        fetch_job(deployment, platform, owner, tells_progress),
    )


def fetch_job(deployment: LLMDeployment, platform: Platform, owner: Owner, tells_progress: bool = True) -> Manifest:
    """The Job that fetches the model."""
    pod = _pod(deployment, platform, tells_progress)
    name = fetch_name(deployment.metadata.name, content_hash(pod))
    job = _object_head("batch/v1", "Job", name, deployment, owner)
    refused = {"containerName": FETCH_ROLE, "operator": "In", "values": [REFUSED]}
    spec: Manifest = {
        "backoffLimit": TRIES,
        "completions": 1,
        "parallelism": 1,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": refused},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": pod,
    }
    return job | {"spec": spec}


def fetch_of(objects: Iterable[Manifest], live: Iterable[Manifest]) -> FetchState:
    """The state of the fetch Job among the wanted objects; done where no model is fetched."""
    names = [name_of(manifest) for manifest in objects if manifest["kind"] == "Job"]
    jobs = {name_of(job): job for job in live}
    return fetch_state(jobs.get(names[0])) if names else FetchState(True)


def fetch_state(job: Manifest | None) -> FetchState:
    """The state of a live Job; None: the Job does not exist yet."""
    conditions = mappings(mapping((job or {}).get("status")).get("conditions"))
    true = {str(condition.get("type")): condition for condition in conditions if condition.get("status") == "True"}
    if "Complete" in true:
        return FetchState(True)
    failed = true.get("Failed")
    if failed is None:
        return FetchState(False)
    return FetchState(False, f"{failed.get('reason', 'Failed')}: {failed.get('message', 'the Job failed')}")


def find_former_jobs(objects: Iterable[Manifest], live: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """The live fetch Jobs of earlier sources or credentials."""
    wanted = {name_of(manifest) for manifest in objects if manifest["kind"] == "Job"}
    return tuple(job for job in live if _is_fetch(job) and name_of(job) not in wanted)


def _is_fetch(job: Manifest) -> bool:
    return labels_of(job).get(ROLE_LABEL) == FETCH_ROLE


def _object_head(api_version: str, kind: str, name: str, deployment: LLMDeployment, owner: Owner) -> Manifest:
    head = object_head(api_version, kind, name, deployment, owner)
    metadata = metadata_of(head)
    return head | {"metadata": metadata | {"labels": {**mapping(metadata["labels"]), **_COMPONENT}}}


def _policy(deployment: LLMDeployment, platform: Platform, owner: Owner, source: ModelSource) -> Manifest:
    """The policy of fetch Pods: out to the ports of sources, at public addresses and in the networks that the
    installation names, and nothing in. A source must not choose addresses in private networks."""
    ports = {*platform.fetch_ports}
    if source.scheme is Scheme.OCI:
        _, separator, port = str(source.place).partition("/")[0].partition(":")
        ports |= {int(port)} if separator else set()
    spec: Manifest = {
        "podSelector": {"matchLabels": {**selector(deployment), ROLE_LABEL: FETCH_ROLE}},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [
            {
                "to": [*_PUBLIC, *({"ipBlock": {"cidr": cidr}} for cidr in platform.fetch_cidrs)],
                "ports": [{"protocol": "TCP", "port": port} for port in sorted(ports)],
            }
        ],
    }
    name = fetch_account_name(deployment.metadata.name)
    return _object_head("networking.k8s.io/v1", "NetworkPolicy", name, deployment, owner) | {"spec": spec}


def _claim(deployment: LLMDeployment, owner: Owner) -> Manifest:
    cache = deployment.spec.model.cache
    spec: Manifest = {
        "accessModes": ["ReadWriteMany"],  # workers are on many nodes
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    claim = _object_head("v1", "PersistentVolumeClaim", cache_name(deployment.metadata.name), deployment, owner)
    return claim | {"spec": spec}


def _pod(deployment: LLMDeployment, platform: Platform, tells_progress: bool) -> Manifest:
    model = deployment.spec.model
    secret = model.credentials_secret
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE_PATH}, {"name": "tmp", "mountPath": "/tmp"}]
    claim = {"claimName": cache_name(deployment.metadata.name)}
    volumes: list[Manifest] = [{"name": "cache", "persistentVolumeClaim": claim}, {"name": "tmp", "emptyDir": {}}]
    arguments = [f"--source={model.source}", f"--cache={CACHE_PATH}", f"--key={model_key(model.source)}"]
    if secret is not None:
        mounts.append({"name": "credentials", "mountPath": CREDENTIALS_PATH, "readOnly": True})
        volumes.append({"name": "credentials", "secret": {"secretName": secret, "defaultMode": 0o440}})
        arguments.append(f"--credentials={CREDENTIALS_PATH}")
    arguments += [f"--progress={PROGRESS_FILE}"] if tells_progress else []
    container: Manifest = {
        "name": FETCH_ROLE,
        "image": platform.worker_image,
        "command": [platform.python, "-m", "baton_model_fetch"],
        "args": [argument.replace("$", "$$") for argument in arguments],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "resources": build_resources(model.fetch.resources, cpu="250m", memory="256Mi", limit="2Gi"),
        "volumeMounts": mounts,
        **({"readinessProbe": _probe(platform)} if tells_progress else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    given = deployment.spec.pod_metadata
    own = {**mapping(metadata_of(object_head("v1", "Pod", "", deployment, Owner("")))["labels"]), **_COMPONENT}
    annotations = {"annotations": dict(given.annotations)} if given.annotations else {}
    secrets = deployment.spec.image_pull_secrets
    spec: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": fetch_account_name(deployment.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": platform.pod_ids.security_context(),
        "containers": [container],
        "volumes": volumes,
        **nodes(model.fetch.placement),
        **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
    }
    return {"metadata": {"labels": {**given.labels, **own}, **annotations}, "spec": spec}


def _probe(platform: Platform) -> Manifest:
    """The readiness probe of a fetch Pod, which always fails, with the progress as its message. Nothing depends on the
    Pod being Ready."""
    command = [platform.python, "-m", "baton_model_fetch.progress", PROGRESS_FILE]
    return {"exec": {"command": command}, "periodSeconds": PROGRESS_S, "timeoutSeconds": 10, "failureThreshold": 1}
