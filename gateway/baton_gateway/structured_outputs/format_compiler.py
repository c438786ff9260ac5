"""Grammars for the event loop: known ones at once, new ones from a process apart, in turns among clients."""

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
from baton_gateway.helper_processes.helper_process import START_S, NoAnswer, ProcessApart
from baton_gateway.helper_processes.process_lane import HealthProblem, ProcessLane
from baton_gateway.structured_outputs.format_errors import refused
from baton_gateway.structured_outputs.output_format import OutputFormat, ShapeAnswer, ShapeKind
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.values import Grammar

_log = logging.getLogger("baton.gateway.grammars")
COMPILE_S = 1.0
"""A schema of 64 kB takes less."""
MAX_KEPT_BYTES = 8 << 20
"""Of answers that are kept for the next request with the same shape, grammars and refusals alike."""
_KEPT_BESIDE_BYTES = 512
_TRIES = 2
"""The process may have been ended by somebody else."""

_HELLO = OutputFormat(ShapeKind.CHOICE, "", choices=("a",)).encoded()


class Compiled(enum.StrEnum):
    """How a request came by its grammar."""

    KNOWN = "known"
    NEW = "new"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    """A plain schema whose grammar was used already when the compiler refused it: counted beside the request."""


class ShapeCompiler:
    """Compiles one shape at a time; each client's name takes turns with the others'."""

    def __init__(
        self, tell: Callable[[Compiled, float], None] = lambda how, seconds: None, compile_s: float = COMPILE_S
    ) -> None:
        """`tell` hears of each shape, with the seconds that it took."""
        self._tell = tell
        self._compile_s = compile_s
        process = ProcessApart("baton_gateway.structured_outputs.format_compiler_main", _HELLO)
        self._lane = ProcessLane(process, "the process for grammars", 2 * (START_S + 5 * compile_s) + 10.0)
        self._complaints = Complaints(_log)
        self._kept: OrderedDict[bytes, ShapeAnswer] = OrderedDict()
        self.kept_bytes = 0

    async def start(self) -> None:
        """Start the process ahead of the first request that needs it; that request tries again if it does not come."""
        try:
            await self._lane.run("", self._lane.process.start)
        except ProcessNotStartedError as error:
            self._failed(f"it does not start: {error}")

    async def stop(self) -> None:
        """End what is compiled, and the process. Waits for nobody's turn."""
        await self._lane.stop()

    async def look(self) -> None:
        """Ask a process that fails whether it serves again."""
        await self._lane.look()

    def ailments(self, now: float) -> list[HealthProblem]:
        return self._lane.ailments(now)

    async def compile(self, shape: OutputFormat, who: str) -> Grammar:
        """Raises RefusedError that names the place in the client's definition, or says that none can be read now."""
        began = time.monotonic()
        key = shape.key
        if is_known := key in self._kept:
            self._kept.move_to_end(key)
            answer = self._kept[key]
        else:
            answer = await self._new(shape, key, who)
        how = Compiled.REFUSED if answer.definition is None else Compiled.KNOWN if is_known else Compiled.NEW
        self._tell(how, time.monotonic() - began)
        if answer.definition is None:
            raise invalid(answer.param, answer.message, answer.code)
        return shape.grammar(answer.definition)

    async def _new(self, shape: OutputFormat, key: bytes, who: str) -> ShapeAnswer:
        """The answer is waited for also after the client is gone: stopping the process would cost the next one more."""
        first: asyncio.Future[ShapeAnswer | None] = asyncio.get_running_loop().create_future()
        running = asyncio.ensure_future(self._lane.run(who, lambda: self._ask(shape, key, first)))
        try:
            either: list[asyncio.Future[Any]] = [running, first]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                await running  # raises what it failed of
            answer = first.result()
        except TurnTimeoutError:
            answer = None
        finally:
            running.cancel()  # who waits for a turn leaves; what is compiled goes on to its end
        if answer is None:
            raise RefusedError(grammars_unavailable())
        return answer

    async def _ask(self, shape: OutputFormat, key: bytes, first: asyncio.Future[ShapeAnswer | None]) -> None:
        """Sets `first` to the first answer; None: no process answers, which says nothing of the definition."""
        if (known := self._kept.get(key)) is not None:
            _tell(first, known)
            return
        question = shape.encoded()
        body: bytes | NoAnswer = NoAnswer.ENDED
        try:
            for _ in range(_TRIES):
                body = await self._lane.process.ask(question, self._compile_s)
                if isinstance(body, bytes) or body is NoAnswer.TOO_SLOW:
                    break
        except ProcessNotStartedError as error:
            self._failed(f"it does not start: {error}")
            _tell(first, None)
            return
        if isinstance(body, NoAnswer) and body.is_others_fault:
            self._failed(body.value)
            _tell(first, None)
            return
        if isinstance(body, bytes):
            self._lane.health.served()
        answer = _answer(shape, body)
        self._keep(key, answer)
        _tell(first, answer)
        if not answer.is_early:
            return
        began = time.monotonic()
        judged = _answer(shape, await self._lane.process.hear(self._compile_s))
        self._keep(key, judged)
        if judged.definition is None:
            _log.error("the compiler refused a plain schema whose grammar was used already: %s", judged.message)
            self._tell(Compiled.WITHDRAWN, time.monotonic() - began)

    def _failed(self, reason: str) -> None:
        self._lane.health.failed(reason, time.monotonic())
        self._complaints.say("grammars cannot be compiled", reason)

    def _keep(self, key: bytes, answer: ShapeAnswer) -> None:
        if (before := self._kept.get(key)) is not None:
            self.kept_bytes -= _size(before)
        self._kept[key] = answer
        self.kept_bytes += _size(answer)
        while self.kept_bytes > MAX_KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self.kept_bytes -= _size(dropped)


def _size(answer: ShapeAnswer) -> int:
    return _KEPT_BESIDE_BYTES + 4 * len(answer.definition or answer.message)


def _tell(first: asyncio.Future[ShapeAnswer | None], answer: ShapeAnswer | None) -> None:
    if not first.done():  # its client may be gone
        first.set_result(answer)


def _answer(shape: OutputFormat, body: bytes | NoAnswer) -> ShapeAnswer:
    return _too_complex(shape) if not isinstance(body, bytes) else msgspec.json.decode(body, type=ShapeAnswer)


def _too_complex(shape: OutputFormat) -> ShapeAnswer:
    """Also for a definition that ended the process: it is kept, so that nobody tries it again."""
    problem = refused(shape.field, "", "it is too complex to compile").problem
    return ShapeAnswer(None, problem.param, problem.message, problem.code or "")
