"""`kubectl baton` against an API server that forwards ports to gateways' and workers' pages."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from baton_control.history_facts import HISTORY_ANNOTATION, StoredHistory
from baton_local.doctor.cluster_reading import connect
from baton_local.kubectl import pod_access, pod_logs
from baton_local.kubectl.__main__ import main
from baton_local.kubectl.cluster_record import run_record
from baton_local.kubectl.pod_access import ADMIN_PORT, PodAccess
from baton_local.kubectl.pod_logs import merge_lines, parse_lines, run_cluster_logs
from baton_operator.objects.cluster import ADMIN_ADDRESS
from baton_testing.kube.forwarding_cluster import API, DEPLOYMENT, FakeCluster, pod, write_config
from baton_wire.deployment_history import ChangeKind, DeploymentHistory, make_change


def test_get_lists_pools_with_targets_and_reasons(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "--timeout", "60s"]) == 0
    out = capsys.readouterr().out
    assert "p95 412ms/500ms" in out
    assert "chat: limited: decode is at its maximum" in out
    assert "chat: decode 2 to 3 at 2026-11-29T10:00:00Z: TPOT p95 40 ms" in out


def test_top_adds_up_all_gateway_pods_and_names_those_that_are_silent(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", "--format", "json", "--timeout", "60s"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["running"], page["queue"]["gateway"]) == (6, 4)
    assert page["tenants"][0] | {"share": None} == {"name": "batch", "running": 4, "waiting": 4, "share": None}
    assert page["pools"]["decode"]["reason"] == "decode 3: at its maximum"
    assert page["pools"]["decode"]["kv_used"] == 0.5
    cluster.closed = {"chat-gateway-b"}
    assert main(["top", "--once", "--timeout", "60s"]) == 0
    captured = capsys.readouterr()
    assert "gateway: 3 running, 2 waiting" in captured.out
    assert "chat-gateway-b (port 8002: connection refused) did not answer" in captured.err


def test_a_gateway_of_another_version_is_named_as_such(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.pages["/state"] = b'{"processes": 7}'
    assert main(["top", "--once", "--timeout", "60s"]) == 1
    assert "a gateway of another version answered: Expected `array`" in capsys.readouterr().err


def test_explain_asks_every_gateway_pod_and_a_silent_one_costs_one_deadline(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.stuck = {"chat-gateway-b"}
    assert main(["explain", "id-1", "--timeout", "8s"]) == 1
    captured = capsys.readouterr()
    assert "no record was found" in captured.out
    assert "chat-gateway-b (no answer within 8 s) did not answer" in captured.err
    cluster.closed, cluster.stuck = {"chat-gateway-a", "chat-gateway-b"}, set()
    assert main(["explain", "--timeout", "60s"]) == 1
    assert "no gateway answered: chat-gateway-a (port 8002" in capsys.readouterr().err


def test_history_comes_from_the_gateways(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--kind", "decision", "--timeout", "60s"]) == 0
    assert "2 to 3: TPOT" in capsys.readouterr().out


def test_history_comes_from_the_operators_own_object_where_that_may_be_read(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    change = make_change(1e9, ChangeKind.SPEC, "slo.ttft.target", "500ms to 300ms")
    stored = StoredHistory(DeploymentHistory((change,)))
    annotations = {HISTORY_ANNOTATION: msgspec.json.encode(stored).decode()}
    cluster.records["chat-history"] = {"metadata": {"name": "chat-history", "annotations": annotations}}
    cluster.pods = []
    assert main(["history", "--timeout", "60s"]) == 0
    assert "slo.ttft.target  500ms to 300ms" in capsys.readouterr().out


def test_logs_are_merged_by_time_and_move_no_cursor(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--timeout", "60s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" | ")[2] for line in lines] == ["first", "second [2J", "third"]
    assert main(["logs", "decode", "--timeout", "60s"]) == 0
    assert "first" not in capsys.readouterr().out
    assert main(["logs", "nothing"]) == 2


def test_followed_logs_go_on_where_each_pod_was_read_and_take_new_pods_from_the_beginning(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt
        cluster.logs["chat-decode-0"] += "2026-11-29T10:00:03Z fourth\n"
        cluster.logs["chat-decode-1"] = "2026-11-29T10:00:02.5Z new\n"
        cluster.pods.append(pod("chat-decode-1", "decode"))

    with pytest.raises(KeyboardInterrupt):
        run_cluster_logs(PodAccess(connect(None, None, 60.0), 60.0), None, "decode", 600.0, True, pause)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" | ")[2] for line in lines] == ["second [2J", "new", "fourth"]
    assert cluster.since == [
        ("chat-decode-0", ""),
        ("chat-decode-0", "2026-11-29T10:00:01.123456789Z"),
        ("chat-decode-1", ""),
    ]


def test_a_log_that_its_limit_cuts_ends_with_a_whole_line_and_says_what_is_missing(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pod_access, pod_logs):
        monkeypatch.setattr(module, "MAX_LOG_BYTES", 40)
    assert main(["logs", "chat-gateway-a", "--timeout", "60s"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "2026-11-29T10:00:00.500000000Z chat-gateway-a | first\n"
    assert "chat-gateway-a: lines after 2026-11-29T10:00:00.500000000Z are missing" in captured.err


def test_doctor_reports_what_it_may_not_read_as_unknown(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--format", "json", "--timeout", "60s"]) == 0
    states = {finding["check"]: finding["state"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert {check for check, state in states.items() if state != "unknown"} == {"context", "server", "deployments"}
    assert {states[check] for check in ("context", "server", "deployments")} == {"ok"}


def test_a_server_that_does_not_answer_is_named_within_the_deadline(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.stuck = {API}
    assert main(["get", "--timeout", "1s"]) == 1
    assert "no answer within 1 s" in capsys.readouterr().err


def test_calls_and_forwarded_ports_go_over_the_proxy_of_the_kubeconfig(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load((tmp_path / "config").read_text())
    proxy = config["clusters"][0]["cluster"]["server"]
    write_config(tmp_path, {"server": "http://api.invalid", "proxy-url": proxy})
    assert main(["history", "--timeout", "60s"]) == 0
    assert "2 to 3: TPOT" in capsys.readouterr().out
    assert cluster.hosts == {"api.invalid"}
    write_config(tmp_path, {"server": "http://api.invalid", "proxy-url": "socks5://user:secret@127.0.0.1:1"})
    assert main(["get"]) == 1
    message = capsys.readouterr().err
    assert "the kubeconfig's proxy-url has the scheme 'socks5': must be http://HOST:PORT" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("path", "command", "right"),
    [
        ("/llmdeployments", ["get"], "list llmdeployments.baton.dev"),
        ("/pods", ["top", "--once"], "list pods"),
        ("/portforward", ["explain"], "get pods/portforward"),
        ("/log", ["logs"], "get pods/log"),
    ],
)
def test_a_missing_right_is_named_by_verb_and_resource(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], path: str, command: list[str], right: str
) -> None:
    cluster.forbidden = path
    assert main([*command, "--timeout", "60s"]) == 1
    assert f"may not {right} in the namespace team-a" in capsys.readouterr().err


def test_an_unknown_deployment_is_refused_with_the_names_that_are_there(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", "--name", "chta", "--timeout", "60s"]) == 2
    assert "there are chat" in capsys.readouterr().err


def test_the_port_is_where_the_operator_has_gateways_listen() -> None:
    assert f"127.0.0.1:{ADMIN_PORT}" == ADMIN_ADDRESS


def test_a_pod_that_is_not_ready_has_its_reason_as_phase() -> None:
    crashing = pod("chat-decode-1", "decode")
    crashing["status"] = {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    pending = pod("chat-decode-2", "decode")
    pending["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    record = run_record(DEPLOYMENT, [crashing, pending], {})
    assert [process.phase for process in record.processes] == ["CrashLoopBackOff", "Unschedulable"]
    assert record.limits == {"prefill": (1, 2), "decode": (1, 3)}
    assert record.wanted == {"prefill": 1, "decode": 3}


def test_time_stamps_of_different_lengths_sort_by_time() -> None:
    early, late = b"2026-11-29T10:00:00Z a\n", b"2026-11-29T10:00:00.1Z b\n"
    assert [line.text for line in merge_lines([parse_lines("x", late, ""), parse_lines("y", early, "")])] == ["a", "b"]
    assert parse_lines("x", late, "2026-11-29T10:00:00.100000000Z") == []
