"""A helper process: answers one question at a time for the event loop, and is killed when an answer takes too long.

Its stdin and stdout carry frames: four bytes of length, then the content. The process's own side is in `helper_main`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import signal

from baton_gateway.errors import ProcessNotStartedError
from baton_gateway.helper_processes import piped_process
from baton_gateway.helper_processes.piped_process import PipedProcess
from baton_gateway.helper_processes.processor_time import ProcessorAllowance, processor_s
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.processes")

START_S = 20.0
KILL_S = 1.0
"""The longest that `kill` waits until the kernel has ended a process."""
MAX_ANSWER_BYTES = 256 << 20


class NoAnswer(enum.Enum):
    """Why a question has no answer. The process has ended by then, and the next question starts another."""

    TOO_SLOW = "it used up its processor time"
    STALLED = "it was stopped, or got no processor time"
    KILLED = "it was killed"
    """Killed from outside: the machine may be out of memory."""
    ENDED = "it ended"

    @property
    def is_external(self) -> bool:
        """True if the cause is external: it says nothing about the question."""
        return self in (NoAnswer.STALLED, NoAnswer.KILLED)


class HelperProcess:
    """Runs a module whose `main` calls `answer_questions`. Callers take turns: one question at a time."""

    def __init__(self, module: str, probe: bytes) -> None:
        """`probe`: a question that any ready process of this kind answers."""
        self._module = module
        self._probe = probe
        self._complaints = Complaints(_log)
        self._process: PipedProcess | None = None
        self._ending: PipedProcess | None = None
        """The previous process, which was killed."""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process unless it runs. Raises ProcessNotStartedError if it does not come up."""
        if self.is_running:
            return
        try:
            process = self._process = piped_process.start(self._module, self._complaints)
        except OSError as error:
            raise ProcessNotStartedError(error.strerror or type(error).__name__) from error
        try:
            await process.connect()
        except BaseException:
            self.kill_nowait()
            raise
        answer = await self._exchange(process, self._probe, START_S)
        if isinstance(answer, NoAnswer):
            raise ProcessNotStartedError(answer.value)

    async def ask(self, question: bytes, within_s: float) -> bytes | NoAnswer:
        """Return the answer to a question; `within_s` limits its processor time. Raises ProcessNotStartedError."""
        await self.start()
        assert self._process is not None
        return await self._exchange(self._process, question, within_s)

    async def read_answer(self, within_s: float) -> bytes | NoAnswer:
        """Return one more answer to the last question."""
        if self._process is None:
            return NoAnswer.ENDED
        return await self._exchange(self._process, None, within_s)

    async def ping(self) -> bool:
        """Return True if the process answers, after a start if it does not run. Raises ProcessNotStartedError."""
        return not isinstance(await self.ask(self._probe, START_S), NoAnswer)

    def kill_nowait(self) -> None:
        """Kill the process without waiting for its end."""
        if self._process is not None:
            self._process.kill()
            self._process, self._ending = None, self._process

    async def kill(self) -> None:
        """Kill the process at once, even if the caller is cancelled, and wait at most KILL_S for its end."""
        self.kill_nowait()
        if self._ending is not None:
            await self._ending.wait(KILL_S)

    async def _exchange(self, process: PipedProcess, question: bytes | None, within_s: float) -> bytes | NoAnswer:
        deadline = _Deadline(process, within_s)
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
            deadline.cancel()
            if not is_answered:  # after a cancellation too: a late answer would be taken for the next question's
                process.kill()
                if self._process is process:
                    self.kill_nowait()
        await process.wait(KILL_S)
        is_killed = deadline.reason is NoAnswer.ENDED and process.returncode == -signal.SIGKILL
        return NoAnswer.KILLED if is_killed else deadline.reason


class _Deadline:
    """Kills a process that has used up its processor time or gets none. Its pipes close, which ends all waits on it."""

    def __init__(self, process: PipedProcess, within_s: float) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._allowance = ProcessorAllowance(within_s, self._loop.time(), processor_s(process.pid))
        self._timer = self._loop.call_later(within_s, self._check)
        self.reason = NoAnswer.ENDED

    def cancel(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        wait_s = self._allowance.next_check_s(self._loop.time(), processor_s(self._process.pid))
        if wait_s is not None:
            self._timer = self._loop.call_later(wait_s, self._check)
            return
        self.reason = NoAnswer.TOO_SLOW if self._allowance.is_used_up else NoAnswer.STALLED
        self._process.kill()
