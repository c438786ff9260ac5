"""Compile grammars, each once, and make the rows that follow them, in threads other than the engine's.

Every method is called in the engine thread; the work is done in a few others, whose results are futures. A compiled
grammar is never advanced: each answer gets a copy. Failed compilations are kept too, as errors. The scheduler asks
`is_ready` before it lets a row draw, so that no other request waits for a compilation.
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
"""Most grammars kept: an agent's tools are sent again with every turn."""
THREADS: Final = 2
"""One slow grammar must not keep the others waiting."""
SHORT_OUTPUTS: Final = 16
"""A row with at most this many earlier tokens is made at once: handing it to a thread takes longer."""
READY_S: Final = 5.0
"""A row whose grammar is not compiled after this time fails; a compilation's fuel ends long before."""


class GrammarError(Exception):
    """The matcher does not accept this grammar; the message quotes none of its text."""


@dataclass(frozen=True, slots=True)
class _Compilation:
    """A grammar's compilation, under way or over."""

    begun_s: float
    grammar: Future[CompiledGrammar] = field(default_factory=Future)

    def is_over(self, now: float) -> bool:
        """True when the compilation has succeeded or failed, at the latest when its time is up."""
        if not self.grammar.done() and now - self.begun_s >= READY_S:
            self.end(GrammarError(f"the grammar was not compiled within {READY_S:g} s"))
        return self.grammar.done()

    def end(self, result: CompiledGrammar | GrammarError | VocabularyError) -> None:
        """End the compilation with this result. No effect when it is over."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(result, CompiledGrammar):
                self.grammar.set_result(result)
            else:
                self.grammar.set_exception(result)


class GrammarCompiler:
    """Grammars over one vocabulary. `read_vocabulary` runs once, in the background; each row raises its errors."""

    def __init__(
        self,
        read_vocabulary: Callable[[], Vocabulary],
        make_threads: Callable[[str], Executor] = lambda name: ThreadPoolExecutor(THREADS, name),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observe_compiled: Callable[[float], None] = lambda seconds: None
        """Called with the seconds of each compilation, in the thread that did it."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when a grammar or the vocabulary is ready, from any thread."""
        self._clock = clock
        self._threads = make_threads("grammars")
        self._row_threads = make_threads("grammar-rows")
        """Separate, so that rows of compiled grammars do not wait for compilations."""
        self._vocabulary = self._threads.submit(read_vocabulary)
        self._vocabulary.add_done_callback(lambda _: self.on_ready())
        self._compilations: OrderedDict[str, _Compilation] = OrderedDict()
        self._ends = lru_cache(MAX_COMPILED)(lambda ids: EndIds.of(self._vocabulary.result(), ids))
        """End ids by stop ids: rows with the same stop ids share them."""

    def prepare(self, grammar: Grammar) -> None:
        """Start the compilation, unless it was started before: a request is known some time before its first token."""
        self._compilation(grammar)

    def is_ready(self, sampling: SamplingParams) -> bool:
        """True when a row can be made without waiting for a compilation, and after a compilation has failed."""
        if sampling.grammar is None:
            return sampling.thought is None or self._vocabulary.done()
        return self._compilation(sampling.grammar).is_over(self._clock())

    def row(self, opened: OpenSlot) -> Future[ConstrainedRow]:
        """Make the row of a slot, with the tokens generated so far. Fails with GrammarError or VocabularyError."""
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
        """Let the threads end after their present work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._row_threads.shutdown(wait=False, cancel_futures=True)

    def _compilation(self, grammar: Grammar) -> _Compilation:
        """The grammar's compilation, started if need be. The least recently used of the finished ones are forgotten."""
        compilation = self._compilations.pop(grammar.definition, None)
        if compilation is None:
            compilation = _Compilation(self._clock())
            self._threads.submit(self._carry_out, compilation, grammar.definition)
            compilation.grammar.add_done_callback(lambda _: self.on_ready())
            surplus = len(self._compilations) + 1 - MAX_COMPILED
            done = [definition for definition, other in self._compilations.items() if other.grammar.done()]
            for definition in done[: max(0, surplus)]:
                del self._compilations[definition]
        self._compilations[grammar.definition] = compilation
        return compilation

    def _carry_out(self, compilation: _Compilation, definition: str) -> None:
        try:
            compilation.end(self._compile(definition))
        except (GrammarError, VocabularyError) as error:
            compilation.end(error)

    def _compile(self, definition: str) -> CompiledGrammar:
        vocabulary = self._vocabulary.result()
        begin = time.perf_counter()
        matcher = LLMatcher(vocabulary.tokenizer, definition, log_level=0, limits=_parser_limits())
        compiled = CompiledGrammar.of(matcher, vocabulary.words)
        self.observe_compiled(time.perf_counter() - begin)
        if matcher.is_error():
            raise GrammarError("grammar: the matcher does not accept it")
        return compiled

    def _make_row(
        self, row: Future[ConstrainedRow], opened: OpenSlot, compiling: Future[CompiledGrammar] | None
    ) -> None:
        try:
            compiled = None if compiling is None else compiling.result()
            vocabulary, ends = self._vocabulary.result(), self._ends(opened.sampling.stop_token_ids)
            constrained_row = ConstrainedRow(opened.sampling, opened.outputs, vocabulary, compiled, ends)
            if len(opened.outputs) > SHORT_OUTPUTS:
                _ = constrained_row.matcher  # it consumes the tokens here, in this thread
            row.set_result(constrained_row)
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
