"""The LLMDeployment that `baton up MODEL` runs: one worker per pool, defaults, the pinned source. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from baton_control.spec.api import API_VERSION, KIND, LLMDeployment
from baton_control.spec.manifest import parse_object
from baton_control.spec.prefill_stages import STAGES
from baton_control.spec.served_model import ModelTask
from baton_local.fetching.model_argument import deployment_name
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.families.qwen import RANKING_FAMILIES
from baton_worker.building.block_budget import CPU_DEFAULT_BYTES, MEMORY_SHARE

MOST_CONTEXT_TOKENS = 32_768
"""Longest context of a default deployment; a longer one takes --max-context-tokens or a manifest."""
LEAST_CONTEXT_TOKENS = 512
STEP = 16
RERANKER = "reranker"
"""Part of the names of rerankers."""
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class DefaultOptions:
    """Options of the command line for the workers of a deployment without a manifest; None: the default."""

    prefill: tuple[int, int] | None = None
    """Fewest and most workers, like `decode`."""
    decode: tuple[int, int] | None = None
    dtype: str | None = None
    kv_memory: int | None = None
    """Bytes for the KV cache of each worker."""
    prefill_degree: int | None = None
    """Ranks of each worker, like `decode_degree`."""
    decode_degree: int | None = None
    prefill_stages: int | None = None
    """Stages of each prefill worker."""

    def pool(self, workers: tuple[int, int] | None, degree: int | None, is_on_gpu: bool) -> dict[str, object]:
        """One pool as a manifest would write it."""
        pool: dict[str, object] = {"accelerator": {"resource": "nvidia.com/gpu"}} if is_on_gpu else {}
        if workers is not None:
            pool["replicas"] = {"min": workers[0], "max": workers[1]}
        if degree is not None:
            pool["tensorParallel"] = degree
        if self.kv_memory is not None:
            pool["engine"] = {"kvCacheMemory": str(self.kv_memory)}
        return pool


NO_OPTIONS = DefaultOptions()


def context_tokens(config: DecoderSpec, asked: int | None, free_bytes: int | None) -> int:
    """The context length to serve: the requested one, else what the model allows and a CPU worker's KV memory holds.

    A decode worker needs memory for one sequence of full length and for another that is being received. `free_bytes`
    None: the worker runs on a GPU. Raises ModelConfigError for a request beyond the model's own context.
    """
    if asked is not None:
        return config.context_within(asked)
    most = min(config.max_context_tokens, MOST_CONTEXT_TOKENS)
    if free_bytes is not None:
        budget = min(CPU_DEFAULT_BYTES, int(free_bytes * MEMORY_SHARE))
        per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * FLOAT32_BYTES
        fits = budget // 2 // per_token // STEP * STEP - STEP
        most = min(most, max(fits, LEAST_CONTEXT_TOKENS))
    return most


def detect_tasks(config: DecoderSpec, name: str) -> tuple[ModelTask, ...]:
    """The tasks of a model, by its checkpoint. A Qwen3-Reranker without a LogitScore looks like a chat model but for
    its `name`."""
    is_reranker = RERANKER in name.lower() and config.family in RANKING_FAMILIES
    is_judge = is_reranker and config.generates and not config.pooling.is_stated
    if config.labels or is_judge or config.pooling.judgement is not None:
        return (ModelTask.RERANK,)
    if config.pooling.is_stated or not config.generates:
        return (ModelTask.EMBED,)
    return (ModelTask.GENERATE,)


def default_deployment(
    source: str,
    served_name: str,
    context: int,
    is_on_gpu: bool,
    options: DefaultOptions = NO_OPTIONS,
    tasks: tuple[ModelTask, ...] = (ModelTask.GENERATE,),
) -> LLMDeployment:
    """A deployment of one model with the defaults. Raises ManifestError for a name that no LLMDeployment can have."""
    pools = {"prefill": options.pool(options.prefill, options.prefill_degree, is_on_gpu)}
    if options.prefill_stages is not None:
        pools["prefill"]["arguments"] = [{"name": STAGES, "value": str(options.prefill_stages)}]
    model: dict[str, object] = {"source": source, "servedName": served_name, "maxContextTokens": context}
    if ModelTask.GENERATE in tasks:
        pools["decode"] = options.pool(options.decode, options.decode_degree, is_on_gpu)
    else:
        model["tasks"] = list(tasks)
    if options.dtype is not None:
        model["dtype"] = options.dtype
    return parse_object(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": deployment_name(served_name)},
            "spec": {"model": model, **{name: pool for name, pool in pools.items() if pool}},
        }
    )


def as_yaml(deployment: LLMDeployment) -> str:
    """A manifest for `baton up -f` or `kubectl apply`, without the fields that have their default."""
    plain = deployment.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if not deployment.spec.model.generates:
        del plain["spec"]["decode"]
    return yaml.safe_dump(plain, sort_keys=False, width=118)
