"""Helm's ways to install, upgrade, remove and reinstall, each against a real API server, with charts of three ages.

The server is of 1.20, so that the copies of the charts lose what it lacks: CEL rules, budgets, admission policies,
families of addresses. Old charts come from the repository's history; without it their tests are skipped.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from find_helm import find

from baton_testing.kube.api_server import ApiServer
from baton_testing.kube.charts import PINNED
from baton_testing.kube.control_plane import HOW, ControlPlane, control_plane, find_programs
from baton_testing.kube.old_charts import OLD_CHARTS, NoHistory, copy_chart

pytestmark = pytest.mark.timeout(300)
Json = dict[str, Any]
OLD = tuple(chart.commit for chart in OLD_CHARTS)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LACKING = ["--set=podDisruptionBudget.enabled=false", "--set=secretsPolicy.enabled=false"]
"""Values for a server without `policy/v1` and admission policies."""
KEY = "k" * 64
NAMESPACE: Json = {"apiVersion": "v1", "kind": "Namespace"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = find_programs()
    if programs is None or find() is None:
        pytest.skip(f"{HOW}; and Helm")
    with control_plane(programs, tmp_path_factory.mktemp("helm")) as own_plane:
        yield own_plane


class Cluster:
    """A cluster as Helm sees it, with fresh namespaces, and definitions that each test removes."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self.api: ApiServer = plane.api

    def helm(self, *arguments: str, fails: bool = False) -> str:
        """Run Helm; its output, or its complaint where it has to fail."""
        command = [str(find()), *arguments, f"--kubeconfig={self._plane.kubeconfig}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert (done.returncode != 0) is fails, done.stderr + done.stdout
        return done.stderr if fails else done.stdout

    def install(self, name: str, space: str, *flags: str, chart: Path | None = None, fails: bool = False) -> str:
        return self._change("install", name, space, *flags, chart=chart, fails=fails)

    def upgrade(self, name: str, space: str, *flags: str, chart: Path | None = None) -> str:
        return self._change("upgrade", name, space, *flags, chart=chart, fails=False)

    def _change(self, verb: str, name: str, space: str, *flags: str, chart: Path | None, fails: bool) -> str:
        sets = [f"--set={key}={value}" for key, value in PINNED.items()]
        aside = [] if "--server-side=true" in flags else ["--server-side=false"]
        common = [f"--namespace={space}", "--create-namespace", "--disable-openapi-validation", *aside, *LACKING, *sets]
        return self.helm(verb, name, str(chart or self.chart()), *common, *flags, fails=fails)

    def chart(self, commit: str = "") -> Path:
        """A copy of the chart now, or at a commit, that a server of 1.20 takes."""
        copy = self._folder / (commit or "now")
        if copy.exists():
            return copy / "charts" / "baton"
        try:
            return copy_chart(copy, commit)
        except NoHistory as error:
            pytest.skip(str(error))

    def define(self, chart: Path, server_side: bool = False) -> None:
        """Install the definitions of a chart by hand."""
        for path in sorted((chart / "files" / "crds").glob("*.yaml")):
            command = ["kubectl", f"--kubeconfig={self._plane.kubeconfig}", "apply", "--validate=false", f"-f={path}"]
            command += ["--server-side"] if server_side else []
            subprocess.run(command, check=True, capture_output=True, timeout=60)

    def apply(self, text: str) -> dict[str, str]:
        """`kubectl apply` of rendered manifests; what it says it did to each object."""
        command = ["kubectl", f"--kubeconfig={self._plane.kubeconfig}", "apply"]
        command += ["--validate=false", "-f=-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())

    def get(self, path: str) -> Json | None:
        reply = self.api.send("GET", path)
        return dict(reply.body) if reply.status == 200 else None

    def make_key(self, space: str, name: str = "baton-operator-master-keys") -> None:
        """Make the master key as the operator does where it is absent."""
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        body = {**secret, "data": {"first": base64.b64encode(KEY.encode()).decode()}}
        assert self.api.send("POST", f"/api/v1/namespaces/{space}/secrets", body).status == 201

    def keys(self, space: str, name: str = "baton-operator-master-keys") -> Json | None:
        secret = self.get(f"/api/v1/namespaces/{space}/secrets/{name}")
        return None if secret is None else secret["data"]

    def arguments(self, space: str, name: str = "baton-operator") -> list[str]:
        deployment = self.get(f"/apis/apps/v1/namespaces/{space}/deployments/{name}")
        assert deployment is not None
        arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return arguments

    def clear(self) -> None:
        """Remove the releases and the definitions."""
        for release in yaml.safe_load(self.helm("list", "--all-namespaces", "--output=yaml")) or []:
            self.helm("uninstall", release["name"], f"--namespace={release['namespace']}")
        listed = self.get(DEFINITIONS) or {"items": []}
        for definition in listed["items"]:
            self.api.send("DELETE", f"{DEFINITIONS}/{definition['metadata']['name']}")
        self.api.until("GET", DEFINITIONS, deadline_s=60, holds=lambda reply: not reply.body["items"])


@pytest.fixture
def cluster(plane: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    own_cluster = Cluster(plane, tmp_path)
    yield own_cluster
    own_cluster.clear()


def test_definitions_by_hand_before_are_taken_over(cluster: Cluster) -> None:
    cluster.define(cluster.chart())
    assert "invalid ownership metadata" in cluster.install("baton", "hand", fails=True)
    cluster.install("baton", "hand", "--take-ownership")


def test_older_definitions_applied_server_side_need_force_conflicts(cluster: Cluster) -> None:
    cluster.define(cluster.chart(OLD[2]), server_side=True)
    server_side = ("--take-ownership", "--server-side=true")
    assert "conflict" in cluster.install("baton", "forced", *server_side, fails=True)
    cluster.helm("uninstall", "baton", "--namespace=forced", "--ignore-not-found")
    cluster.install("baton", "forced", *server_side, "--force-conflicts")


def test_an_upgrade_of_the_same_chart_keeps_the_key(cluster: Cluster) -> None:
    cluster.install("baton", "same")
    cluster.make_key("same")
    before = cluster.keys("same")
    cluster.upgrade("baton", "same", "--set=logLevel=debug")
    assert cluster.keys("same") == before
    assert "--log-level=DEBUG" in cluster.arguments("same")


@pytest.mark.parametrize("commit", OLD)
@pytest.mark.parametrize("reuse", ["--reset-then-reuse-values", "--reuse-values"])
def test_an_upgrade_from_an_old_chart_keeps_its_key_and_can_be_rolled_back(
    cluster: Cluster, commit: str, reuse: str
) -> None:
    space = f"old-{commit}-{len(reuse)}"
    cluster.install("baton", space, chart=cluster.chart(commit))
    before = cluster.keys(space)
    assert before is not None
    cluster.upgrade("baton", space, reuse)
    assert cluster.keys(space) == before, "it is no longer in the chart, and Helm leaves it"
    arguments = cluster.arguments(space)
    assert "--calls-per-s=200" in arguments
    assert "--master-key-secret=baton-operator-master-keys" in arguments
    assert cluster.get(f"{CLUSTER_ROLES}/{space}-baton-operator-nodes") is not None
    cluster.helm("rollback", "baton", "1", f"--namespace={space}", "--server-side=false")
    assert cluster.keys(space) == before


@pytest.mark.parametrize("commit", OLD)
def test_gateways_of_an_old_release_of_another_name_keep_their_operator(cluster: Cluster, commit: str) -> None:
    """They dial the Service baton-operator, by which the old charts called it in every release."""
    space, values = f"dial-{commit}", ([] if commit == OLD[0] else ["--set=operatorClass=gold"])
    cluster.install("other", space, *values, chart=cluster.chart(commit))
    cluster.upgrade("other", space, "--reset-then-reuse-values")
    service = cluster.get(f"/api/v1/namespaces/{space}/services/baton-operator")
    assert service is not None
    assert service["spec"]["selector"]["app.kubernetes.io/instance"] == "other"
    assert "--operator-service=other-baton-operator" in cluster.arguments(space, "other-baton-operator")


def test_a_release_that_was_removed_comes_back_with_its_key(cluster: Cluster) -> None:
    cluster.install("baton", "again")
    cluster.make_key("again")
    before = cluster.keys("again")
    cluster.helm("uninstall", "baton", "--namespace=again")
    assert cluster.keys("again") == before
    assert cluster.get(f"{DEFINITIONS}/llmdeployments.baton.dev") is not None
    cluster.install("baton", "again")
    assert cluster.keys("again") == before


def test_under_another_name_the_definitions_are_taken_over(cluster: Cluster) -> None:
    cluster.install("baton", "moved")
    cluster.helm("uninstall", "baton", "--namespace=moved")
    assert "invalid ownership metadata" in cluster.install("other", "elsewhere", fails=True)
    cluster.install("other", "elsewhere", "--take-ownership")


def test_a_second_release_lives_in_the_same_namespace_or_has_the_same_name(cluster: Cluster) -> None:
    cluster.install("baton", "two")
    second = ("--set=crds.install=false", "--set=operatorClass=gold")
    cluster.install("gold", "two", *second)
    cluster.install("baton", "three", *second)
    cluster.helm("uninstall", "gold", "--namespace=two")
    assert cluster.get("/api/v1/namespaces/two/services/baton-operator") is not None


def test_what_helm_template_prints_is_unchanged_when_it_is_applied_again(cluster: Cluster) -> None:
    cluster.api.send("POST", "/api/v1/namespaces", NAMESPACE | {"metadata": {"name": "plain"}})
    sets = [f"--set={key}={value}" for key, value in PINNED.items()]
    command = ["template", "baton", str(cluster.chart()), "--namespace=plain", *LACKING, *sets]
    assert set(cluster.apply(cluster.helm(*command)).values()) == {"created"}
    cluster.make_key("plain")
    before = cluster.keys("plain")
    again = cluster.apply(cluster.helm(*command))
    assert {name: word for name, word in again.items() if word != "unchanged"} == {}
    assert cluster.keys("plain") == before
