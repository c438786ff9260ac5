"""A running pool under vLLM's metric names: what a stock dashboard and stock autoscaling rules ask for has an answer.

The expressions are evaluated by a real Prometheus where there is one: on PATH, or the folder in BATON_PROMETHEUS
(Debian's package, unpacked with `dpkg -x`, will do).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from baton_testing.processes.child_process import NotReadyError, wait_for
from baton_testing.processes.deployment import Deployment, Shape

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
WORKER = {
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:cache_config_info",
    "vllm:num_preemptions",
}
GATEWAY = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_success",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
}
MODEL = '{model_name="tiny"}'
DASHBOARD = (
    f"histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{MODEL}[10s])))",
    f"rate(vllm:e2e_request_latency_seconds_sum{MODEL}[10s])",
    f"rate(vllm:e2e_request_latency_seconds_count{MODEL}[10s])",
    f"rate(vllm:prompt_tokens_total{MODEL}[10s])",
    f"rate(vllm:generation_tokens_total{MODEL}[10s])",
    f"histogram_quantile(0.95, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{MODEL}[10s])))",
    f"vllm:num_requests_running{MODEL}",
    f"vllm:num_requests_waiting{MODEL}",
    f"histogram_quantile(0.9, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{MODEL}[10s])))",
    f"vllm:kv_cache_usage_perc{MODEL}",
    f"sum by(finished_reason) (increase(vllm:request_success_total{MODEL}[10s]))",
    f"rate(vllm:request_queue_time_seconds_sum{MODEL}[10s])",
    f"rate(vllm:prefix_cache_hits_total{MODEL}[10s]) / (rate(vllm:prefix_cache_queries_total{MODEL}[10s]) > 0)",
)
"""Panels of vLLM's own dashboard, with its variables filled in."""


@pytest.fixture(scope="module")
def shape() -> Shape:
    compat = ("--metrics-compat", "vllm")
    return Shape(worker_flags=(*Shape().worker_flags, *compat), gateway_flags=compat)


def names(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def ask(client: openai.OpenAI) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "Foxes hunt at night."}]
    client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)  # type: ignore[arg-type]


def test_gateways_count_requests_and_workers_their_cache(deployment: Deployment, client: openai.OpenAI) -> None:
    ask(client)
    with urllib.request.urlopen(f"{deployment.base_url}/metrics", timeout=20) as answer:
        gateway = names(answer.read().decode())
    assert gateway >= GATEWAY
    for worker in deployment.workers:
        found = names(worker.metrics())
        assert found >= WORKER
        assert not found & GATEWAY, "a sum over both would count a request twice"


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """A Prometheus that reads the targets once a second; yields its address."""
    named = os.environ.get("BATON_PROMETHEUS")
    program = shutil.which("prometheus", path=named) if named else shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus: name its folder in BATON_PROMETHEUS")
    static = [{"targets": targets}]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [{"job_name": "baton", "static_configs": static}]}
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [program, f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"]
    command.append(f"--web.listen-address={address}")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def evaluate(at: str, expression: str) -> list[float]:
    """The values of an expression now; empty while nothing matches."""
    url = f"{at}/api/v1/query?query={urllib.parse.quote(expression)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    return [float(entry["value"][1]) for entry in result]


def rules() -> list[str]:
    """The expressions of the examples for autoscalers, for the namespace and model of this pool."""
    scaled = yaml.safe_load((ROOT / "examples" / "autoscaling" / "keda.yaml").read_text(encoding="utf-8"))
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    assert queries
    return [
        query.replace('namespace="team-a",', "").replace('model_name="llama-3.1-8b"', 'model_name="tiny"')
        for query in queries
    ]


def test_a_stock_dashboard_and_stock_rules_get_their_numbers(
    deployment: Deployment, client: openai.OpenAI, tmp_path: Path
) -> None:
    targets = [url.removeprefix("http://") for url in (deployment.base_url, *(w.base_url for w in deployment.workers))]
    with prometheus(tmp_path, targets) as at:
        missing: list[str] = []

        def complete() -> bool | None:
            nonlocal missing
            ask(client)
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                missing = [expression for expression in (*DASHBOARD, *rules()) if not evaluate(at, expression)]
                return not missing or None
            return None

        try:
            wait_for(complete, "an answer to every expression", 30)
        except NotReadyError:
            pass
        assert missing == []
