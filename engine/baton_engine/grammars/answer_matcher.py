"""A compiled grammar with its first mask, and the matcher of one answer, which is made when its second mask is wanted.

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
    """Shared by all rows of a grammar."""

    matcher: LLMatcher
    """At the beginning of an answer; never advanced."""
    first: Words
    """[W]: what may come first, as the matcher writes it. Read only."""

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
        self._made: LLMatcher | None = None
        self._taken: list[int] = []
        """Tokens that no matcher has seen yet."""

    @property
    def matcher(self) -> LLMatcher:
        """Where the answer is; made at the first call, which takes some 50 µs."""
        if self._made is None:
            self._made = self._compiled.matcher.deep_copy()
            for token in self._taken:
                self._made.consume_token(token)
            self._taken.clear()
        return self._made

    @property
    def first_mask(self) -> Words | None:
        """[W], while the answer has no token."""
        return self._compiled.first if self._made is None and not self._taken else None

    @property
    def error(self) -> str | None:
        """Why the matcher gave up, with what it says of the text."""
        is_sound = self.first_mask is not None or not self.matcher.is_error()
        return None if is_sound else self.matcher.get_error()

    def take(self, token: int) -> None:
        """The answer goes on with `token`."""
        if self._made is None:
            self._taken.append(token)
        else:
            self._made.consume_token(token)
