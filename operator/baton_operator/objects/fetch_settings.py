"""The additions of the installation to fetch Pods: variables for a proxy, a private CA, labels and annotations.

These are settings of the operator and never of an LLMDeployment. A tenant who could set a proxy would see every
source's traffic, and one who could set labels would choose the policies that apply to the Pod.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from baton_operator.kube.object_fields import Manifest, mapping, mappings
from baton_operator.objects.network_settings import service_peer

CA_PATH, CA_KEY = "/etc/baton/ca", "ca.crt"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
_OWN = frozenset({"HOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_FIELDS = ("env", "caBundle", "podLabels", "podAnnotations")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The installation's part of fetch Pods."""

    env: Pairs = ()
    ca_config_map: str = ""
    """ConfigMap in the namespace of each LLMDeployment; empty: the image's authorities alone."""
    pod_labels: Pairs = ()
    pod_annotations: Pairs = ()

    def apply_to(self, pod: Manifest, variables: Pairs = ()) -> Manifest:
        """A PodTemplateSpec with these settings added, and the operator's own `variables`; what Baton sets wins.
        Unchanged where nothing is set."""
        metadata, spec = {**mapping(pod["metadata"])}, {**mapping(pod["spec"])}
        if self.pod_labels:
            metadata["labels"] = {**dict(self.pod_labels), **mapping(metadata.get("labels"))}
        if self.pod_annotations:
            metadata["annotations"] = {**dict(self.pod_annotations), **mapping(metadata.get("annotations"))}
        env: list[Manifest] = [
            {"name": name, "value": value.replace("$", "$$")} for name, value in self.env + variables
        ]
        mounts: list[Manifest] = []
        if self.ca_config_map:
            source: Manifest = {"name": self.ca_config_map, "items": [{"key": CA_KEY, "path": CA_KEY}]}
            spec["volumes"] = [*mappings(spec["volumes"]), {"name": "ca", "configMap": source}]
            mounts = [{"name": "ca", "mountPath": CA_PATH, "readOnly": True}]
            env.append({"name": "SSL_CERT_FILE", "value": f"{CA_PATH}/{CA_KEY}"})
        if env:
            container, *others = mappings(spec["containers"])
            container = {**container, "env": [*mappings(container["env"]), *env]}
            container["volumeMounts"] = [*mappings(container["volumeMounts"]), *mounts]
            spec["containers"] = [container, *others]
        return {"metadata": metadata, "spec": spec}

    def proxy_rules(self, cidrs: tuple[str, ...]) -> list[Manifest]:
        """Rules of a NetworkPolicy that let a Pod reach the proxies of `env`. A policy knows no names: a name of a
        Service is its namespace, any other name is one of the installation's networks `cidrs`."""
        rules: list[Manifest] = []
        for host, port in sorted(set(self._proxies())):
            if (block := _block(host)) is not None:
                to: list[Manifest] = [{"ipBlock": {"cidr": block}}]
            elif (service := service_peer(host)) is not None:
                to = [service]
            else:
                to = [{"ipBlock": {"cidr": cidr}} for cidr in cidrs]
            if to:
                rules.append({"to": to, "ports": [{"protocol": "TCP", "port": port}]})
        return rules

    def _proxies(self) -> list[tuple[str, int]]:
        return [proxy_address(value) for name, value in self.env if name in _PROXIES and value]


NO_SETTINGS = FetchSettings()


def proxy_address(url: str) -> tuple[str, int]:
    """Host and port of a proxy's URL. Raises ValueError; the message has no login."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a proxy's URL must be http://HOST:PORT")
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def parse_fetch_settings(text: str) -> FetchSettings:
    """The settings in JSON. Raises ValueError that names the field and what is allowed."""
    try:
        given = msgspec.json.decode(text or "{}", type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ValueError(f"--fetch-pod: {error}") from error
    if unknown := sorted(given.keys() - set(_FIELDS)):
        raise ValueError(f"--fetch-pod: {unknown[0]}: unknown field; known here: {', '.join(_FIELDS)}")
    bundle = given.get("caBundle") or {}
    if not isinstance(bundle, dict) or not bundle.keys() <= {"configMapName"}:
        raise ValueError("--fetch-pod: caBundle: must be {configMapName: NAME}, whose key ca.crt has the certificates")
    settings = FetchSettings(
        _variables(given.get("env") or {}),
        str(bundle.get("configMapName") or ""),
        _pairs("podLabels", given.get("podLabels") or {}, _LABEL),
        _pairs("podAnnotations", given.get("podAnnotations") or {}, None),
    )
    if settings.ca_config_map and _NAME.fullmatch(settings.ca_config_map) is None:
        raise ValueError(f"--fetch-pod: caBundle.configMapName: {settings.ca_config_map!r} is no name of a ConfigMap")
    if settings.ca_config_map and any(name == "SSL_CERT_FILE" for name, _ in settings.env):
        raise ValueError("--fetch-pod: env: SSL_CERT_FILE is not allowed next to caBundle, which sets it")
    return settings


def _variables(given: object) -> Pairs:
    """Raises ValueError for variables that Baton sets, and for proxies that are none."""
    if not isinstance(given, Mapping):
        raise ValueError("--fetch-pod: env: must be a map of names to text")
    for name, value in given.items():
        where = f"--fetch-pod: env.{name}"
        if _VARIABLE.fullmatch(str(name)) is None or name in _OWN or str(name).startswith("BATON_"):
            raise ValueError(f"{where}: not allowed: must be a variable that Baton does not set")
        if not isinstance(value, str):
            raise ValueError(f"{where}: {value!r} is not allowed: must be text, in quotes")
        if name in _PROXIES and value:
            try:
                proxy_address(value)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
    return tuple(sorted((str(name), str(value)) for name, value in given.items() if value))


def _pairs(field: str, given: object, values: re.Pattern[str] | None) -> Pairs:
    """Raises ValueError for keys that are Baton's or none of Kubernetes'."""
    if not isinstance(given, Mapping):
        raise ValueError(f"--fetch-pod: {field}: must be a map of text to text")
    for key, value in given.items():
        prefix = str(key).partition("/")[0]
        if _KEY.fullmatch(str(key)) is None or prefix == "baton.dev" or prefix.endswith(".baton.dev"):
            raise ValueError(f"--fetch-pod: {field}: {key!r} is not allowed: must be a key outside of baton.dev")
        if not isinstance(value, str) or (values is not None and values.fullmatch(value) is None):
            raise ValueError(f"--fetch-pod: {field}: {key}: {value!r} is not allowed: must be text, in quotes")
    return tuple(sorted((str(key), str(value)) for key, value in given.items()))


def _block(host: str) -> str | None:
    try:
        return str(ipaddress.ip_network(host))
    except ValueError:
        return None
