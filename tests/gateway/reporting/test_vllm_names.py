"""The gateway's metrics under vLLM's names: copies of its own, with vLLM's labels, and nothing else changes."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.reporting.vllm_names import VLLM_NAMES, with_vllm_names


def page() -> bytes:
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.ttft.observe(0.2, 0.0)
    metrics._requests[Outcome.FINISHED].inc()
    metrics.sample(3, 2, {}, now=0.0)
    return metrics.page()[0]


def families(text: bytes) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def test_every_series_of_baton_stays_as_it_is() -> None:
    text = page()
    assert with_vllm_names(text, "m").startswith(text)


def test_each_name_is_a_copy_with_the_type_and_the_labels_of_vllm() -> None:
    text = page()
    own, both = families(text), families(with_vllm_names(text, 'a "b"'))
    for name, copies in VLLM_NAMES.items():
        source = own[name.removesuffix("_total")]
        for copy in copies:
            family = both[copy.removesuffix("_total")]
            assert family.type == source.type
            assert {sample.labels["model_name"] for sample in family.samples} == {'a "b"'}
            if name != "baton_gateway_requests_total":
                values = [s.value for s in source.samples if not s.name.endswith("_created")]
                assert [sample.value for sample in family.samples] == values
    reasons = {s.labels["finished_reason"]: s.value for s in both["vllm:request_success"].samples}
    assert reasons == {"stop": 1.0, "abort": 0.0}
    waiting = both["vllm:num_requests_waiting"].samples[0]
    assert (waiting.value, waiting.labels) == (2.0, {"engine": "0", "model_name": 'a "b"'})
