"""The body of a chat in the making: what another API's fields mean as chat's, and where each came from.

Chat's own parser decides what is allowed. What it refuses is told by the name that the client wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from baton_gateway.errors import Problem, RefusedError
from baton_gateway.http_api.openai_fields import wrong_type
from baton_gateway.http_api.openai_types import ChatRequest, parse_chat

_MESSAGE = re.compile(r"messages\[(\d+)\]")


@dataclass(slots=True)
class ChatBody:
    """Fields and messages of a chat, as they are added."""

    fields: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """For each message the field of the client's body that its first part came from."""

    def give(self, **fields: Any) -> None:
        """Chat fields; None is the same as not giving one."""
        self.fields |= {name: value for name, value in fields.items() if value is not None}

    def say(self, origin: str, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Add text parts to the last message if it has this role, else begin one: turns of one side are one turn."""
        if not (self.messages and self.messages[-1]["role"] == role):
            self._begin(origin, {"role": role, "content": []})
        last = self.messages[-1]
        last["content"] += parts
        return last

    def call(self, origin: str, call_id: Any, name: Any, arguments: Any) -> None:
        """The assistant called a tool; `arguments`: JSON text."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.say(origin, "assistant", []).setdefault("tool_calls", []).append(call)

    def think(self, origin: str, text: str) -> None:
        """The assistant's thoughts."""
        turn = self.say(origin, "assistant", [])
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def answer_call(self, origin: str, call_id: Any, parts: list[dict[str, Any]]) -> None:
        """What a called tool said."""
        self._begin(origin, {"role": "tool", "tool_call_id": call_id, "content": parts})

    def _begin(self, origin: str, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.origins.append(origin)

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
        try:
            chat = parse_chat(self.fields | {"messages": [_plain(message) for message in self.messages]})
            return replace(chat, options=replace(chat.options, ignored=ignored))
        except RefusedError as refusal:
            match = _MESSAGE.match(refusal.problem.param or "")
            if match is None or int(match[1]) >= len(self.origins):
                raise
            raise RefusedError(_named(refusal.problem, self.origins[int(match[1])])) from refusal


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
