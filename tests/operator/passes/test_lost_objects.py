"""Deleted objects come back at once, also the key Secret, which is never read; orphaned objects can be adopted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton_control.names import history_name
from baton_operator.kube.kinds import DEPLOYMENTS, EVENTS, PODS, RECORDS, SECRETS, WORKERS
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_operator.kube.object_fields import is_controlled
from baton_operator.objects.metadata import ADOPT_ANNOTATION
from baton_operator.passes.plan_writer import LEAVING_S, PlanWriter, WrittenPlan
from baton_operator.passes.reconcile import Reconciler
from baton_operator.passes.stored_history import read_history
from baton_testing.kube.calm_world import play
from baton_testing.kube.world import NAME, SPACE, World, deployment_body


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_key_secret_is_back_within_seconds_though_nobody_reads_it(is_restarted: bool) -> None:
    async def script(world: World) -> None:
        before = world.store.read(SECRETS, SPACE, "chat-keys")
        world.user_deletes(SECRETS, "chat-keys")
        if is_restarted:
            await world.restart(away_s=60.0)
        await asyncio.sleep(5.0)
        after = world.store.read(SECRETS, SPACE, "chat-keys")
        assert after["data"] == before["data"]
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        await world.settle()
        calls = len(world.kube.made)
        await asyncio.sleep(1000.0)
        later = [call for call in world.kube.made[calls:] if not call.startswith(("watch", "list"))]
        assert later == [], "three resyncs make no request"

    play(script)


def test_a_secret_whose_marker_is_orphaned_or_deleted_is_applied_again() -> None:
    async def script(world: World) -> None:
        world.user_deletes(RECORDS, "chat-keys")
        await world.settle()
        owner = world.store.read(RECORDS, SPACE, "chat-keys")["metadata"]["ownerReferences"][0]
        assert owner["uid"] == world.store.read(SECRETS, SPACE, "chat-keys")["metadata"]["uid"]

    play(script)


def orphan(world: World) -> None:
    """`kubectl delete --cascade=orphan`."""
    uid = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
    world.by_hand = True
    for resource, body in list(world.store.everything()):
        owners = body["metadata"].get("ownerReferences", [])
        left = [owner for owner in owners if owner["uid"] != uid]
        if len(left) != len(owners):
            changed = world.store.read(resource, SPACE, body["metadata"]["name"])
            changed["metadata"]["ownerReferences"] = left
            world.store.replace(resource, changed, "garbage-collector")
    world.store.delete(DEPLOYMENTS, SPACE, NAME)
    world.by_hand = False


def degraded(world: World) -> tuple[str, str]:
    conditions = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["conditions"]
    return next(
        (condition["status"], condition["reason"]) for condition in conditions if condition["type"] == "Degraded"
    )


def test_objects_without_an_owner_are_a_condition_and_an_event_and_an_annotation_takes_them_over() -> None:
    async def script(world: World) -> None:
        await world.stop()
        orphan(world)
        pods = {pod["metadata"]["uid"] for pod in world.store.all(PODS, SPACE)}
        workers = {worker_set["metadata"]["uid"] for worker_set in world.store.all(WORKERS, SPACE)}
        world.start()
        world.user_applies()
        await world.settle()
        assert degraded(world) == ("True", "NameTaken")
        assert "NameTaken" in {event["reason"] for event in world.store.all(EVENTS, SPACE)}
        body = deployment_body()
        body["metadata"]["annotations"] = {ADOPT_ANNOTATION: "true"}
        world.store.apply(DEPLOYMENTS, body, "kubectl", force=True)
        await world.settle()
        assert degraded(world)[0] == "False"
        assert {pod["metadata"]["uid"] for pod in world.store.all(PODS, SPACE)} == pods, "nothing restarted"
        assert {worker_set["metadata"]["uid"] for worker_set in world.store.all(WORKERS, SPACE)} == workers
        uid = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
        for resource in (WORKERS, SECRETS):
            for manifest in world.store.all(resource, SPACE):
                assert [owner["uid"] for owner in manifest["metadata"]["ownerReferences"]] == [uid]

    play(script)


def test_a_history_that_is_taken_over_later_keeps_what_it_had() -> None:
    """Passes before the annotation have begun another history, with what shows at the moment."""

    def subjects(world: World) -> set[str]:
        stored = read_history(world.store.read(RECORDS, SPACE, history_name(NAME)))
        return {change.subject for change in stored.history.entries}

    async def script(world: World) -> None:
        world.user_edits("decode.replicas", {"min": 3, "max": 4})
        await world.settle()
        before = subjects(world)
        assert "decode.replicas.max" in before
        await world.stop()
        orphan(world)
        world.start()
        world.user_applies(decode__replicas={"min": 3, "max": 4})
        await world.settle()
        assert degraded(world) == ("True", "NameTaken")
        assert subjects(world) == before
        body = deployment_body(decode__replicas={"min": 3, "max": 4})
        body["metadata"]["annotations"] = {ADOPT_ANNOTATION: "true"}
        world.store.apply(DEPLOYMENTS, body, "kubectl", force=True)
        await world.settle()
        uid = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
        assert is_controlled(world.store.read(RECORDS, SPACE, history_name(NAME)), uid)
        assert subjects(world) >= {*before, "Degraded True"}

    play(script)


@pytest.mark.parametrize("more", [{}, {"note": "of another version"}], ids=["same bytes", "other bytes"])
def test_a_record_under_another_name_is_taken_over_once_and_fights_no_other(more: dict[str, str]) -> None:
    """As a backup brings it, or another version that wrote the same content otherwise: the name is of other bytes."""

    def records(world: World) -> list[dict[str, Any]]:
        return [
            manifest for manifest in world.store.all(RECORDS, SPACE) if "-templates-" in manifest["metadata"]["name"]
        ]

    async def script(world: World) -> None:
        await world.stop()
        orphan(world)
        [old] = records(world)
        world.by_hand = True
        world.store.delete(RECORDS, SPACE, old["metadata"]["name"])
        metadata = {
            key: old["metadata"][key] for key in ("namespace", "labels", "annotations") if key in old["metadata"]
        }
        copied = {key: old[key] for key in ("apiVersion", "kind", "revision", "data")}
        copied["data"] |= more  # the data of a record cannot be changed: it is made anew
        world.store.create(RECORDS, copied | {"metadata": {**metadata, "name": "chat-templates-0000000000"}}, "kubectl")
        world.by_hand = False
        world.start()
        world.user_applies()
        await world.settle()
        body = deployment_body()
        body["metadata"]["annotations"] = {ADOPT_ANNOTATION: "true"}
        world.store.apply(DEPLOYMENTS, body, "kubectl", force=True)
        await asyncio.sleep(60.0)
        await world.settle()
        uid = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
        assert [record["metadata"]["ownerReferences"][0]["uid"] for record in records(world)] == [uid]
        calls = len(world.kube.made)
        await asyncio.sleep(1000.0)
        assert [call for call in world.kube.made[calls:] if not call.startswith(("watch", "list"))] == []

    play(script)


@pytest.mark.parametrize(
    ("label", "adopts", "is_taken_over"), [(NAME, True, True), (NAME, False, False), ("other", True, False)]
)
def test_a_secret_that_a_backup_wrote_is_taken_over_by_whom_its_label_names_and_who_adopts(
    label: str, adopts: bool, is_taken_over: bool
) -> None:
    async def script(world: World) -> None:
        await world.stop()
        world.by_hand = True
        orphan(world)
        world.store.delete(SECRETS, SPACE, "chat-keys")
        metadata = {"name": "chat-keys", "namespace": SPACE, "labels": {DEPLOYMENT_LABEL: label}}
        world.store.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}}, "velero")
        world.by_hand = False
        world.start()
        body = deployment_body()
        body["metadata"]["annotations"] = {ADOPT_ANNOTATION: "true"} if adopts else {}
        world.store.apply(DEPLOYMENTS, body, "kubectl", force=True)
        await asyncio.sleep(60.0)
        uid = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
        assert is_controlled(world.store.read(SECRETS, SPACE, "chat-keys"), uid) is is_taken_over
        assert (degraded(world)[1] == "NameTaken") is not is_taken_over

    play(script)


def test_what_another_object_controls_is_never_taken_over() -> None:
    async def script(world: World) -> None:
        await world.stop()
        orphan(world)
        theirs = world.store.read(WORKERS, SPACE, "chat-gateway")
        uid = world.store.read(SECRETS, SPACE, "chat-keys")["metadata"]["uid"]
        controller = {"apiVersion": "v1", "kind": "Secret", "name": "chat-keys", "uid": uid, "controller": True}
        theirs["metadata"]["ownerReferences"] = [controller]
        world.by_hand = True
        world.store.replace(WORKERS, theirs, "kubectl")
        world.by_hand = False
        world.start()
        adopting = deployment_body()
        adopting["metadata"]["annotations"] = {ADOPT_ANNOTATION: "true"}
        world.store.apply(DEPLOYMENTS, adopting, "kubectl", force=True)
        await world.settle()
        assert degraded(world) == ("True", "NameTaken")
        owners = world.store.read(WORKERS, SPACE, "chat-gateway")["metadata"]["ownerReferences"]
        assert [owner["kind"] for owner in owners] == ["Secret"]

    play(script)


def test_nothing_is_remembered_of_a_deployment_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that runs for months sees thousands of deployments, and often the same names again."""
    made: list[Reconciler] = []

    class KeptReconciler(Reconciler):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr("baton_operator.runtime.Reconciler", KeptReconciler)

    async def script(world: World) -> None:
        [reconciler] = made
        former = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
        world.user_deletes(DEPLOYMENTS, NAME)
        await world.settle()
        assert reconciler._applier.writes_to(former) == 0
        assert not reconciler._reporter._memories
        world.user_applies()
        await world.settle()
        later = world.store.read(DEPLOYMENTS, SPACE, NAME)["metadata"]["uid"]
        assert set(reconciler._reporter._memories) == {later}

    play(script)


