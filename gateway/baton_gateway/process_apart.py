"""A process that answers one question at a time for the event loop, and is killed when an answer takes too long.

Frames on its stdin and stdout: four bytes of length, then the content.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable

from baton_gateway.parent_death import PARENT_VARIABLE, die_with_parent

START_S = 20.0


class ProcessApart:
    """Runs a module whose `main` calls `answer_questions`. Whoever asks sees to it that nobody else asks meanwhile."""

    def __init__(self, module: str, hello: bytes) -> None:
        """`hello` is a question that any process of this kind answers: then it is ready."""
        self._module = module
        self._hello = hello
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process unless it runs. Raises TimeoutError, EOFError and OSError when it does not come up."""
        if self.is_running:
            return
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", self._module)
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
        await self._exchange(self._process, self._hello, START_S)

    async def ask(self, question: bytes, within_s: float) -> bytes | None:
        """None: no answer in time, or the process ended. It is gone then, and the next question starts another."""
        await self.start()
        return await self._tried(question, within_s)

    async def hear(self, within_s: float) -> bytes | None:
        """One more answer to the question that was asked last. None as in `ask`."""
        return await self._tried(None, within_s)

    async def _tried(self, question: bytes | None, within_s: float) -> bytes | None:
        if self._process is None:
            return None
        try:
            return await self._exchange(self._process, question, within_s)
        except (TimeoutError, EOFError, OSError):
            return None

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _exchange(self, process: asyncio.subprocess.Process, question: bytes | None, within_s: float) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        is_answered = False
        try:
            async with asyncio.timeout(within_s):
                if question is not None:
                    process.stdin.write(len(question).to_bytes(4) + question)
                    await process.stdin.drain()
                length = int.from_bytes(await process.stdout.readexactly(4))
                answer = await process.stdout.readexactly(length)
            is_answered = True
            return answer
        finally:
            if not is_answered:  # whatever it still writes would be taken for another answer, also after a cancellation
                await self.kill()


def answer_questions(answer: Callable[[bytes], Iterable[bytes]], max_memory_bytes: int) -> None:
    """The process's side: answer until stdin ends. Each part of an answer is sent before the next is asked for."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the gateway, which still drains
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while length := source.read(4):
        for body in answer(source.read(int.from_bytes(length))):
            target.write(len(body).to_bytes(4) + body)
            target.flush()
