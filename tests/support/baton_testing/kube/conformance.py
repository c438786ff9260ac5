"""The behaviour that the API server in memory shares with a real one: cases that run against both by the same
interface.

Each case gets a `KubeApi`, a namespace that is empty of what it makes, and the one call that is not the operator's:
scaling through /scale. It fails by an assertion.
"""

from __future__ import annotations

import asyncio
import contextlib

from baton_operator.kube.field_owners import as_applied, is_created_by
from baton_operator.kube.kinds import DEPLOYMENTS, LEASES, POOLS, RECORDS, SERVICES, WORKERS
from baton_operator.kube.kube_api import (
    AlreadyExists,
    Change,
    Conflict,
    Expired,
    Invalid,
    KubeApi,
    NotFound,
    WatchEvent,
)
from baton_testing.kube.conformance_objects import (
    A,
    B,
    Case,
    Json,
    Scale,
    in_space,
    llm,
    owners_of,
    pool,
    refused,
    version_of,
    with_replicas,
    workers,
)
from baton_testing.kube.manifests import set_at


async def what_is_absent_is_filled_in_and_what_is_unknown_is_dropped(api: KubeApi, space: str, scale: Scale) -> None:
    body = llm(space, surprise=1, rollout={"paused": None, "maxSurge": 2})
    stored: Json = await api.create(DEPLOYMENTS, {**body, "status": {"revision": "x"}}, manager=A)
    assert "surprise" not in stored["spec"]
    assert stored["spec"]["rollout"] == {"maxSurge": 2, "maxUnavailable": 0, "canary": 0, "paused": False}
    assert stored["spec"]["prefill"]["replicas"] == {"min": 1, "max": 1}
    assert "status" not in stored
    assert stored["metadata"]["generation"] == 1
    await refused(AlreadyExists, api.create(DEPLOYMENTS, body, manager=A))


async def what_the_schema_does_not_allow_is_refused(api: KubeApi, space: str, scale: Scale) -> None:
    for path, value in (("prefill.replicas.max", 2000), ("slo.ttft.percentile", 101.0), ("model", None)):
        body = llm(space)
        set_at(body, ("spec", *path.split(".")), value)
        error = await refused(Invalid, api.create(DEPLOYMENTS, body, manager=A))
        assert path.split(".")[-1] in error.message, error.message
    await refused(NotFound, api.get(DEPLOYMENTS, space, "chat"))


async def an_apply_that_changes_nothing_makes_no_new_version(api: KubeApi, space: str, scale: Scale) -> None:
    first: Json = await api.apply(WORKERS, with_replicas(workers(space, a="1"), 0), manager=A, force=True)
    second: Json = await api.apply(WORKERS, with_replicas(workers(space, a="1"), 0), manager=A, force=True)
    assert second["spec"] == first["spec"]
    assert second["metadata"]["generation"] == first["metadata"]["generation"]
    listed = await api.list(WORKERS, space)
    assert len(listed.items) == 1


async def a_field_of_another_manager_conflicts_until_it_is_taken(api: KubeApi, space: str, scale: Scale) -> None:
    await api.apply(POOLS, pool(space, replicas=2), manager=A, force=False)
    error = await refused(Conflict, api.apply(POOLS, pool(space, replicas=3), manager=B, force=False))
    assert error.managers == (A,)
    taken: Json = await api.apply(POOLS, pool(space, replicas=3), manager=B, force=True)
    assert taken["spec"]["replicas"] == 3
    assert owners_of(taken, "spec", "replicas") == {B}
    assert owners_of(taken, "spec", "role") == {A, B}
    error = await refused(Conflict, api.apply(POOLS, pool(space, replicas=2), manager=A, force=False))
    assert error.managers == (B,)
    shared: Json = await api.apply(POOLS, pool(space, replicas=3), manager=A, force=False)
    assert owners_of(shared, "spec", "replicas") == {A, B}


async def a_field_that_its_owner_leaves_out_falls_back_to_its_default(api: KubeApi, space: str, scale: Scale) -> None:
    await api.apply(POOLS, pool(space, replicas=4), manager=A, force=False)
    gone: Json = await api.apply(POOLS, pool(space), manager=A, force=False)
    assert gone["spec"]["replicas"] == 1
    await api.apply(WORKERS, with_replicas(workers(space), 0), manager=A, force=True)
    fallen: Json = await api.apply(WORKERS, workers(space), manager=A, force=True)
    assert fallen["spec"]["replicas"] == 1


