"""Rendering of chat templates for the event loop, in processes apart that are killed when a template takes too long.

One process renders short chats and one long ones, so that a short one never waits behind a long one. The second starts
with the first long chat. Each goes round among clients, and each render goes on to its end when its client is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import msgspec

from baton_gateway.errors import (
    Problem,
    ProcessNotStartedError,
    RefusedError,
    TurnTimeoutError,
    invalid,
    prompt_too_long,
    template_failed,
    template_fails_with,
    template_unavailable,
    unsupported,
)
from baton_gateway.helper_processes.fatal_inputs import FatalInputs
from baton_gateway.helper_processes.helper_process import START_S, NoAnswer, ProcessApart
from baton_gateway.helper_processes.process_lane import HealthProblem, ProcessLane
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.template_main import Question, RenderAnswer
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.templates")
RENDER_S = 1.0
LONG_CHAT_BYTES = 16 << 10
"""As JSON: some 20 ms of a template that writes 500 messages."""
BROKEN_S = 10.0
"""A template that rendered nothing at all is not tried for so long."""
MAX_KNOWN = 64
"""Templates of which is known what they do."""

_TRIES = 2
"""A process may have been ended or stopped by somebody else."""
_SIMPLE = msgspec.json.encode(Conversation(({"role": "user", "content": "x"},)))
_LONG_CHAT = Conversation(
    tuple(
        {"role": ("user", "assistant")[place % 2], "content": f"{place}-{'x' * 1_000}-{place}"} for place in range(33)
    )
)
_HELLO = Question("", "", (), msgspec.Raw(_SIMPLE), {})


@dataclass(frozen=True, slots=True)
class ChatRoom:
    """What of a rendered chat fits."""

    max_tokens: int
    longest_token_bytes: int | None
    """None: no bound is known."""


@dataclass(slots=True)
class _Known:
    """What is known of a template."""

    is_sound: bool = False
    """It has rendered something: what it fails with later is those messages' fault."""
    keeps_texts: bool | None = None
    """Whether it writes all that users say; None: that was not looked at yet."""
    broken_until_s: float = 0.0


class _Lane(ProcessLane):
    def __init__(self, name: str, render_s: float) -> None:
        process = ProcessApart("baton_gateway.text.template_main", msgspec.json.encode(_HELLO))
        super().__init__(process, name, 2 * (START_S + 5 * render_s) + 10.0)
        self._render_s = render_s
        self._held: set[str] = set()
        """Templates that the process has."""

    async def ask(self, bundle: Bundle, conversation: bytes) -> RenderAnswer | NoAnswer:
        """Once more where that may help. Raises ProcessNotStartedError."""
        for _ in range(_TRIES):
            answer = await self._ask(bundle, conversation)
            if answer is NoAnswer.TOO_SLOW or (isinstance(answer, RenderAnswer) and not answer.is_unknown):
                return answer
            self._held.discard(bundle.hash)
        return answer

    async def _ask(self, bundle: Bundle, conversation: bytes) -> RenderAnswer | NoAnswer:
        if not self.process.is_running:
            self._held.clear()
        key = bundle.hash
        is_held = key in self._held
        question = Question(
            key=key,
            source=None if is_held else bundle.chat_template,
            control_tokens=() if is_held else bundle.control_tokens,
            conversation=msgspec.Raw(conversation),
            special_tokens=bundle.special_tokens,
        )
        body = await self.process.ask(msgspec.json.encode(question), self._render_s)
        if isinstance(body, NoAnswer):
            return body
        answer = msgspec.json.decode(body, type=RenderAnswer)
        if answer.failure is None and not answer.is_unknown:
            self._held.add(key)
        return answer


