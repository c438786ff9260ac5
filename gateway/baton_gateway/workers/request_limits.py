"""Limits of requests by what the linked workers can take: tokens of a model, bytes and values of a body. Pure.

Nothing that any linked model could answer is refused for its size, up to `LARGEST_BODY_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

LARGEST_BODY_BYTES = 8 << 20
SMALLEST_BODY_BYTES = 1 << 20
"""Room for every other field, and for several short prompts."""
ESCAPED_BYTES = 6
"""The most that JSON writes for one byte of text: \\u and four digits."""
OTHER_VALUES = 20_000
FEWEST_ID_VALUES = 1 << 17
"""Token ids that a body may hold whatever the context: lists of prompts are scored by their ids."""
UNKNOWN_CONTEXT_TOKENS = 1 << 18


class ModelLimits(msgspec.Struct, frozen=True):
    """The limits that every pair of workers of a revision can serve."""

    max_context_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of any body while these models are linked."""

    max_bytes: int
    max_values: int
    """Values of the JSON text; parsing 100,000 of them takes some 20 ms."""


def body_limits(longest_context_tokens: int | None, longest_prompt_bytes: int | None) -> BodyLimits:
    """`longest_prompt_bytes`: UTF-8 bytes of a prompt that fills the context with the longest token. None: no model is
    linked, or the limit is unknown."""
    max_bytes = LARGEST_BODY_BYTES
    if longest_prompt_bytes is not None:
        wanted = ESCAPED_BYTES * longest_prompt_bytes + SMALLEST_BODY_BYTES // 2
        max_bytes = min(max(wanted, SMALLEST_BODY_BYTES), LARGEST_BODY_BYTES)
    context = UNKNOWN_CONTEXT_TOKENS if longest_context_tokens is None else longest_context_tokens
    return BodyLimits(max_bytes, max(context, FEWEST_ID_VALUES) + OTHER_VALUES)