async def a_mapping_goes_with_the_last_of_its_fields(api: KubeApi, space: str, scale: Scale) -> None:
    body = llm(space, gateway__tls={"secretName": "cert"}, prefill__accelerator={"resource": "nvidia.com/gpu"})
    stored: Json = await api.apply(DEPLOYMENTS, body, manager=A, force=False)
    assert stored["spec"]["gateway"]["tls"] == {"secretName": "cert"}
    left: Json = await api.apply(DEPLOYMENTS, llm(space), manager=A, force=False)
    assert "tls" not in left["spec"]["gateway"]
    assert "accelerator" not in left["spec"]["prefill"]


async def a_field_that_another_owns_too_stays(api: KubeApi, space: str, scale: Scale) -> None:
    await api.apply(POOLS, pool(space, replicas=4), manager=A, force=False)
    await api.apply(POOLS, pool(space, replicas=4), manager=B, force=False)
    second: Json = await api.apply(POOLS, pool(space), manager=A, force=False)
    assert second["spec"]["replicas"] == 4
    assert owners_of(second, "spec", "replicas") == {B}


async def entries_of_a_list_are_told_apart_by_name(api: KubeApi, space: str, scale: Scale) -> None:
    def env(body: Json) -> dict[str, str]:
        container = body["spec"]["template"]["spec"]["containers"][0]
        return {variable["name"]: variable["value"] for variable in container.get("env", [])}

    await api.apply(WORKERS, with_replicas(workers(space, a="1", b="2"), 0), manager=A, force=True)
    less: Json = await api.apply(WORKERS, with_replicas(workers(space, b="3", c="4"), 0), manager=A, force=True)
    assert env(less) == {"b": "3", "c": "4"}


async def scaling_takes_the_replicas_away_from_who_applied_them(api: KubeApi, space: str, scale: Scale) -> None:
    stored: Json = await api.apply(POOLS, pool(space, replicas=2), manager=A, force=False)
    await scale(POOLS, space, "chat-decode", 5)
    scaled: Json = await api.get(POOLS, space, "chat-decode")
    assert scaled["spec"]["replicas"] == 5
    assert scaled["metadata"]["generation"] == stored["metadata"]["generation"] + 1
    if A in owners_of(scaled, "spec", "replicas"):
        return  # Kubernetes before 1.23 writes nothing down for /scale
    await refused(Conflict, api.apply(POOLS, pool(space, replicas=2), manager=A, force=False))
    second: Json = await api.apply(POOLS, pool(space), manager=A, force=False)
    assert second["spec"]["replicas"] == 5


async def status_and_spec_do_not_reach_each_other(api: KubeApi, space: str, scale: Scale) -> None:
    stored: Json = await api.create(DEPLOYMENTS, llm(space), manager=A)
    status = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "metadata": stored["metadata"]}
    status = in_space(space, "chat", {**status, "metadata": {}, "status": {"revision": "one"}})
    error_free: Json = await api.apply(DEPLOYMENTS, status, manager=B, force=True, subresource="status")
    assert error_free["status"] == {"revision": "one"}
    assert error_free["metadata"]["generation"] == 1
    assert error_free["spec"] == stored["spec"]
    body = llm(space, rollout={"paused": True})
    changed: Json = await api.apply(DEPLOYMENTS, {**body, "status": {"revision": "two"}}, manager=B, force=True)
    assert changed["status"] == {"revision": "one"}
    assert changed["metadata"]["generation"] == 2
    cleared: Json = await api.apply(
        DEPLOYMENTS, {**status, "status": {"observedGeneration": 2}}, manager=B, force=True, subresource="status"
    )
    assert cleared["status"] == {"observedGeneration": 2}
    absent = {**status, "metadata": {"name": "nobody", "namespace": space}}
    await refused(NotFound, api.apply(DEPLOYMENTS, absent, manager=B, force=True, subresource="status"))


