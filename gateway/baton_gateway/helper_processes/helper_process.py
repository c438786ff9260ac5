"""A process that answers one question at a time for the event loop, and is killed when an answer takes too long.

Frames on its stdin and stdout: four bytes of length, then the content. Its own side is in `helper_main`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import signal

from baton_gateway.errors import ProcessNotStartedError
from baton_gateway.helper_processes import piped_process as apart_pipes
from baton_gateway.helper_processes.piped_process import PipedProcess
from baton_gateway.helper_processes.processor_time import ProcessorAllowance, processor_s
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
    KILLED = "it was killed"
    """By somebody else: the machine may have no memory left."""
    ENDED = "it ended"

    @property
    def is_others_fault(self) -> bool:
        """It says nothing of the question."""
        return self in (NoAnswer.STALLED, NoAnswer.KILLED)


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
        limit = _KillingLimit(process, within_s)
        is_answered = False
        try:
            if question is not None:
                await process.write(len(question).to_bytes(4) + question)
            length = int.from_bytes(await process.stdout.readexactly(4))
            if length <= MAX_ANSWER_BYTES:
                answer = await process.stdout.readexactly(length)
                is_answered = True
                return answer
        except (EOFError, OSError):
            pass
        finally:
            limit.end()
            if not is_answered:  # whatever it still writes would be taken for another answer, also after a cancellation
                process.kill()
                if self._process is process:
                    self.end()
        await process.wait(KILL_S)
        is_killed = limit.reason is NoAnswer.ENDED and process.returncode == -signal.SIGKILL
        return NoAnswer.KILLED if is_killed else limit.reason


class _KillingLimit:
    """Kills a process that has used up its time, or gets none: its pipes end then, and with them all that waits."""

    def __init__(self, process: PipedProcess, within_s: float) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._allowance = ProcessorAllowance(within_s, self._loop.time(), processor_s(process.pid))
        self._timer = self._loop.call_later(within_s, self._look)
        self.reason = NoAnswer.ENDED

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        more_s = self._allowance.more_s(self._loop.time(), processor_s(self._process.pid))
        if more_s is not None:
            self._timer = self._loop.call_later(more_s, self._look)
            return
        self.reason = NoAnswer.TOO_SLOW if self._allowance.is_used_up else NoAnswer.STALLED
        self._process.kill()
