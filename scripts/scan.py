"""Scans the chart's manifests and the objects of each example with checkov: `python scripts/scan.py`.

checkov is $CHECKOV, one on PATH, or installed by pip into a cached environment of its own, because its pinned
dependencies differ from ours. A finding that is not excused below, with a reason, fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from baton_control.spec.api import LLMDeployment
from baton_control.spec.manifest import read_manifest
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import pool_facade, standing_objects, worker_deployment
from baton_operator.objects.pods import worker_template
from baton_wire.messages.values import POOL_ROLES

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "baton" / "checkov"
VERSION = "checkov==3.3.30"
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
OWNER = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
_USERS = "the LLMDeployment sets the resources of a worker: pool.resources, and the accelerator"
EXCUSED = {
    "CKV_K8S_10": _USERS,
    "CKV_K8S_12": _USERS,
    "CKV_K8S_13": _USERS,
    "CKV_K8S_11": "CPUs are requested, not limited: a limit would throttle what a node has to spare",
    "CKV_K8S_21": "a user replaces the namespace `default`",
    "CKV_K8S_38": "the operator talks to the API server; no other Pod has a token",
}
_WORKERS = r"Deployment\.team-a\.[a-z-]+-(prefill|decode)-[0-9a-f]{10}"
ONLY_ON = {
    "CKV_K8S_10": _WORKERS,
    "CKV_K8S_12": _WORKERS,
    "CKV_K8S_13": _WORKERS,
    "CKV_K8S_38": r"Deployment\.baton-system\.baton-operator",
}
"""Resources that an excuse applies to; without an entry it applies to all."""
_DEADLINE_S = 600


def main() -> int:
    """Scan. Returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        count = _write(Path(folder))
        command = [str(_checkov()), "-d", folder, "--framework", "kubernetes", "--compact", "--quiet", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        print(done.stdout, done.stderr, file=sys.stderr)
        return 1
    failed = report["results"]["failed_checks"] if "results" in report else []
    bad = [finding for finding in failed if not _is_excused(finding)]
    for finding in bad:
        print(f"{finding['check_id']} {finding['resource']}: {finding['check_name']} ({finding['file_path']})")
    passed = report["summary"]["passed"]
    print(f"{count} objects: {passed} checks passed, {len(failed) - len(bad)} findings excused, {len(bad)} not")
    return 1 if bad else 0


def _is_excused(finding: dict[str, str]) -> bool:
    check = finding["check_id"]
    return check in EXCUSED and re.fullmatch(ONLY_ON.get(check, ".*"), finding["resource"]) is not None


def _write(folder: Path) -> int:
    """Write the objects to scan, one file per source; returns their number. Raises OSError."""
    for path in (ROOT / "charts" / "manifests").glob("*.yaml"):
        shutil.copy(path, folder / path.name)
    count = sum(text.count("\nkind: ") for text in (path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")))
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for name, variant in _variants(path.stem, read_manifest(path)):
            objects = list(_objects(variant))
            (folder / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
            count += len(objects)
    return count


def _variants(name: str, deployment: LLMDeployment) -> Iterator[tuple[str, LLMDeployment]]:
    """The example, and the same with a remote model."""
    model = deployment.spec.model
    sources = {"": model.source, "-fetched": "hf://org/model@" + "c" * 40}
    if model.source.startswith("file://") and not model.source.startswith("file:///"):
        sources[""] = "file:///models/tiny"
    for suffix, source in sources.items():
        given = model.model_copy(update={"source": source, "credentials_secret": "hub" if suffix else None})
        namespaced = deployment.metadata.model_copy(update={"namespace": "team-a"})
        spec = deployment.spec.model_copy(update={"model": given})
        yield name + suffix, deployment.model_copy(update={"metadata": namespaced, "spec": spec})


def _objects(deployment: LLMDeployment) -> Iterator[Manifest]:
    gateway = IMAGE.replace("worker", "gateway")
    platform = Platform(IMAGE, gateway, monitoring_namespace="monitoring", monitors=True, alerts=True)
    yield from standing_objects(deployment, platform, OWNER, {"first": b"m" * 32})
    for role in POOL_ROLES:
        yield worker_deployment(deployment, worker_template(deployment, role, platform), 1, OWNER)
        yield pool_facade(deployment, role, OWNER, 1)


def _checkov() -> Path:
    named = os.environ.get("CHECKOV") or shutil.which("checkov")
    if named:
        return Path(named)
    program = CACHE / "bin" / "checkov"
    if not program.is_file():
        venv.create(CACHE, clear=True, with_pip=True)
        command = [str(CACHE / "bin" / "python"), "-m", "pip", "install", "--quiet", VERSION]
        subprocess.run(command, check=True, timeout=_DEADLINE_S)
    return program


if __name__ == "__main__":
    sys.exit(main())
