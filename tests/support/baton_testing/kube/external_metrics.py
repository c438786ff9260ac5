"""A metrics API with one number, for a real HorizontalPodAutoscaler: `external.metrics.k8s.io/v1beta1`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from baton_testing.kube import aggregated_api
from baton_testing.kube.aggregated_api import VERSION, resource_list
from baton_testing.kube.api_server import ApiServer, Json

GROUP, METRIC = "external.metrics.k8s.io", "queued-requests"
_ROOT = f"/apis/{GROUP}/{VERSION}"


class ExternalMetrics:
    """`value` is what the metric says now."""

    def __init__(self) -> None:
        self.value = 0

    def answer(self, path: str) -> Json | None:
        path = path.partition("?")[0]
        if path == _ROOT:
            return resource_list(GROUP, METRIC, "ExternalMetricValueList")
        if path.startswith(f"{_ROOT}/namespaces/") and path.endswith(f"/{METRIC}"):
            item = {
                "metricName": METRIC,
                "metricLabels": {},
                "timestamp": aggregated_api.now(),
                "value": str(self.value),
            }
            return {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{GROUP}/{VERSION}",
                "metadata": {},
                "items": [item],
            }
        return None


@contextlib.contextmanager
def serving(api: ApiServer, folder: Path) -> Iterator[ExternalMetrics]:
    """Serve it with the certificate in `folder` while the block lasts."""
    metrics = ExternalMetrics()
    with aggregated_api.serving(api, folder, GROUP, metrics.answer):
        yield metrics
