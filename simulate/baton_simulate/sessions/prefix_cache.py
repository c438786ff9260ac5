"""The prefix cache of a simulated worker: beginnings of prompts, the least recently used forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from baton_simulate.sessions.session_load import Segment

BLOCK_TOKENS: Final = 64
"""Caches hit whole blocks."""
Beginnings = tuple[tuple[int, int], ...]
"""(number of a beginning, tokens of its last segment) for each segment of a prompt, shortest first."""


class BeginningNumbers:
    """Numbers all beginnings of prompts, so that equal ones have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Segment], int] = {}

    def beginnings(self, prompt: Sequence[Segment]) -> Beginnings:
        number, numbered = 0, []
        for segment in prompt:
            number = self._numbers.setdefault((number, segment), len(self._numbers) + 1)
            numbered.append((number, segment[1]))
        return tuple(numbered)


class PrefixCache:
    """Beginnings of prompts that one worker has computed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, int] = OrderedDict()
        """Number of a beginning → tokens of its last segment. A beginning is used after all longer ones of its prompt,
        so the least recently used one never begins another that is kept."""
        self.tokens = 0

    def cached_tokens(self, prompt: Beginnings) -> int:
        """Tokens of the longest cached beginning of a prompt, in whole blocks; the last token is always computed."""
        cached = 0
        for number, tokens in prompt:
            if number not in self._kept:
                break
            cached += tokens
        else:
            cached -= 1
        return cached // BLOCK_TOKENS * BLOCK_TOKENS

    def add(self, prompt: Beginnings, capacity_tokens: float) -> None:
        """A prompt was computed; beyond the capacity the least recently used segments go."""
        for number, tokens in reversed(prompt):
            if self._kept.pop(number, None) is None:
                self.tokens += tokens
            self._kept[number] = tokens
        while self.tokens > capacity_tokens and self._kept:
            self.tokens -= self._kept.popitem(last=False)[1]
