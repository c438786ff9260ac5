"""The chart grants what the operator asks for, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton_operator.kube.kinds import (
    CLAIMS,
    DEPLOYMENTS,
    EVENTS,
    INFERENCE_POOLS,
    JOBS,
    LEASES,
    NODES,
    OPTIONAL,
    PODS,
    SECRETS,
    WATCHED,
)
from baton_operator.objects.tenant_shards import shard_name
from baton_testing.kube import campaign as kube_campaign
from baton_testing.kube.scenarios import SCENARIOS
from baton_testing.kube.yaml_documents import documents
from baton_wire.tenant_table import NUM_SHARDS

Json = dict[str, Any]
Right = tuple[str, str]
"""A verb and a resource with its group, `patch llmpools.baton.dev/status` for instance."""
MANIFESTS = Path(__file__).parents[3] / "charts" / "manifests"
PLAYED = (
    "create",
    "edit a template",
    "delete and create again",
    "a surge without room",
    "optional objects come and go",
    "flip there and back",
)
GROUPS = {kind.plural: kind.group for kind in (*WATCHED, *OPTIONAL, SECRETS, EVENTS)}
UNSEEN = {
    # Only a Conflict makes it read what it had by the watch.
    ("get", f"llmdeployments.{DEPLOYMENTS.group}"),
    ("get", PODS.plural),
    # Of models that are fetched, which the scenarios above have none of: test_fetch_objects.py has the objects.
    *((verb, f"jobs.{JOBS.group}") for verb in ("get", "create", "patch", "delete")),
    *((verb, CLAIMS.plural) for verb in ("get", "create", "patch")),
    # Not a call: the API server asks whether an owner that blocks its own deletion may be set.
    ("update", f"llmdeployments/finalizers.{DEPLOYMENTS.group}"),
    # Nodes are watched by the process beside its caches: test_nodes.py.
    *((verb, NODES.plural) for verb in ("list", "watch")),
    # LLMTenants are compiled by the process beside its passes: test_tenant_passes.py.
    *((verb, f"llmtenants.{DEPLOYMENTS.group}") for verb in ("list", "watch")),
    ("patch", f"llmtenants/status.{DEPLOYMENTS.group}"),
    *((verb, "configmaps") for verb in ("get", "create", "patch")),
    # Of an installation with the value `inferencePool`, which the scenarios have not: test_optional.py.
    *(
        (verb, f"{INFERENCE_POOLS.plural}.{INFERENCE_POOLS.group}")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    # The Lease is held by the process, not by the passes that the scenarios run: test_lease.py.
    *((verb, f"leases.{LEASES.group}") for verb in ("get", "create", "update")),
}


def rights(path: Path) -> set[Right]:
    rights: set[Right] = set()
    for manifest in documents(path.read_text(encoding="utf-8")):
        for rule in (manifest or {}).get("rules", []):
            if manifest["metadata"]["name"].endswith(("-view", "-edit")):
                continue  # of users
            for group in rule["apiGroups"]:
                rights |= {(verb, named(name, group)) for verb in rule["verbs"] for name in rule["resources"]}
    return rights


def named(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def used(calls: tuple[str, ...]) -> Iterator[Right]:
    """The questions of the API server to the authoriser for a call. An apply that creates asks twice. After a create,
    an object is looked at where one of that name is there, and patched when something else is wanted."""
    for call in calls:
        verb, place, *subresource = call.split()
        plural = place.partition("/")[0]
        full = named("/".join([plural, *subresource]), GROUPS[plural])
        if verb in ("apply", "try"):
            yield "patch", full
            if not subresource and plural != PODS.plural:  # a Pod is labelled under its uid, and never created
                yield "create", full
        elif verb == "create" and plural != LEASES.plural:
            yield from ((verb, full) for verb in ("create", "get", "patch"))
        else:
            yield {"replace": "update", "own": "patch"}.get(verb, verb), full


@pytest.fixture(scope="module")
def asked() -> set[Right]:
    """The rights that the operator used in scenarios which together make every kind of call."""
    kube_campaign.serving()
    played = [scenario for scenario in SCENARIOS if scenario.name in PLAYED]
    assert len(played) == len(PLAYED)
    return {right for scenario in played for right in used(kube_campaign.run(scenario).calls)}


@pytest.mark.parametrize("name", ["operator.yaml", "operator-cluster-wide.yaml"])
def test_what_is_asked_for_is_granted_and_what_is_granted_is_asked_for(asked: set[Right], name: str) -> None:
    granted = rights(MANIFESTS / name)
    assert asked - granted == set()
    assert granted - asked == UNSEEN


@pytest.mark.parametrize("name", ["operator.yaml", "operator-cluster-wide.yaml"])
def test_no_wildcard_no_reading_of_secrets_no_escalation(name: str) -> None:
    granted = rights(MANIFESTS / name)
    assert not any("*" in verb or "*" in resource for verb, resource in granted)
    assert {verb for verb, resource in granted if resource == "secrets"} == {"create", "patch"}
    forbidden = {"escalate", "bind", "impersonate", "deletecollection", "*"}
    assert not {verb for verb, _ in granted} & forbidden
    assert not {resource for _, resource in granted} & {"pods/exec", "namespaces", "roles", "rolebindings"}
    assert {verb for verb, resource in granted if resource == "nodes"} == {"list", "watch"}


def test_users_may_not_write_status_nor_pools_but_for_their_scale() -> None:
    manifests: list[Json] = []
    for manifest in documents((MANIFESTS / "operator.yaml").read_text(encoding="utf-8")):
        if manifest and manifest["kind"] == "ClusterRole" and manifest["metadata"]["name"].endswith("-edit"):
            manifests += manifest["rules"]
    written = {resource for rule in manifests for resource in rule["resources"]}
    assert written == {"llmdeployments", "llmpools/scale", "llmtenants"}


@pytest.mark.parametrize("name", ["operator.yaml", "operator-cluster-wide.yaml"])
def test_no_configmap_but_the_shards_of_the_table_of_tenants_is_read_or_changed(name: str) -> None:
    manifests = documents((MANIFESTS / name).read_text(encoding="utf-8"))
    rules = [rule for manifest in manifests for rule in (manifest or {}).get("rules", [])]
    granted = [
        (rule["verbs"], rule.get("resourceNames")) for rule in rules if "configmaps" in rule.get("resources", ())
    ]
    shards = [shard_name(place) for place in range(NUM_SHARDS)]
    assert granted == [(["create"], None), (["get", "patch"], shards)]
