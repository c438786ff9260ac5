"""A worker's KV cache under vLLM's metric names too, for autoscaling rules and dashboards that were written for vLLM.

Requests are counted by gateways alone (`baton_gateway.reporting.vllm_names`): a worker has a part of a request, so that
a sum over gateways and workers would count it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton_worker.reporting.views import EngineSnapshot


class VllmNames(Collector):
    """The use of the KV cache, look-ups of prefixes, preemptions and the cache's size. Two names stand for one value
    where vLLM renamed it."""

    def __init__(self, model: str, blocks: int, block_tokens: int, engine: Callable[[], EngineSnapshot]) -> None:
        self._labels = [model, "0"]
        self._config = {"block_size": str(block_tokens), "num_gpu_blocks": str(blocks)}
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: the snapshots do not exist yet when this collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._engine().stats
        used = stats.blocks_reserved + stats.blocks_in_use
        total = used + stats.blocks_free + stats.blocks_cached
        for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
            usage = GaugeMetricFamily(
                name, "Share of the KV blocks that sequences use", labels=["model_name", "engine"]
            )
            usage.add_metric(self._labels, used / total if total else 0.0)
            yield usage
        for prefix in ("vllm:", "vllm:gpu_"):
            yield self._counter(f"{prefix}prefix_cache_queries", "Tokens of prompts", stats.prompt_tokens)
            yield self._counter(f"{prefix}prefix_cache_hits", "Tokens found", stats.cached_prompt_tokens)
        yield self._counter("vllm:num_preemptions", "Sequences that gave up their blocks", stats.preemptions)
        names = ["model_name", "engine", *self._config]
        config = GaugeMetricFamily("vllm:cache_config_info", "Size of the KV cache", labels=names)
        config.add_metric([*self._labels, *self._config.values()], 1)
        yield config

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric(self._labels, value)
        return family
