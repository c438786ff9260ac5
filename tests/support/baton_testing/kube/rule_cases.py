"""Rules of the definitions in several places: for each an object that keeps it and one that breaks it.

`e2e/test_rules.py` tries them on a real API server, with all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from baton_testing.kube.api_server import Json
from baton_testing.kube.manifests import manifest

GPU = {"resource": "nvidia.com/gpu"}


@dataclass(frozen=True)
class Case:
    path: str
    """The path of the rule in the schema."""
    message: str
    """How the message of the rule begins."""
    good: Json
    bad: Json
    is_for_files: bool = False
    """Only a cluster refuses what breaks the rule."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def bounded(path: str, message: str, field: str, good: object, bad: object) -> Case:
    return Case(path, message, manifest(**{field: good}), manifest(**{field: bad}))


def two_types(**changes: object) -> Json:
    """An H200, and an H100 on nodes of its own; `other__x` changes the H100."""
    other = {name.removeprefix("other__"): value for name, value in changes.items() if name.startswith("other__")}
    own = {name: value for name, value in changes.items() if not name.startswith("other__")}
    h100 = {**GPU, "type": "H100", "costPerHour": 3, "nodeSelector": {"example.com/gpu": "h100"}, **other}
    accelerator = {**GPU, "type": "H200", "costPerHour": 5, "alternatives": [h100], **own}
    return {name: value for name, value in accelerator.items() if value is not None}


def _accelerator_cases(pool: str) -> Iterator[Case]:
    at, field, good = f"spec.{pool}.accelerator", f"{pool}__accelerator", two_types()
    for missing in ("type", "costPerHour"):
        yield bounded(at, "alternatives are compared", field, good, two_types(**{missing: None}))
    yield bounded(at, "types must differ", field, good, two_types(other__type="H200"))
    yield bounded(at, "each type needs", field, good, two_types(other__nodeSelector={}))
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    by_claim: Json = {**claims, "accelerator": {"claim": "gpu"}}
    for message, wrong in (
        ("must be given, or claim", {}),
        ("must be given, or claim", {**GPU, "claim": "gpu"}),
        ("must be absent while claim", {"claim": "gpu", "alternatives": good["alternatives"]}),
    ):
        yield bounded(at, message, pool, by_claim, {**claims, "accelerator": wrong})
    other = {**claims, "accelerator": {"claim": "nic"}}
    yield bounded(f"spec.{pool}", "must be a name in resourceClaims", pool, by_claim, other)
    more = {**GPU, "with": {"rdma/ib": 1, "vpc.amazonaws.com/efa": 64}}
    for message, name in (("must differ", "nvidia.com/gpu"), ("kubernetes.io is no", "batch.kubernetes.io/cpu")):
        yield bounded(at, message, field, more, {**GPU, "with": {name: 1}})
    yield bounded(f"{at}.with", "keys must each", field, more, {**GPU, "with": {"gpu": 1}})
    for place in (at, f"{at}.alternatives[]"):
        labels = {"nodeSelector" if place == at else "other__nodeSelector": {"-a": "b"}}
        yield bounded(f"{place}.nodeSelector", "keys must each be", field, good, two_types(**labels))
    yield Case(
        "spec",
        f"{pool}.accelerator.alternatives must be absent",
        manifest(**{field: good}),
        manifest(**{field: good}, autoscaling__flips=True),
    )


def resource_cases(path: str, field: str) -> Iterator[Case]:
    """The cases of one container's resources."""
    twice: tuple[tuple[str, Json, Json], ...] = (
        ("must be absent while requests.cpu", {"cpu": 4}, {"requests": {"cpu": "4"}}),
        ("must be absent while requests.memory", {"memory": "4Gi"}, {"requests": {"memory": "4Gi"}}),
        ("must be absent while limits.memory", {"memory": "4Gi"}, {"limits": {"memory": "4Gi"}}),
    )
    for message, short, long in twice:
        yield bounded(path, message, field, short, short | long)
    for name, less, more in (("cpu", "1500m", 2), ("memory", "1G", "1Gi"), ("ephemeral-storage", "1.5Gi", "1536.1Mi")):
        good, bad = {name: less}, {name: more}
        message = f"requests.{name} must be at most"
        yield bounded(path, message, field, {"requests": good, "limits": bad}, {"requests": bad, "limits": good})
    yield bounded(
        path, "requests.cpu must be", field, {"cpu": 1, "limits": {"cpu": 1}}, {"cpu": 2, "limits": {"cpu": 1}}
    )


