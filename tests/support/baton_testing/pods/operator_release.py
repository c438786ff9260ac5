"""The operator as the chart installs it, in a namespace of its own; adapted where the cluster is the local, old one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from baton_testing.pods.kubectl import Failed, Json, Kubectl, is_ready, until
from baton_testing.pods.trouble_report import of_pods, trouble_report

ROOT = Path(__file__).resolve().parents[4]
OLD_SERVER = ROOT / "e2e" / "old_server.py"
LEASE = "baton-operator"
KEYS = "baton-master-keys"
SELECTOR = "app.kubernetes.io/name=baton-operator"
ROLLOUT_S, ASKED_EVERY_S = 120.0, 15


@dataclass(frozen=True)
class Release:
    """One installed release. `is_old`: on an API server of 1.20; `local`: the folder of the local cluster, if used."""

    kubectl: Kubectl
    watched: str
    helm: str
    operator_image: str
    worker_image: str
    gateway_image: str
    is_old: bool
    replicas: int = 2
    log_level: str = "info"
    local: Path | None = None

    def install(self, say: Callable[[str], object] = print) -> None:
        """Apply what the chart renders, and wait until every replica is ready; `say` reports what is waited for. Raises
        Failed, which says why Pods were not ready in time."""
        manifests = self.manifests()
        places = {str(manifest["metadata"].get("namespace", self.kubectl.namespace)) for manifest in manifests}
        for place in sorted(places):
            here = [e for e in manifests if str(e["metadata"].get("namespace", self.kubectl.namespace)) == place]
            Kubectl(place).apply(*here)
        self.wait_until_rolled_out(say)

    def wait_until_rolled_out(self, say: Callable[[str], object] = print) -> None:
        """Until every replica is new and ready. Raises Failed."""
        started = time.monotonic()
        with self._explained():
            while True:
                try:
                    self.kubectl.run("rollout", "status", "deployment/baton-operator", f"--timeout={ASKED_EVERY_S}s")
                    return
                except Failed:
                    waited_s = time.monotonic() - started
                    if waited_s >= ROLLOUT_S:
                        raise
                for line in of_pods(self.kubectl.pods(SELECTOR)):
                    say(f"after {waited_s:.0f} s: {line}")
                time.sleep(1.0)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """An error that leaves the block gets a note of what Kubernetes says of the operator's Pods."""
        try:
            yield
        except (Failed, TimeoutError) as error:
            error.add_note(trouble_report(self.kubectl, self.local))
            raise

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
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
        return [self._fitted(manifest) for manifest in yaml.safe_load_all(done.stdout) if manifest]

    def _fitted(self, manifest: Json) -> Json:
        if manifest["kind"] != "Deployment" or not self.is_old:
            return manifest
        pod = manifest["spec"]["template"]["spec"]
        pod["containers"][0]["command"] = ["python", "/e2e/old_server.py"]
        pod["containers"][0]["volumeMounts"].append({"name": "e2e", "mountPath": "/e2e"})
        pod["volumes"].append({"name": "e2e", "configMap": {"name": "old-server"}})
        return manifest

    def prepare(self) -> None:
        """Apply what an installation needs first: the namespace, the master keys, the adapter."""
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

        with self._explained():
            return until("an active operator", is_so, 90, every_s=0.2)
