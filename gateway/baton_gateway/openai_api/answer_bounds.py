"""Bounds on answers that are held until their end, and the memory that they are charged for. Pure.

An answer is held if it is not streamed, or if its last event repeats it.
"""

from __future__ import annotations

from typing import Final

from baton_gateway.errors import invalid

MAX_ANSWER_VALUES: Final = 1 << 18
"""The most log probabilities of generated tokens in one answer, alternatives included."""
MAX_ANSWER_TOKENS: Final = 1 << 24
"""The most tokens of all sequences of one answer together."""
AHEAD_TOKENS: Final = 2_048
"""Tokens of each sequence that are charged before the first one comes. A longer answer is charged as it grows."""
TEXT_BYTES: Final = 8
"""A token's text, on average and escaped."""
EVENT_BYTES: Final = 64
"""A stream's event with one token."""
VALUE_BYTES: Final = 80
"""One log probability with its token."""


def check_answer(field: str, max_tokens: int, prompts: int, n: int, logprobs: int | None) -> None:
    """Check the size of an answer. Raises RefusedError if it would be too large. `field`: the field of `max_tokens`."""
    sequences = prompts * n
    tokens = sequences * max_tokens
    sequences_text = f"{prompts} prompts × 'n' of {n}" if prompts > 1 else f"'n' of {n}"
    asked = f"'{field}' of {max_tokens} for {sequences_text}"
    if tokens > MAX_ANSWER_TOKENS:
        message = f"{asked} asks for {tokens} tokens; at most {MAX_ANSWER_TOKENS} are allowed in one answer."
        raise invalid(field, message, "out_of_range")
    if logprobs is not None and (values := tokens * (1 + logprobs)) > MAX_ANSWER_VALUES:
        raise invalid(
            field,
            f"{asked} with 'logprobs' of {logprobs} asks for {values} log probabilities; at most {MAX_ANSWER_VALUES} "
            f"are allowed in one answer, which is a '{field}' of {max_tokens_each(sequences, logprobs)}.",
            "out_of_range",
        )


def max_tokens_each(sequences: int, logprobs: int | None) -> int:
    """Return the most tokens of each sequence that fit into one answer."""
    total = MAX_ANSWER_TOKENS if logprobs is None else MAX_ANSWER_VALUES // (1 + logprobs)
    return max(1, total // sequences)


def bytes_ahead(sequences: int, max_tokens: int, logprobs: int | None) -> int:
    """Return the bytes that a held answer is charged for before its first token."""
    tokens = sequences * min(max_tokens, AHEAD_TOKENS)
    return tokens * (TEXT_BYTES if logprobs is None else TEXT_BYTES + values_bytes(1, logprobs))


def values_bytes(tokens: int, alternatives: int) -> int:
    """Return the bytes of log probabilities of tokens, each with its alternatives."""
    return tokens * VALUE_BYTES * (1 + alternatives)


def token_bytes(logprobs: int | None) -> int:
    """Return the approximate bytes of a token in an event of a stream."""
    return EVENT_BYTES if logprobs is None else EVENT_BYTES + values_bytes(1, logprobs)
