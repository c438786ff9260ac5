"""The cases of the API server in memory (`baton_testing.kube.conformance`) on a real one.

The server is the one in KUBECONFIG, which has the definitions of Baton, or else one of these tests' own. Every case
gets a namespace of its own, which is deleted after it.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kube_api import Resource
from baton_operator.kube.kubeconfig import KubeConnection, load
from baton_testing.kube.conformance import CASES
from baton_testing.kube.conformance_objects import Case
from baton_testing.kube.control_plane import ControlPlane


class Raw:
    """The few calls that the operator never makes."""

    def __init__(self, connection: KubeConnection) -> None:
        self._to, self._at = connection, urlsplit(connection.server)

    def send(self, method: str, path: str, body: object = None, kind: str = "application/json") -> int:
        """One request; returns its status."""
        host, port = str(self._at.hostname), self._at.port
        line: http.client.HTTPConnection = (
            http.client.HTTPConnection(host, port, timeout=30)
            if self._to.ssl is None
            else http.client.HTTPSConnection(host, port, context=self._to.ssl, timeout=30)
        )
        token = self._to.token()
        headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            answer.read()
            return answer.status
        finally:
            line.close()


@pytest.fixture(scope="module")
def connection(request: pytest.FixtureRequest) -> Iterator[KubeConnection]:
    if "KUBECONFIG" in os.environ:
        yield load()
        return
    plane: ControlPlane = request.getfixturevalue("plane")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", str(plane.kubeconfig))
        yield load()


@pytest.fixture
def space(connection: KubeConnection) -> Iterator[str]:
    name, raw = f"conformance-{secrets.token_hex(4)}", Raw(connection)
    status = raw.send(
        "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    assert status == 201
    yield name
    assert raw.send("DELETE", f"/api/v1/namespaces/{name}") == 200


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_real_server_does_what_the_model_does(connection: KubeConnection, space: str, case: Case) -> None:
    async def scale(resource: Resource, namespace: str, name: str, replicas: int) -> None:
        path = f"/apis/{resource.group}/{resource.version}/namespaces/{namespace}/{resource.plural}/{name}/scale"
        body = {"spec": {"replicas": replicas}}
        assert Raw(connection).send("PATCH", path, body, "application/merge-patch+json") == 200

    async with HttpKubeApi(connection) as api:
        await case(api, space, scale)
