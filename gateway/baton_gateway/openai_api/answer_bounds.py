"""How large an answer may become that is held here until its end, and what it takes of the memory budget. Pure.

An answer is held when it is not streamed, or when its last event repeats it.
"""

from __future__ import annotations

from typing import Final

from baton_gateway.errors import invalid

MAX_ANSWER_VALUES: Final = 1 << 18
"""Log probabilities of generated tokens that one answer tells, alternatives included."""
MAX_ANSWER_TOKENS: Final = 1 << 24
"""Of all its sequences together."""
AHEAD_TOKENS: Final = 2_048
"""Tokens of each sequence that are charged before the first of them comes. What is longer is charged as it grows."""
TEXT_BYTES: Final = 8
"""Of a token's text, on average and escaped."""
EVENT_BYTES: Final = 64
"""Of a stream's event with one token."""
VALUE_BYTES: Final = 80
"""Of one log probability with its token."""


def check_answer(field: str, max_tokens: int, prompts: int, n: int, logprobs: int | None) -> None:
    """Raises RefusedError for an answer that would be too large. `field`: what said `max_tokens`."""
    sequences = prompts * n
    tokens = sequences * max_tokens
    among = f"{prompts} prompts × 'n' of {n}" if prompts > 1 else f"'n' of {n}"
    asked = f"'{field}' of {max_tokens} for {among}"
    if tokens > MAX_ANSWER_TOKENS:
        message = f"{asked} asks for {tokens} tokens; at most {MAX_ANSWER_TOKENS} are allowed in one answer."
        raise invalid(field, message, "out_of_range")
    if logprobs is not None and (values := tokens * (1 + logprobs)) > MAX_ANSWER_VALUES:
        raise invalid(
            field,
            f"{asked} with 'logprobs' of {logprobs} asks for {values} log probabilities; at most {MAX_ANSWER_VALUES} "
            f"are allowed in one answer, which is a '{field}' of {most_tokens(sequences, logprobs)}.",
            "out_of_range",
        )


def most_tokens(sequences: int, logprobs: int | None) -> int:
    """Tokens of each of so many sequences that fit into one answer."""
    most = MAX_ANSWER_TOKENS if logprobs is None else MAX_ANSWER_VALUES // (1 + logprobs)
    return max(1, most // sequences)


def bytes_ahead(sequences: int, max_tokens: int, logprobs: int | None) -> int:
    """What an answer that is held takes of the budget before its first token."""
    tokens = sequences * min(max_tokens, AHEAD_TOKENS)
    return tokens * (TEXT_BYTES if logprobs is None else TEXT_BYTES + values_bytes(1, logprobs))


def values_bytes(tokens: int, alternatives: int) -> int:
    """What log probabilities of tokens take, with so many alternatives beside each."""
    return tokens * VALUE_BYTES * (1 + alternatives)


def token_bytes(logprobs: int | None) -> int:
    """What a token weighs in an event of a stream, about."""
    return EVENT_BYTES if logprobs is None else EVENT_BYTES + values_bytes(1, logprobs)
