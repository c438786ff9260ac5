"""The report of a set-up on real Pods that do not start."""

from __future__ import annotations

import subprocess
from pathlib import Path

from baton_testing.pods.kubectl import Json, Kubectl
from baton_testing.pods.trouble_report import (
    ended_parts,
    of_deployments,
    of_events,
    of_nodes,
    of_pods,
    trouble_report,
)


def test_a_part_of_the_cluster_that_has_ended_is_told_with_its_last_words(tmp_path: Path) -> None:
    for name in ("run", "log"):
        (tmp_path / name).mkdir()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as alive:
        with subprocess.Popen(["true"], start_new_session=True) as gone:
            gone.wait(30)
        (tmp_path / "run" / "kubelet1.pid").write_text(f"{alive.pid}\n", encoding="ascii")
        (tmp_path / "run" / "kube-proxy.pid").write_text(f"{gone.pid}\n", encoding="ascii")
        log = "Version: v1.20.2\nF1 the configuration file was updated\ngoroutine 1 [running]:\n" + "\tat x\n" * 50
        (tmp_path / "log" / "kube-proxy.log").write_text(log, encoding="utf-8")
        ended = ended_parts(tmp_path)
        alive.kill()
    assert ended == [
        "PART kube-proxy OF THE CLUSTER HAS ENDED",
        "kube-proxy: Version: v1.20.2",
        "kube-proxy: F1 the configuration file was updated",
    ]


def test_a_pod_says_what_its_container_waits_for_and_ended_with() -> None:
    state: Json = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    before: Json = {"terminated": {"reason": "Error", "exitCode": 1, "message": "line 1\nline 2"}}
    status: Json = {"name": "operator", "restartCount": 3, "state": state, "lastState": before}
    pending: Json = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    placed = pod("a", {"phase": "Running", "containerStatuses": [status]}, nodeName="node1")
    waiting = pod("b", {"phase": "Pending", "conditions": [pending]})
    assert of_pods([placed, waiting]) == [
        "pod a: Running on node1; operator: restarts 3, waiting CrashLoopBackOff back-off 10s; "
        "before: terminated Error 1 line 1 | line 2",
        "pod b: Pending on no node; PodScheduled False: 0/2 nodes are available",
    ]
    assert of_pods([]) == ["there is no Pod"]


def test_only_nodes_that_take_no_pods_are_told() -> None:
    taint: Json = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    ready: Json = {"type": "Ready", "status": "True"}
    nodes: list[Json] = [
        {"metadata": {"name": "fine"}, "spec": {}, "status": {"conditions": [ready]}},
        {
            "metadata": {"name": "full"},
            "spec": {"taints": [taint]},
            "status": {
                "conditions": [
                    {"type": "Ready", "status": "Unknown", "message": "silent"},
                    {"type": "DiskPressure", "status": "True", "message": "no room"},
                ]
            },
        },
    ]
    assert of_nodes(nodes) == [
        "node full: Ready Unknown: silent",
        "node full: DiskPressure True: no room",
        "node full: taint node.kubernetes.io/not-ready:NoSchedule",
    ]


def test_a_deployment_without_conditions_has_no_controller() -> None:
    wrong: Json = {"type": "ReplicaFailure", "status": "True", "message": "no ServiceAccount"}
    deployments: list[Json] = [
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "b"}, "status": {"conditions": [wrong]}},
    ]
    assert of_deployments(deployments) == [
        "deployment a: no controller has looked at it",
        "deployment b: ReplicaFailure True: no ServiceAccount",
    ]


def test_events_are_told_in_the_order_of_time() -> None:
    about: Json = {"kind": "Pod", "name": "a"}
    late: Json = {
        "metadata": {"creationTimestamp": "1"},
        "lastTimestamp": "3",
        "involvedObject": about,
        "reason": "Unhealthy",
        "message": "probe failed\n",
        "count": 7,
    }
    early: Json = {"metadata": {"creationTimestamp": "2"}, "involvedObject": about, "reason": "Scheduled"}
    assert of_events([late, early]) == [
        "event 2 Pod a Scheduled: ",
        "event 3 Pod a Unhealthy: probe failed (7 times)",
    ]


def test_a_report_without_a_server_says_so(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho connection refused >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    report = trouble_report(Kubectl("here", str(program)), None)
    assert "pods: kubectl get pods -l  -o json: connection refused" in report.splitlines()


def pod(name: str, status: Json, **spec: str) -> Json:
    return {"metadata": {"name": name}, "spec": spec, "status": status}
