"""The order in which a batch's requests start, and how many run at once. Pure.

A batch takes at least as many steps as its longest answer has tokens, and every step takes at least the time to read
the weights, however few rows it has. So the longest answers start first, with just enough others that every step is
about equally full until the longest ends. The length of an answer is known only as far as its request bounds it; where
all bounds are equal, the order does not change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from baton_gateway.batches.lines import EMBEDDINGS, BadLine, BatchLine

WINDOW: Final = 4_096
"""Lines that are ordered together in memory."""
WINDOW_BYTES: Final = 64 << 20
"""Most bytes of such lines."""
LEAST_ROWS: Final = 128
"""Up to about this many rows, a step of an 8B model costs as much as reading its weights."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""Default `max_tokens` of a completion request, as in OpenAI's API. A chat answer may fill the context."""


@dataclass(frozen=True, slots=True)
class TokenDemand:
    """The most that a line may draw: `choices` answers of up to `tokens` tokens."""

    tokens: int
    choices: int

    @property
    def total(self) -> int:
        return self.tokens * self.choices


def demand_of(line: BatchLine | BadLine, max_context_tokens: int) -> TokenDemand:
    """The demand of a line that is not validated yet: a value that is no number counts as absent."""
    if isinstance(line, BadLine):
        return TokenDemand(0, 0)
    is_chat = "chat" in line.url
    body = line.body
    if line.url == EMBEDDINGS:
        inputs = body.get("input")
        return TokenDemand(
            1, len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
        )
    given = _count(body.get("max_completion_tokens") if is_chat else None) or _count(body.get("max_tokens"))
    default = max_context_tokens if is_chat else DEFAULT_COMPLETION_TOKENS
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return TokenDemand(min(given or default, max_context_tokens), (_count(body.get("n")) or 1) * prompts)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def windows(
    lines: Iterable[BatchLine | BadLine], max_context_tokens: int
) -> Iterator[list[tuple[TokenDemand, BatchLine | BadLine]]]:
    """The lines in windows, the longest answers of each window first, otherwise in file order."""
    window: list[tuple[TokenDemand, BatchLine | BadLine]] = []
    size = 0
    for line in lines:
        window.append((demand_of(line, max_context_tokens), line))
        size += line.size
        if len(window) == WINDOW or size >= WINDOW_BYTES:
            yield _longest_first(window)
            window, size = [], 0
    if window:
        yield _longest_first(window)


def _longest_first(
    window: list[tuple[TokenDemand, BatchLine | BadLine]],
) -> list[tuple[TokenDemand, BatchLine | BadLine]]:
    return sorted(window, key=lambda entry: -entry[0].tokens)


class Balance:
    """The tokens that are left to draw, and the rows that they keep busy. One thread calls `coming`, one the rest."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._coming = 0
        self._taken = 0
        self._left: dict[Hashable, int] = {}

    def coming(self, tokens: int) -> None:
        """Requests that may draw this many tokens were read."""
        self._coming += tokens

    def taken(self, tokens: int) -> None:
        """A request that may draw this many tokens was submitted to the engine, or refused."""
        self._taken += tokens

    def began(self, choice: Hashable, tokens: int) -> None:
        """A choice that may draw this many tokens started."""
        self._left[choice] = tokens

    def drew(self, choice: Hashable, tokens: int) -> None:
        self._left[choice] -= tokens

    def ended(self, choice: Hashable) -> None:
        self._left.pop(choice, None)

    def rows(self) -> int:
        """The number of choices that should run at once."""
        longest = max(self._left.values(), default=0)
        if longest <= 0:
            return self._slots
        left = sum(self._left.values()) + self._coming - self._taken
        return min(self._slots, max(LEAST_ROWS, -(-left // longest)))
