"""The kinds of an API server: which have a status subresource, which defaults it fills in, what it refuses.

Custom resources by their own definitions; of the built-in kinds, what Baton's objects meet.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from baton_control.errors import FieldProblem, ManifestError
from baton_control.spec.manifest import parse_live
from baton_operator.kube.kinds import (
    ACCOUNTS,
    AUTOSCALERS,
    BUDGETS,
    CLAIMS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    MONITORS,
    PODS,
    POLICIES,
    POOLS,
    RECORDS,
    ROUTES,
    RULES,
    SECRETS,
    SERVICES,
    WORKERS,
)
from baton_operator.kube.kube_api import Invalid, Resource
from baton_operator.kube.object_fields import mapping
from baton_operator.schema.crd import deployment_definition, pool_definition
from baton_testing.kube.schema import fill, problems, prune

Json = dict[str, Any]
BUILT_IN = (
    WORKERS,
    RECORDS,
    PODS,
    SERVICES,
    ACCOUNTS,
    SECRETS,
    EVENTS,
    POLICIES,
    BUDGETS,
    LEASES,
    JOBS,
    CLAIMS,
    ROUTES,
    AUTOSCALERS,
    MONITORS,
    RULES,
)
WITH_STATUS = frozenset({DEPLOYMENTS, POOLS, WORKERS, PODS, SERVICES, BUDGETS, JOBS, CLAIMS, ROUTES, AUTOSCALERS})
POD_DEFAULTS = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
}
PER_KIND: dict[Resource, Json] = {
    WORKERS: {"replicas": 1, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
    SERVICES: {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"},
}
FIXED: dict[Resource, tuple[tuple[str, ...], ...]] = {
    WORKERS: (("spec", "selector"),),
    RECORDS: (("data",),),
    SERVICES: (("spec", "clusterIP"),),
}
"""Fields that never change."""


@functools.cache
def _schemas() -> dict[Resource, Json]:
    schemas = {}
    for resource, definition in ((DEPLOYMENTS, deployment_definition()), (POOLS, pool_definition())):
        spec: Any = definition["spec"]
        schemas[resource] = spec["versions"][0]["schema"]["openAPIV3Schema"]
    return schemas


class Kinds:
    """The resources of one server; `absent` are not served."""

    def __init__(self, absent: frozenset[Resource] = frozenset()) -> None:
        self.is_strict = True
        """True: custom resources have to fit their definitions; an older server accepted more."""
        self.served = tuple(kind for kind in (DEPLOYMENTS, POOLS, *BUILT_IN) if kind not in absent)

    def has_status(self, resource: Resource) -> bool:
        """True if the status of a kind is a subresource."""
        return resource in WITH_STATUS

    def drains(self, resource: Resource) -> bool:
        """True if objects of a kind go slowly, because a kubelet has to confirm."""
        return resource is PODS or resource == PODS

    def pruned(self, resource: Resource, body: Json) -> Json:
        schema = _schemas().get(resource)
        return body if schema is None else _pruned(body, schema)

    def admit(self, resource: Resource, body: Json, before: Json | None) -> Json:
        """The stored body. Raises Invalid, with the paths."""
        schema = _schemas().get(resource)
        if schema is not None:
            body = _pruned(body, schema)
            head = {name: body[name] for name in ("apiVersion", "kind", "metadata") if name in body}
            body = head | fill({name: value for name, value in body.items() if name not in head}, schema)
            invalid = problems({name: value for name, value in body.items() if name != "metadata"}, schema)
            if not invalid and resource == DEPLOYMENTS and (before is None or before.get("spec") != body.get("spec")):
                invalid = _broken_rules(body, before)
            if invalid and self.is_strict:
                raise Invalid("; ".join(map(str, invalid)), tuple(invalid))
            return body
        if resource in PER_KIND:
            spec = body.setdefault("spec", {})
            for name, value in PER_KIND[resource].items():
                spec.setdefault(name, value)
        if resource == WORKERS and "template" in body["spec"]:
            pod = body["spec"]["template"].setdefault("spec", {})
            for name, value in POD_DEFAULTS.items():
                pod.setdefault(name, value)
        for path in FIXED.get(resource, ()):
            if before is not None and _at(before, path) is not None and not _is_equal(before, body, path):
                where = ".".join(path)
                raise Invalid(f"{where}: field is immutable", (FieldProblem(where, "field is immutable"),))
        return body


def _is_equal(before: Json, body: Json, path: tuple[str, ...]) -> bool:
    """To the order of keys: the data of a ControllerRevision are bytes to a server."""
    return json.dumps(_at(before, path)) == json.dumps(_at(body, path))


def _pruned(body: Json, schema: Json) -> Json:
    pruned: Json = prune(body, schema)
    return pruned | {name: body[name] for name in ("metadata",) if name in body}


def _broken_rules(body: Json, before: Json | None) -> list[FieldProblem]:
    """The problems by the definition's CEL rules, from the reader of manifests; transition rules of the cache are
    here."""
    try:
        parse_live(body)
    except ManifestError as error:
        return list(error.problems)
    if before is not None:
        old, new = (mapping(_at(state, ("spec", "model", "cache"))) for state in (before, body))
        for field, default in (("storageClassName", None), ("accessMode", "ReadWriteMany")):
            if "claimName" not in {**old, **new} and old.get(field, default) != new.get(field, default):
                return [FieldProblem(f"spec.model.cache.{field}", "cannot change")]
    return []


def _at(body: Json, path: tuple[str, ...]) -> Any:
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
