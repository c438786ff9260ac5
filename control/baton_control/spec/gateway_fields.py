"""The fields of `spec.gateway`: its Service, access, size and limits."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.placing import PlacementSpec
from baton_control.spec.quantities import AnnotationValue, Cidr, Duration, Label, ObjectName, Origin, QualifiedName
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, refuse_reserved
from baton_control.spec.resources import ResourceSpec


class ServiceType(enum.StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class TrafficPolicy(enum.StrEnum):
    CLUSTER = "Cluster"
    LOCAL = "Local"


class IpFamilyPolicy(enum.StrEnum):
    SINGLE_STACK = "SingleStack"
    PREFER_DUAL_STACK = "PreferDualStack"
    REQUIRE_DUAL_STACK = "RequireDualStack"


class IpFamily(enum.StrEnum):
    IPV4 = "IPv4"
    IPV6 = "IPv6"


class UnknownFieldsPolicy(enum.StrEnum):
    REFUSE = "Refuse"
    IGNORE = "Ignore"


class OversizedMaxTokens(enum.StrEnum):
    REFUSE = "Refuse"
    CLAMP = "Clamp"


class ServiceSpec(Model):
    """Service of the gateway, which clients use."""

    type: Annotated[ServiceType, Field(strict=False)] = ServiceType.CLUSTER_IP
    """Type of the Service. `NodePort` and `LoadBalancer` can be reached from outside the cluster."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 80
    """TCP port of the Service."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Service, for cloud load balancers for example. The installation lists the allowed keys."""

    load_balancer_class: QualifiedName | None = None
    """Implementation of the load balancer. Only with `LoadBalancer`. Unset: the cluster's default."""
    load_balancer_source_ranges: Annotated[tuple[Cidr, ...], Field(max_length=64, strict=False)] = ()
    """Networks of the clients that the load balancer lets through. Only with `LoadBalancer`. Empty: all."""
    external_traffic_policy: Annotated[TrafficPolicy, Field(strict=False)] | None = None
    """`Local` keeps clients' addresses and uses only the Pods of a node. Not with `ClusterIP`. Unset: `Cluster`."""
    ip_family_policy: Annotated[IpFamilyPolicy, Field(strict=False)] | None = None
    """Number of IP families of the Service. Unset: `PreferDualStack`, as many as the cluster has."""
    ip_families: Annotated[tuple[Annotated[IpFamily, Field(strict=False)], ...], Field(max_length=2, strict=False)] = ()
    """IP families, the first for the cluster address. Empty: the cluster's default."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> ServiceSpec:
        for field, value in (
            ("loadBalancerClass", self.load_balancer_class),
            ("loadBalancerSourceRanges", self.load_balancer_source_ranges),
        ):
            if value and self.type is not ServiceType.LOAD_BALANCER:
                raise broken_rule(field, "not allowed: must be absent unless type is LoadBalancer")
        if self.external_traffic_policy is not None and self.type is ServiceType.CLUSTER_IP:
            message = f"{self.external_traffic_policy} is not allowed: must be absent while type is ClusterIP"
            raise broken_rule("externalTrafficPolicy", message)
        if len(set(self.ip_families)) < len(self.ip_families):
            raise broken_rule("ipFamilies", "not allowed: families must differ")
        if len(self.ip_families) > 1 and self.ip_family_policy is IpFamilyPolicy.SINGLE_STACK:
            raise broken_rule("ipFamilies", "not allowed: must be one family while ipFamilyPolicy is SingleStack")
        return self

    @model_validator(mode="after")
    def _not_reserved(self) -> ServiceSpec:
        refuse_reserved("annotations", self.annotations, RESERVED_ANNOTATIONS)
        return self


class TlsSpec(Model):
    """TLS certificate of the gateway."""

    secret_name: ObjectName
    """Secret of type kubernetes.io/tls in the same namespace. A renewed certificate is used without a restart."""


class ApiKeysSpec(Model):
    """API keys of the clients."""

    secret_name: ObjectName
    """Secret in the same namespace. Each entry has one key per line and is named after a tenant. Re-read on change."""


class ParentRefSpec(Model):
    """Gateway that a route attaches to."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: Label | None = None
    """Namespace of the Gateway. Unset: the namespace of the LLMDeployment."""
    section_name: ObjectName | None = None
    """Name of one of its listeners. Unset: all that the route fits."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port of its listeners. Unset: any."""


class RouteSpec(Model):
    """HTTPRoute to the gateway's Service, for clusters with the Gateway API."""

    parent: ObjectName | None = None
    """Name of the Gateway that the route attaches to. Exactly one of this and `parentRefs` is given."""
    parent_namespace: Label | None = None
    """Namespace of the Gateway `parent`. Unset: the namespace of the LLMDeployment."""
    parent_refs: Annotated[tuple[ParentRefSpec, ...], Field(max_length=8, strict=False)] = ()
    """Gateways that the route attaches to, as in an HTTPRoute."""
    hostnames: Annotated[tuple[ObjectName, ...], Field(max_length=16, strict=False)] = ()
    """Host names of the requests that the route matches. Empty: all requests that reach the Gateway."""

    @model_validator(mode="after")
    def _has_parents(self) -> RouteSpec:
        if (self.parent is None) == (not self.parent_refs):
            raise broken_rule("parent", "must be given, or parentRefs, and not both")
        if self.parent_namespace is not None and self.parent is None:
            message = f"{self.parent_namespace} is not allowed: must be absent while parentRefs is given"
            raise broken_rule("parentNamespace", message)
        return self

    def parents(self) -> tuple[ParentRefSpec, ...]:
        """The Gateways, whichever way they are given."""
        if self.parent is None:
            return self.parent_refs
        return (ParentRefSpec(name=self.parent, namespace=self.parent_namespace),)


