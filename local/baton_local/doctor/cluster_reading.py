"""The readers of a cluster's facts, with the kubeconfig as the `kubernetes` package reads it.

They only read, apart from asking the server what the user may do."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from baton_local.doctor.cluster_facts import ClusterFacts, DeploymentFacts, LeaseFacts
from baton_local.doctor.deadline import Reader, read_within
from baton_local.errors import StartError
from baton_operator.kube.kubeconfig import KubeConfigError, KubeConnection, from_kubeconfig
from baton_operator.schema.crd import definitions

GROUP, VERSION = "baton.dev", "v1alpha1"
MAX_BYTES = 64 << 20
LEASE_PREFIX = "baton-operator"
OPERATOR_SELECTOR = "app.kubernetes.io/name=baton-operator"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ACTIONS = (
    ("create", GROUP, "llmdeployments", ""),
    ("patch", GROUP, "llmpools", "scale"),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("create", "", "pods", "portforward"),
    ("list", "", "events", ""),
)
"""Actions that working with deployments takes: verb, group, resource, subresource."""
Json = dict[str, Any]
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """An answer of the API server."""

    body: Json
    date: datetime | None
    """The server's time."""


class ClusterRefusal(OSError):
    """The server refused a call, or did not answer it."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


Ask = Callable[[str, str, Json | None], ClusterAnswer]
"""Method, path and body of a call. Raises ClusterRefusal."""


@dataclass(frozen=True, slots=True)
class ClusterCall:
    """A connection to the cluster of a context."""

    ask: Ask
    context: str
    namespace: str
    connection: KubeConnection


def connect(context: str | None, namespace: str | None, limit_s: float) -> ClusterCall:
    """The connection of a context; None: the current one. Raises StartError; ClusterRefusal without a kubeconfig, or if
    its exec plugin does not answer within the limit."""
    try:
        from kubernetes import config
    except ImportError as error:
        raise StartError("clusters need the package kubernetes: pip install 'baton-serving[operator]'") from error
    file = os.environ.get("KUBECONFIG") or None
    try:
        contexts, active = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ClusterRefusal(f"no kubeconfig: {error}") from error
    chosen = active if context is None else next((one for one in contexts if one["name"] == context), None)
    if chosen is None:
        names = ", ".join(str(one["name"]) for one in contexts)
        raise StartError(f"--context: {context!r} is not in the kubeconfig: must be one of {names}")
    name = str(chosen["name"])
    answer = read_within({"connection": partial(_connection_or_why, name)}, limit_s)
    connection = answer.get("connection", f"no credentials within {limit_s:g} s from the kubeconfig's exec plugin")
    if not isinstance(connection, KubeConnection):
        raise ClusterRefusal(str(connection))
    scheme = urlsplit(connection.proxy or "http:").scheme
    if scheme != "http":
        raise ClusterRefusal(f"the kubeconfig's proxy-url has the scheme {scheme!r}: must be http://HOST:PORT")
    space = namespace or str((chosen.get("context") or {}).get("namespace") or "default")
    return ClusterCall(partial(_ask, connection, limit_s), name, space, connection)


def _connection_or_why(context: str) -> KubeConnection | str:
    """The connection of a context, or in words why there is none."""
    try:
        return from_kubeconfig(context)
    except (KubeConfigError, OSError, ValueError) as error:
        return str(error)


def _ask(connection: KubeConnection, limit_s: float, method: str, path: str, body: Json | None) -> ClusterAnswer:
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    token = connection.token()
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(connection.server.rstrip("/") + path, data, headers, method=method)
    handlers: list[urllib.request.BaseHandler] = []
    if connection.ssl is not None:
        handlers.append(urllib.request.HTTPSHandler(context=connection.ssl))
    if connection.proxy is not None:
        handlers.append(urllib.request.ProxyHandler(dict.fromkeys(("http", "https"), connection.proxy)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=limit_s) as response:
            date, content = response.headers.get("Date"), response.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        raise ClusterRefusal(f"{path}: {error.code} {error.reason}", error.code) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            reason = f"no answer within {limit_s:g} s"
        raise ClusterRefusal(f"{connection.server}: {reason}") from error
    try:
        decoded = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ClusterRefusal(f"{path}: the answer is no JSON object") from error
    return ClusterAnswer(decoded, None if date is None else parsedate_to_datetime(date))


def own_fields() -> dict[str, frozenset[str]]:
    """The fields of each definition in this version of Baton."""
    return {definition["metadata"]["name"]: _fields_of(definition) for definition in _own_definitions()}


def _own_definitions() -> list[Json]:
    return [dict(definition) for definition in definitions().values()]


def _fields_of(definition: Json) -> frozenset[str]:
    """The paths of all fields in a definition's version."""
    [schema] = [v["schema"]["openAPIV3Schema"] for v in definition["spec"]["versions"] if v["name"] == VERSION] or [{}]
    return frozenset(_paths(schema, ""))


