"""The installation's part of who clients are: tokens of an identity provider, and a gateway that names the tenant.

These are settings of the operator and never of an LLMDeployment: the author of a deployment must not choose whom its
gateways believe. The rules of tokens are in an annotation of the Pod, which a volume shows as the file that the gateway
reads. What rotates is in ConfigMaps and Secrets, which reach running Pods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.network_settings import PUBLIC_NETWORKS, service_peer

JWT_ANNOTATION: Final = "baton.dev/jwt"
JWT_PATH, HEADER_PATH = "/etc/baton/jwt", "/etc/baton/identity"
RULES_FILE, JWKS_KEY, CA_KEY, HEADER_KEY = "jwt.json", "jwks.json", "ca.crt", "identity.json"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_TEXT_CHARS, MAX_LEEWAY_S = 512, 300
_FLAG: Final = "--identity"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HTTPS_PORT: Final = 443


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The tokens that gateways accept."""

    rules: str
    """The content of the gateway's file, as JSON."""
    jwks_config_map: str = ""
    """The ConfigMap with the provider's keys; empty: they come from its URL."""
    ca_config_map: str = ""
    """The ConfigMap with the authorities of that URL; empty: those of the image."""
    jwks_url: str = ""

    def volume(self) -> Manifest:
        """The folder with the rules and what they name."""
        field: Manifest = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{JWT_ANNOTATION}']"}
        sources: list[Manifest] = [{"downwardAPI": {"items": [{"path": RULES_FILE, "fieldRef": field}]}}]
        for name, key in ((self.jwks_config_map, JWKS_KEY), (self.ca_config_map, CA_KEY)):
            if name:
                sources.append({"configMap": {"name": name, "items": [{"key": key, "path": key}]}})
        return {"name": "jwt", "projected": {"sources": sources}}

    def provider_rules(self) -> list[Manifest]:
        """The rule of a NetworkPolicy that lets gateways reach the provider. A policy knows no names: a name of a
        Service is its namespace, any other name is the public internet."""
        if not self.jwks_url:
            return []
        url = urlsplit(self.jwks_url)
        service = service_peer(url.hostname or "")
        peers = list(PUBLIC_NETWORKS) if service is None else [service]
        return [{"to": peers, "ports": [{"protocol": "TCP", "port": url.port or _HTTPS_PORT}]}]


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """The identities besides keys that gateways with tenants accept; none unless the installation names some."""

    tokens: TokenSettings | None = None
    header_secret: str = ""
    """The Secret in the namespace of each LLMDeployment that says which header names the tenant, and which proof the
    gateway in front has; empty: no header does."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose gateways accept them; empty: all."""

    def in_namespace(self, namespace: str) -> IdentitySettings:
        """Return the settings of a namespace's gateways."""
        return self if not self.namespaces or namespace in self.namespaces else NO_IDENTITY

    def arguments(self) -> list[str]:
        """The gateway's flags."""
        flags = [] if self.tokens is None else [f"--jwt={JWT_PATH}/{RULES_FILE}"]
        return flags + ([f"--trusted-identity={HEADER_PATH}/{HEADER_KEY}"] if self.header_secret else [])

    def annotations(self) -> dict[str, str]:
        """The annotations of gateways' Pods."""
        return {} if self.tokens is None else {JWT_ANNOTATION: self.tokens.rules}

    def volumes(self) -> list[tuple[Manifest, Manifest]]:
        """Volumes of gateways' Pods with their mounts."""
        given: list[tuple[Manifest, Manifest]] = []
        if self.tokens is not None:
            given.append((self.tokens.volume(), {"name": "jwt", "mountPath": JWT_PATH, "readOnly": True}))
        if self.header_secret:
            secret: Manifest = {"secretName": self.header_secret, "defaultMode": 0o440}
            place: Manifest = {"name": "identity", "mountPath": HEADER_PATH, "readOnly": True}
            given.append(({"name": "identity", "secret": secret}, place))
        return given

    def provider_rules(self) -> list[Manifest]:
        """The rules of a NetworkPolicy by which gateways fetch the keys of tokens."""
        return [] if self.tokens is None else self.tokens.provider_rules()


NO_IDENTITY: Final = IdentitySettings()