class LimitSpec(Model):
    """Limits of requests."""

    max_queue_duration: Annotated[Duration, Field(ge=0.001, le=3600)] | None = None
    """Maximum predicted wait; longer gets 429. Unset: ten TTFT targets, half of one under lasting overload."""
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Maximum number of sequences (prompts × n) that wait in a gateway process; more get 429. Unset: 4096."""
    max_request_duration: Annotated[Duration, Field(ge=1, le=86_400)] = 600.0
    """Maximum time from arrival to last token; then a request fails. Stopping Pods get this long for their requests."""
    oversized_max_tokens: Annotated[OversizedMaxTokens, Field(strict=False)] = OversizedMaxTokens.REFUSE
    """A request for more tokens than fit the context: `Refuse` (400), or `Clamp` to those that fit."""


class GatewayAutoscalingSpec(Model):
    """HorizontalPodAutoscaler that sizes the gateway."""

    min: Annotated[int, Field(ge=1, le=64)] = 1
    """Minimum number of Pods, also while the pools are scaled to zero and requests wait."""
    max: Annotated[int, Field(ge=1, le=64)]
    """Maximum number of Pods."""
    target_cpu: Annotated[int, Field(ge=1, le=100)] = 70
    """Target CPU utilisation of each process of a Pod, in percent of one CPU. Higher utilisation adds Pods."""

    @model_validator(mode="after")
    def _ordered(self) -> GatewayAutoscalingSpec:
        if self.min > self.max:
            raise broken_rule("min", f"{self.min} is not allowed: must be at most autoscaling.max, which is {self.max}")
        return self


class GatewaySpec(Model):
    """Gateway, which serves the HTTP API."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of Pods. Must be 1 with `autoscaling`."""
    autoscaling: GatewayAutoscalingSpec | None = None
    """HorizontalPodAutoscaler that sizes the gateway by its CPU utilisation. Unset: `replicas` Pods."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of processes per Pod, which share one port. Each uses one CPU."""
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    """Certificate for HTTPS. Unset: plain HTTP."""
    route: RouteSpec | None = None
    """HTTPRoute of the Gateway API. Unset: none."""
    api_keys: ApiKeysSpec | None = None
    """API keys that clients must send. Unset: Pods of the same namespace need none, others have no access."""
    tenants: bool = False
    """Lets in the LLMTenants of the namespace, besides `apiKeys`. No other client has access then."""
    open_access: bool = False
    """Gives every client that reaches the gateway access without a key. Not with `apiKeys` or `tenants`."""
    allowed_origins: Annotated[tuple[Origin, ...], Field(max_length=16, strict=False)] = ()
    """Origins of web pages that may call the API (CORS), such as https://chat.example; * allows all. Empty: none."""
    unknown_fields: Annotated[UnknownFieldsPolicy, Field(strict=False)] = UnknownFieldsPolicy.REFUSE
    """Treatment of unknown request fields: `Refuse` (400), or `Ignore` and list them in X-Baton-Ignored."""
    limits: LimitSpec = LimitSpec()
    resources: ResourceSpec = ResourceSpec()
    """Resource requests of one Pod. Unset: 250m and 512Mi, with a memory limit of 4Gi."""
    placement: PlacementSpec = PlacementSpec()
    priority_class_name: ObjectName | None = None
    """PriorityClass of the gateway's Pods, from the installation's list. Unset: the cluster's default."""

    @model_validator(mode="after")
    def _has_one_size(self) -> GatewaySpec:
        if self.autoscaling is not None and self.replicas != 1:
            message = (
                f"{self.replicas} is not allowed: must be absent while autoscaling is given, whose min is the floor"
            )
            raise broken_rule("replicas", message)
        return self

    @model_validator(mode="after")
    def _outsiders_have_a_key(self) -> GatewaySpec:
        if self.open_access and self.api_keys is not None:
            raise broken_rule("openAccess", "true is not allowed: must be false while apiKeys is given")
        if self.open_access and self.tenants:
            raise broken_rule("openAccess", "true is not allowed: must be false while tenants is true")
        if self.open_access or self.has_identities:
            return self
        needed = "needs gateway.apiKeys, gateway.tenants, or gateway.openAccess: true to give every client access"
        if self.service.type is not ServiceType.CLUSTER_IP:
            raise broken_rule("service.type", f"{self.service.type} is not allowed: {needed}")
        if self.route is not None:
            raise broken_rule("route", f"not allowed: {needed}")
        return self

    @property
    def has_identities(self) -> bool:
        """True if clients need a key or another identity."""
        return self.api_keys is not None or self.tenants

    def replicas_at(self, ready: int) -> int:
        """Number of Pods that have to report, while `ready` of them are Ready."""
        return self.replicas if self.autoscaling is None else max(self.autoscaling.min, ready)
