"""Pod templates of workers and gateways. Every Pod passes Pod Security *restricted* and has no API token.

A worker's template is never edited once it runs: its hash covers everything in it, and a different hash is a different
Deployment. What changes without a restart (keys, tenants) is in mounted files and not in the template.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from baton_control.hashes import Revision, content_hash
from baton_control.names import gateway_name, keys_name, pool_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import Scheme
from baton_control.spec.placing import PlacementSpec
from baton_control.spec.pools import PoolSpec
from baton_control.worker_specs import WorkerSpec, gateway_spec, instance_arguments, pool_spec, worker_spec
from baton_operator.kube.object_fields import Manifest, mapping
from baton_operator.objects.batch_settings import BATCHES_PATH
from baton_operator.objects.cluster import (
    ADMIN_ADDRESS,
    API_KEYS_PATH,
    HTTP_PORT,
    KEYS_PATH,
    LEDGER_PATH,
    MODEL_PATH,
    PAIR_PORT,
    RUN_PATH,
    TENANTS_PATH,
    TLS_PATH,
    Platform,
    grace_s,
    model_source,
    site_of,
)
from baton_operator.objects.metadata import (
    QUEUE_LABEL,
    RESTART_ANNOTATION,
    ROLE_LABEL,
    TEMPLATE_LABEL,
    labels,
    selector,
)
from baton_operator.objects.model_cache import on_claims_node, worker_volume
from baton_operator.objects.pod_additions import build_resources, environment, mount, nodes, volumes
from baton_operator.objects.tenant_shards import tenants_volume
from baton_wire.messages.values import POOL_ROLES, Role

ANY_ADDRESS = "[::]"
"""Accepts both families; listeners take IPv4 alone where a node has no IPv6."""
KEY_FILE_MODE = 0o440
"""Owner and group may read: workers refuse keys that others can read."""
LOAD_S = 1800
"""Seconds that a worker may take until it listens: reading weights and capturing graphs."""
BEFORE_STOP_S = 5
"""Seconds for which a stopping gateway keeps accepting, until load balancers have noticed."""
PORTS = {"http": HTTP_PORT, "pair": PAIR_PORT}
"""Named ports that others may reach; the gateway's admin listener is for loopback."""
TEMPLATE_VERSION = 8
"""Raised when a template uses something that older images do not know, such as a new flag."""
ROLE_VARIABLE = "BATON_ROLE"
"""Environment of a flexible worker: the role in its Pod's label when its container started."""
_TEMPLATE_FLAG = "--template-hash="
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class WorkerTemplate:
    """The Pods of one revision of a pool."""

    spec: WorkerSpec
    pod: Manifest
    """A PodTemplateSpec, final: its labels name the revision."""


def worker_template(deployment: LLMDeployment, role: Role, platform: Platform, restart: str = "") -> WorkerTemplate:
    """The template of a pool's workers; flexible workers of both pools share one. `restart`: a mark whose change
    changes the template; empty: none. Raises UnsupportedError for what this version cannot run."""
    spec = worker_spec(deployment, role, site_of(deployment, role, platform))
    pool = pool_spec(deployment, role)
    argv = tuple(argument for argument in spec.argv if not argument.startswith(_TEMPLATE_FLAG))
    bare = _worker_pod(deployment, dataclasses.replace(spec, argv=argv), pool, platform, None, restart)
    revision = Revision(spec.revision.fit, content_hash({"pod": bare, "fit": spec.revision.fit}))
    spec = dataclasses.replace(spec, argv=(*argv, f"{_TEMPLATE_FLAG}{revision.template}"), revision=revision)
    return WorkerTemplate(spec, _worker_pod(deployment, spec, pool, platform, revision, restart))


def gateway_template(deployment: LLMDeployment, platform: Platform) -> Manifest:
    """The gateway's PodTemplateSpec."""
    spec = gateway_spec(deployment, site_of(deployment, Role.GATEWAY, platform))
    tls, api_keys = deployment.spec.gateway.tls, deployment.spec.gateway.api_keys
    scheme = None if tls is None else "HTTPS"
    container = _container(deployment, spec, platform, platform.gateway_image, None)
    container |= {
        "resources": build_resources(deployment.spec.gateway.resources, cpu="250m", memory="512Mi", limit="4Gi"),
        "lifecycle": {"preStop": {"sleep": {"seconds": BEFORE_STOP_S}}},
        "startupProbe": _probe("live", period_s=1, failures=120, scheme=scheme),
        "livenessProbe": _probe("live", period_s=10, failures=3, scheme=scheme),
        "readinessProbe": _probe("ready", period_s=2, failures=2, scheme=scheme),
    }
    name, grace = gateway_name(deployment.metadata.name), grace_s(deployment, BEFORE_STOP_S)
    pod = _pod(deployment, spec, container, name, grace, platform)
    if tls is not None:
        _mount_secret(pod, "tls", tls.secret_name, TLS_PATH)
    if api_keys is not None:
        _mount_secret(pod, "api-keys", api_keys.secret_name, API_KEYS_PATH)
    if deployment.spec.gateway.tenants:
        mount(pod, tenants_volume(), {"name": "tenants", "mountPath": TENANTS_PATH, "readOnly": True})
    if platform.batches.serves(deployment.metadata.namespace):
        claim: Manifest = {"claimName": platform.batches.claim_name}
        mount(pod, {"name": "batches", "persistentVolumeClaim": claim}, {"name": "batches", "mountPath": BATCHES_PATH})
    identity = platform.identity_of(deployment)
    for volume, place in identity.volumes():
        mount(pod, volume, place)
    labels_of_tools = _llmd_labels(deployment, spec.role, platform)
    metadata = _metadata(deployment, spec.role, None, labels_of_tools)
    if annotations := identity.annotations():
        metadata["annotations"] = {**mapping(metadata.get("annotations")), **annotations}
    return {"metadata": metadata, "spec": pod | _gateway_placement(deployment)}


