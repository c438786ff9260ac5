"""The bill of materials of an image names every package of its list, and the chart's data for Artifact Hub is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from image_requirements import EXTRAS, read
from sbom import bill_of_materials

from baton_control.spec.manifest import parse_object
from baton_operator.schema.crd import definitions

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("role", [role for role in EXTRAS if role != "build"])
def test_every_package_of_an_image_is_in_its_bill(role: str) -> None:
    bill = bill_of_materials(role)
    assert json.dumps(bill) == json.dumps(bill_of_materials(role)), "it can be compared"
    components = bill["components"]
    assert isinstance(components, list)
    pins = read((ROOT / "images" / f"requirements-{role}.txt").read_text(encoding="utf-8"))
    assert {component["purl"] for component in components} == {f"pkg:pypi/{n}@{pin.version}" for n, pin in pins.items()}
    for component in components:
        assert all(len(entry["content"]) == 64 for entry in component["hashes"])


def test_artifact_hub_is_told_of_the_definitions_that_there_are() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "baton" / "Chart.yaml").read_text(encoding="utf-8"))
    listed = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    assert {(entry["name"], entry["version"], entry["kind"]) for entry in listed} == {
        (str(d["metadata"]["name"]), str(d["spec"]["versions"][0]["name"]), str(d["spec"]["names"]["kind"]))  # type: ignore[index]
        for d in definitions().values()
    }
    (example,) = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    example["spec"]["model"]["source"] = "hf://org/name@" + "a" * 40
    assert parse_object(example)
