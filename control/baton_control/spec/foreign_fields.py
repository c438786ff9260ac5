"""Fields of other projects that manifests bring along, each with the field that is meant.

The reader of files and the API server refuse them by the same sentence. Without it a server would drop them in silence,
for clients that do not ask it to be strict. KServe, Dynamo, vLLM and Kubernetes itself have these names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_control.spec.api import AutoscalingSpec, DeploymentSpec, SloSpec
from baton_control.spec.base_model import Model
from baton_control.spec.engine_sizes import EngineSpec
from baton_control.spec.gateway_fields import GatewaySpec, RouteSpec
from baton_control.spec.placing import PlacementSpec
from baton_control.spec.pools import PoolSpec, ReplicaSpec
from baton_control.spec.resources import ResourceAmountsSpec, ResourceSpec
from baton_control.spec.served_model import CacheSpec, ModelSpec


class ForeignType(enum.Enum):
    """Type of a value, as its own project writes it."""

    SCALAR = enum.auto()
    """An integer or text."""
    NUMBER = enum.auto()
    BOOLEAN = enum.auto()
    MAPPING = enum.auto()
    LIST = enum.auto()
    """A list of mappings."""
    TEXTS = enum.auto()


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field that is refused with the field that is meant."""

    name: str
    meant: str
    type: ForeignType = ForeignType.SCALAR

    @property
    def message(self) -> str:
        """The sentence of the refusal."""
        return f"unknown field: write {self.meant}"


_BOUNDS: Final = (ForeignField("minReplicas", "replicas.min"), ForeignField("maxReplicas", "replicas.max"))
_PLACED: Final = (
    ForeignField("nodeSelector", "placement.nodeSelector", ForeignType.MAPPING),
    ForeignField("tolerations", "placement.tolerations", ForeignType.LIST),
)
_GPU: Final = ForeignField("nvidia.com/gpu", "accelerator: {resource: nvidia.com/gpu} of the pool")
FOREIGN: Final[Mapping[type[Model], tuple[ForeignField, ...]]] = {
    DeploymentSpec: (
        ForeignField("replicas", "prefill.replicas and decode.replicas, each {min, max}"),
        ForeignField("minReplicas", "prefill.replicas.min and decode.replicas.min"),
        ForeignField("maxReplicas", "prefill.replicas.max and decode.replicas.max"),
        ForeignField("image", "nothing: the installation names the images"),
        ForeignField("template", "prefill, decode and gateway: Pods have no template", ForeignType.MAPPING),
        ForeignField("worker", "decode", ForeignType.MAPPING),
        ForeignField("router", "gateway.route and routing", ForeignType.MAPPING),
        ForeignField("services", "prefill, decode and gateway", ForeignType.MAPPING),
        ForeignField("predictor", "model, prefill and decode", ForeignType.MAPPING),
        ForeignField("parallelism", "prefill.tensorParallel and decode.tensorParallel", ForeignType.MAPPING),
        ForeignField("resources", "prefill.resources and decode.resources", ForeignType.MAPPING),
        ForeignField("nodeSelector", "placement.nodeSelector of each pool", ForeignType.MAPPING),
        ForeignField("tolerations", "placement.tolerations of each pool", ForeignType.LIST),
    ),
    ModelSpec: (
        ForeignField("uri", "source"),
        ForeignField("storageUri", "source"),
        ForeignField("name", "servedName"),
        ForeignField("modelName", "servedName"),
        ForeignField("served_model_name", "servedName"),
        ForeignField("max_model_len", "maxContextTokens"),
        ForeignField("maxModelLen", "maxContextTokens"),
        ForeignField("kv_cache_dtype", "kvCacheDtype"),
        ForeignField("tool_call_parser", "toolFormat"),
        ForeignField("tokenizer", "nothing: it is read from the source"),
        ForeignField("revision", "it into source: hf://ORG/NAME@COMMIT"),
        ForeignField("hfToken", "credentials: {secretName}"),
        ForeignField("trust_remote_code", "nothing: code of a model is never run", ForeignType.BOOLEAN),
    ),
    PoolSpec: (
        ForeignField("replica", "replicas: {min, max}"),
        *_BOUNDS,
        ForeignField("tensor_parallel_size", "tensorParallel"),
        ForeignField("tensorParallelSize", "tensorParallel"),
        ForeignField("gpus", "accelerator: {resource: nvidia.com/gpu}"),
        ForeignField("image", "nothing: the installation names the images"),
        ForeignField("args", "arguments: [{name, value}]", ForeignType.TEXTS),
        *_PLACED,
    ),
    ReplicaSpec: (ForeignField("minReplicas", "min"), ForeignField("maxReplicas", "max")),
    EngineSpec: (
        ForeignField("block_size", "blockTokens"),
        ForeignField("max_num_seqs", "maxSequences"),
        ForeignField("max_num_batched_tokens", "maxStepTokens"),
        ForeignField("gpu_memory_utilization", "kvCacheMemory, a size", ForeignType.NUMBER),
    ),
    ResourceSpec: (_GPU,),
    ResourceAmountsSpec: (_GPU,),
    SloSpec: (ForeignField("itl", "tpot: {target}", ForeignType.MAPPING),),
    AutoscalingSpec: (
        *(ForeignField(field.name, f"{field.meant} of each pool") for field in _BOUNDS),
        ForeignField("enabled", "mode: SLO, External or Off", ForeignType.BOOLEAN),
    ),
    GatewaySpec: (
        ForeignField("minReplicas", "autoscaling.min"),
        ForeignField("apiKey", "apiKeys: {secretName}"),
        ForeignField("ingress", "route or service", ForeignType.MAPPING),
    ),
    RouteSpec: (ForeignField("host", "hostnames"), ForeignField("gateway", "parentRefs: [{name}]")),
    CacheSpec: (ForeignField("storageClass", "storageClassName"), ForeignField("storage", "size")),
    PlacementSpec: (ForeignField("affinity", "nodeAffinity, podAffinity, podAntiAffinity", ForeignType.MAPPING),),
}


