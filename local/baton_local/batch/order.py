"""In which order a batch's requests start, and how many of them run at once. Pure.

A batch takes at least as many steps as its longest answer has tokens, and each of them at least the time that reading
the weights takes, however few rows it has. So the longest answers start first, and beside them no more run than keep
every step about equally full to the end of the longest: what runs earlier would be missing there. How long an answer
gets is known only as far as its request bounds it; where all bounds are alike nothing changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from baton_local.batch.lines import BadLine, BatchLine

WINDOW: Final = 4_096
"""Lines that are put in order together, and kept in memory."""
WINDOW_BYTES: Final = 64 << 20
"""Fewer where they are long."""
LEAST_ROWS: Final = 128
"""Up to about so many rows a step of an 8B model costs what reading its weights does."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""Of a completion request that does not say, as in OpenAI's API. A chat answer may fill the context."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a line may draw at most, by its own word: `choices` answers of up to `tokens` tokens."""

    tokens: int
    choices: int

    @property
    def total(self) -> int:
        return self.tokens * self.choices


def asked(line: BatchLine | BadLine, max_context_tokens: int) -> Asked:
    """Of a line that nobody has checked yet: what is no number counts as not given."""
    if isinstance(line, BadLine):
        return Asked(0, 0)
    is_chat = "chat" in line.url
    body = line.body
    given = _count(body.get("max_completion_tokens") if is_chat else None) or _count(body.get("max_tokens"))
    default = max_context_tokens if is_chat else DEFAULT_COMPLETION_TOKENS
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return Asked(min(given or default, max_context_tokens), (_count(body.get("n")) or 1) * prompts)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def windows(
    lines: Iterable[BatchLine | BadLine], max_context_tokens: int
) -> Iterator[list[tuple[Asked, BatchLine | BadLine]]]:
    """The lines, a window at a time, the longest answers of each first, otherwise in their order."""
    window: list[tuple[Asked, BatchLine | BadLine]] = []
    size = 0
    for line in lines:
        window.append((asked(line, max_context_tokens), line))
        size += line.size
        if len(window) == WINDOW or size >= WINDOW_BYTES:
            yield _longest_first(window)
            window, size = [], 0
    if window:
        yield _longest_first(window)


def _longest_first(window: list[tuple[Asked, BatchLine | BadLine]]) -> list[tuple[Asked, BatchLine | BadLine]]:
    return sorted(window, key=lambda entry: -entry[0].tokens)


class Balance:
    """Counts what is left to draw. `coming` is one thread's, everything else another's."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._coming = 0
        self._taken = 0
        self._left: dict[Hashable, int] = {}

    def coming(self, tokens: int) -> None:
        """Requests that may draw so many tokens were read."""
        self._coming += tokens

    def taken(self, tokens: int) -> None:
        """Of these, some are with the engine now, or were refused."""
        self._taken += tokens

    def began(self, choice: Hashable, tokens: int) -> None:
        """A choice runs that may draw so many tokens."""
        self._left[choice] = tokens

    def drew(self, choice: Hashable, tokens: int) -> None:
        self._left[choice] -= tokens

    def ended(self, choice: Hashable) -> None:
        self._left.pop(choice, None)

    def rows(self) -> int:
        """How many choices should run at once."""
        longest = max(self._left.values(), default=0)
        if longest <= 0:
            return self._slots
        left = sum(self._left.values()) + self._coming - self._taken
        return min(self._slots, max(LEAST_ROWS, -(-left // longest)))
