"""The scripts of the local cluster, as far as they need no cluster."""

from __future__ import annotations

import os
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


def test_a_part_that_ends_while_it_is_waited_for_is_told_at_once(tmp_path: Path) -> None:
    """Not behind the wait's 60 s, and with its own last words."""
    programs = {"root/usr/bin/etcd": "exit 0", "root/usr/bin/kubectl": "exit 1"}
    programs["bin/kube-apiserver"] = "echo no such flag; exit 1"
    for name, body in programs.items():
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "admin.kubeconfig").touch()
    there = {**os.environ, "K": str(tmp_path), "ADDRESS": "127.0.0.1"}
    done = subprocess.run(
        [CLUSTER / "cluster.sh", "up"], env=there, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no such flag\ncluster.sh: apiserver has ended before this was so: kubectl get")


def node(folder: Path, number: int) -> None:
    subprocess.run(
        [CLUSTER / "node_config.sh", folder, folder / "pki", "pause:local", str(number)], check=True, timeout=30
    )


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
