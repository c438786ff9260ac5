"""Builds the body of a chat from the fields of another API, and remembers where each message came from.

The parser of chats decides what is allowed. Its refusals are translated to the names that the client wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from baton_gateway.answers.tool_use import Tool
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.openai_types import ChatRequest, parse_chat

_TOOL = re.compile(r"tools\[(\d+)\]")
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\])?")


@dataclass(slots=True)
class _Turn:
    """A message of the chat, and the fields of the client's body that it came from."""

    message: dict[str, Any]
    origin: str
    """The path of its first part."""
    calls: list[str] = field(default_factory=list)
    """The paths of its tool calls."""
    late_results: list[_Turn] = field(default_factory=list)
    """Results of these calls that the client sent after other messages."""

    @property
    def role(self) -> Any:
        return self.message["role"]


@dataclass(slots=True)
class ChatBody:
    """The fields and messages of a chat that have been added so far."""

    fields: dict[str, Any] = field(default_factory=dict)
    _tools: list[str] = field(default_factory=list)
    """The path of each tool in the client's body, if the chat's differ."""
    _turns: list[_Turn] = field(default_factory=list)
    _callers: dict[Any, _Turn] = field(default_factory=dict)
    """The last turn that made a call, by the call's id."""
    _speaking: _Turn | None = None
    """The last turn that is not a tool's."""

    @property
    def last(self) -> dict[str, Any] | None:
        """The last message; None: there is none yet."""
        return self._turns[-1].message if self._turns else None

    def set_fields(self, **fields: Any) -> None:
        """Set fields of the chat; None leaves a field out."""
        self.fields |= {name: value for name, value in fields.items() if value is not None}

    def add_text(self, origin: str, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Add text parts to the last message if it has this role, or begin a message. Turns of one side are merged."""
        if not (self._turns and self._turns[-1].role == role):
            self._speaking = _Turn({"role": role, "content": []}, origin)
            self._turns.append(self._speaking)
        last = self._turns[-1].message
        last["content"] += parts
        return last

    def add_call(self, origin: str, call_id: Any, name: Any, arguments: Any) -> None:
        """Add a tool call of the assistant; `arguments`: JSON text."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.add_text(origin, "assistant", []).setdefault("tool_calls", []).append(call)
        turn = self._turns[-1]
        turn.calls.append(origin)
        if isinstance(call_id, str):
            self._callers[call_id] = turn

    def add_reasoning(self, origin: str, text: str) -> None:
        """Add reasoning of the assistant."""
        turn = self.add_text(origin, "assistant", [])
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def add_result(self, origin: str, call_id: Any, parts: list[dict[str, Any]]) -> None:
        """Add the result of a tool call."""
        self._turns.append(_result(origin, call_id, parts))

    def add_late_result(self, origin: str, call_id: Any, parts: list[dict[str, Any]]) -> None:
        """Add a result that may come anywhere after its call: it is moved directly after that turn."""
        caller = self._callers.get(call_id) if isinstance(call_id, str) else None
        if caller is None or caller is self._speaking:
            self.add_result(origin, call_id, parts)
        else:
            caller.late_results.append(_result(origin, call_id, parts))

    def set_functions(self, functions: list[dict[str, Any]], origins: list[str]) -> None:
        """Set the tools. `origins`: the path of each in the client's body."""
        if functions:
            self.set_fields(tools=functions)
        self._tools = origins

    def parse(self, ignored: tuple[str, ...] = ()) -> ChatRequest:
        """Parse the chat. `ignored`: unknown fields of the client's body.

        Raises RefusedError; for a message it names the client's own field.
        """
        turns = list(self._ordered_turns())
        try:
            chat = parse_chat(self.fields | {"messages": [_simplify(turn.message) for turn in turns]})
            tools = tuple(map(_with_path, chat.tool_use.tools, self._tools))
            tool_use = replace(chat.tool_use, tools=tools)
            return msgspec.structs.replace(
                chat, options=msgspec.structs.replace(chat.options, ignored=ignored), tool_use=tool_use
            )
        except RefusedError as refusal:
            param = refusal.problem.param or ""
            if (tool := _TOOL.match(param)) is not None and int(tool[1]) < len(self._tools):
                raise RefusedError(
                    _rename(refusal.problem, self._tools[int(tool[1])] + param[tool.end() :])
                ) from refusal
            match = _MESSAGE.match(param)
            if match is None or int(match[1]) >= len(turns):
                raise
            turn, call = turns[int(match[1])], match[2]
            origin = turn.origin if call is None else turn.calls[int(call)]
            raise RefusedError(_rename(refusal.problem, origin)) from refusal

    def _ordered_turns(self) -> Iterator[_Turn]:
        """Yield the turns, with late results after those that came in time."""
        late: list[_Turn] = []
        for turn in self._turns:
            if turn.role != "tool":
                yield from late
                late = turn.late_results
            yield turn
        yield from late


def _result(origin: str, call_id: Any, parts: list[dict[str, Any]]) -> _Turn:
    return _Turn({"role": "tool", "tool_call_id": call_id, "content": parts}, origin)


def _with_path(tool: Tool, path: str) -> Tool:
    return replace(tool, path=path)


def text_part(text: str) -> dict[str, Any]:
    """Build a text part of a message's content."""
    return {"type": "text", "text": text}


def rename_field(problem: Problem, names: Mapping[str, str]) -> Problem:
    """Translate a problem's field to the client's name. `names`: patterns for prefixes of the chat's names."""
    if problem.param is None or problem.code == "unknown_parameter":  # which has the client's own name
        return problem
    for pattern, own in names.items():
        if (match := re.match(pattern, problem.param)) is not None:
            return _rename(problem, match.expand(own) + problem.param[match.end() :])
    return problem


def _rename(problem: Problem, own: str) -> Problem:
    return replace(problem, param=own, message=problem.message.replace(f"'{problem.param}'", f"'{own}'"))


def _simplify(message: dict[str, Any]) -> dict[str, Any]:
    """Replace the parts of a message by null or text if there is none or only one."""
    content = message["content"]
    if not content:
        return message | {"content": None if message["role"] == "assistant" else ""}
    return message | {"content": content[0]["text"]} if len(content) == 1 else message
