"""The API server that the tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton_testing.kube.api_server import HOW, ApiServer, find_binaries, running

CRDS = sorted((Path(__file__).parents[1] / "crds").glob("*.yaml"))
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/baton.dev/v1alpha1"


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A running API server with Baton's definitions, established."""
    binaries = find_binaries()
    if binaries is None and os.environ.get("BATON_REQUIRE_K8S"):
        pytest.fail(HOW)
    if binaries is None:
        pytest.skip(HOW)
    with running(binaries, tmp_path_factory.mktemp("k8s")) as server:
        for path in CRDS:
            reply = server.send("POST", DEFINITIONS, yaml.safe_load(path.read_text(encoding="utf-8")))
            assert reply.status == 201, reply.message
        for plural in ("llmdeployments", "llmpools"):
            server.until("GET", f"{GROUP}/namespaces/default/{plural}")
        yield server
