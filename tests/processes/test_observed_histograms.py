"""Each histogram of a service under load is observed: none is declared and then forgotten."""

from __future__ import annotations

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_testing.processes.child_process import get_text, wait_for
from baton_testing.processes.deployment import Deployment

RARE = {
    "baton_grammar_compile_seconds",
    "baton_grammar_mask_seconds",
    "baton_gateway_grammar_compile_seconds",
}
"""Histograms of what this load does not do."""


def unobserved(page: str) -> set[str]:
    """Return the names of the histograms without an observation."""
    families = [family for family in text_string_to_metric_families(page) if family.type == "histogram"]
    assert families
    return {
        family.name
        for family in families
        if not any(sample.value for sample in family.samples if sample.name.endswith("_count"))
    }


def test_a_disaggregated_answer_is_observed_in_every_histogram(deployment: Deployment, client: openai.OpenAI) -> None:
    client.completions.create(model="tiny", prompt="Foxes hunt at night. " * 8, max_tokens=12)
    pages = [f"{worker.base_url}/metrics" for worker in deployment.workers]
    for url in (*pages, f"{deployment.base_url}/metrics"):
        await_observations(url)


def await_observations(url: str) -> None:
    """Wait until each histogram but the rare ones has an observation."""
    wait_for(lambda: unobserved(get_text(url)) <= RARE or None, f"{url}: {unobserved(get_text(url)) - RARE}", 20.0)


def test_a_histogram_without_an_observation_is_named() -> None:
    page = '# TYPE a histogram\na_bucket{le="+Inf"} 0.0\na_count 0.0\na_sum 0.0\n'
    assert unobserved(page) == {"a"}
    with pytest.raises(AssertionError):
        unobserved("")
