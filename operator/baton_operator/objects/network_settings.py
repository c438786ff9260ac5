"""The installation's part of the NetworkPolicies of all deployments.

A service mesh or a cluster-wide policy may need more than Baton's edges, or replace them. These are settings of the
installation: a tenant who could add rules could reach other networks.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import msgspec

from baton_operator.kube.object_fields import Manifest

DNS_PORT = 53
MAX_RULES = 32
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_SERVICE = re.compile(r"[a-z0-9-]+\.(?P<namespace>[a-z0-9-]+)\.svc(\..*)?")
PUBLIC_NETWORKS: tuple[Manifest, ...] = (
    {
        "ipBlock": {
            "cidr": "0.0.0.0/0",
            "except": [
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
                "192.168.0.0/16",
            ],
        }
    },
    {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
)
"""The public internet, without the networks of clusters, machines and their metadata servers."""


class WorkloadPolicies(enum.StrEnum):
    """The maker of the policies of deployments: the operator, or no one, which deletes those that the operator made."""

    MANAGED = "Managed"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The installation's part of NetworkPolicies."""

    workloads: WorkloadPolicies = WorkloadPolicies.MANAGED
    dns_ports: tuple[int, ...] = (DNS_PORT,)
    """The ports of DNS servers' Pods. Some networks judge a packet after its address was translated, so that a Service
    port of 53 does not help where Pods listen on 5353 (OpenShift)."""
    ingress: tuple[Manifest, ...] = ()
    """Further rules for all Pods of every deployment."""
    egress: tuple[Manifest, ...] = ()

    def dns(self) -> Manifest:
        """The egress rule for name look-ups."""
        ports = [{"protocol": protocol, "port": port} for port in self.dns_ports for protocol in ("UDP", "TCP")]
        return {"ports": ports}


DEFAULT_NETWORK = NetworkSettings()


def service_peer(host: str) -> Manifest | None:
    """The peer of a NetworkPolicy for a host that is a Service's name with its namespace; None: it is another name. A
    policy knows no names, so the peer is the whole namespace."""
    service = _SERVICE.fullmatch(host)
    if service is None:
        return None
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: service["namespace"]}}}


def parse_rules(flag: str, text: str, peer: str) -> tuple[Manifest, ...]:
    """Rules of a NetworkPolicy in a JSON list; `peer` is the field with their peers. Raises ValueError."""
    try:
        rules = msgspec.json.decode(text, type=list[dict[str, object]])
    except msgspec.DecodeError as error:
        raise ValueError(f"{flag}: {error}: must be a JSON list of rules") from error
    if len(rules) > MAX_RULES:
        raise ValueError(f"{flag}: {len(rules)} rules are not allowed: must be at most {MAX_RULES}")
    for place, rule in enumerate(rules):
        unknown = sorted(rule.keys() - {"ports", peer})
        if unknown:
            raise ValueError(f"{flag}: [{place}].{unknown[0]} is not allowed: must be ports or {peer}")
    return tuple(rules)
