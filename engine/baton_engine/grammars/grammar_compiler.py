"""Compile grammars, each once, and make rows of them, beside the engine thread.

Every method is called from that one thread; the work is done in a few others, whose results are futures. A compiled
grammar is never advanced: each answer gets a copy. What does not compile is kept too, as an error. The scheduler asks
`is_ready` before it lets a row draw, so that nobody else waits for a compilation.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from llguidance import LLMatcher, LLParserLimits

from baton_engine.grammars.answer_matcher import CompiledGrammar
from baton_engine.grammars.constrained_row import ConstrainedRow, EndIds
from baton_engine.grammars.vocabulary import Vocabulary, VocabularyError
from baton_engine.scheduling.step_plan import OpenSlot
from baton_wire.messages.values import Grammar, SamplingParams
from baton_wire.rules import grammar_limits as limits

MAX_COMPILED: Final = 64
"""Grammars kept: an agent's tools come back with every turn."""
THREADS: Final = 2
"""One slow grammar must not keep the others waiting."""
SHORT_OUTPUTS: Final = 16
"""A row with so few earlier tokens is made at once: going through a thread takes longer."""
READY_S: Final = 5.0
"""A row whose grammar is not compiled after so long is given up; a compilation's fuel ends long before."""


class GrammarError(Exception):
    """The matcher does not take this grammar; the message says nothing of its text."""


@dataclass(frozen=True, slots=True)
class _Compilation:
    begun_s: float
    grammar: Future[CompiledGrammar] = field(default_factory=Future)

    def is_over(self, now: float) -> bool:
        """Whether it has succeeded or failed: at the latest when its time is up."""
        if not self.grammar.done() and now - self.begun_s >= READY_S:
            self.ends(GrammarError(f"the grammar was not compiled within {READY_S:g} s"))
        return self.grammar.done()

    def ends(self, found: CompiledGrammar | GrammarError | VocabularyError) -> None:
        """No effect after its end."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(found, CompiledGrammar):
                self.grammar.set_result(found)
            else:
                self.grammar.set_exception(found)


class GrammarCompiler:
    """Grammars over one vocabulary. `read_vocabulary` runs once, in the background; what it raises, each row raises."""

    def __init__(
        self,
        read_vocabulary: Callable[[], Vocabulary],
        make_threads: Callable[[str], Executor] = lambda name: ThreadPoolExecutor(THREADS, name),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observe_compiled: Callable[[float], None] = lambda seconds: None
        """Told the seconds of each compilation, in the thread that did it."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when what somebody may wait for is there, from any thread."""
        self._clock = clock
        self._threads = make_threads("grammars")
        self._row_threads = make_threads("grammar-rows")
        """Apart: rows of compiled grammars do not wait behind compilations."""
        self._vocabulary = self._threads.submit(read_vocabulary)
        self._vocabulary.add_done_callback(lambda _: self.on_ready())
        self._compilations: OrderedDict[str, _Compilation] = OrderedDict()
        self._ends = lru_cache(MAX_COMPILED)(lambda ids: EndIds.of(self._vocabulary.result(), ids))
        """By stop ids: rows that end alike share them."""

    def prepare(self, grammar: Grammar) -> None:
        """Begin to compile, unless it was begun before: a request is known some time before its first token."""
        self._compilation(grammar)

    def is_ready(self, sampling: SamplingParams) -> bool:
        """Whether a row can be made without waiting for a compilation. So it is too once that was given up."""
        if sampling.grammar is None:
            return sampling.thought is None or self._vocabulary.done()
        return self._compilation(sampling.grammar).is_over(self._clock())

    def row(self, opened: OpenSlot) -> Future[ConstrainedRow]:
        """The row of a slot, with what was generated so far. Fails with GrammarError or VocabularyError."""
        row: Future[ConstrainedRow] = Future()
        is_short = len(opened.outputs) <= SHORT_OUTPUTS

        def begin(compiling: Future[CompiledGrammar] | None) -> None:
            if is_short and self._vocabulary.done():
                self._make_row(row, opened, compiling)
                return
            try:
                self._row_threads.submit(self._make_row, row, opened, compiling)
            except RuntimeError:  # it is being closed
                row.cancel()

        if opened.sampling.grammar is None:
            self._vocabulary.add_done_callback(lambda _: begin(None))
        else:
            self._compilation(opened.sampling.grammar).grammar.add_done_callback(begin)
        return row

    def close(self) -> None:
        """Let the threads end once they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._row_threads.shutdown(wait=False, cancel_futures=True)

    def _compilation(self, grammar: Grammar) -> _Compilation:
        """Of those that are done the ones that nobody asked for longest are forgotten."""
        found = self._compilations.pop(grammar.definition, None)
        if found is None:
            found = _Compilation(self._clock())
            self._threads.submit(self._carry_out, found, grammar.definition)
            found.grammar.add_done_callback(lambda _: self.on_ready())
            surplus = len(self._compilations) + 1 - MAX_COMPILED
            done = [definition for definition, each in self._compilations.items() if each.grammar.done()]
            for definition in done[: max(0, surplus)]:
                del self._compilations[definition]
        self._compilations[grammar.definition] = found
        return found

    def _carry_out(self, compilation: _Compilation, definition: str) -> None:
        try:
            compilation.ends(self._compile(definition))
        except (GrammarError, VocabularyError) as error:
            compilation.ends(error)

    def _compile(self, definition: str) -> CompiledGrammar:
        vocabulary = self._vocabulary.result()
        begin = time.perf_counter()
        matcher = LLMatcher(vocabulary.tokenizer, definition, log_level=0, limits=_parser_limits())
        compiled = CompiledGrammar.of(matcher, vocabulary.words)
        self.observe_compiled(time.perf_counter() - begin)
        if matcher.is_error():
            raise GrammarError("grammar: the matcher does not take it")
        return compiled

    def _make_row(
        self, row: Future[ConstrainedRow], opened: OpenSlot, compiling: Future[CompiledGrammar] | None
    ) -> None:
        try:
            compiled = None if compiling is None else compiling.result()
            vocabulary, ends = self._vocabulary.result(), self._ends(opened.sampling.stop_token_ids)
            made = ConstrainedRow(opened.sampling, opened.outputs, vocabulary, compiled, ends)
            if len(opened.outputs) > SHORT_OUTPUTS:
                _ = made.matcher  # it takes the tokens here, in this thread
            row.set_result(made)
        except (GrammarError, VocabularyError) as error:
            row.set_exception(error)


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
