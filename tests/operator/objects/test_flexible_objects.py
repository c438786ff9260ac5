"""The objects of pools whose workers flip, and their absence where workers do not flip."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from baton_control.errors import UnsupportedError
from baton_control.spec.api import LLMDeployment
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import flexible_workers_of, standing_objects
from baton_operator.objects.metadata import roles_of, roles_text
from baton_operator.objects.pods import WorkerTemplate, worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_wire.messages.values import POOL_ROLES, Role
from baton_worker.config import parse

Json = dict[str, Any]
DIGEST = "registry.example.com/baton@sha256:"
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64, operator_service="baton-operator")
OWNER = Owner("6f1c2f0e")
SIZES = {Role.PREFILL: 2, Role.DECODE: 3}
MARKS = ("flexible", "valueFrom", "BATON_ROLE", "baton.dev/roles", "baton.dev/assigned", "matchExpressions")


def flexible(**fields: object) -> LLMDeployment:
    return deployment(**{"model__source": "pvc://models/llama", "autoscaling__flips": True, **fields})


def template(spec_of: LLMDeployment, role: Role = Role.PREFILL, platform: Platform = PLATFORM) -> WorkerTemplate:
    return worker_template(spec_of, role, platform)


def everything(spec_of: LLMDeployment) -> list[Json]:
    pool = template(spec_of)
    workers = flexible_workers_of(spec_of, pool.spec.revision, pool.pod, SIZES, OWNER)
    objects = (*standing_objects(spec_of, PLATFORM, OWNER, {"first": b"m" * 32}), workers)
    return [json.loads(json.dumps(manifest)) for manifest in objects]


def named(objects: list[Json], kind: str, name: str) -> Json:
    return next(
        manifest for manifest in objects if manifest["kind"] == kind and manifest["metadata"]["name"].startswith(name)
    )


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(version: str) -> None:
    for manifest in everything(flexible()):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_both_pools_have_one_template_and_one_deployment_that_selects_no_role() -> None:
    unequal = flexible(prefill__replicas={"min": 1, "max": 4})
    assert template(unequal).pod == template(unequal, Role.DECODE).pod
    assert template(unequal).spec.revision == template(unequal, Role.DECODE).spec.revision
    workers = named(everything(unequal), "Deployment", "chat-flexible-")
    assert workers["spec"]["replicas"] == 5
    assert workers["spec"]["selector"]["matchLabels"].keys() == {"baton.dev/deployment", "baton.dev/template"}
    assert (
        workers["spec"]["selector"]["matchLabels"].items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    )
    assert roles_of(workers["metadata"]["annotations"]["baton.dev/roles"]) == SIZES
    assert violations(workers["spec"]["template"]["spec"]) == []


def test_a_worker_begins_as_what_its_pods_label_says() -> None:
    container = template(flexible()).pod["spec"]["containers"][0]  # type: ignore[index]
    assert [variable for variable in container["env"] if variable["name"] == "BATON_ROLE"] == [
        {
            "name": "BATON_ROLE",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels['baton.dev/role']"}},
        }
    ]
    argv = [*container["command"][3:], *container["args"]]
    assert argv[-1] == "--role=$(BATON_ROLE)"
    for role in POOL_ROLES:
        config = parse(None, [argument.replace("$(BATON_ROLE)", role.value) for argument in argv])
        assert (config.role, config.flips) == (role, True)
        assert str(config.prefill_discovery).endswith(":8001")
        assert str(config.decode_discovery).endswith(":8001")


def test_workers_reach_each_other_in_either_role_and_gateways_as_before() -> None:
    objects, plain = (everything(flexible(autoscaling__flips=flips)) for flips in (True, False))
    for role in POOL_ROLES:
        spec = named(objects, "NetworkPolicy", f"chat-{role}")["spec"]
        pair = [rule for rule in spec["ingress"] if rule["ports"][0]["port"] == 8001]
        assert [{p["podSelector"]["matchLabels"]["baton.dev/role"] for p in rule["from"]} for rule in pair] == [
            {"prefill", "decode"}
        ]
        assert [{p["podSelector"]["matchLabels"]["baton.dev/role"] for p in rule["to"]} for rule in spec["egress"]] == [
            {"prefill", "decode"}
        ]
        service = named(objects, "Service", f"chat-{role}")["spec"]
        assert [port["name"] for port in service["ports"]] == ["http", "pair"]
        assert service["selector"]["baton.dev/role"] == role
    for kind, name in (
        ("NetworkPolicy", "chat-gateway"),
        ("NetworkPolicy", "chat-default"),
        ("Deployment", "chat-gat"),
    ):
        assert named(objects, kind, name) == named(plain, kind, name)


def test_nothing_of_it_is_where_workers_do_not_flip() -> None:
    fixed = flexible(autoscaling__flips=False)
    rendered = json.dumps(
        [
            standing_objects(fixed, PLATFORM, OWNER, {"first": b"m" * 32}),
            [template(fixed, role).pod for role in POOL_ROLES],
        ]
    )
    assert [mark for mark in MARKS if mark in rendered] == []
    assert [mark for mark in MARKS if mark not in json.dumps(everything(flexible()))] == ["baton.dev/assigned"]


@pytest.mark.parametrize(
    ("fields", "platform", "says"),
    [
        ({"decode__engine": {"maxSequences": 9}}, PLATFORM, "unequal `engine`"),
        ({"decode__serviceAccountAnnotations": {"a": "b"}}, PLATFORM, "unequal `serviceAccountAnnotations`"),
        ({}, Platform(PLATFORM.worker_image, PLATFORM.gateway_image), "gets no reports of gateways"),
        (
            {},
            Platform(PLATFORM.worker_image, PLATFORM.gateway_image, operator_service="x", hears_gateways=False),
            "gets no reports of gateways",
        ),
    ],
    ids=["unlike pools", "two accounts", "no links", "by readiness"],
)
def test_what_cannot_flip_is_refused_by_field(fields: Json, platform: Platform, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says) as caught:
        template(flexible(**fields), platform=platform)
    assert caught.value.problem.path == "spec.autoscaling.flips"


@pytest.mark.parametrize(
    "text", ["", "prefill=1", "prefill=1,decode=x", "prefill=1,decode=2,x=3", "prefill=-1,decode=2", None, 7]
)
def test_what_does_not_say_the_roles_says_none(text: object) -> None:
    assert roles_of(text) is None
    assert roles_of(roles_text(SIZES)) == SIZES
