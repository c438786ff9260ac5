"""A model that a Job fetches from a hub in the cluster, with a token that no other Pod has."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from baton_testing.pods.kubectl import Json, until
from baton_testing.pods.operator_release import ROOT
from baton_testing.pods.served import World

pytestmark = pytest.mark.timeout(600)
NAME, TOKEN, COMMIT = "fetched", "a-token", "c" * 40
SCRIPT = ROOT / "tests" / "support" / "baton_testing" / "pods" / "hub.py"


def test_a_fetched_model_is_served_and_its_token_stays_with_the_job(world: World) -> None:
    kubectl = world.kubectl
    _hub(world)
    kubectl.apply(_secret("hub", "wrong"))
    manifest = world.deployment(model__source=f"hf://org/tiny@{COMMIT}", model__credentialsSecret="hub")
    manifest["metadata"]["name"] = NAME
    manifest["spec"]["model"]["cache"] = {
        "size": "1Gi",
        **({"storageClassName": _volume(world)} if world.local else {}),
    }
    kubectl.apply(manifest)
    selector = f"baton.dev/deployment={NAME},baton.dev/role"
    until("a Pod that was refused", lambda: "Error" in phases(world, f"{selector}=fetch"), 120)
    assert kubectl.pods(f"{selector}=decode") == []
    kubectl.apply(_secret("hub", TOKEN))
    took = until("the fetched model", lambda: _is_done(world, selector), 240)
    took += until("two workers", lambda: len(kubectl.ready(f"{selector} in (prefill, decode)")) == 2, 240)
    world.note("model fetched and served", seconds=round(took, 1))
    for role in ("prefill", "decode", "gateway"):
        assert all(TOKEN not in str(pod) and '"hub"' not in str(pod) for pod in kubectl.pods(f"{selector}={role}"))
    (decode,) = kubectl.pods(f"{selector}=decode")
    command = "import pathlib; next(pathlib.Path('/model').rglob('config.json')).write_text('x')"
    denied = kubectl.run(
        "exec", decode["metadata"]["name"], "--", "python", "-c", f"try:\n {command}\nexcept OSError as e: print(e)"
    )
    assert "Read-only file system" in denied
    kubectl.run("delete", "llm", NAME, "--wait=true", timeout_s=120)


def phases(world: World, selector: str) -> set[str]:
    """Reasons for which containers of the selected Pods ended."""
    pods = world.kubectl.all("pods", selector)
    states = [container.get("state", {}) for pod in pods for container in pod["status"].get("containerStatuses", [])]
    return {str(state.get("terminated", {}).get("reason")) for state in states}


def _is_done(world: World, selector: str) -> bool:
    jobs = world.kubectl.all("jobs", f"{selector}=fetch")
    return any(job["status"].get("succeeded") for job in jobs)


def _secret(name: str, token: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {"HF_TOKEN": token, "endpoint": "http://hub:8080", "sources": "hf://"},
    }


def _volume(world: World) -> str:
    """A volume for many readers: the local cluster's provisioner makes none. Its class."""
    name = f"e2e-{secrets.token_hex(3)}"
    folder = Path("/tmp/baton-e2e") / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)  # the kubelet gives a host's folder to no group
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": name,
        "hostPath": {"path": str(folder)},
        "persistentVolumeReclaimPolicy": "Delete",
    }
    world.kubectl.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    return name


def _hub(world: World) -> None:
    script = {"hub.py": SCRIPT.read_text(encoding="utf-8")}
    container = {
        "name": "hub",
        "image": world.image,
        "command": ["python", "/hub/hub.py", "/models/tiny-llama", TOKEN],
        "volumeMounts": [{"name": "script", "mountPath": "/hub"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "script", "configMap": {"name": "hub"}}],
    }
    service = {"selector": {"app": "hub"}, "ports": [{"port": 8080, "protocol": "TCP"}]}
    world.kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub"}, "data": script},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub", "labels": {"app": "hub"}}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": service},
    )
    until("the hub", lambda: world.kubectl.ready("app=hub"), 60)
