"""The lengths of a request, in a module that does not need numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Lengths of one request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that need not be computed. Of a reported request: those that its worker had cached. Of a trace:
    those that an unlimited prefix cache would have found."""
