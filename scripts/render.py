"""Renders the chart into plain manifests, for installations without Helm: `python scripts/render.py [--check]`.

Each file names the hash of its chart, so that --check finds a stale one even without Helm; with Helm it renders and
compares.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from find_helm import find

ROOT = Path(__file__).resolve().parents[1]
CHART, OUT = ROOT / "charts" / "baton", ROOT / "charts" / "manifests"
NAMESPACE = "baton-system"
KUBERNETES = "1.33"
PLACEHOLDER = "registry.example.com/baton/{}@sha256:" + "0" * 64
COMMON = {
    **{f"images.{name}": PLACEHOLDER.format(name) for name in ("operator", "gateway", "worker")},
    "masterKeys.existingSecret": "baton-master-keys",
    "crds.install": "false",
}
FILES = {
    "operator.yaml": ("for the namespace `default`", {}),
    "operator-cluster-wide.yaml": ("for all namespaces", {"watch.clusterWide": "true"}),
}
_DEADLINE_S = 60


def main(arguments: list[str]) -> int:
    """Write or compare the files. Returns the exit status."""
    is_check = "--check" in arguments
    helm = find(may_fetch=not is_check or bool(os.environ.get("CI")))
    if helm is None and not is_check:
        print("no Helm: install one, or name it in HELM", file=sys.stderr)
        return 1
    stale = []
    for name, (scope, values) in FILES.items():
        path, head = OUT / name, header(scope)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if helm is None:
            is_stale = not text.startswith(head)
        else:
            wanted = head + render(helm, values)
            is_stale = text != wanted
            if not is_check:
                OUT.mkdir(exist_ok=True)
                path.write_text(wanted, encoding="utf-8")
        stale += [path] if is_stale else []
    if helm is None:
        print("no Helm: manifests were compared with the chart by hash only", file=sys.stderr)
    for path in stale if is_check else []:
        print(f"{path.relative_to(ROOT)} differs from the chart: run `make manifests`", file=sys.stderr)
    return 1 if is_check and stale else 0


def header(scope: str) -> str:
    """The first lines of a file."""
    return (
        f"# The operator {scope}. Written from charts/baton by `make manifests`; do not edit.\n"
        f"# charts/baton: {chart_hash()}\n"
        "# Before it: kubectl apply --server-side -f crds/ · set the three images · a Secret baton-master-keys with a\n"
        "# random file: docs/install.md. The namespace baton-system has to exist.\n"
    )


def chart_hash() -> str:
    """Hash of the chart and of this script."""
    digest = hashlib.sha256((ROOT / "scripts" / "render.py").read_bytes())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(CHART)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def render(helm: Path, values: dict[str, str]) -> str:
    """Render the chart with Helm. Raises CalledProcessError."""
    sets = [f"--set={name}={value}" for name, value in {**COMMON, **values}.items()]
    command = [
        str(helm),
        "template",
        "baton",
        str(CHART),
        f"--namespace={NAMESPACE}",
        f"--kube-version={KUBERNETES}",
        *sets,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DEADLINE_S).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
