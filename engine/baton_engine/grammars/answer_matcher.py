"""A compiled grammar with its first mask, and the matcher of one answer, created when its second mask is needed.

A prefill worker draws one token of an answer. Its mask is the grammar's first one, which is the same for every answer,
so no matcher has to be copied there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher

from baton_engine.grammars.vocabulary import Words


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar as all its rows share it."""

    matcher: LLMatcher
    """At the beginning of an answer; never advanced."""
    first: Words
    """[W]: the tokens that may come first, as the matcher writes them. Read only."""

    @staticmethod
    def of(matcher: LLMatcher, words: int) -> CompiledGrammar:
        """`words`: width of a mask. The first mask may cost most: copies share the automata that it needs."""
        first = np.zeros(words, dtype=np.uint32)
        matcher.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)
        first.flags.writeable = False
        return CompiledGrammar(matcher, first)


class AnswerMatcher:
    """Follows one answer from its first token."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._matcher: LLMatcher | None = None
        self._pending: list[int] = []
        """Tokens that no matcher has consumed yet."""

    @property
    def matcher(self) -> LLMatcher:
        """The matcher at the answer's end; created at the first call, which takes some 50 µs."""
        if self._matcher is None:
            self._matcher = self._compiled.matcher.deep_copy()
            for token in self._pending:
                self._matcher.consume_token(token)
            self._pending.clear()
        return self._matcher

    @property
    def first_mask(self) -> Words | None:
        """[W], while the answer has no token."""
        return self._compiled.first if self._matcher is None and not self._pending else None

    @property
    def error(self) -> str | None:
        """The matcher's error, which quotes the text; None: it has none."""
        is_sound = self.first_mask is not None or not self.matcher.is_error()
        return None if is_sound else self.matcher.get_error()

    def take(self, token: int) -> None:
        """The answer goes on with `token`."""
        if self._matcher is None:
            self._pending.append(token)
        else:
            self._matcher.consume_token(token)
