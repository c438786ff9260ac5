"""The CEL rules of the API over several fields. The API server checks them, so that they hold without the operator.

Rules over several fields repeat the validators in `api`. Transition rules (with `oldSelf`) exist only here, because a
file has no former state. Rules of one value are in `value_rules`.
"""

from __future__ import annotations

from baton_control.spec.api import (
    DeploymentSpec,
    LLMDeployment,
    PodMetadataSpec,
    RolloutSpec,
    ScheduleSpec,
)
from baton_control.spec.base_model import Model
from baton_control.spec.engine_sizes import STEP_TOKENS, EngineSpec
from baton_control.spec.gateway_fields import GatewayAutoscalingSpec, GatewaySpec, RouteSpec, ServiceSpec
from baton_control.spec.placing import TolerationSpec
from baton_control.spec.pod_affinity import VALUES, NodeExpressionSpec
from baton_control.spec.pod_options import (
    RESERVED_ARGUMENTS,
    RESERVED_VOLUMES,
    ArgumentSpec,
    EnvSpec,
    VolumeSpec,
)
from baton_control.spec.pools import AcceleratorSpec, PoolSpec, ReplicaSpec
from baton_control.spec.reserved_env import OPENED_BY_NAME, RESERVED_ENV
from baton_control.spec.reserved_keys import MESH_OPT_OUTS, RESERVED_ANNOTATIONS, RESERVED_LABELS
from baton_control.spec.resources import ResourceSpec
from baton_control.spec.served_model import CacheSpec, FetchSpec, ModelSpec
from baton_control.spec.tensor_parallel import DEGREES, ONE_OF_DEGREES, RANKS_NEED_TCP
from baton_operator.schema.llm_pool import PoolFacadeSpec
from baton_operator.schema.tenant_rules import TENANT_RULES
from baton_operator.schema.value_rules import Rule


def _accelerators(pool: str) -> str:
    replicas, ranks = f"self.{pool}.replicas.min", f"self.{pool}.tensorParallel"
    return f"(has(self.{pool}.accelerator) ? {replicas} * {ranks} : 0)"


OTHER_CLAIM = "has(self.claimName) || has(oldSelf.claimName)"
ALTERNATIVES = "has(self.alternatives) && self.alternatives.size() > 0"


def _differ(one: str, other: str) -> str:
    """The CEL expression that two accelerators select different nodes."""
    empty = "dyn({})"
    labels = [f"(has({name}.nodeSelector) ? dyn({name}.nodeSelector) : {empty})" for name in (one, other)]
    return f"{labels[0]} != {labels[1]}"


def _absent_while(field: str, other: str) -> Rule:
    """The rule that a short field is absent while the same resource is named in `other`."""
    place = other.partition(".")[0]
    rule = f"!has(self.{field}) || !has(self.{place}) || !has(self.{other})"
    return Rule(rule, f"must be absent while {other} is given", f".{field}")


def _within_limit(name: str, short: str | None = None) -> Rule:
    """The rule that a request is at most the limit of the same resource."""
    key = name.replace("-", "__dash__")
    limit = f"quantity(string(self.limits.{key}))"
    requested = [(f"has(self.requests) && has(self.requests.{key})", f"self.requests.{key}")]
    requested += [] if short is None else [(f"has(self.{short})", f"self.{short}")]
    fits = [f"(!({given}) || quantity(string({value})).compareTo({limit}) <= 0)" for given, value in requested]
    rule = f"!has(self.limits) || !has(self.limits.{key}) || {' && '.join(fits)}"
    return Rule(rule, f"requests.{name} must be at most limits.{name}", ".requests")


def _reserved(field: str, domains: tuple[str, ...]) -> Rule:
    pattern = "|".join(domain.replace(".", "\\\\.") for domain in domains)
    allowed = [
        (key, value) for key, value in MESH_OPT_OUTS.items() if any(key.partition("/")[0].endswith(d) for d in domains)
    ]
    excepted = "".join(f" && !(k == '{key}' && self.{field}[k] == '{value}')" for key, value in allowed)
    return Rule(
        f"!has(self.{field}) || !self.{field}.exists(k, k.matches('^([^/]*[.])?({pattern})/'){excepted})",
        f"keys of the domains {', '.join(domains)} are reserved",
        f".{field}",
    )


NAME = Rule(
    "self.metadata.name.size() <= 36 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must be 1 to 36 lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
)
ABSOLUTE = Rule("!self.matches('^(file|random)://[^/]')", "must have a path from '/' on: it is one in the image")
NO_PARENT = Rule("!self.matches('(^|[/@])[.][.]($|[/@])')", "must have no '..' in a path")

