"""Installations of charts of the past with the programs of their time, and the ways to bring them to today's chart."""

from __future__ import annotations

import enum
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from baton_testing.kube.old_charts import OldChart, copy_chart, extract
from baton_testing.pods.kubectl import Failed, Json, Kubectl
from baton_testing.pods.operator_release import OLD_SERVER

MASTER_KEYS = "baton-operator-master-keys"
ARGO_CD = "argocd-controller"


class Way(enum.StrEnum):
    """A way to install the chart, and to upgrade it."""

    HELM = "helm upgrade"
    REUSED_VALUES = "helm upgrade --reuse-values"
    TEMPLATE = "helm template | kubectl apply"
    SERVER_SIDE = "server-side apply and prune, as Argo CD does"


@dataclass(frozen=True)
class Installation:
    """One release in a namespace of its own, which it watches. `folder` gets the copies of charts; `programs` is the
    image of the old chart's programs, `today` that of today's."""

    kubectl: Kubectl
    helm: str
    way: Way
    old: OldChart
    folder: Path
    programs: str
    today: str

    def install_old(self) -> None:
        """Install the chart of the past. Raises Failed and NoHistory."""
        extract(self.old.programs, "e2e/old_server.py", self.folder / "programs")
        adapters = {"old": self.folder / "programs" / "e2e" / "old_server.py", "now": OLD_SERVER}
        for age, path in adapters.items():
            data = {"old_server.py": path.read_text(encoding="utf-8")}
            config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"adapter-{age}"}}
            self.kubectl.apply({**config_map, "data": data})
        chart = copy_chart(self.folder / "old", self.old.commit, "adapter-old")
        if self.way in (Way.HELM, Way.REUSED_VALUES):
            self._run("install", "baton", str(chart), "--take-ownership", *self._release_flags(), *self._sets("old"))
        else:
            self._apply(self._rendered(chart, "old"))

    def upgrade(self) -> None:
        """Bring the release to today's chart and images. Raises Failed."""
        chart = copy_chart(self.folder / "now", adapter="adapter-now")
        match self.way:
            case Way.HELM:
                self._run("upgrade", "baton", str(chart), *self._upgrade_flags(), *self._sets("now"))
            case Way.REUSED_VALUES:
                images = [part for part in self._sets("now") if "=images." in part]
                self._run("upgrade", "baton", str(chart), "--reuse-values", *self._upgrade_flags(), *images)
            case Way.TEMPLATE:
                self._apply(self._rendered(chart, "now"))
            case Way.SERVER_SIDE:
                kept = "argocd.argoproj.io/sync-options=Prune=false"
                self.kubectl.run("annotate", "secret", MASTER_KEYS, kept)  # as docs/install/argo-cd.md says
                wanted = self._rendered(chart, "now")
                self._apply(wanted)
                self._prune(self._rendered(self.folder / "old" / "charts" / "baton", "old"), wanted)

    def master_keys(self) -> Json:
        """The data of the Secret with the master keys."""
        secret = self.kubectl.get("secret", MASTER_KEYS)
        assert secret is not None
        data: Json = secret["data"]
        return data

    def remove(self) -> None:
        """Remove the namespace, and what the release made outside it but for the definitions."""
        for kind in ("clusterrolebinding", "clusterrole"):
            for item in self.kubectl.all(kind, "app.kubernetes.io/name=baton-operator"):
                self.kubectl.run("delete", kind, item["metadata"]["name"])
        self.kubectl.run("delete", "namespace", self.kubectl.namespace, "--wait=false")

    def _sets(self, age: str) -> list[str]:
        image = self.programs if age == "old" else self.today
        values = {f"images.{name}": image for name in ("operator", "gateway", "worker")}
        values |= {"watch.namespaces": f"{{{self.kubectl.namespace}}}", "replicas": "1", "aggregateRoles": "false"}
        values |= {"podDisruptionBudget.enabled": "false", "secretsPolicy.enabled": "false"}
        return [f"--set={name}={value}" for name, value in values.items()]

    def _release_flags(self) -> list[str]:
        return [f"--namespace={self.kubectl.namespace}", "--server-side=false", "--disable-openapi-validation"]

    def _upgrade_flags(self) -> list[str]:
        """The cluster has definitions that old charts lack, applied by hand: docs/install/helm.md names the flag."""
        return [*self._release_flags(), "--take-ownership"]

    def _rendered(self, chart: Path, age: str) -> list[Json]:
        flags = [f"--namespace={self.kubectl.namespace}", "--kube-version=1.33"]
        text = self._run("template", "baton", str(chart), *flags, *self._sets(age))
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]

    def _apply(self, manifests: list[Json]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        sides = ["--server-side", "--force-conflicts", f"--field-manager={ARGO_CD}"]
        flags = sides if self.way is Way.SERVER_SIDE else []
        client = Kubectl(self.kubectl.namespace)
        client.run("apply", *flags, "--validate=false", "-f", "-", given=text)

    def _prune(self, before: list[Json], wanted: list[Json]) -> None:
        """Delete the objects that are no longer rendered, but for the one that is annotated."""
        for manifest in before:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            is_wanted = any((other["kind"], other["metadata"]["name"]) == (kind, name) for other in wanted)
            if is_wanted or (kind, name) == ("Secret", MASTER_KEYS):
                continue
            space = manifest["metadata"].get("namespace", self.kubectl.namespace)
            Kubectl(space).run("delete", kind, name, "--ignore-not-found")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self.helm, *arguments], capture_output=True, text=True, timeout=180, check=False)
        if done.returncode != 0:
            raise Failed(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
