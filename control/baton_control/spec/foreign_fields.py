"""Fields of KServe, Dynamo and vLLM, with what they are called in an LLMDeployment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

FOREIGN: Mapping[str, str] = {
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
    "parallelism": "tensor parallelism is not supported yet: a worker uses one accelerator",
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
    "tensor_parallel_size": "tensor parallelism is not supported yet: a worker uses one accelerator",
    "tensorParallelSize": "tensor parallelism is not supported yet: a worker uses one accelerator",
    "gpu_memory_utilization": "vLLM's gpu_memory_utilization is engine.kvCacheMemory of a pool here, in bytes",
    "gpuMemoryUtilization": "vLLM's gpu-memory-utilization is engine.kvCacheMemory of a pool here, in bytes",
    "max_num_seqs": "vLLM's max_num_seqs is engine.maxSequences of a pool here",
    "maxNumSeqs": "vLLM's max-num-seqs is engine.maxSequences of a pool here",
    "max_num_batched_tokens": "vLLM's max_num_batched_tokens is engine.maxStepTokens of a pool here",
    "maxNumBatchedTokens": "vLLM's max-num-batched-tokens is engine.maxStepTokens of a pool here",
    "enable_prefix_caching": "prefixes are always cached here",
    "vllmConfig": "there is no vllmConfig here: see docs/from-vllm.md for what its flags are called",
}
"""By the field's name, which means the same wherever it stands."""


def foreign_field(name: str) -> str:
    """The words for another system's field; empty for a name that no known system has.

    >>> foreign_field("minReplicas")
    "KServe's minReplicas is replicas: {min: N} of spec.prefill and spec.decode here"
    """
    return FOREIGN.get(name, "")
