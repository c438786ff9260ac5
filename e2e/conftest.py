"""The API server that the tests of this folder share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton_testing.kube.api_server import HOW, ApiServer, find_binaries, running
from baton_testing.kube.control_plane import HOW as HOW_PLANE
from baton_testing.kube.control_plane import ControlPlane, control_plane, find_programs
from baton_testing.kube.stage import Stage

CRDS = sorted((Path(__file__).parents[1] / "crds").glob("*.yaml"))
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _define(server: ApiServer) -> None:
    """Give the server Baton's definitions."""
    for path in CRDS:
        reply = server.send("POST", DEFINITIONS, yaml.safe_load(path.read_text(encoding="utf-8")))
        assert reply.status == 201, reply.message


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A running API server with Baton's definitions, established."""
    binaries = find_binaries()
    if binaries is None and os.environ.get("BATON_REQUIRE_K8S"):
        pytest.fail(HOW)
    if binaries is None:
        pytest.skip(HOW)
    with running(binaries, tmp_path_factory.mktemp("k8s")) as server:
        _define(server)
        server.until_defined()
        yield server


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = find_programs()
    if programs is None and os.environ.get("BATON_REQUIRE_K8S"):
        pytest.fail(HOW_PLANE)
    if programs is None:
        pytest.skip(HOW_PLANE)
    with control_plane(programs, tmp_path_factory.mktemp("plane")) as own_plane:
        _define(own_plane.api)
        own_plane.api.until_defined()
        yield own_plane


@pytest.fixture
def stage(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    new_stage = Stage(plane, f"t{secrets.token_hex(4)}")
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": new_stage.space}}
    assert plane.api.send("POST", "/api/v1/namespaces", body).status == 201
    yield new_stage
    plane.api.send("DELETE", f"/api/v1/namespaces/{new_stage.space}")
