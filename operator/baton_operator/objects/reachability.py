"""Services and NetworkPolicies: how Pods are found, and which Pods may connect to which.

Everything is denied except these edges: clients → gateway, gateway → prefill and decode, prefill ↔ decode,
gateway → operator, gateway → a collector of traces in the cluster, gateway → the identity provider of the installation,
monitoring → metrics, all Pods → DNS. RDMA does not pass through NetworkPolicies. Workers that flip connect to each
other in any role. Clients are all Pods of the namespace, or anybody where the gateway asks for keys or is declared
open.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from baton_control.names import gateway_name, pool_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.gateway_fields import IpFamilyPolicy, ServiceSpec
from baton_control.worker_specs import pool_roles
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.cluster import HTTP_PORT, OPERATOR_PORT, PAIR_PORT, Owner, Platform
from baton_operator.objects.metadata import object_head, selector
from baton_operator.objects.network_settings import NAMESPACE_LABEL, service_peer
from baton_operator.objects.pod_additions import with_annotations
from baton_wire.messages.values import Role

OPERATOR_LABELS = {"app.kubernetes.io/name": "baton-operator"}
IP_FAMILIES = "PreferDualStack"
"""Both families where the cluster has both, else the one that it has."""


_SCHEME_PORTS = {"http": 80, "https": 443}
_PROTOCOLS = {"http": "http", "pair": "tcp"}
"""For meshes, which else wait for a client's first bytes; on a pair link the server begins."""


def pool_service(deployment: LLMDeployment, role: Role, owner: Owner) -> Manifest:
    """The headless Service that discovery resolves; it also lists workers that are starting or draining."""
    name = pool_name(deployment.metadata.name, role)
    has_pairs = role is Role.DECODE or deployment.spec.autoscaling.flips
    ports = [("http", HTTP_PORT)] + ([("pair", PAIR_PORT)] if has_pairs else [])
    spec: Manifest = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(deployment, role),
        "ports": [
            {"name": port, "port": number, "targetPort": port, "protocol": "TCP", "appProtocol": _PROTOCOLS[port]}
            for port, number in ports
        ],
        "ipFamilyPolicy": IP_FAMILIES,
    }
    return object_head("v1", "Service", name, deployment, owner, role) | {"spec": spec}


def gateway_service(deployment: LLMDeployment, owner: Owner) -> Manifest:
    """The Service that clients use."""
    service = deployment.spec.gateway.service
    scheme = "http" if deployment.spec.gateway.tls is None else "https"
    spec: Manifest = {
        "type": service.type.value,
        "selector": selector(deployment, Role.GATEWAY),
        "ports": [
            {"name": "http", "port": service.port, "targetPort": "http", "protocol": "TCP", "appProtocol": scheme}
        ],
    }
    name = gateway_name(deployment.metadata.name)
    spec |= _service_options(service)
    head = with_annotations(object_head("v1", "Service", name, deployment, owner, Role.GATEWAY), service.annotations)
    return head | {"spec": spec}


def _service_options(service: ServiceSpec) -> Manifest:
    """The fields of the Service that have other defaults than Baton's, or none."""
    options: Manifest = {
        "ipFamilyPolicy": service.ip_family_policy or IpFamilyPolicy.PREFER_DUAL_STACK,
        "ipFamilies": list(service.ip_families),
        "externalTrafficPolicy": service.external_traffic_policy,
        "loadBalancerClass": service.load_balancer_class,
        "loadBalancerSourceRanges": list(service.load_balancer_source_ranges),
    }
    return {name: value for name, value in options.items() if value}