def pool_cases(pool: str) -> Iterator[Case]:
    yield from resource_cases(f"spec.{pool}.resources", f"{pool}__resources")
    yield bounded(
        f"spec.{pool}.replicas", "must be at most", f"{pool}__replicas", {"min": 2, "max": 2}, {"min": 3, "max": 2}
    )
    for degree, device in ((1, {"accelerator": GPU}), (2, {})):
        over_ucx = manifest(**{pool: {"tensorParallel": degree, **device}}, kvTransfer__transport="UCX")
        ranked = manifest(**{pool: {"tensorParallel": 2, "accelerator": GPU}}, kvTransfer__transport="UCX")
        yield Case("spec", "must not be UCX", over_ucx, ranked)
    offloading: Json = {"offloadedLayers": 1, "offloadDecode": True}
    one, two = ({pool: {"tensorParallel": width, "accelerator": GPU, "engine": offloading}} for width in (1, 2))
    yield Case(f"spec.{pool}", "needs tensorParallel 1", manifest(**one), manifest(**two))
    yield bounded(f"spec.{pool}", "must be 1, 2, 4 or 8", f"{pool}__tensorParallel", 4, 3)
    yield from _accelerator_cases(pool)
    yield bounded(
        f"spec.{pool}.engine.kvCacheMemory", "must be a size", f"{pool}__engine__kvCacheMemory", "1Mi", "1023Ki"
    )
    yield bounded(
        f"spec.{pool}.engine.kvCacheMemory", "must be a size", f"{pool}__engine__kvCacheMemory", "16Ti", "17Ti"
    )
    yield bounded(
        f"spec.{pool}.placement.nodeSelector",
        "keys must each be",
        f"{pool}__placement__nodeSelector",
        {"a/b": "c"},
        {"-a": "c"},
    )
    yield bounded(
        f"spec.{pool}.placement.tolerations[]",
        "must be absent",
        f"{pool}__placement__tolerations",
        [{"key": "a", "operator": "Equal", "value": "b"}, {"key": "a", "value": ""}],
        [{"key": "a", "operator": "Exists", "value": "b"}],
    )
    for step in ({}, {"maxStepTokens": 64}):
        valid, broken = ({**step, "chunkTokens": most} for most in ((64, 65) if step else (8192, 8193)))
        yield bounded(f"spec.{pool}.engine", "must be at most maxStepTokens", f"{pool}__engine", valid, broken)
    claims = [{"name": name, "resourceClaimTemplateName": "gpu"} for name in ("a", "b", "a")]
    yield bounded(f"spec.{pool}", "names must differ", f"{pool}__resourceClaims", claims[:2], claims)
    env = [{"name": name, "value": "1"} for name in ("UCX_A", "UCX_B", "UCX_A")]
    yield bounded(f"spec.{pool}", "names must differ", f"{pool}__env", env[:2], env)
    for name in ("BATON_X", "LD_PRELOAD", "PYTHONPATH", "HOME", "PATH", "NCCL_NET_PLUGIN", "UCX_MODULE_DIR"):
        yield bounded(f"spec.{pool}.env[]", "is reserved", f"{pool}__env", env[:1], [{"name": name, "value": "1"}])
    flags = [{"name": name} for name in ("quiet", "landing-bytes", "quiet")]
    yield bounded(f"spec.{pool}", "names must differ", f"{pool}__arguments", flags[:2], flags)
    for name in ("keys", "listen", "paced", "model"):
        yield bounded(f"spec.{pool}.arguments[]", "is set by Baton", f"{pool}__arguments", flags[:1], [{"name": name}])
    marks = f"{pool}__serviceAccountAnnotations"
    yield bounded(f"spec.{pool}", "keys of the domains", marks, {"batonxdev/a": "b"}, {"x.baton.dev/a": "b"})
    yield bounded(f"spec.{pool}.serviceAccountAnnotations", "keys must each be", marks, {"a.b/c_d": "e"}, {"a b": "c"})
    volume: Json = {"name": "a", "mountPath": "/mnt/a", "claimName": "a"}
    twins: tuple[Json, ...] = ({"name": "a", "mountPath": "/mnt/b"}, {"name": "b", "mountPath": "/mnt/a"})
    for twin in twins:
        good = [volume, {"name": "b", "mountPath": "/mnt/b", "configMapName": "b"}]
        both = [volume, {**twin, "claimName": "b"}]
        yield bounded(f"spec.{pool}", "names and mount paths must differ", f"{pool}__volumes", good, both)
    wrong: tuple[tuple[str, Json], ...] = (
        ("must be given", {"claimName": "a", "configMapName": "b"}),
        ("must be given", {}),
        ("must be true for", {"configMapName": "b", "readOnly": False}),
        ("is reserved", {"claimName": "a", "name": "keys"}),
    )
    for message, fields in wrong:
        bad = [{"name": "a", "mountPath": "/mnt/a", **fields}]
        yield bounded(f"spec.{pool}.volumes[]", message, f"{pool}__volumes", [volume], bad)