class _Reference(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The name of a ConfigMap in each namespace."""

    config_map_name: str = ""


class _Jwks(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The source of the provider's public keys."""

    url: str = ""
    config_map_name: str = ""


class _Jwt(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The tokens of one provider."""

    issuer: str = ""
    audience: str = ""
    claim: str = "sub"
    jwks: _Jwks = msgspec.field(default_factory=_Jwks)
    ca_bundle: _Reference = msgspec.field(default_factory=_Reference)
    algorithms: list[str] = msgspec.field(default_factory=list)
    leeway_seconds: int = 60


class _TrustedHeader(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The Secret about the header."""

    secret_name: str = ""


class _Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The value of the flag."""

    namespaces: list[str] = msgspec.field(default_factory=list)
    jwt: _Jwt = msgspec.field(default_factory=_Jwt)
    trusted_header: _TrustedHeader = msgspec.field(default_factory=_TrustedHeader)


def parse_identity_settings(text: str) -> IdentitySettings:
    """The settings in JSON. Raises ValueError that names the field and what is allowed."""
    try:
        fields = msgspec.json.decode(text, type=_Fields)
    except msgspec.DecodeError as error:
        raise ValueError(f"{_FLAG}: {error}") from error
    for name in fields.namespaces:
        if _NAME.fullmatch(name) is None:
            raise _refused("namespaces", name, "must be names of namespaces")
    secret = _object_name("trustedHeader.secretName", fields.trusted_header.secret_name, "a Secret")
    return IdentitySettings(_tokens(fields.jwt), secret, tuple(sorted(set(fields.namespaces))))


def _tokens(jwt: _Jwt) -> TokenSettings | None:
    url = jwt.jwks.url
    keys = _object_name("jwt.jwks.configMapName", jwt.jwks.config_map_name, "a ConfigMap")
    ca = _object_name("jwt.caBundle.configMapName", jwt.ca_bundle.config_map_name, "a ConfigMap")
    if not jwt.issuer:
        needed = (("audience", jwt.audience), ("jwks.url", url), ("jwks.configMapName", keys))
        for field, value in (*needed, ("caBundle.configMapName", ca)):
            if value:
                raise ValueError(f"{_FLAG}: jwt.issuer: must be given with jwt.{field}")
        return None
    if not jwt.audience:
        raise ValueError(f"{_FLAG}: jwt.audience: must be given with jwt.issuer: tokens for others would be accepted")
    if bool(url) == bool(keys):
        raise ValueError(f"{_FLAG}: jwt.jwks: exactly one of url and configMapName must be given with jwt.issuer")
    if ca and not url:
        raise ValueError(f"{_FLAG}: jwt.caBundle.configMapName: must be given with jwt.jwks.url alone")
    for field, value in (("issuer", jwt.issuer), ("audience", jwt.audience), ("claim", jwt.claim)):
        if not 1 <= len(value) <= MAX_TEXT_CHARS:
            raise _refused(f"jwt.{field}", value[:40], f"must have 1 to {MAX_TEXT_CHARS} characters")
    if url and not _is_https(url):
        raise ValueError(
            f"{_FLAG}: jwt.jwks.url: must be a URL such as https://id.example.com/jwks.json, without a user"
        )
    _check_algorithms(jwt.algorithms)
    if not 0 <= jwt.leeway_seconds <= MAX_LEEWAY_S:
        raise _refused("jwt.leewaySeconds", jwt.leeway_seconds, f"must be from 0 to {MAX_LEEWAY_S}")
    rules: dict[str, object] = {"issuer": jwt.issuer, "audience": jwt.audience, "claim": jwt.claim}
    rules |= {"keys_url": url} if url else {"keys": JWKS_KEY}
    rules |= {"ca": CA_KEY} if ca else {}
    rules |= {"algorithms": sorted(set(jwt.algorithms))} if jwt.algorithms else {}
    return TokenSettings(json.dumps(rules | {"leeway_s": jwt.leeway_seconds}, sort_keys=True), keys, ca, url)


def _check_algorithms(given: Sequence[str]) -> None:
    for algorithm in given:
        if algorithm not in ALGORITHMS:
            raise _refused("jwt.algorithms", algorithm, f"must be of {', '.join(ALGORITHMS)}")


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_plain = parts.username is None and not parts.fragment and parts.port != 0 and url.isprintable()
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname) and is_plain and " " not in url


def _object_name(field: str, name: str, kind: str) -> str:
    if name and _NAME.fullmatch(name) is None:
        raise _refused(field, name, f"must be the name of {kind}")
    return name


def _refused(field: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"{_FLAG}: {field}: {value!r} is not allowed: {allowed}")
