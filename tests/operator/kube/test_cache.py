"""A cache never goes back in time, whatever a watch, a list or a write brings late."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton_control.names import Key
from baton_operator.kube.cache import CREATED, REPLICA_OWNERS, Cache
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POOLS, SERVICES
from baton_operator.kube.kube_api import Change, Listing, Resource, WatchEvent

KEY = Key("ns", "chat")


def service(version: int, uid: str = "1", name: str = "chat-gateway", label: str | None = "chat") -> dict[str, Any]:
    labels = {} if label is None else {"baton.dev/deployment": label}
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "spec": {"version": version}}


def cache(resource: Resource = SERVICES) -> tuple[Cache, list[Key]]:
    changed: list[Key] = []
    return Cache(resource, changed.append), changed


def event(change: Change, body: dict[str, Any]) -> WatchEvent:
    return WatchEvent(change, body)


def version_of(filled: Cache) -> int | None:
    live = filled.get("ns", "chat-gateway")
    return None if live is None else live["spec"]["version"]  # type: ignore[index]


def test_what_a_write_brought_back_outlasts_older_events() -> None:
    filled, changed = cache()
    filled.apply_event(event(Change.ADDED, service(1)))
    filled.store(service(5))
    filled.apply_event(event(Change.MODIFIED, service(3)))
    assert version_of(filled) == 5
    assert changed == [KEY, KEY], "the old event changes nothing"


def test_a_late_event_does_not_bring_back_what_is_gone() -> None:
    filled, _ = cache()
    filled.apply_event(event(Change.ADDED, service(1)))
    filled.apply_event(event(Change.DELETED, service(4)))
    filled.apply_event(event(Change.MODIFIED, service(3)))
    assert version_of(filled) is None
    filled.apply_event(event(Change.ADDED, service(6, uid="2")))
    assert version_of(filled) == 6


def test_a_pool_whose_label_was_taken_off_is_still_the_one_that_its_spec_names() -> None:
    filled, changed = cache(POOLS)
    for version, label in ((1, "chat"), (2, None)):
        body = service(version, name="chat-decode", label=label) | {"spec": {"deployment": "chat", "replicas": version}}
        filled.apply_event(event(Change.MODIFIED, body))
    live = filled.get("ns", "chat-decode")
    assert live is not None
    assert live["spec"] == {"deployment": "chat", "replicas": 2}
    assert changed == [KEY, KEY]


def test_a_late_deletion_does_not_take_the_successor() -> None:
    filled, _ = cache()
    filled.apply_event(event(Change.ADDED, service(1)))
    filled.store(service(6, uid="2"))
    filled.apply_event(event(Change.DELETED, service(4, uid="1")))
    assert version_of(filled) == 6


def test_a_list_takes_away_what_it_does_not_have_unless_that_is_newer() -> None:
    filled, changed = cache()
    filled.store(service(3, name="a"))
    filled.store(service(9, uid="2", name="b"))
    changed.clear()
    filled.apply_list(Listing((service(5),), "7"), "ns")
    assert filled.get("ns", "a") is None
    assert filled.get("ns", "b") is not None
    assert len(filled) == 2
    assert changed == [KEY, KEY], "one came, one went"
    filled.apply_list(Listing((), "99"), "elsewhere")
    assert len(filled) == 2, "another namespace's list says nothing"


def test_an_object_without_our_label_is_none_of_ours() -> None:
    filled, changed = cache()
    filled.apply_event(event(Change.ADDED, service(1, label=None)))
    assert (len(filled), changed) == (0, [])


def test_a_pod_is_reduced_and_a_change_of_what_is_left_out_is_no_change() -> None:
    filled, changed = cache(PODS)
    pod = service(1)
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.1"}
    filled.apply_event(event(Change.ADDED, pod))
    filled.apply_event(event(Change.MODIFIED, {**service(2), "status": {"phase": "Running", "podIP": "10.0.0.2"}}))
    assert changed == [KEY]
    assert filled.of(KEY)[0]["status"] == {"phase": "Running"}


def test_the_owners_of_replicas_are_read_from_the_managed_fields() -> None:
    filled, _ = cache(POOLS)
    pool = service(1) | {"spec": {"deployment": "chat"}}
    pool["metadata"]["managedFields"] = [
        {"manager": "baton-scaler", "fieldsV1": {"f:spec": {"f:role": {}}}},
        {"manager": "kubectl", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    filled.apply_event(event(Change.ADDED, pool))
    facade = filled.of(KEY)[0]
    assert facade[REPLICA_OWNERS] == ["kubectl"]
    assert "managedFields" not in facade["metadata"]  # type: ignore[operator]


def test_what_the_operator_created_and_never_applied_is_told() -> None:
    filled, _ = cache()
    entry = {"manager": "baton-operator", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    for version, managed in (
        (1, [entry]),
        (2, [{**entry, "operation": "Apply"}]),
        (3, [{**entry, "manager": "other"}]),
    ):
        body = service(version)
        body["metadata"]["managedFields"] = managed
        filled.apply_event(event(Change.MODIFIED, body))
        live = filled.get("ns", "chat-gateway")
        assert live is not None
        assert (CREATED in live["metadata"]) is (version == 1)  # type: ignore[operator]


def test_a_deployment_is_its_own_key() -> None:
    filled, changed = cache(DEPLOYMENTS)
    filled.apply_event(event(Change.ADDED, service(1, name="chat", label=None)))
    assert (changed, filled.deployments()) == ([KEY], (KEY,))


@given(st.permutations(range(1, 9)), st.integers(0, 8))
def test_any_order_of_events_ends_with_the_newest(order: list[int], deleted_at: int) -> None:
    filled, _ = cache()
    for version in order:
        filled.apply_event(event(Change.DELETED if version == deleted_at else Change.MODIFIED, service(version)))
    assert version_of(filled) == (None if deleted_at == 8 else 8)


def test_a_note_goes_with_the_next_change_of_the_object() -> None:
    filled, _ = cache()
    filled.mark("ns", "chat-gateway", "as wanted")
    assert filled.mark_of("ns", "chat-gateway") is None, "there is nothing to note it about"
    filled.apply_event(event(Change.ADDED, service(1)))
    filled.mark("ns", "chat-gateway", "as wanted")
    filled.apply_event(event(Change.MODIFIED, service(1)))
    assert filled.mark_of("ns", "chat-gateway") == "as wanted", "heard twice is no change"
    filled.apply_event(event(Change.MODIFIED, service(2)))
    assert filled.mark_of("ns", "chat-gateway") is None
    filled.mark("ns", "chat-gateway", "as wanted")
    filled.apply_event(event(Change.DELETED, service(3)))
    filled.apply_event(event(Change.ADDED, service(4, uid="2")))
    assert filled.mark_of("ns", "chat-gateway") is None


def test_what_is_not_ours_counts_as_absent_and_what_ceases_to_be_ours_is_gone() -> None:
    changed: list[Key] = []
    filled = Cache(SERVICES, changed.append, ours=lambda manifest: manifest["spec"] == "ours")
    mine, place = "ours", ("ns", "chat-gateway")
    for version, spec in ((1, "theirs"), (2, mine), (3, "theirs"), (4, mine)):
        filled.apply_event(event(Change.MODIFIED, service(version) | {"spec": spec}))
        assert (filled.get(*place) is not None) is (spec == mine)
    filled.apply_list(Listing((service(5) | {"spec": "theirs"},), "5"), None)
    assert filled.get(*place) is None
    assert changed == [KEY] * 4
