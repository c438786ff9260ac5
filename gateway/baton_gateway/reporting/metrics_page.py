"""A page of metrics in the format that its reader asks for, with the version and the resources of all processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from baton_wire.messages.values import WIRE_VERSION

DISTRIBUTION = "baton-serving"
UNKNOWN = "unknown"
_LEAST = ("process_start_time_seconds", "process_max_fds")
_MOST = ("process_open_fds",)
"""The limit holds for each process, so the process with most descriptors is compared with it, and not their sum."""
_HELP = {
    "process_virtual_memory_bytes": "Virtual memory, all processes together",
    "process_resident_memory_bytes": "Resident memory, all processes together",
    "process_cpu_seconds_total": "User and system processor time, all processes together",
    "process_open_fds": "Open file descriptors of the process that has most",
    "process_start_time_seconds": "Unix seconds at which the first process started",
    "process_max_fds": "The least limit of open file descriptors",
}


@functools.cache
def own_version() -> str:
    """Return the version; an image may contain the packages without their metadata."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return UNKNOWN


class BuildAndProcesses(Collector):
    """The series `baton_build_info` and `process_*`, of this process or of all that share a folder."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield the series as of now. A process that has just ended is left out."""
        info = GaugeMetricFamily("baton_build_info", "1, by version", labels=("version", "wire"))
        info.add_metric((own_version(), str(WIRE_VERSION)), 1.0)
        yield info
        values: dict[str, list[float]] = {name: [] for name in _HELP}
        for pid in self._pids():
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                for sample in metric.samples:
                    values[sample.name].append(sample.value)
        for name, text in _HELP.items():
            if values[name]:
                combine = min if name in _LEAST else max if name in _MOST else sum
                value = combine(values[name])
                is_counter = name.endswith("_total")
                yield (CounterMetricFamily if is_counter else GaugeMetricFamily)(name, text, value=value)

    def _pids(self) -> list[int]:
        if self._folder is None:
            return [os.getpid()]
        owners = (path.stem.rpartition("_")[2] for path in Path(self._folder).glob("counter_*.db"))
        return [int(owner) for owner in owners if owner.isdigit()]


def metrics_page(own: CollectorRegistry, folder: str | None, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its content type: of one process, or of all that write to `folder`."""
    registry = CollectorRegistry()
    if folder is not None:
        MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    registry.register(BuildAndProcesses(folder))
    encode, content_type = choose_encoder(accept)
    if folder is not None:
        return encode(registry), content_type
    return encode(_Both(own, registry)), content_type


class _Both(Collector):
    """The series of two registries."""

    def __init__(self, *registries: CollectorRegistry) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        for registry in self._registries:
            yield from registry.collect()
