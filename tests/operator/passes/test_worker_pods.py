"""Workers by their Pods, and routing by their readiness."""

from __future__ import annotations

from typing import Any

import pytest

from baton_control.spec.pod_options import RESERVED_ARGUMENTS
from baton_operator.passes.pod_problems import FIELDS_OF_FLAGS
from baton_operator.passes.worker_pods import (
    PodCounts,
    Readiness,
    WorkerPod,
    count_pods,
    placement_s,
    worker_pods,
)
from baton_wire.messages.values import Role

KEY = (Role.DECODE, "abc")


def pod(uid: str = "1", ready: bool = True, role: str = "decode", **status: object) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"chat-decode-abc-x-{uid}",
            "uid": uid,
            "labels": {"baton.dev/deployment": "chat", "baton.dev/role": role, "baton.dev/template": "abc"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"chat-{role}-abc-5575d8c8c7", "controller": True}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}], **status},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"image": "baton", "state": {"waiting": {"reason": reason, "message": message}}}]}


def only(raw: dict[str, Any]) -> WorkerPod:
    (worker,) = worker_pods([raw], "chat")
    return worker


def test_a_pod_that_only_wears_our_labels_is_no_worker() -> None:
    spoof = pod()
    spoof["metadata"]["ownerReferences"] = []
    other = pod()
    other["metadata"]["ownerReferences"][0]["name"] = "chat-decode-abcd-5575d8c8c7"
    gateway = pod(role="gateway")
    done = pod(phase="Succeeded")
    assert worker_pods([spoof, other, gateway, done], "chat") == ()


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull"])
def test_an_image_that_cannot_be_pulled_is_one_failure_in_the_same_words(reason: str) -> None:
    assert only(pod(ready=False, **waiting(reason, "changing text"))).failure == "the image baton cannot be pulled"


