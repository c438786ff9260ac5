"""The fields of `spec.gateway`: who reaches it, with what key, and what a request may take."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.placing import PlacementSpec, ResourceSpec
from baton_control.spec.quantities import AnnotationValue, Duration, Label, ObjectName, Origin, QualifiedName
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, refuse_reserved


class ServiceType(enum.StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class UnknownFieldsPolicy(enum.StrEnum):
    REFUSE = "Refuse"
    IGNORE = "Ignore"


class ServiceSpec(Model):
    """The Service that clients use."""

    type: Annotated[ServiceType, Field(strict=False)] = ServiceType.CLUSTER_IP
    """`NodePort` and `LoadBalancer` can be reached from outside of the cluster."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 80
    """TCP port of the Service."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Service, such as those of a cloud's load balancers; the installation lists which."""

    @model_validator(mode="after")
    def _not_reserved(self) -> ServiceSpec:
        refuse_reserved("annotations", self.annotations, RESERVED_ANNOTATIONS)
        return self


class TlsSpec(Model):
    """The certificate of the gateway."""

    secret_name: ObjectName
    """Secret of type kubernetes.io/tls in the same namespace; a renewed certificate is taken without a restart."""


class ApiKeysSpec(Model):
    """The keys with which clients may ask."""

    secret_name: ObjectName
    """Secret in the same namespace. Each entry holds a key a line; its name is the tenant's. Re-read on change."""


class RouteSpec(Model):
    """An HTTPRoute to the gateway's Service, where the cluster serves the Gateway API."""

    parent: ObjectName
    """Gateway that the route attaches to."""
    parent_namespace: Label | None = None
    """Its namespace; unset: that of the LLMDeployment."""
    hostnames: Annotated[tuple[ObjectName, ...], Field(max_length=16, strict=False)] = ()
    """Host names of requests that the route takes; none: all that reach the Gateway."""


class LimitSpec(Model):
    """What one request may take, and how many may wait."""

    max_queue_duration: Annotated[Duration, Field(ge=0.001, le=3600)] | None = None
    """Longest predicted wait; beyond it 429. By default ten TTFT targets, and half of one if that lasts."""
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Sequences (prompts × n) that may wait in a gateway process; more get 429. By default 4096."""
    max_request_duration: Annotated[Duration, Field(ge=1, le=86_400)] = 600.0
    """From arrival to last token; later a request ends with an error. Pods get this long to finish when told to go."""


class GatewayAutoscalingSpec(Model):
    """A HorizontalPodAutoscaler that sizes the gateway."""

    min: Annotated[int, Field(ge=1, le=64)] = 1
    """Fewest Pods, also while the pools sleep: requests wait in them."""
    max: Annotated[int, Field(ge=1, le=64)]
    """Most Pods."""
    target_cpu: Annotated[int, Field(ge=1, le=100)] = 70
    """Percent of a CPU that each of a Pod's processes is to use on average; more of it adds Pods."""

    @model_validator(mode="after")
    def _ordered(self) -> GatewayAutoscalingSpec:
        if self.min > self.max:
            raise broken_rule("min", f"{self.min} is not allowed: must be at most autoscaling.max, which is {self.max}")
        return self


class GatewaySpec(Model):
    """The processes that speak HTTP with clients."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods of the gateway; 1 where `autoscaling` says how many."""
    autoscaling: GatewayAutoscalingSpec | None = None
    """Let a HorizontalPodAutoscaler size the gateway by its use of CPUs; unset: `replicas` Pods."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes of each Pod, sharing one port; one uses one CPU."""
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    """Serve HTTPS; unset: plain HTTP."""
    route: RouteSpec | None = None
    """Attach an HTTPRoute of the Gateway API; unset: none."""
    api_keys: ApiKeysSpec | None = None
    """Who may ask; unset: Pods of the same namespace, without a key."""
    open_access: bool = False
    """Whoever reaches the gateway may ask without a key; only without `apiKeys`."""
    allowed_origins: Annotated[tuple[Origin, ...], Field(max_length=16, strict=False)] = ()
    """Origins whose pages in browsers may call the API (CORS), such as https://chat.example, or * for any; none: no
    page may."""
    unknown_fields: Annotated[UnknownFieldsPolicy, Field(strict=False)] = UnknownFieldsPolicy.REFUSE
    """Fields of requests that Baton does not know: `Refuse` (400), or `Ignore` and name them in X-Baton-Ignored."""
    limits: LimitSpec = LimitSpec()
    resources: ResourceSpec = ResourceSpec()
    """What one Pod asks for; unset: 250m and 512Mi, with a limit of 4Gi."""
    placement: PlacementSpec = PlacementSpec()
    priority_class_name: ObjectName | None = None
    """PriorityClass of the gateway's Pods, one that the installation lists; unset: the cluster's default."""

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
        if self.open_access or self.api_keys is not None:
            return self
        needed = "needs gateway.apiKeys, or gateway.openAccess: true to let anybody ask"
        if self.service.type is not ServiceType.CLUSTER_IP:
            raise broken_rule("service.type", f"{self.service.type} is not allowed: {needed}")
        if self.route is not None:
            raise broken_rule("route", f"not allowed: {needed}")
        return self

    def replicas_at(self, ready: int) -> int:
        """Pods whose reports make a whole, while `ready` of them are Ready."""
        return self.replicas if self.autoscaling is None else max(self.autoscaling.min, ready)