def policies(deployment: LLMDeployment, platform: Platform, owner: Owner) -> tuple[Manifest, ...]:
    """The policies of a deployment: deny everything by default but look-ups and what the installation adds, then allow
    the edges of each role."""
    name, network = deployment.metadata.name, platform.network
    denied: Manifest = {
        "podSelector": {"matchLabels": selector(deployment)},
        "policyTypes": ["Ingress", "Egress"],
        **({"ingress": list(network.ingress)} if network.ingress else {}),
        "egress": [network.dns(), *network.egress],
    }
    deny = object_head("networking.k8s.io/v1", "NetworkPolicy", f"{name}-default", deployment, owner) | {"spec": denied}
    roles = (*pool_roles(deployment), Role.GATEWAY)
    return (deny, *(_allowed(deployment, role, platform, owner) for role in roles))


def _allowed(deployment: LLMDeployment, role: Role, platform: Platform, owner: Owner) -> Manifest:
    prefill, decode, gateway = (_pods(deployment, role) for role in (Role.PREFILL, Role.DECODE, Role.GATEWAY))
    workers = [_pods(deployment, pool) for pool in pool_roles(deployment)]
    ingress: dict[Role, list[Manifest]] = {
        Role.PREFILL: [_from([gateway], HTTP_PORT)],
        Role.DECODE: [_from([gateway], HTTP_PORT), _from([prefill], PAIR_PORT)],
        Role.GATEWAY: [_clients(deployment)],
    }
    egress: dict[Role, list[Manifest]] = {
        Role.PREFILL: [_to([decode], PAIR_PORT)] if deployment.spec.model.generates else [],
        Role.DECODE: [],
        Role.GATEWAY: [_to(workers, HTTP_PORT), _to([_operator(platform)], OPERATOR_PORT)],
    }
    if deployment.spec.autoscaling.flips and role is not Role.GATEWAY:
        ingress[role] = [_from([gateway], HTTP_PORT), _from([prefill, decode], PAIR_PORT)]
        egress[role] = [_to([prefill, decode], PAIR_PORT)]
    egress[Role.GATEWAY] += _collector(deployment) + platform.identity_of(deployment).provider_rules()
    if platform.monitoring_namespace is not None and "from" in ingress[role][0]:  # else the port is open to all
        monitoring: Manifest = {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: platform.monitoring_namespace}}}
        ingress[role].append(_from([monitoring], HTTP_PORT))
    spec: Manifest = {
        "podSelector": {"matchLabels": selector(deployment, role)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress[role],
        **({"egress": egress[role]} if egress[role] else {}),
    }
    name = f"{deployment.metadata.name}-{role}"
    return object_head("networking.k8s.io/v1", "NetworkPolicy", name, deployment, owner, role) | {"spec": spec}


def _collector(deployment: LLMDeployment) -> list[Manifest]:
    """The rule for a collector of traces that is a Service of this cluster. The installation opens the way to others,
    because the author of a deployment must not choose which networks Pods reach."""
    tracing = deployment.spec.telemetry.tracing
    if tracing is None:
        return []
    url = urlsplit(tracing.endpoint)
    port, host = url.port or _SCHEME_PORTS[url.scheme], url.hostname or ""
    if "." not in host:
        return [_to([{"podSelector": {}}], port)]
    service = service_peer(host)
    return [] if service is None else [_to([service], port)]


def _clients(deployment: LLMDeployment) -> Manifest:
    gateway = deployment.spec.gateway
    is_for_all = gateway.open_access or gateway.has_identities
    return {"ports": [_port(HTTP_PORT)]} if is_for_all else _from([{"podSelector": {}}], HTTP_PORT)


def _pods(deployment: LLMDeployment, role: Role) -> Manifest:
    return {"podSelector": {"matchLabels": selector(deployment, role)}}


def _operator(platform: Platform) -> Manifest:
    namespace = {"matchLabels": {NAMESPACE_LABEL: platform.operator_namespace}}
    return {"namespaceSelector": namespace, "podSelector": {"matchLabels": OPERATOR_LABELS}}


def _from(peers: list[Manifest], port: int) -> Manifest:
    return {"from": peers, "ports": [_port(port)]}


def _to(peers: list[Manifest], port: int) -> Manifest:
    return {"to": peers, "ports": [_port(port)]}


def _port(number: int) -> Manifest:
    return {"protocol": "TCP", "port": number}
