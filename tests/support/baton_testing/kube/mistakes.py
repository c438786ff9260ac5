"""Mistakes that people make in manifests, with what the reader of files and the API server have to say about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from baton_control.spec.api import AutoscalingSpec, DeploymentSpec, SloSpec
from baton_control.spec.base_model import Model
from baton_control.spec.engine_sizes import EngineSpec
from baton_control.spec.foreign_fields import FOREIGN, ForeignField, ForeignType
from baton_control.spec.gateway_fields import GatewaySpec, RouteSpec
from baton_control.spec.placing import PlacementSpec
from baton_control.spec.pools import PoolSpec, ReplicaSpec
from baton_control.spec.resources import ResourceAmountsSpec, ResourceSpec
from baton_control.spec.served_model import CacheSpec, ModelSpec
from baton_testing.kube.api_server import Json
from baton_testing.kube.manifests import manifest, set_at


@dataclass(frozen=True, slots=True)
class Mistake:
    path: str
    """Below `spec`."""
    value: object
    allowed: str
    """What both have to say about it."""
    field: str = ""
    """The refused field below `path`; empty: the path itself."""
    on_server: str = ""
    """What the server says instead: of a wrong type, or of a value that is not listed."""

    def __str__(self) -> str:
        return f"{self.path} = {self.value!r}"[:90]

    @property
    def place(self) -> str:
        """The refused field."""
        return f"spec.{self.path}{self.field}"

    def on(self, **more: object) -> Json:
        """A manifest with it."""
        raw = manifest(**more)
        set_at(raw, ("spec", *self.path.split(".")), self.value)
        return raw


SOURCE, SIZE = "hf://ORG/NAME@COMMIT (40 hex digits)", "a size such"
DURATION = "a duration such as 500ms, 1.5s, 1m30s or 1h"
CPUS, NETWORK = 'CPUs such as 4, 500m or "0.5"', "a network such as 192.0.2.0/24"
GPU: Json = {"resource": "nvidia.com/gpu"}
OPEN: Json = {"openAccess": True}
MISTAKES = (
    Mistake("model.source", "hf://org/model", SOURCE),
    Mistake("model.source", "hf://org/model@main", SOURCE),
    Mistake("model.source", "oci://registry.example.com/model:1", SOURCE),
    Mistake("model.source", "meta-llama/Llama-3.1-8B", SOURCE),
    Mistake("model.source", "s3:/bucket/model", SOURCE),
    Mistake("model.source", "https://example.com/org/model", SOURCE),
    Mistake("model.source", "pvc://models", SOURCE),
    Mistake("model.source", "file:///models/../etc", "no '..' in a path"),
    Mistake("model.servedName", "llama 3", "1 to 128 letters, digits"),
    Mistake("model.maxContextTokens", "32k", "an integer from 16 to 1048576", on_server="must be of type integer"),
    Mistake("model.maxContextTokens", 2_000_000, "1048576"),
    Mistake("model.dtype", "bf16", "one of auto, float32", on_server='"auto", "float32"'),
    Mistake("model.quantization", "awq", "one of auto, none", on_server='"auto", "none"'),
    Mistake("model.kvCacheDtype", "fp8", "needs an accelerator in both pools"),
    Mistake("model.cache", {"size": "100GB"}, SIZE, ".size"),
    Mistake("model.cache", {"size": "-1Gi"}, SIZE, ".size"),
    Mistake("model.credentialsSecret", "Hub_Token", "an object name in the same namespace"),
    Mistake("slo.ttft", {"target": 500}, DURATION, ".target", on_server="must be of type string"),
    Mistake("slo.ttft", {"target": "500 ms"}, DURATION, ".target"),
    Mistake("slo.ttft", {"target": "0.5"}, DURATION, ".target"),
    Mistake("slo.tpot", {"target": "1d"}, DURATION, ".target"),
    Mistake("slo.tpot", {"target": "2h"}, "from 1ms to 1h", ".target"),
    Mistake("slo.ttft", {"target": "1s", "percentile": "p95"}, "from 50 to 99.9", ".percentile", "of type number"),
    Mistake("slo.ttft", {"target": "1s", "percentile": 99.99}, "99.9", ".percentile"),
    Mistake("prefill.replicas", 3, "a mapping with min, max", on_server="must be of type object"),
    Mistake("prefill.replicas", {"min": 3, "max": 1}, "must be at most replicas.max", ".min"),
    Mistake("decode.replicas", {"min": 0}, "must be 0 in both pools or in neither", on_server="in neither"),
    Mistake("prefill.resources", {"cpu": 0.5}, CPUS, ".cpu", on_server="must be of type integer,string"),
    Mistake("prefill.resources", {"cpu": "8 cores"}, CPUS, ".cpu"),
    Mistake("prefill.resources", {"memory": "64GB"}, SIZE, ".memory"),
    Mistake("decode.resources", {"memory": "400m"}, SIZE, ".memory"),
    Mistake("decode.resources", {"limits": {"memory": "8Gb"}}, SIZE, ".limits.memory"),
    Mistake("decode.resources", {"cpu": 8, "requests": {"cpu": 8}}, "must be absent while requests.cpu", ".cpu"),
    Mistake(
        "decode.resources",
        {"requests": {"memory": "8Gi"}, "limits": {"memory": "4Gi"}},
        "must be at most limits.memory",
        ".requests",
    ),
    Mistake("decode.resources", {"limits": {"nvidia.com/gpu": 1}}, "write accelerator:", ".limits.nvidia.com/gpu"),
    Mistake("decode.accelerator", {"resource": "gpu"}, "an extended resource such as nvidia.com/gpu", ".resource"),
    Mistake("decode.accelerator", {}, "must be given, or claim, and not both", ".resource"),
    Mistake("decode.accelerator", {"claim": "gpu"}, "must be a name in resourceClaims", ".claim"),
    Mistake("decode.accelerator", {**GPU, "with": {"rdma": 1}}, "an extended resource such", ".with", "an extended"),
    Mistake("decode.accelerator", {**GPU, "type": "L40S"}, "one of H200, H100", ".type", '"H200", "H100"'),
    Mistake("decode.tensorParallel", 3, "must be 1, 2, 4 or 8"),
    Mistake("decode.tensorParallel", "2", "must be 1, 2, 4 or 8", on_server="must be of type integer"),
    Mistake(
        "decode.placement",
        {"tolerations": [{"key": "a", "value": "b"}]},
        "must be absent while operator is Exists",
        ".tolerations[0].value",
    ),
    Mistake("decode.placement", {"nodeSelector": {"a b": "c"}}, "a Kubernetes key such as", ".nodeSelector"),
    Mistake(
        "decode.placement",
        {"nodeAffinity": [{"matchExpressions": [{"key": "a"}]}]},
        "must be entries with operator In",
        ".nodeAffinity[0].matchExpressions[0].values",
    ),
    Mistake("decode.env", [{"name": "LD_PRELOAD", "value": "x"}], "reserved", "[0].name"),
    Mistake("decode.env", [{"name": "ucx_tls", "value": "x"}], "capital letters", "[0].name"),
    Mistake("decode.volumes", [{"name": "a", "mountPath": "/data", "claimName": "a"}], "below /mnt", "[0].mountPath"),
    Mistake("decode.volumes", [{"name": "a", "mountPath": "/mnt/a"}], "or configMapName", "[0].claimName"),
    Mistake("kvTransfer", {"minBandwidth": "100Gbps"}, "a rate such as 500MB/s", ".minBandwidth"),
    Mistake("kvTransfer", {"minBandwidth": "10GB"}, "a rate such as 500MB/s", ".minBandwidth"),
    Mistake("kvTransfer", {"transport": "RDMA"}, "one of Auto, UCX, TCP", ".transport", '"Auto", "UCX", "TCP"'),
    Mistake("autoscaling", {"mode": False}, "one of SLO, External, Off", ".mode", "must be of type string"),
    Mistake("autoscaling", {"mode": "HPA"}, "one of SLO, External, Off", ".mode", '"SLO", "External", "Off"'),
    Mistake("autoscaling", {"scaleToZeroAfter": "5m"}, "needs replicas.min 0 in both pools", ".scaleToZeroAfter"),
    Mistake(
        "autoscaling",
        {"schedules": [{"start": "8:00", "end": "18:00", "decode": 1}]},
        "a time of day such as 08:30",
        ".schedules[0].start",
    ),
    Mistake("rollout", {"maxSurge": "25"}, "an integer from 0 to 64, or a percentage such as 25%", ".maxSurge"),
    Mistake("rollout", {"maxUnavailable": "150%"}, "a percentage such as 25%", ".maxUnavailable"),
    Mistake("gateway", {"service": {"type": "LoadBalancer"}}, "apiKeys", on_server="apiKeys, tenants or openAccess"),
    Mistake(
        "gateway",
        {**OPEN, "service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0"]}},
        NETWORK,
        ".service.loadBalancerSourceRanges[0]",
    ),
    Mistake(
        "gateway",
        {"service": {"externalTrafficPolicy": "Local"}},
        "must be absent while type is ClusterIP",
        ".service.externalTrafficPolicy",
    ),
    Mistake("gateway", {**OPEN, "route": {}}, "must be given, or parentRefs, and not both", ".route.parent"),
    Mistake("gateway", {"route": {"parentRefs": [{"port": 443}]}}, "missing", ".route.parentRefs[0].name", "Required"),
    Mistake("gateway.limits", {"maxRequestDuration": "25h"}, "from 1s to 24h", ".maxRequestDuration"),
    Mistake("gateway.tls", {"secretName": "Cert"}, "an object name in the same namespace", ".secretName"),
    Mistake("gateway.allowedOrigins", ["chat.example"], "http(s)://HOST[:PORT]", "[0]"),
    Mistake("imagePullSecrets", [{"name": "registry"}], "goes into pullSecrets", "[0]", "unknown field"),
    Mistake("pullSecrets", ["registry"], "a mapping with name", "[0]", "must be of type object"),
    Mistake("podMetadata", {"labels": {"app.kubernetes.io/name": "x"}}, "reserved", ".labels"),
    Mistake("operatorClass", "Gold Class", "1 to 63 lower-case letters"),
)
PLACES: dict[type[Model], str] = {
    DeploymentSpec: "",
    ModelSpec: "model",
    PoolSpec: "decode",
    ReplicaSpec: "prefill.replicas",
    EngineSpec: "decode.engine",
    ResourceSpec: "gateway.resources",
    ResourceAmountsSpec: "decode.resources.requests",
    SloSpec: "slo",
    AutoscalingSpec: "autoscaling",
    GatewaySpec: "gateway",
    RouteSpec: "gateway.route",
    CacheSpec: "model.cache",
    PlacementSpec: "gateway.placement",
}
"""A place of each model with fields of other projects."""
FOREIGN_VALUES: dict[ForeignType, object] = {
    ForeignType.SCALAR: "x",
    ForeignType.NUMBER: 0.9,
    ForeignType.BOOLEAN: True,
    ForeignType.MAPPING: {"a": "b"},
    ForeignType.LIST: [{"key": "a"}],
    ForeignType.TEXTS: ["--quiet"],
}


def foreign_mistakes() -> Iterator[tuple[ForeignField, str, Json]]:
    """Every field of another project, its path, and a manifest with it."""
    for model, fields in FOREIGN.items():
        for field in fields:
            way = [part for part in PLACES[model].split(".") if part]
            routed: Json = {"gateway__openAccess": True, "gateway__route": {"parent": "a"}}
            raw = manifest(**(routed if model is RouteSpec else {}))
            node = raw
            for part in ("spec", *way):
                node = node.setdefault(part, {})  # type: ignore[assignment]
            node[field.name] = FOREIGN_VALUES[field.type]
            yield field, ".".join(("spec", *way, field.name)), raw