async def an_apply_keeps_its_preconditions(api: KubeApi, space: str, scale: Scale) -> None:
    body = pool(space)
    lost = {**body, "metadata": {**body["metadata"], "uid": "11111111-1111-1111-1111-111111111111"}}
    await refused(Conflict, api.apply(POOLS, lost, manager=A, force=True))
    stored: Json = await api.apply(POOLS, body, manager=A, force=True)
    await refused(Conflict, api.apply(POOLS, lost, manager=A, force=True))
    right = {
        **body,
        "metadata": {**body["metadata"], "uid": stored["metadata"]["uid"], "resourceVersion": version_of(stored)},
    }
    await api.apply(POOLS, {**right, "spec": {**right["spec"], "replicas": 2}}, manager=A, force=True)
    await refused(
        Conflict, api.apply(POOLS, {**right, "spec": {**right["spec"], "replicas": 3}}, manager=A, force=True)
    )


async def a_delete_means_one_object_in_one_state(api: KubeApi, space: str, scale: Scale) -> None:
    stored: Json = await api.create(POOLS, pool(space), manager=A)
    uid = stored["metadata"]["uid"]
    await refused(Conflict, api.delete(POOLS, space, "chat-decode", uid="11111111-1111-1111-1111-111111111111"))
    changed: Json = await api.apply(POOLS, pool(space, replicas=3), manager=A, force=True)
    await refused(Conflict, api.delete(POOLS, space, "chat-decode", uid=uid, resource_version=version_of(stored)))
    await api.delete(POOLS, space, "chat-decode", uid=uid, resource_version=version_of(changed))
    await refused(NotFound, api.get(POOLS, space, "chat-decode"))
    await refused(NotFound, api.delete(POOLS, space, "chat-decode", uid=uid))
    again: Json = await api.create(POOLS, pool(space), manager=A)
    assert again["metadata"]["uid"] != uid


async def a_finalizer_holds_an_object_that_is_deleted(api: KubeApi, space: str, scale: Scale) -> None:
    body = pool(space)
    body["metadata"]["finalizers"] = ["baton.dev/test"]
    stored: Json = await api.create(POOLS, body, manager=A)
    await api.delete(POOLS, space, "chat-decode", uid=stored["metadata"]["uid"])
    leaving: Json = await api.get(POOLS, space, "chat-decode")
    assert "deletionTimestamp" in leaving["metadata"]
    await api.delete(POOLS, space, "chat-decode", uid=stored["metadata"]["uid"])
    freed = {**leaving, "metadata": {**leaving["metadata"], "finalizers": []}}
    await api.replace(POOLS, freed, manager=A)
    await refused(NotFound, api.get(POOLS, space, "chat-decode"))


async def a_replace_of_an_old_version_is_refused(api: KubeApi, space: str, scale: Scale) -> None:
    lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "spec": {"holderIdentity": "a"}}
    stored: Json = await api.create(LEASES, in_space(space, "gate", lease), manager=A)
    await refused(AlreadyExists, api.create(LEASES, in_space(space, "gate", lease), manager=A))
    second: Json = await api.replace(LEASES, {**stored, "spec": {"holderIdentity": "b"}}, manager=A)
    assert version_of(second) != version_of(stored)
    await refused(Conflict, api.replace(LEASES, {**stored, "spec": {"holderIdentity": "c"}}, manager=B))


async def an_update_takes_what_it_changes(api: KubeApi, space: str, scale: Scale) -> None:
    stored: Json = await api.apply(POOLS, pool(space, replicas=2), manager=A, force=True)
    changed: Json = await api.replace(POOLS, {**stored, "spec": {**stored["spec"], "replicas": 6}}, manager=B)
    assert owners_of(changed, "spec", "replicas") == {B}
    assert A in owners_of(changed, "spec", "role")
    error = await refused(Conflict, api.apply(POOLS, pool(space, replicas=2), manager=A, force=False))
    assert error.managers == (B,)


