"""The installation's identities: in gateways with tenants of the namespaces that it names, in no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from baton_gateway.settings import parse_settings
from baton_gateway.tenancy.token_claims import ALGORITHMS as GATEWAYS_ALGORITHMS
from baton_gateway.tenancy.token_verifier import TokenVerifier, read_verifier
from baton_gateway.tenancy.trusted_identity import TrustedIdentity
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.identity_settings import ALGORITHMS, NO_IDENTITY, parse_identity_settings
from baton_operator.objects.pods import gateway_template, worker_template
from baton_operator.objects.reachability import policies
from baton_testing.gateway.issuer import Issuer
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_wire.messages.values import POOL_ROLES

Json = dict[str, Any]
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
PLAIN = Platform(IMAGE, IMAGE)
OWNER = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
URL = "https://id.example.com/jwks.json"
JWT = {"issuer": "https://id.example.com", "audience": "baton", "claim": "team", "jwks": {"url": URL}}
GIVEN = {"jwt": JWT, "trustedHeader": {"secretName": "front"}}
TENANTS = {"gateway": {"tenants": True}}


def platform(**given: object) -> Platform:
    return replace(PLAIN, identity=parse_identity_settings(json.dumps(GIVEN | given)))


def tokens(**fields: object) -> Platform:
    return platform(jwt=JWT | fields, trustedHeader={})


def gateway_pod(settings: Platform, **fields: object) -> Json:
    template: Json = json.loads(json.dumps(gateway_template(deployment(**(TENANTS | fields)), settings)))
    return template


def volume_of(template: Json, name: str) -> Json:
    [volume] = [volume for volume in template["spec"]["volumes"] if volume["name"] == name]
    return dict(volume)


def verifier(template: Json, folder: Path) -> TokenVerifier:
    """What a gateway reads of the files that the kubelet makes of a template."""
    (folder / "jwt.json").write_text(template["metadata"]["annotations"]["baton.dev/jwt"])
    return read_verifier(folder / "jwt.json")


def egress(settings: Platform, **fields: object) -> list[Json]:
    (policy,) = (
        made
        for made in policies(deployment(**(TENANTS | fields)), settings, OWNER)
        if str(made["metadata"]["name"]).endswith("-gateway")  # type: ignore[index]
    )
    rules: list[Json] = json.loads(json.dumps(policy))["spec"]["egress"]
    return rules


@pytest.mark.parametrize("version", KUBERNETES)
def test_a_gateways_pod_has_both_files_and_stays_valid_and_restricted(version: str) -> None:
    settings = platform(jwt=JWT | {"caBundle": {"configMapName": "authorities"}})
    template = gateway_pod(settings)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, version, strict=True)
    assert violations(template["spec"]) == []
    [container] = template["spec"]["containers"]
    places = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert places["jwt"] == {"name": "jwt", "mountPath": "/etc/baton/jwt", "readOnly": True}
    assert places["identity"] == {"name": "identity", "mountPath": "/etc/baton/identity", "readOnly": True}
    assert volume_of(template, "identity")["secret"]["secretName"] == "front"
    own, authorities = volume_of(template, "jwt")["projected"]["sources"]
    assert own["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.annotations['baton.dev/jwt']"
    assert authorities["configMap"] == {"name": "authorities", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_the_gateway_takes_the_flags_and_reads_the_rules(tmp_path: Path) -> None:
    [container] = gateway_pod(platform())["spec"]["containers"]
    settings = parse_settings([*container["command"][3:], *container["args"]])
    assert (str(settings.jwt), str(settings.trusted_identity)) == (
        "/etc/baton/jwt/jwt.json",
        "/etc/baton/identity/identity.json",
    )
    rules = verifier(gateway_pod(platform()), tmp_path)._rules
    assert (rules.issuer, rules.audience, rules.claim) == ("https://id.example.com", "baton", "team")
    assert (rules.keys_url, rules.keys, rules.ca, rules.leeway_s) == (URL, None, None, 60.0)
    assert rules.algorithms == GATEWAYS_ALGORITHMS


def test_keys_of_a_config_map_are_next_to_the_rules_where_their_rotation_is_seen(tmp_path: Path) -> None:
    template = gateway_pod(tokens(jwks={"configMapName": "keys"}, algorithms=["ES256"], leewaySeconds=0))
    _, keys = volume_of(template, "jwt")["projected"]["sources"]
    assert keys["configMap"] == {"name": "keys", "items": [{"key": "jwks.json", "path": "jwks.json"}]}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [Issuer("k1", "ES256").public()]}))
    rules = verifier(template, tmp_path)._rules
    assert (rules.keys, rules.keys_url, rules.algorithms, rules.leeway_s) == ("jwks.json", None, ("ES256",), 0.0)


def test_the_mounted_secret_of_a_header_is_nothing_without_a_proof(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    file.write_text('{"header": "X-Tenant"}')
    with pytest.raises(ValueError, match="proof_header or client_ca must be given"):
        TrustedIdentity(file)


def test_gateways_without_tenants_or_of_other_namespaces_accept_neither() -> None:
    given = deployment()
    assert gateway_template(given, platform()) == gateway_template(given, PLAIN), "no LLMTenant could be named"
    others = platform(namespaces=["elsewhere"])
    assert gateway_pod(others) == gateway_pod(PLAIN)
    assert egress(others) == egress(PLAIN)
    assert gateway_pod(platform(namespaces=["elsewhere", given.metadata.namespace])) == gateway_pod(platform())
    for role in POOL_ROLES:
        tenants = deployment(**TENANTS)
        assert worker_template(tenants, role, platform()) == worker_template(tenants, role, PLAIN)


def test_annotations_of_a_deployment_stay_next_to_the_rules() -> None:
    template = gateway_pod(platform(), podMetadata={"annotations": {"example.com/team": "a"}})
    assert template["metadata"]["annotations"].keys() == {"example.com/team", "baton.dev/jwt"}


@pytest.mark.parametrize(
    ("url", "port", "peer"),
    [
        (URL, 443, "ipBlock"),
        ("https://id.example.com:8443/keys", 8443, "ipBlock"),
        ("https://keycloak.identity.svc/keys", 443, "namespaceSelector"),
        ("https://keycloak.identity.svc.cluster.local:8443/keys", 8443, "namespaceSelector"),
    ],
)
def test_a_policy_lets_gateways_reach_the_provider(url: str, port: int, peer: str) -> None:
    (rule,) = (rule for rule in egress(tokens(jwks={"url": url})) if rule not in egress(PLAIN))
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    assert all(peer in given for given in rule["to"])
    if peer == "ipBlock":
        assert "169.254.0.0/16" in rule["to"][0]["ipBlock"]["except"], "no machine's metadata server"


def test_keys_that_are_mounted_need_no_network() -> None:
    assert egress(tokens(jwks={"configMapName": "keys"})) == egress(PLAIN)


def test_both_sides_know_the_same_algorithms() -> None:
    assert ALGORITHMS == GATEWAYS_ALGORITHMS


def test_nothing_given_is_no_identity() -> None:
    assert parse_identity_settings("{}") == NO_IDENTITY
    assert gateway_pod(platform(jwt={}, trustedHeader={})) == gateway_pod(PLAIN)


@pytest.mark.parametrize(
    ("jwt", "field"),
    [
        ({"audience": "baton"}, "jwt.issuer: must be given with jwt.audience"),
        ({"jwks": {"url": URL}}, "jwt.issuer: must be given with jwt.jwks.url"),
        ({"jwks": {"configMapName": "keys"}}, "jwt.issuer: must be given with jwt.jwks.configMapName"),
        ({"caBundle": {"configMapName": "ca"}}, "jwt.issuer: must be given with jwt.caBundle.configMapName"),
        (JWT | {"audience": ""}, "jwt.audience: must be given"),
        (JWT | {"jwks": {}}, "jwt.jwks: exactly one"),
        (JWT | {"jwks": {"url": URL, "configMapName": "keys"}}, "jwt.jwks: exactly one"),
        (JWT | {"jwks": {"configMapName": "a"}, "caBundle": {"configMapName": "ca"}}, "jwt.caBundle.configMapName"),
        (JWT | {"jwks": {"url": "http://id.example.com"}}, "jwt.jwks.url"),
        (JWT | {"jwks": {"url": "https://user:word@id.example.com/"}}, "jwt.jwks.url"),
        (JWT | {"jwks": {"url": "https://id.example.com/#x"}}, "jwt.jwks.url"),
        (JWT | {"jwks": {"url": "https://id.example.com:0/"}}, "jwt.jwks.url"),
        (JWT | {"jwks": {"url": "https://[::1/"}}, "jwt.jwks.url"),
        (JWT | {"jwks": {"configMapName": "../a"}}, "jwt.jwks.configMapName"),
        (JWT | {"caBundle": {"configMapName": "A"}}, "jwt.caBundle.configMapName"),
        (JWT | {"claim": ""}, "jwt.claim"),
        (JWT | {"issuer": "x" * 513}, "jwt.issuer"),
        (JWT | {"algorithms": ["HS256"]}, "jwt.algorithms"),
        (JWT | {"algorithms": ["none"]}, "jwt.algorithms"),
        (JWT | {"leewaySeconds": -1}, "jwt.leewaySeconds"),
        (JWT | {"leewaySeconds": 301}, "jwt.leewaySeconds"),
        (JWT | {"secret": "x"}, "jwt"),
    ],
)
def test_tokens_that_are_configured_by_half_are_refused_by_the_field(jwt: Json, field: str) -> None:
    with pytest.raises(ValueError, match="--identity: ") as refused:
        platform(jwt=jwt)
    assert field in str(refused.value)
    assert "word" not in str(refused.value), "no message repeats a password"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"namespaces": ["a/b"]}, "namespaces"),
        ({"namespaces": "team-a"}, "namespaces"),
        ({"trustedHeader": {"secretName": "../x"}}, "trustedHeader.secretName"),
        ({"trustedHeader": {"header": "X-Tenant"}}, "trustedHeader"),
        ({"trusted": {}}, "trusted"),
    ],
)
def test_other_bad_values_are_refused_by_the_field(given: Json, field: str) -> None:
    with pytest.raises(ValueError, match="--identity: ") as refused:
        platform(**given)
    assert field in str(refused.value)


def test_rules_that_the_operator_accepts_the_gateway_accepts(tmp_path: Path) -> None:
    for fields in ({}, {"claim": "x" * 512}, {"algorithms": list(ALGORITHMS)}, {"leewaySeconds": 300}):
        assert verifier(gateway_pod(tokens(**fields)), tmp_path)