ELSEWHERE: Final[Mapping[str, str]] = {
    # KServe
    "storageUri": "KServe's storageUri is spec.model.source here",
    "modelUri": "KServe's modelUri is spec.model.source here",
    "uri": "KServe's model.uri is spec.model.source here",
    "modelFormat": "there is no modelFormat here: the format is read from the model's config.json",
    "minReplicas": "KServe's minReplicas is replicas: {min: N} of spec.prefill and spec.decode here",
    "maxReplicas": "KServe's maxReplicas is replicas: {max: N} of spec.prefill and spec.decode here",
    "predictor": "KServe's predictor is the two pools spec.prefill and spec.decode here",
    "router": "KServe's router is spec.gateway here",
    "template": "there is no Pod template here: what Pods may have are fields of spec.prefill and spec.decode",
    "parallelism": "KServe's parallelism.tensor is tensorParallel of spec.prefill and spec.decode here",
    # Dynamo
    "services": "Dynamo's services are spec.gateway, spec.prefill and spec.decode here",
    "extraPodSpec": "there is no extraPodSpec here: what Pods may have are fields of spec.prefill and spec.decode",
    "envs": "Dynamo's envs are env of spec.prefill and spec.decode here",
    "componentType": "there is no componentType here: the pools are spec.prefill and spec.decode",
    "backendFramework": "there is no backendFramework here: Baton has one engine",
    # vLLM
    "max_model_len": "vLLM's max_model_len is spec.model.maxContextTokens here",
    "maxModelLen": "vLLM's max-model-len is spec.model.maxContextTokens here",
    "served_model_name": "vLLM's served_model_name is spec.model.servedName here",
    "servedModelName": "vLLM's served-model-name is spec.model.servedName here",
    "tensor_parallel_size": "vLLM's tensor_parallel_size is tensorParallel of spec.prefill and spec.decode here",
    "tensorParallelSize": "vLLM's tensor-parallel-size is tensorParallel of spec.prefill and spec.decode here",
    "tp_size": "tp_size is tensorParallel of spec.prefill and spec.decode here",
    "pipeline_parallel_size": "stages are pipeline-parallel in spec.prefill.arguments, on CPUs; else tensorParallel",
    "pipelineParallelSize": "stages are pipeline-parallel in spec.prefill.arguments, on CPUs; else tensorParallel",
    "gpu_memory_utilization": "vLLM's gpu_memory_utilization is engine.kvCacheMemory of a pool here, in bytes",
    "gpuMemoryUtilization": "vLLM's gpu-memory-utilization is engine.kvCacheMemory of a pool here, in bytes",
    "max_num_seqs": "vLLM's max_num_seqs is engine.maxSequences of a pool here",
    "maxNumSeqs": "vLLM's max-num-seqs is engine.maxSequences of a pool here",
    "max_num_batched_tokens": "vLLM's max_num_batched_tokens is engine.maxStepTokens of a pool here",
    "maxNumBatchedTokens": "vLLM's max-num-batched-tokens is engine.maxStepTokens of a pool here",
    "enable_prefix_caching": "prefixes are always cached here",
    "vllmConfig": "there is no vllmConfig here: see docs/from-vllm.md for what its flags are called",
}
"""Names that mean the same wherever they stand, for the reader of files alone: the schema does not declare them."""


def find_foreign(model: type[Model], name: str) -> ForeignField | None:
    """The foreign field of this name in a model; None: the name is unknown."""
    return next((field for field in FOREIGN.get(model, ()) if field.name == name), None)


def explain_foreign(model: type[Model] | None, name: str) -> str:
    """The words for another system's field at a place; empty for a name that no known system has.

    >>> explain_foreign(ModelSpec, "uri")
    'unknown field: write source'
    """
    declared = None if model is None else find_foreign(model, name)
    if declared is not None:
        return declared.message
    return f"unknown field: {ELSEWHERE[name]}" if name in ELSEWHERE else ""