def test_a_pass_comes_again_soon_for_a_record_that_is_being_deleted_and_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []

    class KeptWriter(PlanWriter):
        async def write(self, *args: Any) -> WrittenPlan:
            written = await super().write(*args)
            waits.append(written.again_s)
            return written

    monkeypatch.setattr("baton_operator.passes.reconcile.PlanWriter", KeptWriter)

    async def script(world: World) -> None:
        assert waits
        assert not any(waits), "a record that was written needs no other pass"
        [record] = [r for r in world.store.all(RECORDS, SPACE) if "-templates-" in r["metadata"]["name"]]
        name = record["metadata"]["name"]
        held = world.store.read(RECORDS, SPACE, name)
        held["metadata"]["finalizers"] = ["example.com/backup"]
        world.store.replace(RECORDS, held, "backup")
        world.user_deletes(RECORDS, name)
        await asyncio.sleep(30.0)
        assert waits[-1] == LEAVING_S
        leaving = world.store.read(RECORDS, SPACE, name)
        leaving["metadata"]["finalizers"] = []
        world.store.replace(RECORDS, leaving, "backup")
        await world.settle()
        assert waits[-1] is None
        assert world.store.read(RECORDS, SPACE, name)["metadata"]["uid"] != record["metadata"]["uid"]

    play(script)
