"""The operator as the chart installs it, in a namespace of its own; adapted where the cluster is the local, old one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from baton_testing.pods.kubectl import Json, Kubectl, is_ready, until

ROOT = Path(__file__).resolve().parents[4]
OLD_SERVER = ROOT / "e2e" / "old_server.py"
LEASE = "baton-operator"
KEYS = "baton-master-keys"


@dataclass(frozen=True)
class Release:
    """What is installed. `is_old`: on an API server of 1.20."""

    kubectl: Kubectl
    watched: str
    helm: str
    operator_image: str
    worker_image: str
    gateway_image: str
    is_old: bool
    replicas: int = 2
    log_level: str = "info"

    def install(self) -> None:
        """Apply what the chart renders, and wait until every replica is ready."""
        manifests = self.manifests()
        places = {str(each["metadata"].get("namespace", self.kubectl.namespace)) for each in manifests}
        for place in sorted(places):
            here = [e for e in manifests if str(e["metadata"].get("namespace", self.kubectl.namespace)) == place]
            Kubectl(place).apply(*here)
        self.kubectl.run("rollout", "status", "deployment/baton-operator", "--timeout=120s", timeout_s=130)

    def manifests(self) -> list[Json]:
        values = {
            "images.operator": self.operator_image,
            "images.gateway": self.gateway_image,
            "images.worker": self.worker_image,
            "watch.namespaces": f"{{{self.watched}}}",
            "fetch.ports": "{443,8080}",
            "masterKeys.existingSecret": KEYS,
            "replicas": str(self.replicas),
            "logLevel": self.log_level,
            "crds.install": "false",
            "aggregateRoles": "false",
            **({"podDisruptionBudget.enabled": "false", "secretsPolicy.enabled": "false"} if self.is_old else {}),
        }
        sets = [f"--set={name}={value}" for name, value in values.items()]
        command = [self.helm, "template", "baton", str(ROOT / "charts" / "baton"), "--kube-version=1.33", *sets]
        command.append(f"--namespace={self.kubectl.namespace}")
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        return [self._fitted(each) for each in yaml.safe_load_all(text) if each]

    def _fitted(self, manifest: Json) -> Json:
        if manifest["kind"] != "Deployment" or not self.is_old:
            return manifest
        pod = manifest["spec"]["template"]["spec"]
        pod["containers"][0]["command"] = ["python", "/e2e/old_server.py"]
        pod["containers"][0]["volumeMounts"].append({"name": "e2e", "mountPath": "/e2e"})
        pod["volumes"].append({"name": "e2e", "configMap": {"name": "old-server"}})
        return manifest

    def prepare(self) -> None:
        """What has to be there before: the namespace, the master keys, the adapter."""
        namespace = self.kubectl.namespace
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        if self.kubectl.get("secret", KEYS) is None:
            self.set_keys({"first": "m" * 48})
        data = {"old_server.py": OLD_SERVER.read_text(encoding="utf-8")}
        self.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old-server"}, "data": data})

    def set_keys(self, keys: dict[str, str]) -> None:
        """Replace the master keys."""
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEYS}, "stringData": keys}
        if self.kubectl.get("secret", KEYS) is None:
            self.kubectl.run("create", "-f", "-", given=json.dumps(secret))
        else:
            self.kubectl.run("replace", "-f", "-", given=json.dumps(secret))

    def upgraded(self, worker_image: str, gateway_image: str) -> Release:
        return replace(self, worker_image=worker_image, gateway_image=gateway_image, log_level="debug")

    def holder(self) -> str:
        """The Pod that holds the Lease; empty: none does."""
        lease = self.kubectl.get("lease", LEASE) or {"spec": {}}
        return str(lease["spec"].get("holderIdentity") or "").rpartition("_")[0]

    def wait_until_active(self, other_than: str = "") -> float:
        """Until a ready Pod holds the Lease; the seconds that took."""

        def is_so() -> bool:
            holder = self.holder()
            pod = self.kubectl.get("pod", holder) if holder and holder != other_than else None
            return pod is not None and is_ready(pod)

        return until("an active operator", is_so, 90, every_s=0.2)