async def what_was_created_goes_once_it_counts_as_applied(api: KubeApi, space: str, scale: Scale) -> None:
    def door(label: str, **spec: object) -> Json:
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {label: "x"}}}
        return in_space(
            space,
            "door",
            {**body, "spec": {"ports": [{"port": 80, "protocol": "TCP"}], "selector": {"a": "b"}, **spec}},
        )

    stored: Json = await api.create(SERVICES, door("one", sessionAffinity="ClientIP"), manager=A)
    assert is_created_by(stored, A)
    assert not is_created_by(stored, B)
    second: Json = await api.apply(SERVICES, door("two"), manager=A, force=True)
    assert second["metadata"]["labels"] == {"one": "x", "two": "x"}, "an apply leaves what a create set"
    assert second["spec"]["sessionAffinity"] == "ClientIP"
    uid, entries = stored["metadata"]["uid"], as_applied(second["metadata"]["managedFields"], A)
    place, nobody = (SERVICES, space, "door"), (SERVICES, space, "nobody")
    await refused(Conflict, api.set_managed_fields(*place, entries, uid=uid, version=version_of(stored)))
    wrong = "11111111-1111-1111-1111-111111111111"
    await refused(Conflict, api.set_managed_fields(*place, entries, uid=wrong, version=version_of(second)))
    await refused(NotFound, api.set_managed_fields(*nobody, entries, uid=uid, version=version_of(second)))
    owned: Json = await api.set_managed_fields(*place, entries, uid=uid, version=version_of(second))
    assert not is_created_by(owned, A)
    assert owned["spec"] == second["spec"]
    gone: Json = await api.apply(SERVICES, door("three"), manager=A, force=True)
    assert gone["metadata"]["labels"] == {"three": "x"}
    assert gone["spec"]["sessionAffinity"] == "None"
    assert gone["spec"].get("clusterIP") == stored["spec"].get("clusterIP"), "what the server gave stays"


async def data_of_a_record_are_kept_in_order_by_a_create_alone(api: KubeApi, space: str, scale: Scale) -> None:
    record = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"b": 1, "a": 2}}
    await api.apply(RECORDS, in_space(space, "applied", record), manager=A, force=True)
    await api.apply(RECORDS, in_space(space, "applied", {**record, "data": {"a": 2, "b": 1}}), manager=A, force=True)
    await api.create(RECORDS, in_space(space, "created", record), manager=A)
    await refused(
        Invalid, api.apply(RECORDS, in_space(space, "created", {**record, "revision": 2}), manager=A, force=True)
    )


async def a_dry_run_leaves_nothing(api: KubeApi, space: str, scale: Scale) -> None:
    stored: Json = await api.apply(POOLS, pool(space), manager=A, force=True, dry_run=True)
    assert stored["spec"]["replicas"] == 1
    await refused(NotFound, api.get(POOLS, space, "chat-decode"))


async def what_is_fixed_stays(api: KubeApi, space: str, scale: Scale) -> None:
    stored: Json = await api.apply(WORKERS, with_replicas(workers(space), 0), manager=A, force=True)
    moved = with_replicas(workers(space), 0)
    moved["spec"]["selector"] = {"matchLabels": {"app": "y"}}
    moved["spec"]["template"]["metadata"]["labels"] = {"app": "y"}
    await refused(Invalid, api.apply(WORKERS, moved, manager=A, force=True))
    assert stored["spec"]["selector"] == {"matchLabels": {"app": "x"}}
    record = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"a": {"b": 1}}}
    await api.apply(RECORDS, in_space(space, "kept", record), manager=A, force=True)
    again = await api.apply(RECORDS, in_space(space, "kept", {**record, "revision": 2}), manager=A, force=True)
    assert again["revision"] == 2
    await refused(Invalid, api.apply(RECORDS, in_space(space, "kept", {**record, "data": {}}), manager=A, force=True))


async def names_can_be_made_up(api: KubeApi, space: str, scale: Scale) -> None:
    body: Json = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None", "selector": {"a": "b"}}}
    body["spec"]["ports"] = [{"port": 80}]
    body["metadata"] = {"generateName": "made-", "namespace": space}
    one: Json = await api.create(SERVICES, body, manager=A)
    two: Json = await api.create(SERVICES, body, manager=A)
    assert one["metadata"]["name"].startswith("made-")
    assert one["metadata"]["name"] != two["metadata"]["name"]