class TemplateRenderer:
    """Renders one short and one long conversation at a time; a render is some tens of microseconds."""

    def __init__(self, render_s: float = RENDER_S, long_chat_bytes: int = LONG_CHAT_BYTES) -> None:
        self._long_chat_bytes = long_chat_bytes
        self._short = _Lane("the process for chat templates", render_s)
        self._long = _Lane("the process for chat templates of long chats", render_s)
        self._known: dict[str, _Known] = {}
        self._bad: FatalInputs[Problem] = FatalInputs()
        self._complaints = Complaints(_log)

    async def start(self) -> None:
        """Start the process ahead of the first request; that one tries again if it does not come up."""
        try:
            await self._short.run("", self._short.process.start)
        except ProcessNotStartedError as error:
            self._failed(self._short, f"it does not start: {error}")

    async def stop(self) -> None:
        """End what is rendered, and the processes. Waits for nobody's turn."""
        await asyncio.gather(self._short.stop(), self._long.stop())

    async def look(self) -> None:
        """Ask processes that fail whether they serve again."""
        await asyncio.gather(self._short.look(), self._long.look())

    def ailments(self, now: float) -> list[HealthProblem]:
        return [*self._short.ailments(now), *self._long.ailments(now)]

    async def render(
        self, bundle: Bundle, conversation: Conversation, who: str = "", room: ChatRoom | None = None
    ) -> RenderedChat:
        """The prompt of a conversation; `who` takes turns with others. What cannot fit into `room` is refused unseen.

        Raises RefusedError: the template's own refusal, its failure, or that nothing can be rendered now.
        """
        if bundle.chat_template is None:
            raise invalid("messages", "This model has no chat template; use /v1/completions.", "no_chat_template")
        known = self._known_of(bundle)
        too_long = None if room is None else _too_long(conversation, room)
        if too_long is not None and known.keeps_texts:
            raise too_long
        encoded = msgspec.json.encode(conversation)
        if (problem := self._bad.verdict(bundle.hash.encode(), encoded)) is not None:
            raise RefusedError(problem)
        if time.monotonic() < known.broken_until_s:
            raise RefusedError(template_failed())
        lane = self._long if len(encoded) > self._long_chat_bytes else self._short
        try:
            answer = await lane.run(who, lambda: self._render(lane, bundle, encoded, known, too_long))
        except TurnTimeoutError:
            raise RefusedError(template_unavailable()) from None
        if answer.refusal is not None:
            if answer.field == "messages":
                raise invalid("messages", f"The model's chat template refuses these messages: {answer.refusal}")
            raise unsupported(answer.field, f"the model's chat template does not take it: {answer.refusal}")
        assert answer.text is not None
        return RenderedChat(answer.text, answer.cuts)

    def _known_of(self, bundle: Bundle) -> _Known:
        if (known := self._known.get(bundle.hash)) is None:
            while len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            known = self._known[bundle.hash] = _Known()
        return known

    async def _render(
        self, lane: _Lane, bundle: Bundle, encoded: bytes, known: _Known, too_long: RefusedError | None
    ) -> RenderAnswer:
        """A text or a refusal. Holds the turn. Raises RefusedError."""
        if too_long is not None and await self._keeps_texts(lane, bundle, known):
            raise too_long
        answer = await self._asked(lane, bundle, encoded)
        if isinstance(answer, RenderAnswer) and answer.failure is None:
            known.is_sound = True
            return answer
        reason = f"its process is ended, since {answer.value}" if isinstance(answer, NoAnswer) else str(answer.failure)
        if not known.is_sound:
            simple = await self._asked(lane, bundle, _SIMPLE)
            known.is_sound = isinstance(simple, RenderAnswer) and simple.failure is None
        if not known.is_sound:
            known.broken_until_s = time.monotonic() + BROKEN_S
            self._complaints.say("a chat template renders nothing", f"{bundle.hash[:12]}: {reason}")
            raise RefusedError(template_failed())
        problem = template_fails_with(reason)
        if isinstance(answer, NoAnswer):
            self._bad.keep(problem, bundle.hash.encode(), encoded)
        raise RefusedError(problem)

    async def _keeps_texts(self, lane: _Lane, bundle: Bundle, known: _Known) -> bool:
        if known.keeps_texts is None:
            shown = await self._asked(lane, bundle, msgspec.json.encode(_LONG_CHAT))
            text = (shown.text or "") if isinstance(shown, RenderAnswer) else ""
            known.keeps_texts = all(said in text for said in _said_by_users(_LONG_CHAT))
        return known.keeps_texts

    async def _asked(self, lane: _Lane, bundle: Bundle, encoded: bytes) -> RenderAnswer | NoAnswer:
        """What the question is answered with, or ends its process by. Raises RefusedError when nobody can answer."""
        try:
            answer = await lane.ask(bundle, encoded)
        except ProcessNotStartedError as error:
            self._failed(lane, f"it does not start: {error}")
            raise RefusedError(template_unavailable()) from error
        if isinstance(answer, NoAnswer) and answer.is_others_fault:
            self._failed(lane, answer.value)
            raise RefusedError(template_unavailable())
        if isinstance(answer, RenderAnswer):
            lane.health.served()
        return answer

    def _failed(self, lane: _Lane, reason: str) -> None:
        lane.health.failed(reason, time.monotonic())
        self._complaints.say("chats cannot be rendered", reason)


def _said_by_users(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages if message["role"] == "user"]


def _too_long(conversation: Conversation, room: ChatRoom) -> RefusedError | None:
    """Why what users say cannot fit where a template writes all of it, though perhaps without the blanks around it."""
    if room.longest_token_bytes is None:
        return None
    most_bytes = room.longest_token_bytes * room.max_tokens
    texts = _said_by_users(conversation)
    if 4 * sum(map(len, texts)) <= most_bytes:
        return None
    size = sum(len(text.strip().encode()) for text in texts)
    return prompt_too_long("messages", room.max_tokens, size) if size > most_bytes else None
