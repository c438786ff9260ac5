"""An aggregated API of the test's own at a real API server, over HTTPS, as a metrics server is one for an autoscaler.

The API server finds it through an APIService whose Service is of type ExternalName, so that no proxy is needed.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from baton_testing.kube.api_server import ApiServer, Json

VERSION = "v1beta1"
_SERVICES = "/api/v1/namespaces/default/services"
_GROUPS = "/apis/apiregistration.k8s.io/v1/apiservices"


def resource_list(group: str, name: str, kind: str) -> Json:
    """The discovery document of a group with one namespaced resource."""
    entry = {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{VERSION}",
        "resources": [entry],
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def serving(api: ApiServer, folder: Path, group: str, answer: Callable[[str], Json | None]) -> Iterator[None]:
    """Serve a group with the certificate in `folder`, known to the API server, while the block lasts. `answer` gets the
    path with its query, and is asked by several threads; None is answered with 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answered = answer(self.path)
            body = json.dumps(answered or {}).encode()
            self.send_response(404 if answered is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        _register(api, group, server.server_address[1])
        yield
    finally:
        # A group without a server keeps the controllers from deleting any namespace.
        for path in (f"{_SERVICES}/{_service(group)}", f"{_GROUPS}/{VERSION}.{group}"):
            api.send("DELETE", path)
        server.shutdown()
        server.server_close()
        thread.join()


def _service(group: str) -> str:
    return group.replace(".", "-")


def _register(api: ApiServer, group: str, port: int) -> None:
    name = {"name": _service(group), "namespace": "default"}
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port, "protocol": "TCP"}]}
    reply = api.send("POST", _SERVICES, {"kind": "Service", "apiVersion": "v1", "metadata": name, "spec": spec})
    assert reply.status == 201, reply.message
    service: Json = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{group}"},
        "spec": {
            "group": group,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {**name, "port": port},
        },
    }
    reply = api.send("POST", _GROUPS, service)
    assert reply.status == 201, reply.message
    api.until("GET", f"/apis/{group}/{VERSION}")
