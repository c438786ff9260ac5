"""A process that answers one question at a time for the event loop, and is killed when an answer takes too long.

Frames on its stdin and stdout: four bytes of length, then the content. Its own side is in `answering_process`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton_gateway import apart_pipes
from baton_gateway.apart_pipes import PipedProcess
from baton_gateway.errors import ProcessNotStartedError
from baton_gateway.processor_time import Patience, processor_s
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.processes")

START_S = 20.0
KILL_S = 1.0
"""How long `kill` waits at most until the kernel has ended a process."""
MAX_ANSWER_BYTES = 256 << 20


class NoAnswer(enum.Enum):
    """Why a question has no answer. The process is gone then, and the next question starts another."""

    TOO_SLOW = "it computed for as long as it may"
    STALLED = "it was stopped, or got no processor time"
    ENDED = "it ended"


class ProcessApart:
    """Runs a module whose `main` calls `answer_questions`. Whoever asks sees to it that nobody else asks meanwhile."""

    def __init__(self, module: str, hello: bytes) -> None:
        """`hello` is a question that any process of this kind answers: then it is ready."""
        self._module = module
        self._hello = hello
        self._complaints = Complaints(_log)
        self._process: PipedProcess | None = None
        self._ending: PipedProcess | None = None
        """The one before, which was killed."""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process unless it runs. Raises ProcessNotStartedError when it does not come up."""
        if self.is_running:
            return
        try:
            process = self._process = apart_pipes.start(self._module, self._complaints)
        except OSError as error:
            raise ProcessNotStartedError(error.strerror or type(error).__name__) from error
        try:
            await process.connect()
        except BaseException:
            self.end()
            raise
        answer = await self._exchange(process, self._hello, START_S)
        if isinstance(answer, NoAnswer):
            raise ProcessNotStartedError(answer.value)

    async def ask(self, question: bytes, within_s: float) -> bytes | NoAnswer:
        """The answer; `within_s` counts its processor time. Raises ProcessNotStartedError."""
        await self.start()
        assert self._process is not None
        return await self._exchange(self._process, question, within_s)

    async def hear(self, within_s: float) -> bytes | NoAnswer:
        """One more answer to the question that was asked last."""
        if self._process is None:
            return NoAnswer.ENDED
        return await self._exchange(self._process, None, within_s)

    async def say_hello(self) -> bool:
        """Whether it answers, if need be after a start. Raises ProcessNotStartedError."""
        return not isinstance(await self.ask(self._hello, START_S), NoAnswer)

    def end(self) -> None:
        """Kill the process without waiting for its end."""
        if self._process is not None:
            self._process.kill()
            self._process, self._ending = None, self._process

    async def kill(self) -> None:
        """The process is killed at once, also where the caller is cancelled; waits at most KILL_S for its end."""
        self.end()
        if self._ending is not None:
            await self._ending.wait(KILL_S)

    async def _exchange(self, process: PipedProcess, question: bytes | None, within_s: float) -> bytes | NoAnswer:
        answer = await self._answer(process, question, within_s)
        if isinstance(answer, NoAnswer):
            await process.wait(KILL_S)
        return answer

    async def _answer(self, process: PipedProcess, question: bytes | None, within_s: float) -> bytes | NoAnswer:
        is_answered = False
        try:
            async with _limited(process.pid, within_s) as patience:
                if question is not None:
                    await process.write(len(question).to_bytes(4) + question)
                length = int.from_bytes(await process.stdout.readexactly(4))
                if length > MAX_ANSWER_BYTES:
                    return NoAnswer.ENDED
                answer = await process.stdout.readexactly(length)
            is_answered = True
            return answer
        except TimeoutError:
            return NoAnswer.TOO_SLOW if patience.is_used_up else NoAnswer.STALLED
        except (EOFError, OSError):
            return NoAnswer.ENDED
        finally:
            if not is_answered:  # whatever it still writes would be taken for another answer, also after a cancellation
                process.kill()
                if self._process is process:
                    self.end()


@asynccontextmanager
async def _limited(pid: int, within_s: float) -> AsyncIterator[Patience]:
    """Raises TimeoutError in the body when the process has used up its time, or gets none."""
    loop = asyncio.get_running_loop()
    patience = Patience(within_s, loop.time(), processor_s(pid))
    timer: asyncio.TimerHandle | None = None
    async with asyncio.timeout(None) as timeout:

        def look() -> None:
            nonlocal timer
            more_s = patience.more_s(loop.time(), processor_s(pid))
            if more_s is None:
                timeout.reschedule(loop.time())
            else:
                timer = loop.call_later(more_s, look)

        timer = loop.call_later(within_s, look)
        try:
            yield patience
        finally:
            if timer is not None:
                timer.cancel()