def test_a_crash_keeps_its_words_while_the_container_waits_and_tries() -> None:
    ended = {"lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no such model\n"}}}
    waits = {"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, **ended}
    tries = {"restartCount": 2, "state": {"running": {}}, **ended}
    texts = {only(pod(ready=False, containerStatuses=[state])).failure for state in (waits, tries)}
    assert texts == {"Error, exit code 3: no such model"}
    line = '{"time": "t", "level": "ERROR", "logger": "baton", "message": "no such model"}'
    ended["lastState"]["terminated"]["message"] = f"{line}\n"
    assert only(pod(ready=False, containerStatuses=[waits])).failure.endswith("3: t ERROR baton no such model")
    assert only(pod(ready=True, containerStatuses=[tries])).failure == "", "it has come up"


def test_a_flag_that_a_worker_refuses_is_named_by_its_field() -> None:
    message = "baton_decode_worker: argument --tensor-parallel: 8 is not supported: 2 KV heads; allowed: 1, 2"
    ended = {"lastState": {"terminated": {"exitCode": 2, "reason": "Error", "message": message}}}
    waits = {"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, **ended}
    failure = only(pod(ready=False, role="decode", containerStatuses=[waits])).failure
    assert failure.endswith("spec.decode.tensorParallel: 8 is not supported: 2 KV heads; allowed: 1, 2")
    message = message.replace("--tensor-parallel", "--threads")
    ended["lastState"]["terminated"]["message"] = message
    other = only(pod(ready=False, role="decode", containerStatuses=[waits])).failure
    assert other.endswith(message), "a flag without a field stays what it is"
    assert set(FIELDS_OF_FLAGS) <= set(RESERVED_ARGUMENTS)


def placed(number: int, started: str | None, restarts: int = 0, role: str = "decode") -> WorkerPod:
    state: dict[str, Any] = (
        {"waiting": {}} if started is None else {"running": {"startedAt": f"2026-11-22T10:{started}Z"}}
    )
    raw = pod(str(number), role=role, containerStatuses=[{"restartCount": restarts, "state": state}])
    raw["metadata"]["creationTimestamp"] = f"2026-11-22T10:{number:02}:00Z"
    return only(raw)


def test_what_a_worker_waits_for_before_it_runs_is_the_slowest_but_one_of_the_newest() -> None:
    slow, quick = placed(0, "02:30"), placed(1, "01:04")
    assert (slow.placed_s, quick.placed_s) == (150.0, 4.0)
    other = (placed(2, None), placed(3, "59:00", restarts=1), placed(4, "05:00", role="prefill"), only(pod()))
    assert [worker.placed_s for worker in other] == [None, None, 60.0, None], "started again, or of unknown age"
    assert placement_s((slow, quick, *other), Role.DECODE) == 150.0
    newer = [
        placed(10 + place, f"{10 + place}:{seconds:02}") for place, seconds in enumerate((3, 4, 5, 6, 7, 8, 9, 58))
    ]
    assert placement_s((*newer, slow, quick), Role.DECODE) == 9.0
    assert placement_s(other, Role.DECODE) is None


def test_a_pod_without_a_node_says_why() -> None:
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    raw = pod(ready=False)
    raw["status"]["conditions"].append(placed)
    assert only(raw).unschedulable == "0/3 nodes: no GPU"
    assert only(raw).failure == ""


def test_pods_are_counted_by_template() -> None:
    leaving = pod("3")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    counts = count_pods(worker_pods([pod("1"), pod("2", ready=False, **waiting("ErrImagePull")), leaving], "chat"))
    assert counts == {
        KEY: PodCounts(existing=3, leaving=1, ready=1, failing=1, message="the image baton cannot be pulled"),
    }


def worker(uid: str, ready: bool = True, leaving: bool = False) -> WorkerPod:
    return WorkerPod(uid, *KEY, ready=ready, leaving=leaving)


def test_a_ready_worker_counts_after_it_has_settled() -> None:
    readiness = Readiness(settle_s=15.0)
    first = readiness.routable("o", [worker("1")], {}, 100.0)
    assert (dict(first.routable), first.again_at) == ({}, 115.0)
    later = readiness.routable("o", [worker("1")], {}, 115.0)
    assert (dict(later.routable), later.again_at) == ({KEY: 1}, None)


def test_a_restarted_operator_believes_the_status_about_workers_that_are_ready() -> None:
    readiness = Readiness(settle_s=15.0)
    now = readiness.routable("o", [worker("1"), worker("2"), worker("3")], {KEY: 2}, 100.0)
    assert now.routable == {KEY: 2}
    again = readiness.routable("o", [worker("4")], {KEY: 2}, 101.0)
    assert dict(again.routable) == {}, "only the first time"


def test_a_worker_that_loses_its_readiness_leaves_a_doubt_and_does_not_count() -> None:
    readiness = Readiness(settle_s=15.0, doubt_s=60.0)
    readiness.routable("o", [worker("1")], {KEY: 1}, 100.0)
    lost = readiness.routable("o", [worker("1", ready=False)], {}, 130.0)
    assert (dict(lost.routable), lost.doubtful, lost.again_at) == ({}, frozenset({KEY}), 190.0)
    assert not readiness.routable("o", [worker("1", ready=False)], {}, 190.0).doubtful
    assert not readiness.routable("o", [worker("1", ready=False, leaving=True)], {}, 131.0).doubtful


def test_a_worker_that_was_never_ready_leaves_no_doubt() -> None:
    assert not Readiness().routable("o", [worker("1", ready=False)], {}, 0.0).doubtful


def test_a_flexible_worker_tells_who_it_is_where_it_is_and_what_it_was_given() -> None:
    raw = pod()
    raw["metadata"]["ownerReferences"][0]["name"] = "chat-flexible-abc-5575d8c8c7"
    raw["metadata"]["annotations"] = {"baton.dev/assigned": "true"}
    raw["status"]["podIP"] = "10.0.0.7"
    worker = only(raw)
    assert (worker.role, worker.name, worker.address) == (Role.DECODE, "chat-decode-abc-x-1", "10.0.0.7")
    assert (worker.is_assigned, worker.is_spare) == (True, False)
    raw["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] = "-1"
    assert only(raw).is_spare
    assert not only(pod()).is_assigned
