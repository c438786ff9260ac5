"""Questions that the processes of one gateway ask each other: a socket for each process in the folder that they share.

Only their user may enter the folder. Whichever process a client reaches asks all others; so does the parent. A
question is one line, an answer all bytes until the end of the connection. Answers have an account in the event loop as
one tenant has: a client that asks one process without end gets no larger part of all others.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baton_wire.fair_loop.charging import charged_context
from baton_wire.fair_loop.fair_queue import Account

ANSWER_S = 2.0
MAX_QUESTION_BYTES = 4_096
MAX_ANSWER_BYTES = 16 << 20
_SUFFIX = ".sock"


@dataclass(frozen=True, slots=True)
class SiblingAnswer:
    """The answer of another process. `body` None: it did not answer in time."""

    pid: int
    body: bytes | None


class SiblingSockets:
    """This process's socket for one kind of question, and those of its siblings."""

    def __init__(
        self, folder: Path | None, prefix: str, answer: Callable[[bytes], bytes] | None, log: logging.Logger
    ) -> None:
        """`folder`: None: there is no other process. `prefix`: of the sockets' names. `answer`: answers a question, and
        raises ValueError where that is malformed; None: this process only asks."""
        self._folder, self._prefix, self._answer, self._log = folder, prefix, answer, log
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the questions of other processes until `stop`."""
        if self._folder is None or self._answer is None:
            return
        try:
            path = self._path(os.getpid())
            serving = asyncio.start_unix_server(self._serve, path, limit=MAX_QUESTION_BYTES)
            context = charged_context(Account("siblings"))
            self._server = await asyncio.get_running_loop().create_task(serving, context=context)
        except OSError as error:  # such as a path that is too long for a socket
            self._log.warning("other processes of this gateway cannot ask this one: %s", error)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path(os.getpid()).unlink(missing_ok=True)

    async def ask(self, question: bytes) -> list[SiblingAnswer]:
        """Ask every sibling. One that has ended, and left its socket, is not among the answers."""
        asked = await asyncio.gather(*(self._ask_one(pid, question) for pid in self._siblings()))
        return [answer for answer in asked if answer is not None]

    def _path(self, pid: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._prefix}{pid}{_SUFFIX}"

    def _siblings(self) -> list[int]:
        if self._folder is None:
            return []
        names = [path.name.removeprefix(self._prefix).removesuffix(_SUFFIX) for path in self._folder.glob(self._glob)]
        return [int(name) for name in names if name.isdigit() and (self._answer is None or int(name) != os.getpid())]

    @property
    def _glob(self) -> str:
        return f"{self._prefix}*{_SUFFIX}"

    async def _ask_one(self, pid: int, question: bytes) -> SiblingAnswer | None:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._path(pid), limit=MAX_ANSWER_BYTES)
                writer.write(question + b"\n")
                return SiblingAnswer(pid, await reader.read(-1))
        except (ConnectionRefusedError, FileNotFoundError):
            self._path(pid).unlink(missing_ok=True)
            return None
        except (TimeoutError, OSError):
            return SiblingAnswer(pid, None)
        finally:
            if writer is not None:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._answer is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.write(self._answer(await reader.readline()))
                await writer.drain()
        except (TimeoutError, OSError, ValueError) as error:
            self._log.debug("a question of another process was not answered: %s", error)
        finally:
            writer.close()
