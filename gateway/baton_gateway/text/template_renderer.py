"""Rendering of chat templates for the event loop, in one process apart that is killed when a
template takes too long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import msgspec

from baton_gateway.errors import RefusedError, invalid, template_failed, unsupported
from baton_gateway.parent_death import PARENT_VARIABLE
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.chat_template import Conversation
from baton_gateway.text.template_process import Question, RenderAnswer

_log = logging.getLogger("baton.gateway.templates")
RENDER_S = 1.0
START_S = 20.0

_HELLO = Question("", "", Conversation(({"role": "user", "content": ""},)), {})
_NO_ANSWER = RenderAnswer(failure="no answer in time, or its process ended, twice")


class TemplateRenderer:
    """Renders one conversation at a time; a render is some tens of microseconds."""

    def __init__(self, render_s: float = RENDER_S) -> None:
        self._render_s = render_s
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._known: set[str] = set()

    async def start(self) -> None:
        """Start the process ahead of the first request."""
        async with self._turn:
            await self._running()

    async def stop(self) -> None:
        async with self._turn:
            await self._kill()

    async def render(self, bundle: Bundle, conversation: Conversation) -> str:
        """Prompt text of a conversation. Raises RefusedError: the template's own refusal, or its failure."""
        if bundle.chat_template is None:
            raise invalid("messages", "This model has no chat template; use /v1/completions.", "no_chat_template")
        async with self._turn:
            answer = await self._ask(bundle.hash, bundle.chat_template, conversation, bundle.special_tokens)
            if answer.is_unknown or answer is _NO_ANSWER:  # once more: the process died, or one of us was stopped
                self._known.discard(bundle.hash)
                answer = await self._ask(bundle.hash, bundle.chat_template, conversation, bundle.special_tokens)
        if answer.refusal is not None:
            if answer.field == "messages":
                raise invalid("messages", f"The model's chat template refuses these messages: {answer.refusal}")
            raise unsupported(answer.field, f"the model's chat template does not take it: {answer.refusal}")
        if answer.text is None:
            _log.error("template %s: %s", bundle.hash[:12], answer.failure)
            raise RefusedError(template_failed())
        return answer.text

    async def _ask(
        self, key: str, source: str, conversation: Conversation, special_tokens: dict[str, str]
    ) -> RenderAnswer:
        process = await self._running()
        question = Question(key, None if key in self._known else source, conversation, special_tokens)
        is_answered = False
        try:
            async with asyncio.timeout(self._render_s):
                answer = await _exchange(process, msgspec.json.encode(question))
            is_answered = True
        except (TimeoutError, EOFError, OSError, msgspec.DecodeError):
            return _NO_ANSWER
        finally:
            if not is_answered:  # whatever it still writes would be taken for another answer, also after a cancellation
                await self._kill()
        if answer.failure is None:
            self._known.add(key)
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._known.clear()
            environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
            command = (sys.executable, "-m", "baton_gateway.text.template_process")
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
            is_ready = False
            try:
                async with asyncio.timeout(START_S):
                    await _exchange(
                        self._process,
                        msgspec.json.encode(_HELLO),
                    )
                is_ready = True
            finally:
                if not is_ready:  # cancelled with its client: the next request must not read this answer as its own
                    await self._kill()
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _exchange(process: asyncio.subprocess.Process, body: bytes) -> RenderAnswer:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(body).to_bytes(4) + body)
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(4))
    return msgspec.json.decode(await process.stdout.readexactly(length), type=RenderAnswer)
