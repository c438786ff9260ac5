"""The installation's part of fetch Pods: a proxy, a private CA, labels and annotations, and no tenant's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from baton_control.spec.manifest import parse_live
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.fetch import fetch_objects
from baton_operator.objects.fetch_settings import NO_SETTINGS, parse_fetch_settings, proxy_address
from baton_operator.objects.fetch_state import FETCH_ANNOTATION, find_former_jobs, is_fetched
from baton_operator.objects.pods import worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment, manifest
from baton_testing.kube.pod_security import violations
from baton_wire.messages.values import Role

Json = dict[str, Any]
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
PLATFORM, OWNER = Platform(IMAGE, IMAGE), Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
GIVEN = {
    "env": {"HTTPS_PROXY": "http://10.9.8.7:3128", "NO_PROXY": ".svc,$(HOME)"},
    "caBundle": {"configMapName": "corporate-ca"},
    "podLabels": {"sidecar.istio.io/inject": "false", "app.kubernetes.io/name": "mine"},
    "podAnnotations": {"linkerd.io/inject": "disabled"},
}
FULL = replace(PLATFORM, fetch=parse_fetch_settings(json.dumps(GIVEN)))


def made(kind: str, platform: Platform = FULL, **fields: object) -> Json:
    remote = deployment(**{"model__source": "hf://org/name@" + "c" * 40, **fields})
    made_objects: list[Json] = json.loads(json.dumps(fetch_objects(remote, platform, OWNER)))
    return next(made_object for made_object in made_objects if made_object["kind"] == kind)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_job_has_them_and_stays_valid_and_restricted(version: str) -> None:
    job = made("Job")
    kubernetes_validate.validate(job, version, strict=True)
    kubernetes_validate.validate(made("NetworkPolicy"), version, strict=True)
    pod = job["spec"]["template"]
    [container] = pod["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env["HTTPS_PROXY"] == "http://10.9.8.7:3128"
    assert env["NO_PROXY"] == ".svc,$$(HOME)", "no variable is put into a value"
    assert env["HOME"] == "/tmp"
    assert env["SSL_CERT_FILE"] == "/etc/baton/ca/ca.crt"
    assert {"name": "ca", "mountPath": "/etc/baton/ca", "readOnly": True} in container["volumeMounts"]
    [ca] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "ca"]
    assert ca["configMap"] == {"name": "corporate-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "baton", "what Baton sets wins"
    assert pod["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"
    assert violations(pod["spec"]) == []


def test_without_them_nothing_changes() -> None:
    assert parse_fetch_settings("{}") == parse_fetch_settings("") == NO_SETTINGS
    assert parse_fetch_settings('{"env": {"HTTPS_PROXY": ""}, "caBundle": {"configMapName": ""}}') == NO_SETTINGS
    job = made("Job", PLATFORM)
    assert job == made("Job", replace(PLATFORM, fetch=parse_fetch_settings("{}")))
    assert FETCH_ANNOTATION not in job["metadata"].get("annotations", {})


def test_no_other_pod_has_them() -> None:
    remote = deployment(model__source="hf://org/name@" + "c" * 40)
    for role in (Role.PREFILL, Role.DECODE):
        assert worker_template(remote, role, FULL) == worker_template(remote, role, PLATFORM)


def test_a_done_job_stands_for_one_with_other_settings_and_a_failed_one_does_not() -> None:
    before, after = made("Job", PLATFORM), made("Job")
    assert before["metadata"]["name"] != after["metadata"]["name"]
    done = before | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    failed = before | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    assert is_fetched(after, [done])
    assert find_former_jobs([after], [done]) == ()
    assert not is_fetched(after, [failed])
    assert find_former_jobs([after], [failed, after]) == (failed,)
    both = after | {"status": done["status"]}
    assert find_former_jobs([after], [done, both]) == (done,)
    assert is_fetched(before, [both]), "and back"
    other = made("Job", PLATFORM, model__credentialsSecret="hub")
    assert not is_fetched(other, [done, both])


@pytest.mark.parametrize(
    ("proxy", "cidrs", "rule"),
    [
        ("http://10.9.8.7:3128", (), ({"ipBlock": {"cidr": "10.9.8.7/32"}}, 3128)),
        ("http://user:word@10.9.8.7", (), ({"ipBlock": {"cidr": "10.9.8.7/32"}}, 80)),
        ("https://[fd00::9]:8443", (), ({"ipBlock": {"cidr": "fd00::9/128"}}, 8443)),
        ("http://squid.egress.svc:3128", (), ({"namespaceSelector": {"matchLabels": {
            "kubernetes.io/metadata.name": "egress"}}}, 3128)),
        ("http://squid.egress.svc.cluster.local:3128", (), ({"namespaceSelector": {"matchLabels": {
            "kubernetes.io/metadata.name": "egress"}}}, 3128)),
        ("http://proxy.example.com:8080", ("10.0.0.0/8",), ({"ipBlock": {"cidr": "10.0.0.0/8"}}, 8080)),
        ("proxy.example.com:8080", ("10.0.0.0/8",), ({"ipBlock": {"cidr": "10.0.0.0/8"}}, 8080)),
        ("http://proxy.example.com:8080", (), None),
    ],
)  # fmt: skip
def test_the_policy_lets_the_job_reach_the_proxy_and_no_more(
    proxy: str, cidrs: tuple[str, ...], rule: tuple[Json, int] | None
) -> None:
    settings = parse_fetch_settings(json.dumps({"env": {"HTTPS_PROXY": proxy, "https_proxy": proxy}}))
    egress = made("NetworkPolicy", replace(PLATFORM, fetch=settings, fetch_cidrs=cidrs))["spec"]["egress"]
    assert egress[:1] == made("NetworkPolicy", replace(PLATFORM, fetch_cidrs=cidrs))["spec"]["egress"]
    more = [{"to": [rule[0]], "ports": [{"protocol": "TCP", "port": rule[1]}]}] if rule else []
    assert egress[1:] == more


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "--fetch-pod: "),
        ("[]", "--fetch-pod: "),
        ('{"volumes": []}', "volumes: unknown field; known here: env, caBundle, podLabels, podAnnotations"),
        ('{"env": {"HOME": "/"}}', "env.HOME: not allowed"),
        ('{"env": {"PYTHONPATH": "/"}}', "env.PYTHONPATH: not allowed"),
        ('{"env": {"BATON_X": "1"}}', "env.BATON_X: not allowed"),
        ('{"env": {"A B": "1"}}', "env.A B: not allowed"),
        ('{"env": {"A": 1}}', "env.A: 1 is not allowed: must be text"),
        ('{"env": [1]}', "env: must be a map"),
        ('{"env": {"HTTPS_PROXY": "socks5://user:word@x:1"}}', "env.HTTPS_PROXY: a proxy's URL must be http://HOST"),
        ('{"env": {"HTTPS_PROXY": "http://x:99999"}}', "env.HTTPS_PROXY: "),
        ('{"caBundle": "x"}', "caBundle: must be {configMapName: NAME}"),
        ('{"caBundle": {"configMapName": "A"}}', "caBundle.configMapName: 'A' is no name"),
        ('{"caBundle": {"configMapName": "a"}, "env": {"SSL_CERT_FILE": "x"}}', "env: SSL_CERT_FILE is not allowed"),
        ('{"podLabels": {"baton.dev/role": "gateway"}}', "podLabels: 'baton.dev/role' is not allowed"),
        ('{"podLabels": {"a": "b c"}}', "podLabels: a: 'b c' is not allowed"),
        ('{"podLabels": {"inject": false}}', "podLabels: inject: False is not allowed: must be text, in quotes"),
        ('{"podAnnotations": []}', None),
        ('{"podAnnotations": ["x"]}', "podAnnotations: must be a map"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(given: str, says: str | None) -> None:
    if says is None:
        assert parse_fetch_settings(given) == NO_SETTINGS
        return
    with pytest.raises(ValueError, match=r"--fetch-pod") as caught:
        parse_fetch_settings(given)
    assert says in str(caught.value)
    assert "word" not in str(caught.value), "no login of a proxy"


def test_a_tenant_can_set_none_of_it() -> None:
    more = {"env": {"HTTPS_PROXY": "http://10.0.0.1:1"}, "podLabels": {"a": "b"}}
    raw = manifest(model__source="hf://org/name@" + "c" * 40, model__fetch=more)
    parsed, unknown = parse_live(raw)
    assert sorted(unknown) == ["spec.model.fetch.env", "spec.model.fetch.podLabels"]
    assert "HTTPS_PROXY" not in json.dumps(fetch_objects(parsed, PLATFORM, OWNER))


def test_a_proxys_port_has_the_default_of_its_scheme() -> None:
    assert proxy_address("https://proxy.example.com") == ("proxy.example.com", 443)
