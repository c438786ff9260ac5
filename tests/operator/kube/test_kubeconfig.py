"""Which kubeconfig is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from baton_operator.kube.kubeconfig import KubeConfigError, from_kubeconfig


def _written(folder: Path, server: str) -> Path:
    named = {"name": "one"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [named | {"cluster": {"server": server}}],
        "users": [named | {"user": {"token": "a"}}],
        "contexts": [named | {"context": {"cluster": "one", "user": "one"}}],
        "current-context": "one",
    }
    path = folder / server.rsplit(":", 1)[1]
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_variable_counts_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package below it reads the variable when it is imported."""
    for server in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        monkeypatch.setenv("KUBECONFIG", str(_written(tmp_path, server)))
        connection = from_kubeconfig()
        assert (connection.server, connection.token()) == (server, "a")


def test_a_file_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(KubeConfigError, match="no kubeconfig"):
        from_kubeconfig()
