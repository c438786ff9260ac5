"""The scripts of the local cluster, as far as they need no cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

CLUSTER = Path(__file__).parents[2] / "e2e" / "cluster"


def test_another_node_touches_no_file_that_something_else_watches(tmp_path: Path) -> None:
    """A kube-proxy whose file is written anew ends, equal bytes or not."""
    node(tmp_path, 1)
    subprocess.run([CLUSTER / "proxy_config.sh", tmp_path, tmp_path / "pki"], check=True, timeout=30)
    before = times(tmp_path)
    assert {"kube-proxy.yaml", "node1/kubelet.yaml", "node1/containerd/config.toml"} <= before.keys()
    node(tmp_path, 2)
    after = times(tmp_path)
    assert {path: after[path] for path in before} == before
    assert all(path.startswith("node2/") for path in after.keys() - before.keys())


def node(folder: Path, number: int) -> None:
    subprocess.run(
        [CLUSTER / "node_config.sh", folder, folder / "pki", "pause:local", str(number)], check=True, timeout=30
    )


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
