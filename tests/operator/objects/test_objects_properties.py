"""Whatever a manifest says, Pods stay restricted, valid for Kubernetes, and manifest text stays a value."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_control.errors import ManifestError
from baton_control.spec.manifest import parse_object
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import standing_objects, worker_deployment
from baton_operator.objects.pods import worker_template
from baton_testing.kube.manifests import manifest
from baton_testing.kube.pod_security import violations
from baton_wire.messages.values import POOL_ROLES

Json = dict[str, Any]
IMAGE = "registry.example.com/baton@sha256:" + "a" * 64
PLATFORM, OWNER, MASTERS = Platform(IMAGE, IMAGE), Owner("uid-1"), {"k": b"m" * 32}

good = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
bad = st.sampled_from(["--listen=0.0.0.0:1", "a b", "a\nb", "$(HOME)", "../a", "A_b.c", "privileged", "x" * 70])
text = st.integers(0, 19).flatmap(lambda chance: bad if chance == 0 else good)
domain = st.integers(0, 19).flatmap(
    lambda chance: st.sampled_from(["baton.dev", "a..b"] if chance == 0 else ["example.com", "a.b-c"])
)
key = st.one_of(text, st.builds("{}/{}".format, domain, text))
pairs = st.dictionaries(key, text, max_size=3)
pool = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.builds(lambda low, more: {"min": low, "max": low + more}, st.integers(1, 4), st.integers(0, 4)),
        "accelerator": st.just({"resource": "nvidia.com/gpu"}),
        "resources": st.just({"cpu": "1500m", "memory": "2Gi"}),
        "queue": text,
        "priorityClassName": text,
        "schedulerName": text,
        "runtimeClassName": text,
        "resourceClaims": st.lists(
            st.fixed_dictionaries({"name": text, "resourceClaimTemplateName": text}), max_size=2
        ),
        "placement": st.fixed_dictionaries(
            {},
            optional={
                "nodeSelector": pairs,
                "topologyKey": key,
                "tolerations": st.lists(
                    st.fixed_dictionaries(
                        {"key": key}, optional={"operator": st.sampled_from(["Exists", "Equal"]), "value": text}
                    ),
                    max_size=2,
                ),
            },
        ),
    },
)
specs = st.fixed_dictionaries(
    {"model__source": st.builds("pvc://{}/{}".format, text, text), "model__servedName": text},
    optional={
        "prefill": pool,
        "decode": pool,
        "podMetadata": st.fixed_dictionaries({}, optional={"labels": pairs, "annotations": pairs}),
        "imagePullSecrets": st.lists(text, max_size=2),
        "gateway__replicas": st.integers(1, 9),
    },
)


@settings(max_examples=120)
@given(specs)
def test_every_accepted_manifest_renders_to_restricted_valid_pods(fields: Json) -> None:
    try:
        parsed = parse_object(manifest(**fields))
    except ManifestError:
        return
    objects = [*standing_objects(parsed, PLATFORM, OWNER, MASTERS)]
    templates = [worker_template(parsed, role, PLATFORM) for role in POOL_ROLES]
    objects += [worker_deployment(parsed, template, 1, OWNER) for template in templates]
    plain: list[Json] = json.loads(json.dumps(objects))
    for rendered in plain:
        if rendered["kind"] == "Deployment":
            assert violations(rendered["spec"]["template"]["spec"]) == []
            kubernetes_validate.validate(rendered, "1.36", strict=True)
            wanted, have = (
                rendered["spec"]["selector"]["matchLabels"],
                rendered["spec"]["template"]["metadata"]["labels"],
            )
            assert wanted.items() <= have.items()
    for template in templates:
        assert all(part.startswith("--") for part in template.spec.argv[3:])
        flags = [part.partition("=")[0] for part in template.spec.argv[3:]]
        assert len(set(flags)) == len(flags)
        assert "--listen" not in flags