def _worker_pod(
    deployment: LLMDeployment,
    spec: WorkerSpec,
    pool: PoolSpec,
    platform: Platform,
    revision: Revision | None,
    restart: str,
) -> Manifest:
    role = (
        Role.PREFILL if spec.flips else spec.role
    )  # a flexible worker starts as prefill and is relabelled when it flips
    container = _container(
        deployment, spec, platform, platform.worker_image, PAIR_PORT if "pair" in spec.ports else None, pool
    )
    container |= {
        "resources": _resources(spec, pool),
        "startupProbe": _probe("live", period_s=2, failures=LOAD_S // 2),
        "livenessProbe": _probe("live", period_s=10, failures=3),
        "readinessProbe": _probe("ready", period_s=2, failures=2),
    }
    name = pool_name(deployment.metadata.name, role)
    pod = _pod(deployment, spec, container, name, grace_s(deployment), platform)
    pod |= _placement(deployment, spec, pool)
    for volume, place in volumes(pool):
        mount(pod, volume, place)
    queue = {} if pool.queue is None else {QUEUE_LABEL: pool.queue}
    more = queue | ({} if spec.flips else _llmd_labels(deployment, role, platform))
    return on_claims_node(deployment, {"metadata": _metadata(deployment, role, revision, more, restart), "spec": pod})


def _llmd_labels(deployment: LLMDeployment, role: Role, platform: Platform) -> dict[str, str]:
    """The labels by which tools of llm-d select Pods; none unless the installation asks for them. A flexible worker has
    none, because its role changes. A served name that is no label value is left out."""
    if not platform.llmd_labels:
        return {}
    model = deployment.spec.model.served_name
    named = {"llm-d.ai/model": model} if _LABEL_VALUE.fullmatch(model) else {}
    return {"llm-d.ai/role": role.value, **named}


def _metadata(
    deployment: LLMDeployment, role: Role, revision: Revision | None, more: dict[str, str], restart: str = ""
) -> Manifest:
    given = deployment.spec.pod_metadata
    annotated = {**given.annotations, **({RESTART_ANNOTATION: restart} if restart else {})}
    annotations = {"annotations": annotated} if annotated else {}
    return {"labels": {**given.labels, **more, **labels(deployment, role, revision)}, **annotations}


def _container(
    deployment: LLMDeployment,
    spec: WorkerSpec,
    platform: Platform,
    image: str,
    second_port: int | None,
    pool: PoolSpec | None = None,
) -> Manifest:
    second = None if second_port is None else f"{ANY_ADDRESS}:{second_port}"
    if spec.role is Role.GATEWAY:
        second = ADMIN_ADDRESS
    more = instance_arguments(spec.role, f"{ANY_ADDRESS}:{HTTP_PORT}", f"{RUN_PATH}/announce.json", second)
    if platform.metrics_compat:
        more = (*more, f"--metrics-compat={platform.metrics_compat}")
    if spec.role is Role.GATEWAY and platform.batches.serves(deployment.metadata.namespace):
        more = (*more, *platform.batches.arguments(deployment.metadata.name))
    if spec.role is Role.GATEWAY:
        more = (*more, *platform.identity_of(deployment).arguments())
    if platform.ledger and spec.role is Role.GATEWAY:  # the volume of the folder outlives containers that are killed
        more = (*more, f"--ledger={LEDGER_PATH}", f"--ledger-lines={platform.ledger}")
    env = {"HOME": RUN_PATH, "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **dict(spec.env)}
    env |= dict(platform.log_variables)
    variables = environment(pool, env)
    if spec.flips:  # read by the kubelet with each start, so that a container that ends comes back as what it was
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{ROLE_LABEL}']"}}
        variables.append({"name": ROLE_VARIABLE, "valueFrom": source})
        more = (*more, f"--role=$({ROLE_VARIABLE})")
    mounts: list[Manifest] = [
        {"name": "keys", "mountPath": KEYS_PATH, "readOnly": True},
        {"name": "run", "mountPath": RUN_PATH},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    return {
        "name": "worker" if spec.flips else spec.role.value,
        "image": image,
        "command": [part.replace("$", "$$") for part in spec.argv],  # or $(NAME) would become an environment variable
        "args": list(more),
        "env": variables,
        "ports": [
            {"name": port, "containerPort": PORTS[port], "protocol": "TCP"} for port in spec.ports if port in PORTS
        ],
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _pod(
    deployment: LLMDeployment, spec: WorkerSpec, container: Manifest, account: str, grace: int, platform: Platform
) -> Manifest:
    secret = {"secretName": keys_name(deployment.metadata.name), "defaultMode": KEY_FILE_MODE}
    volumes: list[Manifest] = [
        {"name": "keys", "secret": secret},
        {"name": "run", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    pod: Manifest = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": platform.pod_ids.security_context(),
        "containers": [container],
        "volumes": volumes,
    }
    source = model_source(deployment)
    place: Manifest = {"name": "model", "mountPath": MODEL_PATH, "readOnly": True}
    if spec.role is not Role.GATEWAY and source.scheme is Scheme.PVC:
        claim = {"claimName": source.place, "readOnly": True}
        mount(pod, {"name": "model", "persistentVolumeClaim": claim}, place | {"subPath": source.path})
    if spec.role is not Role.GATEWAY and source.is_remote:
        mount(pod, {"name": "model", **worker_volume(deployment)}, place)
    secrets = deployment.spec.image_pull_secrets
    return pod | ({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {})


def _mount_secret(pod: Manifest, volume: str, secret_name: str, path: str) -> None:
    secret: Manifest = {"secretName": secret_name, "defaultMode": KEY_FILE_MODE}
    mount(pod, {"name": volume, "secret": secret}, {"name": volume, "mountPath": path, "readOnly": True})


def _resources(spec: WorkerSpec, pool: PoolSpec) -> Manifest:
    """The resources of a worker: those of its pool, its huge pages and its accelerators."""
    requests, limits = pool.resources.container_amounts()
    extended: dict[str, str] = {}
    if pool.hugepages is not None:
        extended[f"hugepages-{pool.hugepages.page_size}"] = pool.hugepages.size
    if spec.accelerator_resource is not None:
        extended[spec.accelerator_resource] = str(spec.accelerators)
    if pool.accelerator is not None:
        extended |= {name: str(count) for name, count in pool.accelerator.with_.items()}
    parts: Manifest = {"requests": {**requests, **extended}, "limits": {**limits, **extended}}
    claims = [{"name": claim.name} for claim in pool.resource_claims]
    return {key: value for key, value in parts.items() if value} | ({"claims": claims} if claims else {})


def _placement(deployment: LLMDeployment, spec: WorkerSpec, pool: PoolSpec) -> Manifest:
    claims = [claim.model_dump(by_alias=True) for claim in pool.resource_claims]
    given: Manifest = {
        **nodes(pool.placement),
        "priorityClassName": pool.priority_class_name,
        "schedulerName": pool.scheduler_name,
        "runtimeClassName": pool.runtime_class_name,
        "resourceClaims": claims,
    }
    equals: Manifest = {"matchLabels": selector(deployment, None if spec.flips else spec.role)}
    if spec.flips:
        workers = {"key": ROLE_LABEL, "operator": "In", "values": [role.value for role in POOL_ROLES]}
        equals |= {"matchExpressions": [workers]}
    return {key: value for key, value in given.items() if value} | _spread(equals, pool.placement, TEMPLATE_LABEL)


def _gateway_placement(deployment: LLMDeployment) -> Manifest:
    gateway = deployment.spec.gateway
    priority: Manifest = (
        {} if gateway.priority_class_name is None else {"priorityClassName": gateway.priority_class_name}
    )
    equals: Manifest = {"matchLabels": selector(deployment, Role.GATEWAY)}
    return {**nodes(gateway.placement), **priority, **_spread(equals, gateway.placement, "pod-template-hash")}


def _spread(equals: Manifest, placement: PlacementSpec, template_label: str) -> Manifest:
    """The spread of Pods that a label selector matches, of each template apart: during a rollout the old Pods would
    otherwise decide where the new ones may go, and leave them uneven or Pending."""
    constraint: Manifest = {
        "maxSkew": 1,
        "topologyKey": placement.topology_key or "kubernetes.io/hostname",
        "whenUnsatisfiable": {"Preferred": "ScheduleAnyway", "Required": "DoNotSchedule"}[placement.spread],
        "labelSelector": equals,
        "matchLabelKeys": [template_label],
    }
    return {"topologySpreadConstraints": [constraint]}


def _probe(what: str, period_s: int, failures: int, scheme: str | None = None) -> Manifest:
    secure = {} if scheme is None else {"scheme": scheme}
    return {
        "httpGet": {"path": f"/health/{what}", "port": "http", **secure},
        "periodSeconds": period_s,
        "timeoutSeconds": 5 if what == "live" else 2,
        "failureThreshold": failures,
    }
