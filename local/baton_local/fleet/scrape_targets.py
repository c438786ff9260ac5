"""The targets that a Prometheus on this machine reads, as its file_sd_configs takes them. Pure."""

from __future__ import annotations

from typing import Any

from baton_local.fleet.record import RunRecord


def scrape_targets(record: RunRecord, sizing: str) -> list[dict[str, Any]]:
    """The processes that have an address, with the labels that a cluster's PodMonitors give them, and `sizing`, the
    address of the series of pools and tenants: these have labels of their own."""
    labels = {"namespace": record.namespace, "deployment": record.name}
    addresses = {address: process.name for process in record.processes if (address := process.address) is not None}
    pods = [{"targets": [address], "labels": {**labels, "pod": name}} for address, name in addresses.items()]
    return [*pods, {"targets": [sizing], "labels": {}}]
