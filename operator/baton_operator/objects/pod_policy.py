"""The policy for settings of Pods in LLMDeployments: the installer lists what is allowed, and all else is refused.

Other components act on a Pod's metadata. An injector adds an image or a network because of an annotation, a priority
evicts other Pods, a toleration opens a reserved node. Baton cannot judge these, so the installer lists them.

A field that reaches Pods and means something to other components belongs here: as a list below, and in `refusals`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec

from baton_control.errors import FieldProblem, NotAllowedError, shown
from baton_control.spec.api import LLMDeployment
from baton_control.spec.placing import NodesSpec, node_keys
from baton_control.spec.pools import AcceleratorSpec
from baton_control.spec.reserved_keys import MESH_OPT_OUTS
from baton_control.worker_specs import pool_roles, pool_spec
from baton_operator.objects.allowed_env import ANY, SAFE_ENV, refusal

NEVER_PRIORITIES: Final = "system-"
"""Prefix of the priorities that keep a cluster alive; no list lets a tenant use one."""
SAFE_ANNOTATIONS: Final = ("prometheus.io", "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh")
"""Annotations for monitoring and for moving Pods; none changes what runs in a Pod."""
ACCELERATOR_TAINTS: Final = ("nvidia.com/gpu", "amd.com/gpu")
NETWORK_DEVICES: Final = ("rdma", "vpc.amazonaws.com/efa")
"""Extended resources for RDMA: those of the shared device plugin, and Amazon's."""
_ENTRY: Final = re.compile(r"\*|[A-Za-z0-9]([-A-Za-z0-9_./]{0,250}[A-Za-z0-9_])?")

Entries = Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]


class PodPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The lists of what is allowed; `*` allows all. Raises ValueError for an entry that can match nothing.

    In lists of keys an entry is a whole key (`example.com/team`) or a domain, which allows all keys of that very
    domain (`example.com`). Elsewhere it is a name.
    """

    labels: Entries = ()
    """Keys with a domain. Labels without one are the tenant's own."""
    annotations: Entries = SAFE_ANNOTATIONS
    priority_classes: Entries = ()
    schedulers: Entries = ("default-scheduler",)
    runtime_classes: Entries = ()
    tolerations: Entries = ACCELERATOR_TAINTS
    """Keys of taints."""
    env: Entries = SAFE_ENV
    """Names of variables; prefixes with a final `_` and `*` never allow a reserved name (`allowed_env`)."""
    service_annotations: Entries = ()
    """Keys, or domains: of the Services that clients use."""
    account_annotations: Entries = ()
    """Keys, or domains: of the ServiceAccounts of fetch Jobs and workers. They can lend a cloud identity."""
    node_labels: Entries = (ANY,)
    """Keys, or domains: by which Pods choose their nodes and what is near."""
    extended_resources: Entries = NETWORK_DEVICES
    """Keys, or domains: of the resources that workers may have besides their accelerators."""
    worker_arguments: Entries = ()
    """Names of workers' flags, without their dashes."""

    def __post_init__(self) -> None:
        for field, encoded in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            for entry in getattr(self, field):
                if _ENTRY.fullmatch(entry) is None:
                    raise ValueError(
                        f"{encoded}: {shown(entry)} is not allowed: must be '*', a name, a domain or a key"
                    )
        never = [name for name in self.priority_classes if name.startswith(NEVER_PRIORITIES)]
        if never:
            raise ValueError(f"priorityClasses: {never[0]!r} is not allowed: priorities of the system are never lent")

    def check(self, deployment: LLMDeployment) -> None:
        """Raises NotAllowedError with everything in the deployment that this installation does not allow."""
        problems = tuple(self.refusals(deployment))
        if problems:
            raise NotAllowedError(problems)

    def refusals(self, deployment: LLMDeployment) -> Iterator[FieldProblem]:
        """The settings that are not allowed, in the order of the fields."""
        given = deployment.spec.pod_metadata
        labels = given.labels.items()
        domained = [key for key, value in labels if "/" in key and MESH_OPT_OUTS.get(key) != value]
        yield from _keys("spec.podMetadata.labels", domained, self.labels, "labels")
        yield from _keys("spec.podMetadata.annotations", given.annotations, self.annotations, "annotations")
        for role in pool_roles(deployment):
            pool = pool_spec(deployment, role)
            at = f"spec.{role}"
            yield from self._priority(at, pool.priority_class_name)
            yield from _name(f"{at}.schedulerName", pool.scheduler_name, self.schedulers, "schedulers")
            yield from _name(f"{at}.runtimeClassName", pool.runtime_class_name, self.runtime_classes, "runtimeClasses")
            yield from self._placement(at, pool.placement)
            yield from self._accelerators(f"{at}.accelerator", pool.accelerator)
            for place, variable in enumerate(pool.env):
                problem = self.env_problem(variable.name, variable.value)
                if problem is not None:
                    yield FieldProblem(f"{at}.env[{place}].{problem.path}", problem.message)
            for place, argument in enumerate(pool.arguments):
                at_name = f"{at}.arguments[{place}].name"
                yield from _name(at_name, argument.name, self.worker_arguments, "workerArguments")
            at_marks, marks = f"{at}.serviceAccountAnnotations", pool.service_account_annotations
            yield from _keys(at_marks, marks, self.account_annotations, "accountAnnotations")
        gateway, fetch = deployment.spec.gateway, deployment.spec.model.fetch
        yield from self._priority("spec.gateway", gateway.priority_class_name)
        yield from self._placement("spec.gateway", gateway.placement)
        at, marks = "spec.gateway.service.annotations", gateway.service.annotations
        yield from _keys(at, marks, self.service_annotations, "serviceAnnotations")
        yield from self._placement("spec.model.fetch", fetch.placement)
        at, marks = "spec.model.fetch.serviceAccountAnnotations", fetch.service_account_annotations
        yield from _keys(at, marks, self.account_annotations, "accountAnnotations")

    def env_problem(self, name: str, value: str) -> FieldProblem | None:
        """Why a variable is refused, by the field of its entry; None: it is allowed."""
        return refusal(self.env, name, value)

    def _priority(self, at: str, priority: str | None) -> Iterator[FieldProblem]:
        if priority is not None and priority.startswith(NEVER_PRIORITIES):
            yield FieldProblem(f"{at}.priorityClassName", f"{priority!r} is not allowed: it is the system's own")
        else:
            yield from _name(f"{at}.priorityClassName", priority, self.priority_classes, "priorityClasses")

    def _placement(self, at: str, placement: NodesSpec) -> Iterator[FieldProblem]:
        for path, key in node_keys(placement):
            if not _allows(self.node_labels, key):
                yield _problem(f"{at}.placement.{path}", key, self.node_labels, "nodeLabels")
        yield from self._tolerations(at, placement)

    def _accelerators(self, at: str, given: AcceleratorSpec | None) -> Iterator[FieldProblem]:
        if given is None:
            return
        for name in given.with_:
            if not _allows(self.extended_resources, name):
                yield _problem(f"{at}.with.{name}", None, self.extended_resources, "extendedResources")
        places = [(at, given.node_selector)]
        places += [
            (f"{at}.alternatives[{i}]", alternative.node_selector) for i, alternative in enumerate(given.alternatives)
        ]
        for path, selector in places:
            for key in selector:
                if not _allows(self.node_labels, key):
                    yield _problem(f"{path}.nodeSelector.{key}", key, self.node_labels, "nodeLabels")

    def _tolerations(self, at: str, placement: NodesSpec) -> Iterator[FieldProblem]:
        for place, toleration in enumerate(placement.tolerations):
            if not _allows(self.tolerations, toleration.key):
                at_key = f"{at}.placement.tolerations[{place}].key"
                yield _problem(at_key, toleration.key, self.tolerations, "tolerations")


DEFAULT_POLICY: Final = PodPolicy()
"""Safe on any cluster: it gives a tenant nothing beyond what the tenant's own Pods could have."""


def parse_pod_policy(text: str) -> PodPolicy:
    """The policy in a JSON object; absent lists have their defaults. Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=PodPolicy)
    except msgspec.DecodeError as error:
        raise ValueError(f"--pod-policy: {error}") from error


def _keys(path: str, keys: Iterable[str], entries: Entries, field: str) -> Iterator[FieldProblem]:
    for key in keys:
        if not _allows(entries, key):
            yield _problem(f"{path}.{key}", None, entries, field)


def _allows(entries: Entries, key: str) -> bool:
    domain = key.rpartition("/")[0]
    return ANY in entries or key in entries or (domain != "" and domain in entries)


def _name(path: str, name: str | None, entries: Entries, field: str) -> Iterator[FieldProblem]:
    if name is not None and ANY not in entries and name not in entries:
        yield _problem(path, name, entries, field)


def _problem(path: str, value: str | None, entries: Entries, field: str) -> FieldProblem:
    allowed = ", ".join(entries) or "none"
    text = "not allowed" if value is None else f"{shown(value)} is not allowed"
    return FieldProblem(path, f"{text} by this installation (podPolicy.{field}): {allowed}")
