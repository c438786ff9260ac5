"""The chart as Helm users meet it: older values, two releases, linting, and what a release says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_control.spec.manifest import parse_object
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.settings import parse
from baton_testing.kube.charts import CHART, PINNED, operator_arguments, render, rendered

Json = dict[str, Any]
OLD_VALUES = sorted((Path(__file__).parents[2] / "support" / "baton_testing" / "charts").glob("values-*.yaml"))
VALUES: Json = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
CRD = "CustomResourceDefinition"
LIGHT = PINNED | {"crds.install": "false"}
"""Without the definitions, which take most of the time."""


def test_the_defaults_of_the_templates_are_those_of_the_values() -> None:
    text = (CHART / "templates" / "_defaults.tpl").read_text(encoding="utf-8")
    block = text.partition('{{- define "baton.defaults" -}}')[2].partition("{{- end }}")[0]
    assert differing(yaml.safe_load(block), VALUES) == []
    for path in (CHART / "templates").glob("*.yaml"):
        assert path.read_text(encoding="utf-8").startswith('{{- include "baton.withDefaults" . }}\n'), path.name


def differing(defaults: Json, values: Json, at: str = "") -> list[str]:
    """The values that have another default in the templates. A template may also read a value with a default itself:
    `test_an_absent_value_is_the_default` has them all."""
    pairs = [(f"{at}{name}", default, values[name]) for name, default in defaults.items()]
    inner = [name for path, d, v in pairs if isinstance(d, dict) and d for name in differing(d, v, f"{path}.")]
    return inner + [path for path, d, v in pairs if not (isinstance(d, dict) and d) and d != v]


@pytest.mark.parametrize("path", OLD_VALUES, ids=lambda path: path.stem)
def test_values_of_an_older_chart_render_as_the_defaults(path: Path) -> None:
    """`--reuse-values`: values that the older chart did not have are absent."""
    assert len(OLD_VALUES) == 3
    old = rendered(LIGHT, old_values=path)
    new = rendered(LIGHT)
    policy = "--pod-policy="
    assert without(old, policy) == without(new, policy)
    settings = parse(operator_arguments(old))
    assert settings.calls_per_s == 200.0


@pytest.mark.parametrize("key", [name for name in VALUES if name != "images"])
def test_an_absent_value_is_the_default(key: str, tmp_path: Path) -> None:
    """Of every value and every part of one, also of values that come later."""
    parts = [f"{key}.{name}" for name in VALUES[key]] if isinstance(VALUES[key], dict) else []
    wanted = rendered(LIGHT)
    for dropped in (key, *parts):
        if dropped.split(".")[0] in ("resources", "securityContext", "podPolicy") and "." in dropped:
            continue  # taken whole: a part that was removed is removed
        values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
        holder, _, name = dropped.rpartition(".")
        del (values[holder] if holder else values)[name]
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        assert without(rendered(LIGHT, old_values=path), "--pod-policy=") == without(wanted, "--pod-policy=")


def without(manifests: list[Json], flag: str) -> list[Json]:
    """The manifests without an argument of the operator."""
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            container = manifest["spec"]["template"]["spec"]["containers"][0]
            container["args"] = [argument for argument in container["args"] if not argument.startswith(flag)]
    return manifests


def names(manifests: list[Json]) -> set[tuple[str, str, str]]:
    return {(m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in manifests}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("baton", "a", ""), ("baton", "b", "gold")),  # one name, two namespaces
        (("baton", "a", ""), ("gold", "a", "gold")),  # two names, one namespace
        (("silver", "a", "silver"), ("gold", "a", "gold")),
        (("baton", "a", ""), ("other", "b", "")),
    ],
    ids=str,
)
def test_two_releases_share_no_object_but_the_definitions(
    first: tuple[str, str, str], second: tuple[str, str, str]
) -> None:
    made = []
    for name, namespace, operator_class in (first, second):
        values = PINNED | {"operatorClass": operator_class, "watch.namespaces": "{team}"}
        made.append(names(rendered(values, name=name, namespace=namespace)))
    assert {kind for kind, _, _ in made[0] & made[1]} == {CRD}
    alone = rendered(PINNED | {"crds.install": "false"}, name=second[0], namespace=second[1])
    assert not [manifest for manifest in alone if manifest["kind"] == CRD]


def test_an_object_of_no_namespace_has_the_release_namespace_in_its_name() -> None:
    values = PINNED | {"watch.clusterWide": "true"}
    for kind, namespace, name in names(rendered(values, namespace="here")):
        assert namespace or kind == CRD or name.startswith("here-"), (kind, name)


def test_gateways_dial_the_service_of_their_release_and_older_ones_find_the_old_name() -> None:
    for release, services in (("baton", {"baton-operator"}), ("x", {"x-baton-operator", "baton-operator"})):
        manifests = rendered(PINNED, name=release)
        found = [manifest for manifest in manifests if manifest["kind"] == "Service"]
        assert {service["metadata"]["name"] for service in found} == services
        assert all(service["spec"]["selector"] == found[0]["spec"]["selector"] for service in found)
        assert parse(operator_arguments(manifests)).platform.operator_service in services
    classed = rendered(PINNED | {"operatorClass": "gold"}, name="x")
    assert [m["metadata"]["name"] for m in classed if m["kind"] == "Service"] == ["x-baton-operator"]


def test_the_chart_lints_without_values_and_with_those_of_ci() -> None:
    for values in ([], [f"--values={path}" for path in (CHART / "ci").glob("*-values.yaml")]):
        done = render("lint", str(CHART), "--strict", *values)
        assert done.returncode == 0, done.stdout


def test_a_missing_image_is_named() -> None:
    done = render("template", "x", str(CHART), "--kube-version=1.36")
    assert done.returncode != 0
    assert "images.operator: must be IMAGE@sha256:DIGEST" in done.stderr


def test_the_notes_name_the_next_commands() -> None:
    done = notes(PINNED | {"watch.namespaces": "{team-a}", "operatorClass": "gold"})
    assert "serves LLMDeployments in team-a with spec.operatorClass gold. Next:" in done
    assert "kubectl -n baton-system rollout status deployment/baton-operator" in done
    assert "kubectl -n team-a apply -f - <<EOF" in done
    assert "all namespaces" in notes(PINNED | {"watch.clusterWide": "true"})
    assert "{{" not in done


@pytest.mark.parametrize("operator_class", [None, "gold"])
def test_the_deployment_in_the_notes_is_one_that_a_cluster_accepts(operator_class: str | None) -> None:
    values = PINNED if operator_class is None else PINNED | {"operatorClass": operator_class}
    manifest = notes(values).partition("<<EOF\n")[2].partition("\nEOF\n")[0]
    pinned, num_commands = re.subn(r"\$\(git ls-remote .*\)", "0" * 40, manifest)
    assert num_commands == 1
    deployment = parse_object(yaml.safe_load(pinned))
    assert deployment.spec.operator_class == operator_class
    assert deployment.spec.model.source.startswith("hf://"), "a path would be one in the worker image"
    PodPolicy().check(deployment)


def notes(values: dict[str, str]) -> str:
    sets = [f"--set={name}={value}" for name, value in values.items()]
    done = render("install", "baton", str(CHART), "--namespace=baton-system", "--dry-run=client", *sets)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_the_readme_names_every_value() -> None:
    text = (CHART / "README.md").read_text(encoding="utf-8")
    assert [name for name in VALUES if f"`{name}`" not in text] == []
