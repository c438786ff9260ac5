"""What the doctor says of a cluster, from facts and from a server's answers."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from baton_local.__main__ import main
from baton_local.doctor.cluster_checks import check_cluster
from baton_local.doctor.cluster_facts import ClusterFacts, DeploymentFacts, LeaseFacts
from baton_local.doctor.cluster_reading import own_fields
from baton_local.doctor.finding import State
from baton_operator.schema.crd import definitions

OWN = {"llmdeployments.baton.dev": frozenset({"spec", "spec.model"}), "llmpools.baton.dev": frozenset({"spec"})}
LEASE = LeaseFacts("baton-operator", "pod-1_ab", 3.0, 15.0)
RIGHTS = {"create llmdeployments": True, "list pods": True}
HEALTHY = ClusterFacts(
    "prod", "team-a", "baton-system", version=(1, 34), fields=dict(OWN), leases=(LEASE,), ready_operators=2,
    rights=RIGHTS, accelerators=8, default_classes=("fast",), deployments=(DeploymentFacts("chat", True, "", ""),),
)  # fmt: skip
OLD = {**OWN, "llmdeployments.baton.dev": frozenset({"spec"})}
NEW = {**OWN, "llmpools.baton.dev": frozenset({"spec", "spec.more"})}


def test_a_cluster_in_order_has_no_finding() -> None:
    assert {finding.state for finding in check_cluster(HEALTHY, OWN)} == {State.OK}


PLANTED: list[tuple[dict[str, Any], str, State, str, str]] = [
    ({"version": (1, 30)}, "server", State.FAILED, "1.30 is too old", "upgrade"),
    ({"version": None}, "server", State.UNKNOWN, "version", ""),
    ({"fields": {**OWN, "llmpools.baton.dev": None}}, "definitions", State.FAILED, "is not installed", "kubectl apply"),
    ({"fields": OLD}, "definitions", State.WARNING, "older than this baton: it lacks spec.model", "helm upgrade"),
    ({"fields": NEW}, "definitions", State.WARNING, "newer than this baton: it has spec.more", "install the version"),
    ({"fields": None}, "definitions", State.UNKNOWN, "may not read", ""),
    ({"leases": ()}, "operator", State.FAILED, "no operator was ever active", "helm upgrade --install"),
    ({"leases": (replace(LEASE, age_s=60.0),)}, "operator", State.FAILED, "renewed 60 s ago", "logs deployment/baton"),
    ({"leases": (replace(LEASE, holder=""),)}, "operator", State.FAILED, "not active", "get pods"),
    ({"leases": (replace(LEASE, age_s=None),)}, "operator", State.UNKNOWN, "does not say", ""),
    ({"leases": None}, "operator", State.UNKNOWN, "may not read Leases", ""),
    ({"ready_operators": 0}, "operator", State.WARNING, "none of its Pods", "get pods"),
    ({"rights": {**RIGHTS, "list pods": False}}, "rights", State.WARNING, "may not list pods", "rolebinding"),
    ({"rights": None}, "rights", State.UNKNOWN, "did not say", ""),
    ({"accelerators": 0}, "gpus", State.WARNING, "no node offers", "device plugin"),
    ({"accelerators": None}, "gpus", State.UNKNOWN, "may not list nodes", ""),
    ({"default_classes": ()}, "storage", State.WARNING, "no StorageClass", "storageClassName"),
    ({"default_classes": None}, "storage", State.UNKNOWN, "may not list", ""),
    ({"deployments": (DeploymentFacts("chat", False, "ImagePull", "x"),)}, "deployments", State.WARNING,
     "chat is not ready: ImagePull: x", "describe llm chat"),
    ({"deployments": None}, "deployments", State.UNKNOWN, "could not be listed", ""),
]  # fmt: skip


@pytest.mark.parametrize(("change", "check", "state", "text", "fix"), PLANTED)
def test_each_planted_fault_is_the_one_finding(
    change: dict[str, Any], check: str, state: State, text: str, fix: str
) -> None:
    [finding] = [f for f in check_cluster(replace(HEALTHY, **change), OWN) if f.state is not State.OK]
    assert (finding.check, finding.state) == (check, state)
    assert text in finding.text
    assert fix in finding.fix
    assert bool(finding.fix) is (state is not State.UNKNOWN)


def test_the_fields_of_this_version_are_paths_of_its_definitions() -> None:
    fields = own_fields()
    assert set(fields) == {"llmdeployments.baton.dev", "llmpools.baton.dev", "llmtenants.baton.dev"}
    assert "spec.prefill.replicas.min" in fields["llmdeployments.baton.dev"]


class ApiServer(http.server.BaseHTTPRequestHandler):
    """A cluster in which everything is in order, apart from rights on Pods' logs; nodes may not be listed."""

    def do_GET(self) -> None:
        renewed = (datetime.now(UTC) - timedelta(seconds=2)).isoformat().replace("+00:00", "Z")
        named: dict[str, Any] = {f"{Path(file).stem}.baton.dev": body for file, body in definitions().items()}
        lease = {"metadata": {"name": "baton-operator"}, "spec": {"holderIdentity": "a", "renewTime": renewed}}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        answers: dict[str, Any] = {
            "/version": {"major": "1", "minor": "34+"},
            "/apis/coordination.k8s.io/v1/namespaces/baton-system/leases": {"items": [lease]},
            "/api/v1/namespaces/baton-system/pods?labelSelector=app.kubernetes.io/name=baton-operator": {
                "items": [{"status": ready}]
            },
            "/apis/storage.k8s.io/v1/storageclasses": {"items": []},
            "/apis/baton.dev/v1alpha1/namespaces/team-a/llmdeployments": {
                "items": [{"metadata": {"name": "chat"}, "status": ready}]
            },
        }
        definition = named.get(self.path.rpartition("/")[2])
        self.answer(definition or answers.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        attributes = body["spec"]["resourceAttributes"]
        self.answer({"status": {"allowed": attributes.get("subresource") != "log"}})

    def answer(self, content: dict[str, Any] | None) -> None:
        data = json.dumps(content or {"message": "forbidden"}).encode()
        self.send_response(403 if content is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: requests are no matter of the test."""


@contextmanager
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            write_config(folder, server.server_address[1], monkeypatch)
            yield
        finally:
            server.shutdown()
            thread.join(30)


def write_config(
    folder: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    user: Mapping[str, object] = MappingProxyType({"token": "t"}),
) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [{"name": "prod", "context": context}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))


def test_a_cluster_is_read_through_its_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, monkeypatch):
        assert main(["doctor", "--cluster", "--format", "json", "--timeout", "30s"]) == 0
    page = json.loads(capsys.readouterr().out)
    states = {(finding["check"], finding["state"]) for finding in page["findings"]}
    assert states == {
        ("context", "ok"), ("server", "ok"), ("definitions", "ok"), ("operator", "ok"), ("rights", "warning"),
        ("gpus", "unknown"), ("storage", "warning"), ("deployments", "ok"),
    }  # fmt: skip
    assert "get pods/log in team-a" in str(page)


def test_a_cluster_that_does_not_answer_is_one_failed_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, 1, monkeypatch)
    assert main(["doctor", "--cluster", "--timeout", "30s"]) == 1
    out = capsys.readouterr().out
    assert "failed   context  prod: http://127.0.0.1:1: " in out
    assert "1 failed" in out


def test_without_a_kubeconfig_the_finding_says_so_and_a_wrong_context_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, 1, monkeypatch)
    assert main(["doctor", "--context", "dev"]) == 2
    assert "--context: 'dev' is not in the kubeconfig: must be one of prod" in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["doctor", "--cluster"]) == 1
    assert "no kubeconfig" in capsys.readouterr().out


def test_an_exec_plugin_that_does_not_answer_delays_nothing_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "silent")
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(tmp_path / "silent")]}
    write_config(tmp_path, 1, monkeypatch, {"exec": {**plugin, "interactiveMode": "Never"}})
    status: list[int] = []
    command = threading.Thread(target=lambda: status.append(main(["doctor", "--cluster", "--timeout", "0.5s"])))
    command.start()
    command.join(60)
    is_waiting = command.is_alive()
    with (tmp_path / "silent").open("w"):  # the plugin ends
        pass
    command.join(60)
    assert not is_waiting
    assert status == [1]
    assert "no credentials within 0.5 s" in capsys.readouterr().out
