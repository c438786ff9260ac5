"""The checks of a cluster. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from baton_local.doctor.cluster_facts import ClusterFacts
from baton_local.doctor.finding import DoctorFinding, failed, ok, unknown, warning

LEAST_VERSION = (1, 33)
SHOWN_FIELDS = 3
DEFINITIONS = "kubectl apply --server-side --force-conflicts -f crds/"
INSTALL = "helm upgrade --install baton charts/baton --namespace {} --create-namespace (docs/install.md has the values)"


def check_cluster(facts: ClusterFacts, own_fields: Mapping[str, frozenset[str]]) -> list[DoctorFinding]:
    """All findings. `own_fields`: the fields of each definition in this version of Baton."""
    if facts.problem is not None:
        fix = "kubectl config get-contexts; kubectl config use-context NAME, or set KUBECONFIG"
        return [failed("context", f"{facts.context or 'no context'}: {facts.problem}", fix)]
    return [
        ok("context", f"{facts.context}, namespace {facts.namespace}"),
        _version(facts.version),
        *_definitions(facts, own_fields),
        *_operator(facts),
        *_rights(facts),
        _accelerators(facts.accelerators),
        _storage(facts.default_classes),
        *_deployments(facts),
    ]


def _version(version: tuple[int, int] | None) -> DoctorFinding:
    if version is None:
        return unknown("server", "it does not report its version")
    text = f"Kubernetes {version[0]}.{version[1]}"
    if version < LEAST_VERSION:
        return failed("server", f"{text} is too old", f"upgrade the cluster to {LEAST_VERSION[0]}.{LEAST_VERSION[1]}")
    return ok("server", text)


def _definitions(facts: ClusterFacts, own_fields: Mapping[str, frozenset[str]]) -> Iterator[DoctorFinding]:
    if facts.fields is None:
        yield unknown("definitions", "the user may not read CustomResourceDefinitions")
        return
    for name, own in own_fields.items():
        live = facts.fields.get(name)
        if live is None:
            yield failed("definitions", f"{name} is not installed", DEFINITIONS)
        elif missing := own - live:
            text = f"{name} is older than this baton: it lacks {_some(missing)}"
            yield warning("definitions", text, f"{DEFINITIONS}, or helm upgrade with the chart of this version")
        elif more := live - own:
            text = f"{name} is newer than this baton: it has {_some(more)} too"
            yield warning("definitions", text, "install the version of baton that the cluster has")
        else:
            yield ok("definitions", f"{name}: as in this version")


def _some(fields: frozenset[str]) -> str:
    shown = sorted(fields)[:SHOWN_FIELDS]
    more = len(fields) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _operator(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    space = facts.operator_namespace
    if facts.leases is None:
        yield unknown("operator", f"the user may not read Leases in {space}")
    elif not facts.leases:
        text = f"no operator was ever active in {space} (--operator-namespace names another)"
        yield failed("operator", text, INSTALL.format(space))
    for lease in facts.leases or ():
        logs = f"kubectl --namespace {space} logs deployment/{lease.name} --tail 50"
        if lease.age_s is None:
            yield unknown("operator", f"the Lease {lease.name} does not say when it was renewed")
        elif not lease.holder or lease.age_s > lease.duration_s:
            text = f"{lease.name} is not active: its Lease was renewed {lease.age_s:.0f} s ago"
            yield failed("operator", text, f"kubectl --namespace {space} get pods; {logs}")
        else:
            yield ok("operator", f"{lease.name} is active: its Lease was renewed {max(0.0, lease.age_s):.0f} s ago")
    if facts.ready_operators == 0 and facts.leases:
        yield warning("operator", "none of its Pods is ready", f"kubectl --namespace {space} get pods")


def _rights(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    if facts.rights is None:
        yield unknown("rights", "the server did not say what the user may do")
        return
    denied = [action for action, is_allowed in facts.rights.items() if not is_allowed]
    if denied:
        space = facts.namespace
        fix = f"kubectl --namespace {space} create rolebinding NAME --clusterrole=edit --user=USER, by an administrator"
        yield warning("rights", f"the user may not {', '.join(denied)} in {space}", fix)
    else:
        yield ok("rights", f"the user may {', '.join(facts.rights)}")


def _accelerators(count: int | None) -> DoctorFinding:
    if count is None:
        return unknown("gpus", "the user may not list nodes")
    if count == 0:
        fix = "install NVIDIA's GPU operator or device plugin, or leave out spec.*.accelerator for CPUs"
        return warning("gpus", "no node offers nvidia.com/gpu", fix)
    return ok("gpus", f"nodes offer {count} nvidia.com/gpu")


def _storage(classes: tuple[str, ...] | None) -> DoctorFinding:
    if classes is None:
        return unknown("storage", "the user may not list StorageClasses")
    if not classes:
        return warning("storage", "no StorageClass is the default", "set spec.model.cache.storageClassName")
    return ok("storage", f"the default StorageClass is {', '.join(classes)}")


def _deployments(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    space = facts.namespace
    if facts.deployments is None:
        yield unknown("deployments", f"LLMDeployments in {space} could not be listed")
        return
    if not facts.deployments:
        yield ok("deployments", f"none in {space}")
    for deployment in facts.deployments:
        if deployment.is_ready:
            yield ok("deployments", f"{deployment.name} is ready")
        else:
            text = f"{deployment.name} is not ready: {deployment.reason or 'no reason yet'}"
            text += f": {deployment.message}" if deployment.message else ""
            yield warning("deployments", text, f"kubectl --namespace {space} describe llm {deployment.name}")
