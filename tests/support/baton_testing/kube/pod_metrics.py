"""A metrics server for a real HorizontalPodAutoscaler: `metrics.k8s.io/v1beta1`, what each Pod uses of the CPUs.

There are no kubelets to ask. A load is set instead, which the Ready Pods of a selector share evenly, as Pods behind a
Service do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from baton_testing.kube import aggregated_api
from baton_testing.kube.aggregated_api import VERSION, resource_list
from baton_testing.kube.api_server import ApiServer, Json
from baton_testing.kube.control_plane import ControlPlane

GROUP = "metrics.k8s.io"
_ROOT = f"/apis/{GROUP}/{VERSION}"


class PodMetrics:
    """`load` is how many thousandths of a CPU all Pods that are asked about use together."""

    def __init__(self, pods: ApiServer) -> None:
        self.load = 0
        self.asked = 0
        """How often an autoscaler has asked."""
        self._pods, self._one_at_a_time = pods, threading.Lock()

    def answer(self, path: str) -> Json | None:
        split = urlsplit(path)
        if split.path == _ROOT:
            return resource_list(GROUP, "pods", "PodMetrics")
        parts = split.path.removeprefix(f"{_ROOT}/namespaces/").split("/")
        if not split.path.startswith(f"{_ROOT}/namespaces/") or parts[1:] != ["pods"]:
            return None
        ready = self._ready(parts[0], parse_qs(split.query).get("labelSelector", [""])[0])
        self.asked += 1
        used = {"cpu": f"{self.load // max(len(ready), 1)}m", "memory": "64Mi"}
        items = [
            {
                "metadata": {"name": name, "namespace": parts[0]},
                "timestamp": aggregated_api.now(),
                "window": "100ms",
                "containers": [{"name": "gateway", "usage": used}],
            }
            for name in ready
        ]
        return {"kind": "PodMetricsList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}

    def _ready(self, namespace: str, selector: str) -> list[str]:
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(selector)}"
        with self._one_at_a_time:
            usage: Any = self._pods.send("GET", path).body
        return [
            item["metadata"]["name"]
            for item in usage["items"]
            if any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", ()))
        ]


@contextlib.contextmanager
def serving(plane: ControlPlane) -> Iterator[PodMetrics]:
    """Serve it while the block lasts."""
    with contextlib.closing(plane.client()) as pods:
        metrics = PodMetrics(pods)
        with aggregated_api.serving(plane.api, plane.folder, GROUP, metrics.answer):
            yield metrics
