"""The objects that fetch a model: a volume, and a Job that alone has the credentials and the way to the internet.

The Job runs `baton_model_fetch`. Its name is the hash of its template, so that a Job is never edited and an upgrade of
the operator starts none. Workers mount the volume read-only.
"""

from __future__ import annotations

from baton_control.hashes import content_hash
from baton_control.names import fetch_account_name, fetch_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import ModelSource, Scheme
from baton_operator.kube.object_fields import Manifest, mapping, metadata_of
from baton_operator.objects.cluster import Owner, Platform, model_key, model_source, needs_fetch
from baton_operator.objects.fetch_progress import PROGRESS_FILE, PROGRESS_S
from baton_operator.objects.fetch_state import FETCH_ANNOTATION
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL, object_head, selector
from baton_operator.objects.model_cache import claim_specs, fetch_nodes, fetch_volume, on_claims_node
from baton_operator.objects.network_settings import PUBLIC_NETWORKS
from baton_operator.objects.pod_additions import account_fields, build_resources, with_annotations

CACHE_PATH, CREDENTIALS_PATH = "/cache", "/etc/baton/credentials"
REFUSED = 3
"""Exit status of the program when a retry would not help."""
TRIES = 12
"""Retries of one Job; each Pod continues where the one before stopped. Kubernetes waits longer each time, up to 6
min."""
DEADLINE_S = 86_400
"""Seconds that one Job may take with all its tries. A fetch that was given up begins anew where it stopped, so that a
slow source only needs several Jobs; without a deadline a Pod that hangs would hang for ever."""
_COMPONENT = {ROLE_LABEL: FETCH_ROLE, "app.kubernetes.io/component": FETCH_ROLE}


def fetch_objects(
    deployment: LLMDeployment, platform: Platform, owner: Owner, tells_progress: bool = True, refetch: str = ""
) -> tuple[Manifest, ...]:
    """The objects that fetch a deployment's model, in the order of creation; none if its model is not fetched.
    `tells_progress`: the image reports progress, which older images do not. `refetch`: a mark whose change begins the
    fetch anew; empty: none."""
    source = model_source(deployment)
    if not needs_fetch(deployment):
        return ()
    account = _object_head("v1", "ServiceAccount", fetch_account_name(deployment.metadata.name), deployment, owner)
    marked = with_annotations(account, deployment.spec.model.fetch.service_account_annotations)
    return (
        _policy(deployment, platform, owner, source),
        marked | account_fields(platform),
        *_claims(deployment, owner),
        fetch_job(deployment, platform, owner, tells_progress, refetch),
    )


def fetch_job(
    deployment: LLMDeployment, platform: Platform, owner: Owner, tells_progress: bool = True, refetch: str = ""
) -> Manifest:
    """The Job that fetches the model. Its name is the hash of its template, and of `refetch`; without the
    installation's settings it would be its identity."""
    bare = _pod(deployment, platform, tells_progress)
    pod = platform.fetch.apply_to(bare, platform.log_variables)
    name, identity = (
        fetch_name(
            deployment.metadata.name, content_hash({"pod": template, "refetch": refetch} if refetch else template)
        )
        for template in (pod, bare)
    )
    job = _object_head("batch/v1", "Job", name, deployment, owner)
    job = job if name == identity else with_annotations(job, {FETCH_ANNOTATION: identity})
    refused = {"containerName": FETCH_ROLE, "operator": "In", "values": [REFUSED]}
    spec: Manifest = {
        "activeDeadlineSeconds": DEADLINE_S,
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


def _object_head(api_version: str, kind: str, name: str, deployment: LLMDeployment, owner: Owner) -> Manifest:
    head = object_head(api_version, kind, name, deployment, owner)
    metadata = metadata_of(head)
    return head | {"metadata": metadata | {"labels": {**mapping(metadata["labels"]), **_COMPONENT}}}


def _policy(deployment: LLMDeployment, platform: Platform, owner: Owner, source: ModelSource) -> Manifest:
    """The policy of fetch Pods: out to the ports of sources, at public addresses and in the networks that the
    installation names, to its proxy, and nothing in. A source must not choose addresses in private networks."""
    ports = {*platform.fetch_ports}
    if source.scheme is Scheme.OCI:
        _, separator, port = str(source.place).partition("/")[0].partition(":")
        ports |= {int(port)} if separator else set()
    spec: Manifest = {
        "podSelector": {"matchLabels": {**selector(deployment), ROLE_LABEL: FETCH_ROLE}},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [
            {
                "to": [*PUBLIC_NETWORKS, *({"ipBlock": {"cidr": cidr}} for cidr in platform.fetch_cidrs)],
                "ports": [{"protocol": "TCP", "port": port} for port in sorted(ports)],
            },
            *platform.fetch.proxy_rules(platform.fetch_cidrs),
        ],
    }
    name = fetch_account_name(deployment.metadata.name)
    return _object_head("networking.k8s.io/v1", "NetworkPolicy", name, deployment, owner) | {"spec": spec}


def _claims(deployment: LLMDeployment, owner: Owner) -> tuple[Manifest, ...]:
    """The claims of the model that are the deployment's own."""
    return tuple(
        _object_head("v1", "PersistentVolumeClaim", name, deployment, owner) | {"spec": spec}
        for name, spec in claim_specs(deployment).items()
    )


def _pod(deployment: LLMDeployment, platform: Platform, tells_progress: bool) -> Manifest:
    model = deployment.spec.model
    secret = model.credentials_secret
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE_PATH}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Manifest] = [{"name": "cache", **fetch_volume(deployment)}, {"name": "tmp", "emptyDir": {}}]
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
        **fetch_nodes(deployment),
        **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
    }
    return on_claims_node(deployment, {"metadata": {"labels": {**given.labels, **own}, **annotations}, "spec": spec})


def _probe(platform: Platform) -> Manifest:
    """The readiness probe of a fetch Pod, which always fails, with the progress as its message. Nothing depends on the
    Pod being Ready."""
    command = [platform.python, "-m", "baton_model_fetch.progress", PROGRESS_FILE]
    return {"exec": {"command": command}, "periodSeconds": PROGRESS_S, "timeoutSeconds": 10, "failureThreshold": 1}