_GENERATES = "self.model.tasks.exists(t, t == 'Generate')"
RULES: dict[type[Model], tuple[Rule, ...]] = {
    LLMDeployment: (NAME,),
    **TENANT_RULES,
    ModelSpec: (
        Rule(
            "!has(self.aliases) || self.aliases.all(a, a != self.servedName && self.aliases.exists_one(b, b == a))",
            "names must differ from each other and from servedName",
            ".aliases",
        ),
        Rule(
            "!has(self.credentials) || !has(self.credentialsSecret)",
            "must be absent while credentialsSecret is given",
            ".credentials",
        ),
        Rule(
            "(self.toolFormat == 'harmony') == (self.reasoningFormat == 'harmony') || self.toolFormat == 'auto' || "
            "self.reasoningFormat == 'auto'",
            "harmony is toolFormat and reasoningFormat at once",
            ".reasoningFormat",
        ),
        Rule(
            "self.cache.type != 'ImageVolume' || self.source.startsWith('oci://')",
            "must be Shared or PerWorker: an ImageVolume needs an oci:// source",
            ".cache.type",
        ),
    ),
    CacheSpec: (
        Rule(
            "!(has(self.claimName) && has(self.storageClassName))",
            "must be absent while claimName is given, which has a class",
            ".storageClassName",
        ),
        Rule(
            "!has(self.claimName) || self.type != 'ImageVolume'",
            "must be absent while type is ImageVolume, which needs no claim",
            ".claimName",
        ),
        Rule(
            "self.accessMode != 'ReadOnlyMany' || self.type != 'PerWorker'",
            "must be ReadWriteOnce or ReadWriteMany while type is PerWorker",
            ".accessMode",
        ),
        Rule(
            f"{OTHER_CLAIM} || self.accessMode == oldSelf.accessMode",
            "cannot be changed: the claim exists already",
            ".accessMode",
        ),
        Rule(
            f"{OTHER_CLAIM} || has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "cannot be changed: the claim exists already",
            ".storageClassName",
        ),
        Rule(
            f"{OTHER_CLAIM} || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "cannot shrink",
            ".size",
        ),
    ),
    EngineSpec: (
        Rule(
            "!has(self.chunkTokens) || "
            f"self.chunkTokens <= (has(self.maxStepTokens) ? self.maxStepTokens : {STEP_TOKENS})",
            "must be at most maxStepTokens",
            ".chunkTokens",
        ),
    ),
    ResourceSpec: (
        _absent_while("cpu", "requests.cpu"),
        _absent_while("memory", "requests.memory"),
        _absent_while("memory", "limits.memory"),
        _within_limit("cpu", "cpu"),
        _within_limit("memory"),
        _within_limit("ephemeral-storage"),
    ),
    ReplicaSpec: (Rule("self.min <= self.max", "must be at most replicas.max", ".min"),),
    PoolSpec: (
        _reserved("serviceAccountAnnotations", RESERVED_ANNOTATIONS),
        Rule(
            "!has(self.accelerator) || !has(self.accelerator.claim) || "
            "has(self.resourceClaims) && self.resourceClaims.exists(c, c.name == self.accelerator.claim)",
            "must be a name in resourceClaims",
            ".accelerator.claim",
        ),
        Rule(f"self.tensorParallel in {list(DEGREES)}", f"must be {ONE_OF_DEGREES}", ".tensorParallel"),
        Rule(
            "!has(self.engine.offloadedLayers) || has(self.accelerator)",
            "needs an accelerator",
            ".engine.offloadedLayers",
        ),
        Rule(
            "!has(self.engine.offloadedLayers) || self.tensorParallel == 1",
            "needs tensorParallel 1",
            ".engine.offloadedLayers",
        ),
        Rule(
            "!has(self.resourceClaims) || "
            "self.resourceClaims.all(c, self.resourceClaims.exists_one(d, d.name == c.name))",
            "names must differ",
            ".resourceClaims",
        ),
        Rule(
            "!has(self.env) || self.env.all(e, self.env.exists_one(f, f.name == e.name))", "names must differ", ".env"
        ),
        Rule(
            "!has(self.arguments) || self.arguments.all(a, self.arguments.exists_one(b, b.name == a.name))",
            "names must differ",
            ".arguments",
        ),
        Rule(
            "!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.name == v.name) && "
            "self.volumes.exists_one(w, w.mountPath == v.mountPath))",
            "names and mount paths must differ",
            ".volumes",
        ),
    ),
    AcceleratorSpec: (
        Rule("has(self.resource) != has(self.claim)", "must be given, or claim, and not both", ".resource"),
        Rule(f"!({ALTERNATIVES}) || !has(self.claim)", "must be absent while claim is given", ".alternatives"),
        Rule(
            "!has(self.with) || !has(self.resource) || !(self.resource in self.with)",
            "must differ from resource",
            ".with",
        ),
        Rule(
            "!has(self.with) || !self.with.exists(k, k.matches('^([^/]*[.])?kubernetes[.]io/'))",
            "kubernetes.io is no domain of extended resources",
            ".with",
        ),
        Rule(f"!({ALTERNATIVES}) || has(self.type)", "alternatives are compared by it", ".type"),
        Rule(f"!({ALTERNATIVES}) || has(self.costPerHour)", "alternatives are compared by it", ".costPerHour"),
        Rule(
            f"!({ALTERNATIVES}) || self.alternatives.all(a, (!has(self.type) || a.type != self.type) && "
            "self.alternatives.exists_one(b, b.type == a.type))",
            "types must differ, also from the accelerator's own",
            ".alternatives",
        ),
        Rule(
            f"!({ALTERNATIVES}) || !has(self.resource) || "
            f"self.alternatives.all(a, (a.resource != self.resource || {_differ('a', 'self')}) && "
            f"self.alternatives.all(b, b.type == a.type || a.resource != b.resource || {_differ('a', 'b')}))",
            "each type needs a resource or a nodeSelector of its own",
            ".alternatives",
        ),
    ),
    EnvSpec: (
        Rule(f"self.name in {list(OPENED_BY_NAME)} || !self.name.matches('{RESERVED_ENV}')", "is reserved", ".name"),
    ),
    ArgumentSpec: (Rule(f"!(self.name in {list(RESERVED_ARGUMENTS)})", "is set by Baton", ".name"),),
    VolumeSpec: (
        Rule(
            "has(self.claimName) != has(self.configMapName)",
            "must be given, or configMapName, and not both",
            ".claimName",
        ),
        Rule(
            "has(self.claimName) || !has(self.readOnly) || self.readOnly", "must be true for a ConfigMap", ".readOnly"
        ),
        Rule(f"!(self.name in {list(RESERVED_VOLUMES)})", "is reserved", ".name"),
    ),
    NodeExpressionSpec: (
        Rule(
            "!has(self.operator) || self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : "
            "self.operator in ['Gt', 'Lt'] ? has(self.values) && self.values.size() == 1 && "
            "self.values[0].matches('^[0-9]+$') : !has(self.values) || self.values.size() == 0",
            f"must be {VALUES}",
            ".values",
        ),
    ),
    TolerationSpec: (
        Rule(
            "has(self.operator) && self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "must be absent while operator is Exists",
            ".value",
        ),
    ),
    RolloutSpec: (
        Rule(
            "!(self.maxSurge in [dyn(0), dyn('0%')]) || !(self.maxUnavailable in [dyn(0), dyn('0%')])",
            "must be at least 1 while maxUnavailable is 0",
            ".maxSurge",
        ),
    ),
    ScheduleSpec: (
        Rule("self.start != self.end", "must differ from start", ".end"),
        Rule("has(self.prefill) || has(self.decode)", "a schedule names prefill, decode or both"),
    ),
    ServiceSpec: (
        _reserved("annotations", RESERVED_ANNOTATIONS),
        *(
            Rule(
                f"!has(self.{field}){empty} || self.type == 'LoadBalancer'",
                "must be absent unless type is LoadBalancer",
                f".{field}",
            )
            for field, empty in (
                ("loadBalancerClass", ""),
                ("loadBalancerSourceRanges", " || self.loadBalancerSourceRanges.size() == 0"),
            )
        ),
        Rule(
            "!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'",
            "must be absent while type is ClusterIP",
            ".externalTrafficPolicy",
        ),
        Rule(
            "!has(self.ipFamilies) || self.ipFamilies.all(f, self.ipFamilies.exists_one(g, g == f))",
            "families must differ",
            ".ipFamilies",
        ),
        Rule(
            "!has(self.ipFamilies) || self.ipFamilies.size() < 2 || !has(self.ipFamilyPolicy) || "
            "self.ipFamilyPolicy != 'SingleStack'",
            "must be one family while ipFamilyPolicy is SingleStack",
            ".ipFamilies",
        ),
        Rule(
            "self.type != 'LoadBalancer' || oldSelf.type != 'LoadBalancer' || "
            "has(self.loadBalancerClass) == has(oldSelf.loadBalancerClass) && "
            "(!has(self.loadBalancerClass) || self.loadBalancerClass == oldSelf.loadBalancerClass)",
            "cannot be changed while type stays LoadBalancer",
            ".loadBalancerClass",
        ),
    ),
    RouteSpec: (
        Rule(
            "has(self.parent) != (has(self.parentRefs) && self.parentRefs.size() > 0)",
            "must be given, or parentRefs, and not both",
            ".parent",
        ),
        Rule(
            "!has(self.parentNamespace) || has(self.parent)",
            "must be absent while parentRefs is given",
            ".parentNamespace",
        ),
    ),
    FetchSpec: (_reserved("serviceAccountAnnotations", RESERVED_ANNOTATIONS),),
    PodMetadataSpec: (_reserved("labels", RESERVED_LABELS), _reserved("annotations", RESERVED_ANNOTATIONS)),
    GatewayAutoscalingSpec: (Rule("self.min <= self.max", "must be at most autoscaling.max", ".min"),),
    GatewaySpec: (
        Rule(
            "!has(self.autoscaling) || self.replicas == 1",
            "must be absent while autoscaling is given, whose min is the floor",
            ".replicas",
        ),
        Rule(
            "!(self.openAccess && (has(self.apiKeys) || self.tenants))",
            "must be false while apiKeys is given or tenants is true",
            ".openAccess",
        ),
        Rule(
            "self.openAccess || has(self.apiKeys) || self.tenants || "
            "(self.service.type == 'ClusterIP' && !has(self.route))",
            "a gateway that can be reached from outside needs apiKeys, tenants or openAccess: true (anybody may ask)",
        ),
    ),
    DeploymentSpec: (
        Rule(
            f"{_GENERATES} == {_GENERATES.replace('self.', 'oldSelf.')}",
            "cannot get or lose Generate: with it comes the decode pool, so make another deployment",
            ".model.tasks",
        ),
        Rule(f"!has(self.decode) || {_GENERATES}", "must be absent while model.tasks has no Generate", ".decode"),
        Rule(
            f"!self.autoscaling.flips || {_GENERATES}",
            "must be false while model.tasks has no Generate",
            ".autoscaling.flips",
        ),
        Rule(
            "!has(self.pullSecrets) || self.pullSecrets.size() == 0 || !has(self.imagePullSecrets) || "
            "self.imagePullSecrets.size() == 0",
            "must be absent while imagePullSecrets is given",
            ".pullSecrets",
        ),
        Rule(
            f"!{_GENERATES} || (self.prefill.replicas.min == 0) == (has(self.decode) && self.decode.replicas.min == 0)",
            "replicas.min must be 0 in both pools or in neither, they sleep together",
        ),
        Rule(
            "!has(self.autoscaling.scaleToZeroAfter) || self.prefill.replicas.min == 0",
            "needs replicas.min 0 in both pools",
            ".autoscaling.scaleToZeroAfter",
        ),
        *(
            Rule(
                f"!self.autoscaling.flips || !has(self.{role}) || !has(self.{role}.accelerator) || "
                f"!has(self.{role}.accelerator.alternatives) || self.{role}.accelerator.alternatives.size() == 0",
                f"{role}.accelerator.alternatives must be absent while autoscaling.flips is true",
                f".{role}.accelerator.alternatives",
            )
            for role in ("prefill", "decode")
        ),
        Rule(
            "self.model.kvCacheDtype != 'fp8' || (has(self.prefill.accelerator) && "
            f"(has(self.decode) ? has(self.decode.accelerator) : !{_GENERATES}))",
            "fp8 needs an accelerator in both pools",
            ".model.kvCacheDtype",
        ),
        Rule(
            "self.kvTransfer.transport != 'UCX' || "
            "!(has(self.prefill.accelerator) && self.prefill.tensorParallel > 1 || "
            "has(self.decode) && has(self.decode.accelerator) && self.decode.tensorParallel > 1)",
            f"must not be UCX: {RANKS_NEED_TCP}",
            ".kvTransfer.transport",
        ),
        Rule(
            "!has(self.decode) || !has(self.decode.engine.offloadedLayers) || self.decode.engine.offloadDecode",
            "every decode step would wait for the copies: offloadDecode allows it",
            ".decode.engine.offloadedLayers",
        ),
        *(
            Rule(
                "!has(self.autoscaling.schedules) || "
                f"self.autoscaling.schedules.all(s, !has(s.{role}) || s.{role} <= "
                f"(has(self.{role}) ? self.{role}.replicas.max : {_GENERATES} ? 1 : 0))",
                f"{role} of a schedule must be at most {role}.replicas.max",
                ".autoscaling.schedules",
            )
            for role in ("prefill", "decode")
        ),
        Rule(
            "!has(self.autoscaling.budget.maxAccelerators) || "
            f"{_accelerators('prefill')} + (has(self.decode) ? {_accelerators('decode')} : 0) <= "
            "self.autoscaling.budget.maxAccelerators",
            "must be at least what both pools take at replicas.min",
            ".autoscaling.budget.maxAccelerators",
        ),
    ),
    PoolFacadeSpec: (
        Rule("self.deployment == oldSelf.deployment", "cannot be changed", ".deployment"),
        Rule("self.role == oldSelf.role", "cannot be changed", ".role"),
    ),
}
