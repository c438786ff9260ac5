"""docs/metrics.md names every series that a process exports, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from baton_testing.registries import gateway_registry, sizing_registry, tenants_registry, worker_registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


def documented(heading: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → (type, label names) of one section's table."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(section)}


def exported(registry: CollectorRegistry) -> dict[str, tuple[str, frozenset[str]]]:
    """The same of a registry; histograms' and counters' own suffixes and labels left out."""
    families = {}
    for family in registry.collect():
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        families[name] = (family.type, labels)
    return families


@pytest.mark.parametrize(
    ("heading", "registry"),
    [
        ("Workers", worker_registry()),
        ("Gateway", gateway_registry()),
        ("Sizing", sizing_registry()),
        ("Tenants", tenants_registry()),
    ],
    ids=["workers", "gateway", "sizing", "tenants"],
)
def test_the_page_and_the_registry_agree(heading: str, registry: CollectorRegistry) -> None:
    assert documented(heading) == exported(registry)


def test_the_number_of_a_workers_series_never_changes() -> None:
    registry = worker_registry()
    before = sum(len(family.samples) for family in registry.collect())
    assert sum(len(family.samples) for family in registry.collect()) == before
