"""The body of a chat in the making: what another API's fields mean as chat's, and where each came from.

Chat's own parser decides what is allowed. What it refuses is told by the name that the client wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.openai_fields import wrong_type
from baton_gateway.openai_api.openai_types import ChatRequest, parse_chat

_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\])?")


@dataclass(slots=True)
class _Turn:
    """A message of the chat, and the fields of the client's body that it came from."""

    message: dict[str, Any]
    origin: str
    """Of its first part."""
    calls: list[str] = field(default_factory=list)
    """Of its calls of tools."""
    late_results: list[_Turn] = field(default_factory=list)
    """Of these calls, those that the client sent behind other messages."""

    @property
    def role(self) -> Any:
        return self.message["role"]


@dataclass(slots=True)
class ChatBody:
    """Fields and messages of a chat, as they are added."""

    fields: dict[str, Any] = field(default_factory=dict)
    _turns: list[_Turn] = field(default_factory=list)
    _callers: dict[Any, _Turn] = field(default_factory=dict)
    """By the id of a call the last turn that made one."""
    _speaking: _Turn | None = None
    """The last turn that is no tool's."""

    @property
    def last(self) -> dict[str, Any] | None:
        """The last message, if there is one."""
        return self._turns[-1].message if self._turns else None

    def give(self, **fields: Any) -> None:
        """Chat fields; None is the same as not giving one."""
        self.fields |= {name: value for name, value in fields.items() if value is not None}

    def say(self, origin: str, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Add text parts to the last message if it has this role, else begin one: turns of one side are one turn."""
        if not (self._turns and self._turns[-1].role == role):
            self._speaking = _Turn({"role": role, "content": []}, origin)
            self._turns.append(self._speaking)
        last = self._turns[-1].message
        last["content"] += parts
        return last

    def call(self, origin: str, call_id: Any, name: Any, arguments: Any) -> None:
        """The assistant called a tool; `arguments`: JSON text."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.say(origin, "assistant", []).setdefault("tool_calls", []).append(call)
        turn = self._turns[-1]
        turn.calls.append(origin)
        if isinstance(call_id, str):
            self._callers[call_id] = turn

    def think(self, origin: str, text: str) -> None:
        """The assistant's thoughts."""
        turn = self.say(origin, "assistant", [])
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def answer_call(self, origin: str, call_id: Any, parts: list[dict[str, Any]]) -> None:
        """What a called tool said."""
        self._turns.append(_result(origin, call_id, parts))

    def answer_any_call(self, origin: str, call_id: Any, parts: list[dict[str, Any]]) -> None:
        """As `answer_call`, where a result may stand anywhere behind its call. It comes right behind that turn."""
        caller = self._callers.get(call_id) if isinstance(call_id, str) else None
        if caller is None or caller is self._speaking:
            self.answer_call(origin, call_id, parts)
        else:
            caller.late_results.append(_result(origin, call_id, parts))

    def give_tools(self, value: Any, tool: Callable[[Any, str], dict[str, Any]]) -> None:
        """`tool` reads one entry, whose path it is told, as chat's. Raises RefusedError."""
        if value is None:
            return
        if not isinstance(value, list):
            raise wrong_type("tools", "a list of tools")
        self.give(tools=[tool(entry, f"tools[{place}]") for place, entry in enumerate(value)])

    def request(self, ignored: tuple[str, ...] = ()) -> ChatRequest:
        """The parsed chat. `ignored`: fields of the client's body that nobody knows.

        Raises RefusedError; of a message it names the client's own field.
        """
        turns = list(self._in_order())
        try:
            chat = parse_chat(self.fields | {"messages": [_plain(turn.message) for turn in turns]})
            return replace(chat, options=replace(chat.options, ignored=ignored))
        except RefusedError as refusal:
            match = _MESSAGE.match(refusal.problem.param or "")
            if match is None or int(match[1]) >= len(turns):
                raise
            turn, call = turns[int(match[1])], match[2]
            origin = turn.origin if call is None else turn.calls[int(call)]
            raise RefusedError(_named(refusal.problem, origin)) from refusal

    def _in_order(self) -> Iterator[_Turn]:
        """Late results behind those that came in time."""
        late: list[_Turn] = []
        for turn in self._turns:
            if turn.role != "tool":
                yield from late
                late = turn.late_results
            yield turn
        yield from late


def _result(origin: str, call_id: Any, parts: list[dict[str, Any]]) -> _Turn:
    return _Turn({"role": "tool", "tool_call_id": call_id, "content": parts}, origin)


def text_part(text: str) -> dict[str, Any]:
    """A part of a message's content."""
    return {"type": "text", "text": text}


def renamed(problem: Problem, names: Mapping[str, str]) -> Problem:
    """The problem with the client's name of a field. `names`: patterns of the beginnings of chat's names."""
    if problem.param is None or problem.code == "unknown_parameter":  # that is the client's own word
        return problem
    for pattern, own in names.items():
        if (match := re.match(pattern, problem.param)) is not None:
            return _named(problem, match.expand(own) + problem.param[match.end() :])
    return problem


def _named(problem: Problem, own: str) -> Problem:
    return replace(problem, param=own, message=problem.message.replace(f"'{problem.param}'", f"'{own}'"))


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """An assistant that only called tools said nothing; one part of text is that text."""
    content = message["content"]
    if not content:
        return message | {"content": None if message["role"] == "assistant" else ""}
    return message | {"content": content[0]["text"]} if len(content) == 1 else message
