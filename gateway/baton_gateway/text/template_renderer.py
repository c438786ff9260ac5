"""Renders chat templates for the event loop, in helper processes that are killed when a template takes too long.

One process renders short chats and another one long chats, so a short chat never waits for a long one. The second
starts with the first long chat. Each is shared fairly among clients, and a render goes on after its client has gone.
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
from baton_gateway.helper_processes.helper_process import START_S, HelperProcess, NoAnswer
from baton_gateway.helper_processes.process_lane import HealthProblem, ProcessLane
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.template_main import Question, RenderAnswer
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.templates")
RENDER_S = 1.0
LONG_CHAT_BYTES = 16 << 10
"""Bytes of JSON from which a chat is long: a template takes some 20 ms for 500 messages."""
BROKEN_S = 10.0
"""A template that cannot render anything is not tried again for this long."""
MAX_STATES = 64
"""The most templates whose behaviour is remembered."""

_TRIES = 2
"""A process may have been killed or stopped from outside."""
_SIMPLE = msgspec.json.encode(Conversation(({"role": "user", "content": "x"},)))
_LONG_CHAT = Conversation(
    tuple(
        {"role": ("user", "assistant")[place % 2], "content": f"{place}-{'x' * 1_000}-{place}"} for place in range(33)
    )
)
_PROBE = Question("", "", (), msgspec.Raw(_SIMPLE), {})


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """The most tokens that a rendered chat may have."""

    max_tokens: int
    longest_token_bytes: int | None
    """None: no bound is known."""


@dataclass(slots=True)
class _TemplateState:
    """The known behaviour of a template."""

    is_sound: bool = False
    """True if it has rendered something: later failures are then the fault of those messages."""
    keeps_all_text: bool | None = None
    """True if it writes everything that users say; None: not tried yet."""
    broken_until_s: float = 0.0


class _Lane(ProcessLane):
    """One process, and the templates that it has compiled."""

    def __init__(self, name: str, render_s: float) -> None:
        process = HelperProcess("baton_gateway.text.template_main", msgspec.json.encode(_PROBE))
        super().__init__(process, name, 2 * (START_S + 5 * render_s) + 10.0)
        self._render_s = render_s
        self._loaded: set[str] = set()
        """Keys of the templates that the process has."""

    async def ask(self, bundle: Bundle, conversation: bytes) -> RenderAnswer | NoAnswer:
        """Render, and try again if that may help. Raises ProcessNotStartedError."""
        for _ in range(_TRIES):
            answer = await self._ask(bundle, conversation)
            if answer is NoAnswer.TOO_SLOW or (isinstance(answer, RenderAnswer) and not answer.is_unknown):
                return answer
            self._loaded.discard(bundle.hash)
        return answer

    async def _ask(self, bundle: Bundle, conversation: bytes) -> RenderAnswer | NoAnswer:
        if not self.process.is_running:
            self._loaded.clear()
        key = bundle.hash
        is_loaded = key in self._loaded
        question = Question(
            key=key,
            source=None if is_loaded else bundle.chat_template,
            control_tokens=() if is_loaded else bundle.control_tokens,
            conversation=msgspec.Raw(conversation),
            special_tokens=bundle.special_tokens,
        )
        body = await self.process.ask(msgspec.json.encode(question), self._render_s)
        if isinstance(body, NoAnswer):
            return body
        answer = msgspec.json.decode(body, type=RenderAnswer)
        if answer.failure is None and not answer.is_unknown:
            self._loaded.add(key)
        return answer


class TemplateRenderer:
    """Renders one short and one long conversation at a time; one render takes some tens of microseconds."""

    def __init__(self, render_s: float = RENDER_S, long_chat_bytes: int = LONG_CHAT_BYTES) -> None:
        self._long_chat_bytes = long_chat_bytes
        self._short = _Lane("the process for chat templates", render_s)
        self._long = _Lane("the process for chat templates of long chats", render_s)
        self._states: dict[str, _TemplateState] = {}
        self._fatal: FatalInputs[Problem] = FatalInputs()
        self._complaints = Complaints(_log)

    async def start(self) -> None:
        """Start the process before the first request. If it does not come up, that request tries again."""
        try:
            await self._short.run("", self._short.process.start)
        except ProcessNotStartedError as error:
            self._record_failure(self._short, f"it does not start: {error}")

    async def stop(self) -> None:
        """Cancel current renders and kill the processes, without waiting for a lock."""
        await asyncio.gather(self._short.stop(), self._long.stop())

    async def recheck(self) -> None:
        """Ask failing processes whether they serve again."""
        await asyncio.gather(self._short.recheck(), self._long.recheck())

    def health_problems(self, now: float) -> list[HealthProblem]:
        return [*self._short.health_problems(now), *self._long.health_problems(now)]

    async def render(
        self, bundle: Bundle, conversation: Conversation, client: str = "", budget: PromptBudget | None = None
    ) -> RenderedChat:
        """Render the prompt of a conversation. Clients take turns; what cannot fit into `budget` is not rendered.

        Raises RefusedError: the template refuses the messages or fails, or nothing can be rendered now.
        """
        if bundle.chat_template is None:
            raise invalid("messages", "This model has no chat template; use /v1/completions.", "no_chat_template")
        state = self._state_of(bundle)
        too_long = None if budget is None else _too_long(conversation, budget)
        if too_long is not None and state.keeps_all_text:
            raise too_long
        encoded = msgspec.json.encode(conversation)
        if (problem := self._fatal.get(bundle.hash.encode(), encoded)) is not None:
            raise RefusedError(problem)
        if time.monotonic() < state.broken_until_s:
            raise RefusedError(template_failed())
        lane = self._long if len(encoded) > self._long_chat_bytes else self._short
        try:
            answer = await lane.run(client, lambda: self._render(lane, bundle, encoded, state, too_long))
        except TurnTimeoutError:
            raise RefusedError(template_unavailable()) from None
        if answer.refusal is not None:
            if answer.field == "messages":
                raise invalid("messages", f"The model's chat template refuses these messages: {answer.refusal}")
            raise unsupported(answer.field, f"the model's chat template does not take it: {answer.refusal}")
        assert answer.text is not None
        return RenderedChat(answer.text, answer.cuts)

    def _state_of(self, bundle: Bundle) -> _TemplateState:
        if (state := self._states.get(bundle.hash)) is None:
            while len(self._states) >= MAX_STATES:
                del self._states[next(iter(self._states))]
            state = self._states[bundle.hash] = _TemplateState()
        return state

    async def _render(
        self, lane: _Lane, bundle: Bundle, encoded: bytes, state: _TemplateState, too_long: RefusedError | None
    ) -> RenderAnswer:
        """Return a text or a refusal. The caller holds the lane's lock. Raises RefusedError."""
        if too_long is not None and await self._keeps_all_text(lane, bundle, state):
            raise too_long
        answer = await self._ask_lane(lane, bundle, encoded)
        if isinstance(answer, RenderAnswer) and answer.failure is None:
            state.is_sound = True
            return answer
        reason = f"its process was ended: {answer.value}" if isinstance(answer, NoAnswer) else str(answer.failure)
        if not state.is_sound:
            simple = await self._ask_lane(lane, bundle, _SIMPLE)
            state.is_sound = isinstance(simple, RenderAnswer) and simple.failure is None
        if not state.is_sound:
            state.broken_until_s = time.monotonic() + BROKEN_S
            self._complaints.say("a chat template renders nothing", f"{bundle.hash[:12]}: {reason}")
            raise RefusedError(template_failed())
        problem = template_fails_with(reason)
        if isinstance(answer, NoAnswer):
            self._fatal.add(problem, bundle.hash.encode(), encoded)
        raise RefusedError(problem)

    async def _keeps_all_text(self, lane: _Lane, bundle: Bundle, state: _TemplateState) -> bool:
        if state.keeps_all_text is None:
            rendered = await self._ask_lane(lane, bundle, msgspec.json.encode(_LONG_CHAT))
            text = (rendered.text or "") if isinstance(rendered, RenderAnswer) else ""
            state.keeps_all_text = all(content in text for content in _user_contents(_LONG_CHAT))
        return state.keeps_all_text

    async def _ask_lane(self, lane: _Lane, bundle: Bundle, encoded: bytes) -> RenderAnswer | NoAnswer:
        """Return the answer, or how the question ended its process. Raises RefusedError if no process can answer."""
        try:
            answer = await lane.ask(bundle, encoded)
        except ProcessNotStartedError as error:
            self._record_failure(lane, f"it does not start: {error}")
            raise RefusedError(template_unavailable()) from error
        if isinstance(answer, NoAnswer) and answer.is_external:
            self._record_failure(lane, answer.value)
            raise RefusedError(template_unavailable())
        if isinstance(answer, RenderAnswer):
            lane.health.record_success()
        return answer

    def _record_failure(self, lane: _Lane, reason: str) -> None:
        lane.health.record_failure(reason, time.monotonic())
        self._complaints.say("chats cannot be rendered", reason)


def _user_contents(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages if message["role"] == "user"]


def _too_long(conversation: Conversation, budget: PromptBudget) -> RefusedError | None:
    """Return the refusal if the users' messages cannot fit, given a template that writes all but surrounding blanks."""
    if budget.longest_token_bytes is None:
        return None
    max_bytes = budget.longest_token_bytes * budget.max_tokens
    texts = _user_contents(conversation)
    if 4 * sum(map(len, texts)) <= max_bytes:
        return None
    size = sum(len(text.strip().encode()) for text in texts)
    return prompt_too_long("messages", budget.max_tokens, size) if size > max_bytes else None