def affinity_cases(owner: str) -> Iterator[Case]:
    path, field = f"spec.{owner}.placement", f"{owner}__placement"
    compared: tuple[tuple[Json, Json], ...] = (
        ({"values": ["b"]}, {}),
        ({"operator": "NotIn", "values": ["b", "c"]}, {"operator": "NotIn", "values": []}),
        ({"operator": "Exists"}, {"operator": "DoesNotExist", "values": ["b"]}),
        ({"operator": "Gt", "values": ["40"]}, {"operator": "Lt", "values": ["4", "5"]}),
        ({"operator": "Lt", "values": ["40"]}, {"operator": "Gt", "values": ["much"]}),
    )
    for pair in compared:
        good, bad = ([{"matchExpressions": [{"key": "a", **term}]}] for term in pair)
        at = f"{path}.nodeAffinity[].matchExpressions[]"
        yield bounded(at, "must be entries", f"{field}__nodeAffinity", good, bad)
    for name in ("podAffinity", "podAntiAffinity"):
        valid, broken = ([{"matchLabels": {key: "b"}, "topologyKey": "zone"}] for key in ("a.b/c_d", "a b"))
        yield bounded(f"{path}.{name}[].matchLabels", "keys must each be", f"{field}__{name}", valid, broken)


def edge_cases() -> Iterator[Case]:
    """The cases of the gateway's Service and route, of pull secrets and of credentials."""
    balanced: Json = {"type": "LoadBalancer"}
    nodes: Json = {"type": "NodePort"}
    services: tuple[tuple[str, Json, Json, Json], ...] = (
        ("must be absent unless type", balanced, nodes, {"loadBalancerClass": "example.com/internal"}),
        (
            "must be absent unless type",
            balanced,
            nodes,
            {"loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/32"]},
        ),
        ("must be absent while type is ClusterIP", nodes, {}, {"externalTrafficPolicy": "Local"}),
    )
    for message, good, bad, field in services:
        valid, broken = ({"openAccess": True, "service": {**service, **field}} for service in (good, bad))
        yield bounded("spec.gateway.service", message, "gateway", valid, broken)
    both = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    for message, changed in (
        ("families must differ", {"ipFamilies": ["IPv6", "IPv6"]}),
        ("must be one family", {"ipFamilyPolicy": "SingleStack"}),
    ):
        yield bounded("spec.gateway.service", message, "gateway__service", both, both | changed)
    edge: Json = {"parentRefs": [{"name": "edge", "namespace": "ingress", "sectionName": "https", "port": 443}]}
    for message, route in (
        ("must be given, or parentRefs", {}),
        ("must be given, or parentRefs", {**edge, "parent": "edge"}),
        ("must be absent while parentRefs", {**edge, "parentNamespace": "ingress"}),
    ):
        valid, broken = ({"openAccess": True, "route": given} for given in (edge, route))
        yield bounded("spec.gateway.route", message, "gateway", valid, broken)
    secrets: Json = {"pullSecrets": [{"name": "a"}]}
    yield Case(
        "spec",
        "must be absent while imagePullSecrets",
        manifest(**secrets),
        manifest(**secrets, imagePullSecrets=["a"]),
    )
    credentials = {"model__credentials": {"secretName": "a"}}
    yield Case(
        "spec.model",
        "must be absent while credentialsSecret",
        manifest(**credentials),
        manifest(**credentials, model__credentialsSecret="a"),
    )
