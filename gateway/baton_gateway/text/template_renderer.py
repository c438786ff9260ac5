"""Rendering of chat templates for the event loop, in one process apart that is killed when a
template takes too long.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from baton_gateway.errors import RefusedError, invalid, template_failed, unsupported
from baton_gateway.process_apart import ProcessApart
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.template_process import Question, RenderAnswer

_log = logging.getLogger("baton.gateway.templates")
RENDER_S = 1.0

_HELLO = Question("", "", (), Conversation(({"role": "user", "content": ""},)), {})
_NO_ANSWER = RenderAnswer(failure="no answer in time, or its process ended, twice")


class TemplateRenderer:
    """Renders one conversation at a time; a render is some tens of microseconds."""

    def __init__(self, render_s: float = RENDER_S) -> None:
        self._render_s = render_s
        self._turn = asyncio.Lock()
        self._process = ProcessApart("baton_gateway.text.template_process", msgspec.json.encode(_HELLO))
        self._known: set[str] = set()

    async def start(self) -> None:
        """Start the process ahead of the first request."""
        async with self._turn:
            await self._process.start()

    async def stop(self) -> None:
        async with self._turn:
            await self._process.kill()

    async def render(self, bundle: Bundle, conversation: Conversation) -> RenderedChat:
        """The prompt of a conversation. Raises RefusedError: the template's own refusal, or its failure."""
        if bundle.chat_template is None:
            raise invalid("messages", "This model has no chat template; use /v1/completions.", "no_chat_template")
        async with self._turn:
            answer = await self._ask(bundle, bundle.chat_template, conversation)
            if answer.is_unknown or answer is _NO_ANSWER:  # once more: the process died, or one of us was stopped
                self._known.discard(bundle.hash)
                answer = await self._ask(bundle, bundle.chat_template, conversation)
        if answer.refusal is not None:
            if answer.field == "messages":
                raise invalid("messages", f"The model's chat template refuses these messages: {answer.refusal}")
            raise unsupported(answer.field, f"the model's chat template does not take it: {answer.refusal}")
        if answer.text is None:
            _log.error("template %s: %s", bundle.hash[:12], answer.failure)
            raise RefusedError(template_failed())
        return RenderedChat(answer.text, answer.cuts)

    async def _ask(self, bundle: Bundle, source: str, conversation: Conversation) -> RenderAnswer:
        if not self._process.is_running:
            self._known.clear()
        key = bundle.hash
        is_known = key in self._known
        question = Question(
            key=key,
            source=None if is_known else source,
            control_tokens=() if is_known else bundle.control_tokens,
            conversation=conversation,
            special_tokens=bundle.special_tokens,
        )
        body = await self._process.ask(msgspec.json.encode(question), self._render_s)
        if body is None:
            return _NO_ANSWER
        answer = msgspec.json.decode(body, type=RenderAnswer)
        if answer.failure is None:
            self._known.add(key)
        return answer
