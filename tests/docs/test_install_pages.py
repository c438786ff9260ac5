"""The pages about installing: their values render into valid, restricted objects, and each says what was run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from baton_operator.settings import parse
from baton_testing.kube.charts import PINNED, operator_arguments, template_with
from baton_testing.kube.manifests import KUBERNETES
from baton_testing.kube.pod_security import violations

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "docs" / "install"
PAGES = sorted(FOLDER.glob("*.md"))
EXAMPLES = FOLDER.parents[1] / "examples"
UNCHECKED = ("monitoring.", "apiextensions.")
"""Groups without a schema in kubernetes-validate."""


def value_sets() -> list[tuple[str, Json]]:
    """Each block of values of each page, with the page's name."""
    blocks = [
        (page.stem, yaml.safe_load(block))
        for page in PAGES
        for block in re.findall(r"```yaml\n(# values\.yaml\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(blocks) >= 8
    return blocks


MORE: list[tuple[str, Json]] = [
    ("two releases", {"operatorClass": "gold", "crds": {"install": False}}),
    ("namespaced", {"watch": {"nodes": False}, "aggregateRoles": False, "secretsPolicy": {"enabled": False}}),
    ("no definitions", {"crds": {"install": False}}),
    ("own registry", {"images": {"pullSecrets": ["registry"]}}),
]


@pytest.mark.parametrize(("page", "values"), [*value_sets(), *MORE], ids=str)
def test_the_values_of_a_page_render_into_valid_and_restricted_objects(page: str, values: Json) -> None:
    images = {name.partition(".")[2]: image for name, image in PINNED.items()} | values.get("images", {})
    manifests = template_with({**values, "images": images})
    for manifest in manifests:
        if not manifest["apiVersion"].startswith(UNCHECKED):
            for version in KUBERNETES:
                kubernetes_validate.validate(manifest, version, strict=True)
        if manifest["kind"] == "Deployment":
            assert violations(manifest["spec"]["template"]["spec"]) == []
    parse(operator_arguments(manifests))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_was_run_and_what_was_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ran = text.partition("## What was run\n")[2]
    assert "Not run: " in ran


def test_every_page_is_listed() -> None:
    overview = (FOLDER.parent / "install.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"(install/{page.name})" not in overview] == []


def test_a_pool_for_an_inference_gateway_selects_gateways_and_nothing_else() -> None:
    text = (EXAMPLES / "gateway-api" / "inference-pool.yaml").read_text(encoding="utf-8")
    pool, route = yaml.safe_load_all(text)
    assert pool["spec"]["selector"]["matchLabels"]["baton.dev/role"] == "gateway"
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]
