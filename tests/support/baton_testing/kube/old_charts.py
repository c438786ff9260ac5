"""Copies of the chart, of today and of commits long ago, as a server of 1.20 takes them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from baton_testing.kube.charts import CHART

ROOT = Path(__file__).resolve().parents[4]
OPERATOR_COMMAND = "command: [python, -m, baton_operator]"
TMP_MOUNT = "            - {name: tmp, mountPath: /tmp}\n"
TMP_VOLUME = "        - name: tmp\n          emptyDir: {}\n"


@dataclass(frozen=True, slots=True)
class OldChart:
    """A chart of the past. `programs` is the commit whose operator, gateways and workers it installed."""

    commit: str
    programs: str


OLD_CHARTS = (OldChart("016a0e4c", "97861b4b"), OldChart("3cef96ea", "3cef96ea"), OldChart("84fc5af5", "84fc5af5"))
"""The first chart is older than the first operator that ran on Pods, which is that of `programs`."""


class NoHistory(Exception):
    """The commit is not in this copy of the repository."""


def copy_chart(folder: Path, commit: str = "", adapter: str = "") -> Path:
    """A copy of the chart of a commit, or of today's, below `folder`, without what a server of 1.20 lacks: CEL rules
    and families of addresses. With `adapter`, the ConfigMap of that name has the program that runs the operator. Raises
    NoHistory."""
    target = folder / "charts" / "baton"
    if commit:
        extract(commit, "charts/baton", folder)
    else:
        shutil.copytree(CHART, target)
    for path in (target / "files" / "crds").glob("*.yaml"):
        definition = without_rules(yaml.safe_load(path.read_text(encoding="utf-8")))
        path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    network = target / "templates" / "network.yaml"  # the server drops the field, so that each apply is a change
    network.write_text(network.read_text(encoding="utf-8").replace("  ipFamilyPolicy: PreferDualStack\n", ""))
    about = target / "Chart.yaml"
    raw = yaml.safe_load(about.read_text(encoding="utf-8")) | {"kubeVersion": ">=1.20.0-0"}
    about.write_text(yaml.safe_dump(raw), encoding="utf-8")
    if adapter:
        _adapt(target / "templates" / "operator.yaml", adapter)
    return target


def extract(commit: str, path: str, folder: Path) -> None:
    """Write a path of a commit below `folder`. Raises NoHistory."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / f"{commit}.tar"
    command = ["git", "archive", f"--output={packed}", commit, path]
    if subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode != 0:
        raise NoHistory(f"no commit {commit} in this copy of the repository")
    unpack = ["tar", "-xf", str(packed), "-C", str(folder)]  # tarfile's filters are not in every Python 3.11
    subprocess.run(unpack, capture_output=True, timeout=60, check=True)


def without_rules(node: Any) -> Any:
    """A definition without CEL rules, which a server of 1.20 does not know."""
    if isinstance(node, dict):
        return {name: without_rules(value) for name, value in node.items() if name != "x-kubernetes-validations"}
    return [without_rules(part) for part in node] if isinstance(node, list) else node


def _adapt(template: Path, config_map: str) -> None:
    """Let the operator be run by the adapter for an old server, and its level be spelled as its program wants it."""
    text = template.read_text(encoding="utf-8")
    assert all(text.count(part) == 1 for part in (OPERATOR_COMMAND, TMP_MOUNT, TMP_VOLUME))
    text = text.replace(OPERATOR_COMMAND, "command: [python, /e2e/old_server.py]")
    text = text.replace(TMP_MOUNT, f"{TMP_MOUNT}            - {{name: e2e, mountPath: /e2e}}\n")
    text = text.replace(TMP_VOLUME, f"{TMP_VOLUME}        - name: e2e\n          configMap: {{name: {config_map}}}\n")
    template.write_text(text.replace("{{ .Values.logLevel }}", "{{ .Values.logLevel | upper }}"), encoding="utf-8")
