"""A process that answers one question at a time for the event loop, and is killed when an answer takes too long.

Frames on its stdin and stdout: four bytes of length, then the content. Its own side is in `answering_process`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from baton_gateway.parent_death import PARENT_VARIABLE

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
        self._process = await run_module(self._module)
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


async def run_module(module: str) -> asyncio.subprocess.Process:
    """`python -m module` with pipes to its stdin and from its stdout, killed when this process dies."""
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=pipe, stdout=pipe, env=environment)
