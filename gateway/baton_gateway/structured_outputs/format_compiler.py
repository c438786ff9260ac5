"""Compiles output formats for the event loop: known ones from a cache, new ones in a helper process shared fairly."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from baton_gateway.errors import ProcessNotStartedError, RefusedError, TurnTimeoutError, grammars_unavailable, invalid
from baton_gateway.helper_processes.helper_process import START_S, HelperProcess, NoAnswer
from baton_gateway.helper_processes.process_lane import HealthProblem, ProcessLane
from baton_gateway.structured_outputs.format_errors import schema_error
from baton_gateway.structured_outputs.output_format import CompileResult, FormatKind, OutputFormat
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.values import Grammar

_log = logging.getLogger("baton.gateway.grammars")
COMPILE_S = 1.0
"""Processor time of one compilation; a schema of 64 kB takes less."""
MAX_CACHE_BYTES = 8 << 20
"""Bytes of cached results, grammars and refusals alike."""
_ENTRY_BYTES = 512
"""Bytes of a cached result besides its text."""
_TRIES = 2
"""A process may have been killed from outside."""

_PROBE = OutputFormat(FormatKind.CHOICE, "", choices=("a",)).encoded()


class CompileOutcome(enum.StrEnum):
    """The outcome of one request for a grammar."""

    KNOWN = "known"
    NEW = "new"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    """The compiler refused a plain schema whose provisional grammar was in use; counted in addition to its request."""


class FormatCompiler:
    """Compiles one output format at a time, in turns among clients."""

    def __init__(
        self,
        report: Callable[[CompileOutcome, float], None] = lambda outcome, seconds: None,
        compile_s: float = COMPILE_S,
    ) -> None:
        """`report` is called with each outcome and the seconds that it took."""
        self._report = report
        self._compile_s = compile_s
        process = HelperProcess("baton_gateway.structured_outputs.format_compiler_main", _PROBE)
        self._lane = ProcessLane(process, "the process for grammars", 2 * (START_S + 5 * compile_s) + 10.0)
        self._complaints = Complaints(_log)
        self._cache: OrderedDict[bytes, CompileResult] = OrderedDict()
        self.cached_bytes = 0

    async def start(self) -> None:
        """Start the process before the first request needs it. If it does not come up, that request tries again."""
        try:
            await self._lane.run("", self._lane.process.start)
        except ProcessNotStartedError as error:
            self._record_failure(f"it does not start: {error}")

    async def stop(self) -> None:
        """Cancel the current compilation and kill the process, without waiting for the lock."""
        await self._lane.stop()

    async def recheck(self) -> None:
        """Ask a failing process whether it serves again."""
        await self._lane.recheck()

    def health_problems(self, now: float) -> list[HealthProblem]:
        return self._lane.health_problems(now)

    async def compile(self, output_format: OutputFormat, client: str, ignored: list[str] | None = None) -> Grammar:
        """Return the format's grammar. `ignored` gets the places of keywords that the grammar does not enforce.

        Raises RefusedError that names the place in the client's definition, or says that nothing compiles now.
        """
        began = time.monotonic()
        key = output_format.key
        if is_known := key in self._cache:
            self._cache.move_to_end(key)
            result = self._cache[key]
        else:
            result = await self._compile_new(output_format, key, client)
        outcome = CompileOutcome.KNOWN if is_known else CompileOutcome.NEW
        if result.grammar is None:
            outcome = CompileOutcome.REFUSED
        self._report(outcome, time.monotonic() - began)
        if result.grammar is None:
            raise invalid(result.param, result.message, result.code)
        if ignored is not None:
            ignored += result.ignored
        return output_format.grammar(result.grammar)

    async def _compile_new(self, output_format: OutputFormat, key: bytes, client: str) -> CompileResult:
        """Compile in the process. A compilation goes on after its client has gone: a restart would cost more."""
        first: asyncio.Future[CompileResult | None] = asyncio.get_running_loop().create_future()
        running = asyncio.ensure_future(self._lane.run(client, lambda: self._ask(output_format, key, first)))
        try:
            either: list[asyncio.Future[Any]] = [running, first]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                await running  # raises its error
            result = first.result()
        except TurnTimeoutError:
            result = None
        finally:
            running.cancel()  # ends a wait for the lock; a compilation goes on to its end
        if result is None:
            raise RefusedError(grammars_unavailable())
        return result

    async def _ask(self, output_format: OutputFormat, key: bytes, first: asyncio.Future[CompileResult | None]) -> None:
        """Set `first` to the first result; None: no process answers, which says nothing about the definition."""
        if (known := self._cache.get(key)) is not None:
            _resolve(first, known)
            return
        question = output_format.encoded()
        body: bytes | NoAnswer = NoAnswer.ENDED
        try:
            for _ in range(_TRIES):
                body = await self._lane.process.ask(question, self._compile_s)
                if isinstance(body, bytes) or body is NoAnswer.TOO_SLOW:
                    break
        except ProcessNotStartedError as error:
            self._record_failure(f"it does not start: {error}")
            _resolve(first, None)
            return
        if isinstance(body, NoAnswer) and body.is_external:
            self._record_failure(body.value)
            _resolve(first, None)
            return
        if isinstance(body, bytes):
            self._lane.health.record_success()
        result = _read_result(output_format, body)
        self._add_to_cache(key, result)
        _resolve(first, result)
        if not result.is_provisional:
            return
        began = time.monotonic()
        final = _read_result(output_format, await self._lane.process.read_answer(self._compile_s))
        self._add_to_cache(key, final)
        if final.grammar is None:
            _log.error("the compiler refused a plain schema whose grammar is in use already: %s", final.message)
            self._report(CompileOutcome.WITHDRAWN, time.monotonic() - began)

    def _record_failure(self, reason: str) -> None:
        self._lane.health.record_failure(reason, time.monotonic())
        self._complaints.say("grammars cannot be compiled", reason)

    def _add_to_cache(self, key: bytes, result: CompileResult) -> None:
        if (former := self._cache.get(key)) is not None:
            self.cached_bytes -= _size(former)
        self._cache[key] = result
        self.cached_bytes += _size(result)
        while self.cached_bytes > MAX_CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self.cached_bytes -= _size(dropped)


def _size(result: CompileResult) -> int:
    return _ENTRY_BYTES + 4 * len(result.grammar or result.message)


def _resolve(first: asyncio.Future[CompileResult | None], result: CompileResult | None) -> None:
    if not first.done():  # its client may have gone
        first.set_result(result)


def _read_result(output_format: OutputFormat, body: bytes | NoAnswer) -> CompileResult:
    return _too_complex(output_format) if not isinstance(body, bytes) else msgspec.json.decode(body, type=CompileResult)


def _too_complex(output_format: OutputFormat) -> CompileResult:
    """Return the refusal of a definition that was too slow or ended the process. It is cached, so not tried again."""
    problem = schema_error(output_format.field, "", "it is too complex to compile").problem
    return CompileResult(None, problem.param, problem.message, problem.code or "")
