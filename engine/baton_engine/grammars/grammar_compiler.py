"""Compile grammars, each once, and make rows of them, beside the engine thread.

Every method is called from that one thread; the work is done in a few others, whose results are futures. A compiled
grammar is never advanced: each row gets a copy. What does not compile is kept too, as an error.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from llguidance import LLMatcher, LLParserLimits

from baton_engine.grammars.constrained_row import ConstrainedRow
from baton_engine.grammars.vocabulary import Vocabulary
from baton_engine.scheduling.step_plan import OpenSlot
from baton_wire.messages.values import Grammar
from baton_wire.rules import grammar_limits as limits

MAX_COMPILED: Final = 64
"""Grammars kept: an agent's tools come back with every turn."""
THREADS: Final = 2
"""One slow grammar must not keep the others waiting."""


class GrammarError(Exception):
    """The matcher does not take this grammar; the message says nothing of its text."""


class GrammarCompiler:
    """Grammars over one vocabulary. `read_vocabulary` runs once, in the background; what it raises, each row raises."""

    def __init__(self, read_vocabulary: Callable[[], Vocabulary]) -> None:
        self.observe_compiled: Callable[[float], None] = lambda seconds: None
        """Told the seconds of each compilation, in the thread that did it."""
        self._threads = ThreadPoolExecutor(THREADS, "grammars")
        self._vocabulary = self._threads.submit(read_vocabulary)
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()

    def prepare(self, grammar: Grammar) -> Future[LLMatcher]:
        """Begin to compile, unless it was begun before: a request is known some time before its first token."""
        compiled = self._compiled.pop(grammar.definition, None)
        if compiled is None:
            compiled = self._threads.submit(self._compile, grammar.definition)
        self._compiled[grammar.definition] = compiled
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return compiled

    def row(self, opened: OpenSlot) -> Future[ConstrainedRow]:
        """The row of a slot, with what was generated so far. Fails with GrammarError or VocabularyError."""
        # Begun before the row is: a thread that waits for it waits for one that runs.
        fresh = None if opened.sampling.grammar is None else self.prepare(opened.sampling.grammar)
        return self._threads.submit(self._make_row, opened, fresh)

    def close(self) -> None:
        """Let the threads end once they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, definition: str) -> LLMatcher:
        tokenizer = self._vocabulary.result().tokenizer
        begin = time.perf_counter()
        matcher = LLMatcher(tokenizer, definition, log_level=0, limits=_parser_limits())
        self.observe_compiled(time.perf_counter() - begin)
        if matcher.is_error():
            raise GrammarError("grammar: the matcher does not take it")
        return matcher

    def _make_row(self, opened: OpenSlot, fresh: Future[LLMatcher] | None) -> ConstrainedRow:
        matcher = None if fresh is None else fresh.result()
        return ConstrainedRow(opened.sampling, opened.outputs, self._vocabulary.result(), matcher)


def _parser_limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=limits.MAX_ITEMS_IN_ROW,
        initial_lexer_fuel=limits.INITIAL_LEXER_FUEL,
        step_lexer_fuel=limits.STEP_LEXER_FUEL,
        step_max_items=limits.STEP_MAX_ITEMS,
        max_lexer_states=limits.MAX_LEXER_STATES,
        max_grammar_size=limits.MAX_GRAMMAR_SIZE,
        verbose_errors=False,
    )