async def a_list_selects_by_label(api: KubeApi, space: str, scale: Scale) -> None:
    for name, labels in (("one", {"k": "v"}), ("two", {"k": "w"}), ("three", {})):
        body = in_space(space, name, pool(space))
        body["metadata"]["labels"] = labels
        await api.create(POOLS, body, manager=A)
    for selector, names in (("", 3), ("k", 2), ("k=v", 1), ("k=x", 0)):
        assert len((await api.list(POOLS, space, selector)).items) == names, selector
    everywhere = await api.list(POOLS, None, "k=v")
    assert len([item for item in everywhere.items if _space(item) == space]) == 1
    assert (await api.list(POOLS, space)).items[0]["kind"] == "LLMPool"


def _space(body: Json) -> str:
    return str(body["metadata"]["namespace"])


async def a_watch_tells_everything_once_in_order(api: KubeApi, space: str, scale: Scale) -> None:
    since = (await api.list(POOLS, space)).resource_version
    body = pool(space)
    body["metadata"]["labels"] = {"k": "v"}
    stored: Json = await api.create(POOLS, body, manager=A)
    await scale(POOLS, space, "chat-decode", 2)
    unlabelled: Json = await api.get(POOLS, space, "chat-decode")
    unlabelled["metadata"]["labels"] = {}
    await api.replace(POOLS, unlabelled, manager=A)
    await api.delete(POOLS, space, "chat-decode", uid=stored["metadata"]["uid"])
    events = await _watched(api, space, since, "", 4)
    assert [event.change for event in events] == [Change.ADDED, Change.MODIFIED, Change.MODIFIED, Change.DELETED]
    versions = [int(version_of(event.object)) for event in events]
    assert versions == sorted(set(versions))
    selected = await _watched(api, space, since, "k=v", 3)
    assert [event.change for event in selected] == [Change.ADDED, Change.MODIFIED, Change.DELETED]
    assert int(version_of(selected[2].object)) == versions[2]
    rest = await _watched(api, space, str(versions[1]), "", 2)
    assert [int(version_of(event.object)) for event in rest] == versions[2:]


async def _watched(api: KubeApi, space: str, since: str, selector: str, count: int) -> list[WatchEvent]:
    """The events, until `count` have come and none more for two seconds."""
    events: list[WatchEvent] = []
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60) as patience:
            async for event in api.watch(POOLS, space, since, selector, timeout_s=90):
                if event.change is not Change.BOOKMARK:
                    events.append(event)
                if len(events) >= count:
                    patience.reschedule(clock() + 2.0)
    assert len(events) == count, [event.change for event in events]
    return events


async def a_watch_from_long_ago_has_to_list_again(api: KubeApi, space: str, scale: Scale) -> None:
    await api.create(POOLS, pool(space), manager=A)

    async def watch() -> None:
        async for _ in api.watch(POOLS, space, "1", timeout_s=3):
            pass

    await refused(Expired, watch())


CASES: tuple[Case, ...] = (
    what_is_absent_is_filled_in_and_what_is_unknown_is_dropped,
    what_the_schema_does_not_allow_is_refused,
    an_apply_that_changes_nothing_makes_no_new_version,
    a_field_of_another_manager_conflicts_until_it_is_taken,
    a_field_that_its_owner_leaves_out_falls_back_to_its_default,
    a_field_that_another_owns_too_stays,
    entries_of_a_list_are_told_apart_by_name,
    scaling_takes_the_replicas_away_from_who_applied_them,
    status_and_spec_do_not_reach_each_other,
    an_apply_keeps_its_preconditions,
    a_delete_means_one_object_in_one_state,
    a_finalizer_holds_an_object_that_is_deleted,
    a_replace_of_an_old_version_is_refused,
    an_update_takes_what_it_changes,
    what_was_created_goes_once_it_counts_as_applied,
    data_of_a_record_are_kept_in_order_by_a_create_alone,
    a_dry_run_leaves_nothing,
    what_is_fixed_stays,
    names_can_be_made_up,
    a_list_selects_by_label,
    a_watch_tells_everything_once_in_order,
    a_watch_from_long_ago_has_to_list_again,
)
NEWER_CASES: tuple[Case, ...] = (a_mapping_goes_with_the_last_of_its_fields,)
"""Cases that servers of 1.20 answer otherwise (they refuse the null that is left): `e2e/test_schema.py` asks one of
1.36."""
