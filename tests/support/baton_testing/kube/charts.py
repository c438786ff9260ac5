"""The chart, rendered by Helm."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from find_helm import find

from baton_testing.kube.yaml_documents import documents

Json = dict[str, Any]
CHART = Path(__file__).parents[4] / "charts" / "baton"
PINNED = {f"images.{name}": f"r.example.com/{name}@sha256:{'a' * 64}" for name in ("operator", "gateway", "worker")}
"""The values that every installation needs."""


def render(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm; skips the test where there is none."""
    helm = find(may_fetch=False)
    if helm is None:
        pytest.skip("no Helm: `python scripts/find_helm.py` fetches one")
    return subprocess.run([str(helm), *arguments], capture_output=True, text=True, timeout=60, check=False)


def template(
    values: dict[str, str], name: str = "baton", namespace: str = "baton-system", chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """`helm template` with values as `--set` takes them."""
    sets = [f"--set={key}={value}" for key, value in values.items()]
    return render("template", name, str(chart), f"--namespace={namespace}", "--kube-version=1.36", *sets)


def rendered(
    values: dict[str, str], name: str = "baton", namespace: str = "baton-system", old_values: Path | None = None
) -> list[Json]:
    """The rendered manifests; with `old_values`, as if the chart had this values.yaml."""
    with contextlib.ExitStack() as opened:
        chart = CHART
        if old_values is not None:
            chart = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "baton"
            shutil.copytree(CHART, chart)
            shutil.copy(old_values, chart / "values.yaml")
        done = template(values, name, namespace, chart)
    assert done.returncode == 0, done.stderr
    return [document for document in documents(done.stdout) if document]


def template_with(values: Json) -> list[Json]:
    """The manifests that the chart renders from a file of values."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        done = render(
            "template", "baton", str(CHART), "--namespace=baton-system", "--kube-version=1.36", f"--values={path}"
        )
    assert done.returncode == 0, done.stderr
    return [document for document in documents(done.stdout) if document]


def operator_arguments(manifests: list[Json]) -> list[str]:
    """The arguments of the operator's container."""
    (deployment,) = (manifest for manifest in manifests if manifest["kind"] == "Deployment")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments
