"""Lengths of a request: what sizing and telemetry say of one. Apart from `workload`, which needs numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Lengths of one request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of the prompt, what a worker with an unlimited prefix cache that had seen everything would not compute."""