def _paths(schema: Json, path: str) -> list[str]:
    paths = []
    for name, field in (schema.get("properties") or {}).items():
        paths += [f"{path}{name}", *_paths(field, f"{path}{name}.")]
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            paths += _paths(inner, f"{path}*.")
    return paths


def read_cluster(call: ClusterCall, operator_namespace: str, limit_s: float) -> ClusterFacts:
    """The facts of a cluster, as far as they can be read within the limit."""
    facts = ClusterFacts(call.context, call.namespace, operator_namespace)
    first: Any = read_within({"version": partial(_version_or_why, call.ask)}, limit_s)
    version: tuple[int, int] | str = first.get("version", f"no answer within {limit_s:g} s")
    if isinstance(version, str):
        return replace(facts, problem=version)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{operator_namespace}/leases"
    operators = f"/api/v1/namespaces/{operator_namespace}/pods?labelSelector={OPERATOR_SELECTOR}"
    deployments = f"/apis/{GROUP}/{VERSION}/namespaces/{call.namespace}/llmdeployments"
    readers: dict[str, Reader] = {
        "fields": partial(_fields, call.ask),
        "leases": partial(_leases, call.ask, leases),
        "ready_operators": partial(_ready, call.ask, operators),
        "rights": partial(_rights, call.ask, call.namespace),
        "accelerators": partial(_accelerators, call.ask),
        "default_classes": partial(_default_classes, call.ask),
        "deployments": partial(_deployments, call.ask, deployments),
    }
    known: Any = read_within(readers, limit_s)  # each reader returns the type of its field
    return replace(facts, version=version, **known)


def _version_or_why(ask: Ask) -> tuple[int, int] | str:
    """The server's version, or in words why it did not answer."""
    try:
        return _version(ask)
    except ClusterRefusal as error:
        return str(error)


def _version(ask: Ask) -> tuple[int, int]:
    body = ask("GET", "/version", None).body
    major, minor = (_NUMBER.match(str(body.get(name))) for name in ("major", "minor"))
    if major is None or minor is None:
        raise ClusterRefusal("/version: the server does not report its version")
    return int(major[0]), int(minor[0])


def _fields(ask: Ask) -> dict[str, frozenset[str] | None]:
    fields: dict[str, frozenset[str] | None] = {}
    for definition in _own_definitions():
        name = definition["metadata"]["name"]
        try:
            live = ask("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", None)
        except ClusterRefusal as error:
            if error.status != 404:
                raise
            fields[name] = None
        else:
            fields[name] = _fields_of(live.body)
    return fields


def _leases(ask: Ask, path: str) -> tuple[LeaseFacts, ...]:
    answer = ask("GET", path, None)
    leases = []
    for lease in answer.body.get("items") or []:
        name, spec = str(lease["metadata"]["name"]), lease.get("spec") or {}
        if name.startswith(LEASE_PREFIX):
            renewed, now = _moment(spec.get("renewTime")), answer.date
            age_s = None if renewed is None or now is None else (now - renewed).total_seconds()
            duration_s = float(spec.get("leaseDurationSeconds") or 15)
            leases.append(LeaseFacts(name, str(spec.get("holderIdentity") or ""), age_s, duration_s))
    return tuple(leases)


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _ready(ask: Ask, path: str) -> int:
    pods = ask("GET", path, None).body.get("items") or []
    return sum(_condition(pod, "Ready").get("status") == "True" for pod in pods)


def _condition(item: Json, kind: str) -> Json:
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def _rights(ask: Ask, namespace: str) -> dict[str, bool]:
    rights = {}
    for verb, group, resource, subresource in ACTIONS:
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        attributes |= {"subresource": subresource} if subresource else {}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        name = f"{resource}/{subresource}" if subresource else resource
        rights[f"{verb} {name}"] = bool((answer.body.get("status") or {}).get("allowed"))
    return rights


def _accelerators(ask: Ask) -> int:
    count = 0
    for node in ask("GET", "/api/v1/nodes", None).body.get("items") or []:
        offered: Mapping[str, object] = (node.get("status") or {}).get("allocatable") or {}
        number = str(offered.get("nvidia.com/gpu", "0"))
        count += int(number) if number.isdecimal() else 0
    return count


def _default_classes(ask: Ask) -> tuple[str, ...]:
    classes = ask("GET", "/apis/storage.k8s.io/v1/storageclasses", None).body.get("items") or []
    annotated = [(str(item["metadata"]["name"]), item["metadata"].get("annotations") or {}) for item in classes]
    return tuple(name for name, annotations in annotated if annotations.get(DEFAULT_CLASS) == "true")


def _deployments(ask: Ask, path: str) -> tuple[DeploymentFacts, ...]:
    deployments = []
    for item in ask("GET", path, None).body.get("items") or []:
        ready = _condition(item, "Ready")
        words = str(ready.get("reason") or ""), str(ready.get("message") or "")
        deployments.append(DeploymentFacts(str(item["metadata"]["name"]), ready.get("status") == "True", *words))
    return tuple(deployments)
