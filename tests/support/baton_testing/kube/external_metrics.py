"""A metrics API with one number, for a real HorizontalPodAutoscaler: `external.metrics.k8s.io/v1beta1` over HTTPS.

The API server finds it through an APIService whose Service is of type ExternalName, so that no proxy is needed.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from baton_testing.kube.api_server import ApiServer, Json

GROUP, METRIC = "external.metrics.k8s.io", "queued-requests"
_ROOT = f"/apis/{GROUP}/v1beta1"
_SERVICE = "/api/v1/namespaces/default/services/external-metrics"
_GROUP_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{GROUP}"


class ExternalMetrics:
    """`value` is what the metric says now."""

    def __init__(self) -> None:
        self.value = 0

    def answer(self, path: str) -> Json | None:
        path = path.partition("?")[0]
        if path == _ROOT:
            entry = {"name": METRIC, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            made: Json = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/v1beta1"}
            return made | {"resources": [{**entry, "singularName": ""}]}
        if path.startswith(f"{_ROOT}/namespaces/") and path.endswith(f"/{METRIC}"):
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            item = {"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": str(self.value)}
            return {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{GROUP}/v1beta1",
                "metadata": {},
                "items": [item],
            }
        return None


@contextlib.contextmanager
def serving(api: ApiServer, folder: Path) -> Iterator[ExternalMetrics]:
    """Serve with the certificate in `folder`, known to the API server, while the block lasts."""
    metrics = ExternalMetrics()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = metrics.answer(self.path)
            body = json.dumps(found or {}).encode()
            self.send_response(404 if found is None else 200)
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
        _register(api, server.server_address[1])
        yield metrics
    finally:
        # A group that nobody answers for keeps the controllers from deleting any namespace.
        for path in (_SERVICE, _GROUP_SERVICE):
            api.send("DELETE", path)
        server.shutdown()
        server.server_close()
        thread.join()


def _register(api: ApiServer, port: int) -> None:
    name = {"name": _SERVICE.rpartition("/")[2], "namespace": "default"}
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port, "protocol": "TCP"}]}
    made = api.send(
        "POST",
        _SERVICE.rpartition("/")[0],
        {"kind": "Service", "apiVersion": "v1", "metadata": name, "spec": spec},
    )
    assert made.status == 201, made.message
    service: Json = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": _GROUP_SERVICE.rpartition("/")[2]},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {**name, "port": port},
        },
    }
    made = api.send("POST", _GROUP_SERVICE.rpartition("/")[0], service)
    assert made.status == 201, made.message
    api.until("GET", _ROOT)
