"""A gateway's metrics under vLLM's names too, for autoscaling rules and dashboards that were written for vLLM.

The names are copies made from the page itself, so that a sum over all gateway processes stays one. A gateway has what
belongs to requests; workers have what belongs to caches (`baton_worker.reporting.vllm_names`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

VLLM_NAMES: Mapping[str, tuple[str, ...]] = {
    "baton_gateway_requests_running": ("vllm:num_requests_running",),
    "baton_gateway_requests_waiting": ("vllm:num_requests_waiting",),
    "baton_gateway_ttft_seconds": ("vllm:time_to_first_token_seconds",),
    "baton_gateway_itl_seconds": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "baton_gateway_tpot_seconds": ("vllm:request_time_per_output_token_seconds",),
    "baton_gateway_e2e_seconds": ("vllm:e2e_request_latency_seconds",),
    "baton_gateway_queue_seconds": ("vllm:request_queue_time_seconds",),
    "baton_gateway_prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "baton_gateway_completion_tokens_total": ("vllm:generation_tokens_total",),
    "baton_gateway_requests_total": ("vllm:request_success_total",),
}
"""Baton's name → vLLM's. Two names stand for one series where vLLM renamed it."""
FINISHED_REASONS = {"finished": "stop", "cancelled": "abort"}
"""Outcome of a request → vLLM's reason; other outcomes are no successes. `stop` includes answers that became too long,
which vLLM counts as `length`."""
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_OUTCOME = re.compile(r'outcome="([a-z]+)"')
_SUFFIXES = ("_bucket", "_sum", "_count", "")


def with_vllm_names(page: bytes, model: str) -> bytes:
    """A page of metrics with the copies after it; `model`: the name that clients use, empty while it is not known."""
    lines = page.decode().splitlines()
    return page + "".join(f"{line}\n" for line in _copies(lines, _escape(model))).encode()


def _copies(lines: list[str], model: str) -> Iterator[str]:
    types = {line.split(" ")[2]: line.split(" ")[3] for line in lines if line.startswith("# TYPE ")}
    samples = [sample for line in lines if (sample := _SAMPLE.fullmatch(line)) is not None]
    for own, names in VLLM_NAMES.items():
        mine = [(sample, suffix) for sample in samples if (suffix := _suffix(sample["name"], own)) is not None]
        for name in names:
            yield f"# HELP {name} {own} under vLLM's name"
            yield f"# TYPE {name} {types.get(own) or types.get(own.removesuffix('_total'), 'untyped')}"
            for sample, suffix in mine:
                labels = _labels(sample["labels"] or "")
                if labels is not None:
                    yield f'{name}{suffix}{{engine="0",model_name="{model}"{labels}}} {sample["value"]}'


def _suffix(name: str, own: str) -> str | None:
    return next((suffix for suffix in _SUFFIXES if name == own + suffix), None)


def _labels(own: str) -> str | None:
    """The further labels of a copy; None: there is no copy of this sample."""
    outcome = _OUTCOME.search(own)
    if outcome is None:
        return f",{own}" if own else ""
    reason = FINISHED_REASONS.get(outcome[1])
    return None if reason is None else f',finished_reason="{reason}"'


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
