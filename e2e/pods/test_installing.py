"""The chart with Helm itself: installed, upgraded with newer definitions, removed without taking what is of users."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_testing.pods.kubectl import Json, Kubectl, until
from baton_testing.pods.operator_release import ROOT, Release
from baton_testing.pods.served import World

pytestmark = pytest.mark.timeout(300)
CHART = ROOT / "charts" / "baton"
DEFINITION, MASTER = "llmdeployments.baton.dev", "baton-operator-master-keys"


@pytest.fixture
def release(world: World) -> Iterator[Release]:
    """A namespace for a second operator, which watches itself."""
    kubectl = Kubectl(f"{world.release.kubectl.namespace}-helm")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kubectl.namespace}})
    yield Release(
        kubectl, kubectl.namespace, world.release.helm, world.image, world.image, world.image, world.release.is_old
    )
    kubectl.run("delete", "namespace", kubectl.namespace, "--wait=false")


def test_helm_installs_upgrades_the_definitions_and_leaves_them(world: World, release: Release, tmp_path: Path) -> None:
    kubectl = release.kubectl
    older, newer = chart(tmp_path / "older", release.is_old), chart(tmp_path / "newer", release.is_old)
    path = older / "files" / "crds" / "llmdeployments.yaml"
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    columns = definition["spec"]["versions"][0]["additionalPrinterColumns"]
    wanted = [column["name"] for column in columns]
    columns.pop()
    path.write_text(yaml.safe_dump(definition), encoding="utf-8")

    helm(release, "install", older, "--take-ownership")
    release.wait_until_active()
    assert column_names(kubectl) == wanted[:-1]
    master = secret_data(kubectl)
    helm(release, "upgrade", newer, "--set=logLevel=debug")
    release.wait_until_active()
    assert column_names(kubectl) == wanted
    assert secret_data(kubectl) == master  # other ones would cut every link

    unwatched = world.release.kubectl
    manifest: Json = yaml.safe_load((ROOT / "examples" / "tiny.yaml").read_text(encoding="utf-8"))
    unwatched.apply({**manifest, "metadata": {"name": "kept"}})
    helm(release, "uninstall")
    until("the operator is gone", lambda: not kubectl.pods("app.kubernetes.io/name=baton-operator"), 60)
    assert column_names(kubectl) == wanted
    assert unwatched.get("llm", "kept") is not None
    unwatched.run("delete", "llm", "kept")
    assert secret_data(kubectl) == master


def chart(copy: Path, is_old: bool) -> Path:
    """The chart; an old server is not refused."""
    shutil.copytree(CHART, copy)
    if is_old:
        path = copy / "Chart.yaml"
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) | {"kubeVersion": ">=1.20.0-0"}
        path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return copy


def helm(release: Release, verb: str, source: Path | None = None, *arguments: str) -> None:
    """`helm VERB`, waiting for what it starts. Raises CalledProcessError."""
    command = [release.helm, verb, "baton", f"--namespace={release.kubectl.namespace}"]
    if source is not None:
        images = [f"--set=images.{role}={release.operator_image}" for role in ("operator", "gateway", "worker")]
        watched = f"--set=watch.namespaces={{{release.watched}}}"
        command += [str(source), "--wait", "--timeout=120s", "--set=aggregateRoles=false", watched, *images, *arguments]
        if release.is_old:  # it knows neither policy/v1 nor rules of definitions
            command += ["--set=podDisruptionBudget.enabled=false", "--set=secretsPolicy.enabled=false"]
            command += ["--server-side=false", "--disable-openapi-validation"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr


def column_names(kubectl: Kubectl) -> list[str]:
    definition = kubectl.get("crd", DEFINITION)
    assert definition is not None
    return [column["name"] for column in definition["spec"]["versions"][0]["additionalPrinterColumns"]]


def secret_data(kubectl: Kubectl) -> dict[str, Any]:
    secret = kubectl.get("secret", MASTER)
    assert secret is not None
    data: dict[str, Any] = secret["data"]
    return data
