"""Strict parsing of a chat's `messages` into the form of chat templates: texts, tool calls and their results."""

from __future__ import annotations

from typing import Any

from baton_gateway.answers.json_calls import MAX_NAME_CHARS
from baton_gateway.errors import RefusedError, invalid, unsupported
from baton_gateway.openai_api.json_body import count_json, parse_object
from baton_gateway.openai_api.openai_fields import (
    BESIDE_TEXTS,
    MAX_IGNORED_BYTES,
    MAX_TEXT_CHARS,
    MAX_UNKNOWN,
    PLAIN_NAME,
    Fields,
    check_text,
    wrong_type,
)
from baton_gateway.openai_api.tool_fields import MAX_CALL_ID_CHARS, MAX_TOOLS, check_tool_list
from baton_gateway.text.message_arrangements import merge_leading

MAX_MESSAGES = 2_048
MAX_PARTS = 1_024
"""The most text parts of one message."""
MAX_PARTS_IN_ALL = 8_192
_SHOWN_CHARS = 64
_RESENT = (
    "parsed", "annotations", "images", "reasoning_details", "reasoning_signature", "reasoning_opaque",
    "thinking_blocks", "encrypted_content", "response_metadata", "additional_kwargs", "id", "status", "phase", "index",
)  # fmt: skip
"""Fields of answers, and of clients' own types for them, that may be resent. Templates have no place for them."""
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_text")
"""Names that clients have for the reasoning of a resent answer; the first one with text counts."""
_RESULT_MARKS = ("is_error", "status", "artifact")
_FIELDS = frozenset((
    "role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call", "audio", "prefix", "partial",
    *_THOUGHTS, *_RESENT, *_RESULT_MARKS, *BESIDE_TEXTS,
))  # fmt: skip
"""Fields of messages that are read, have no effect, or would change the answer and are refused."""
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text"}
"""Types of parts that are text, also as `/v1/responses` names them, with the field that has the text."""
_THOUGHT_PARTS = ("thinking", "reasoning", "redacted_thinking")
_RESENT_IN_CALLS = (*BESIDE_TEXTS, "extra_content", "thought_signature", "caller", "status")

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles by their names in templates, which do not know `developer`, the successor of `system`."""

_PLAIN_ROLES = ("user", "assistant", "system", "developer")
"""Roles whose messages need no more than a text."""

ChatMessage = dict[str, Any]
"""A message for templates: `role`, `content`, perhaps `name`, `tool_calls`, `tool_call_id`, `reasoning_content`."""


def read_messages(value: Any) -> tuple[ChatMessage, ...]:
    """Parse a chat's messages; the system messages that begin it become one. Raises RefusedError."""
    if not isinstance(value, list):
        raise wrong_type("messages", "a list of messages")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid("messages", f"'messages' must have 1 to {MAX_MESSAGES} entries.", "out_of_range")
    parts = sum(len(entry["content"]) for entry in value if _has_parts(entry))
    if parts > MAX_PARTS_IN_ALL:
        raise invalid(
            "messages", f"'messages' has {parts} parts; at most {MAX_PARTS_IN_ALL} are allowed in all.", "too_long"
        )
    results = ToolResults()
    messages = tuple(
        _plain_message(entry, results) or _message(entry, f"messages[{index}]", results)
        for index, entry in enumerate(value)
    )
    results.end_turn()
    return merge_leading(messages)


def drop_unknown_fields(messages: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the messages without fields that no message of their role has, and the names of these fields.

    Too many names, and those that are not plain enough for a header, stay where they are, and are refused later.
    """
    if not isinstance(messages, list):
        return messages, ()
    names = dict.fromkeys(name for message in messages for name in _unknown(message))
    if not names or len(names) > MAX_UNKNOWN or not all(map(PLAIN_NAME.fullmatch, names)):
        return messages, ()
    return [_known(message) for message in messages], tuple(f"messages[].{name}" for name in names)


def _unknown(message: Any) -> list[str]:
    if not isinstance(message, dict):
        return []
    of_answers = () if message.get("role") == "assistant" else _RESENT
    return [name for name in message if name not in _FIELDS or name in of_answers]


def _known(message: Any) -> Any:
    unknown = _unknown(message)
    return {name: value for name, value in message.items() if name not in unknown} if unknown else message


def text_of(message: ChatMessage) -> str:
    """Return the content of a message."""
    content: str = message["content"]
    return content


def _has_parts(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("content"), list)


def _plain_message(value: Any, results: ToolResults) -> ChatMessage | None:
    """Read a message with a role and a text only, as `_message` would, in a tenth of the time. None: it has more, or
    something is wrong with it."""
    if not isinstance(value, dict) or len(value) != 2:
        return None
    role, text = value.get("role"), value.get("content")
    if role not in _PLAIN_ROLES or not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
        return None
    results.end_turn()
    return {"role": ROLES[role], "content": text}


def _message(value: Any, path: str, results: ToolResults) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    role = fields.require("role")
    if role == "function":
        raise unsupported(f"{path}.role", "it is deprecated; use 'tool'")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{path}.role", f"'{path}.role' must be one of {', '.join(ROLES)}.")
    if role != "tool":
        results.end_turn()
    for feature in ("function_call", "audio"):
        fields.refuse(feature, "it is not available", harmless=([],))
    calls = fields.take("tool_calls")
    if calls and role != "assistant":
        raise invalid(f"{path}.tool_calls", f"'{path}.tool_calls' is allowed in an assistant's message only.")
    # An answer without text may be resent as it came, and a tool may return nothing; other messages need content.
    content = fields.take("content") if role in ("assistant", "tool") else fields.require("content")
    if content == [] and role in ("assistant", "tool"):
        content = None
    thoughts: list[str] = []
    text = "" if content is None else _content(content, f"{path}.content", role, thoughts)
    message = {"role": ROLES[role], "content": text}
    name = fields.text("name", 64)
    if role == "assistant":
        message |= (
            _refusal(fields, message) | _reasoning(fields, thoughts) | _calls(calls, f"{path}.tool_calls", results)
        )
        fields.ignore(*_RESENT, max_bytes=MAX_TEXT_CHARS)
    if role == "tool":
        message |= _result(fields, results)
        fields.ignore(*_RESULT_MARKS, max_bytes=MAX_IGNORED_BYTES)
    fields.ignore(*BESIDE_TEXTS, max_bytes=MAX_IGNORED_BYTES)
    fields.end()
    return message if name is None else message | {"name": name}


def _refusal(fields: Fields, message: ChatMessage) -> ChatMessage:
    """Read an answer's refusal, which is its text if it has no other."""
    refusal = fields.text("refusal", MAX_TEXT_CHARS)
    return {"content": refusal} if refusal and not message["content"] else {}


def _reasoning(fields: Fields, in_parts: list[str]) -> ChatMessage:
    """Read the reasoning of a resent answer, and return it under the two names that templates know.

    `in_parts`: reasoning that the content had; a field has precedence.
    """
    written = [fields.text(name, MAX_TEXT_CHARS) for name in _THOUGHTS]
    thought = next(filter(None, written), "\n".join(in_parts))
    return {"reasoning_content": thought, "thinking": thought} if thought else {}


def _calls(value: Any, path: str, results: ToolResults) -> ChatMessage:
    if not value:
        return {}
    calls = check_tool_list(value, path, "a list of calls")
    return {"tool_calls": [_call(entry, f"{path}[{index}]", results) for index, entry in enumerate(calls)]}


def _call(value: Any, path: str, results: ToolResults) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    call_id = check_text(fields.require("id"), f"{path}.id", MAX_CALL_ID_CHARS)
    kind = fields.take("type")
    if kind not in (None, "function", "custom"):
        raise unsupported(f"{path}.type", f"only 'function' and 'custom' are available, not {str(kind)[:32]!r}")
    if kind == "custom":  # in histories of another provider: templates see a call with one text
        function = _custom_call(fields.require("custom"), f"{path}.custom")
    else:
        function = fields.require("function")
    fields.integer("index", 0, MAX_TOOLS)  # left in by clients that assemble a stream
    fields.ignore(*_RESENT_IN_CALLS, max_bytes=MAX_TEXT_CHARS)
    fields.end()
    if not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object")
    inner = Fields(function, f"{path}.function.")
    # The model may have called an unknown tool: such a call may be resent, with its result.
    name = check_text(inner.require("name"), f"{path}.function.name", MAX_NAME_CHARS)
    arguments = inner.take("arguments")
    if not isinstance(arguments, dict | None):
        arguments = _parse_arguments(check_text(arguments, f"{path}.function.arguments", MAX_TEXT_CHARS))
    inner.ignore("parsed_arguments", *_RESENT_IN_CALLS, max_bytes=MAX_TEXT_CHARS)
    inner.end()
    results.call(call_id, name, f"{path}.id")
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": {} if arguments is None else arguments},
    }


def _custom_call(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    name = check_text(fields.require("name"), f"{path}.name", MAX_NAME_CHARS)
    text = fields.text("input", MAX_TEXT_CHARS)
    fields.end()
    return {"name": name, "arguments": {"input": text or ""}}


def _parse_arguments(arguments: str) -> Any:
    """Parse arguments into an object, which templates write in their own way.

    Arguments that the model wrote wrong stay text, and so do those that parsing would change: with a duplicate key.
    """
    if arguments.strip() in ("", "null"):
        return {}
    body = arguments.encode()
    try:
        return parse_object(body, count_json(body, len(body)))
    except RefusedError:
        return arguments


def _result(fields: Fields, results: ToolResults) -> ChatMessage:
    path = fields.name("tool_call_id")
    call_id = check_text(fields.require("tool_call_id"), path, MAX_CALL_ID_CHARS)
    return {"tool_call_id": call_id, "name": results.take_result(call_id, path)}


def _content(value: Any, path: str, role: str, thoughts: list[str]) -> str:
    """Read a content's text. The reasoning among the parts of an assistant is appended to `thoughts`."""
    if isinstance(value, str):
        return check_text(value, path, MAX_TEXT_CHARS)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or a list of text parts")
    if not value:
        raise invalid(path, f"'{path}' must not be an empty list.")
    if len(value) > MAX_PARTS:
        raise invalid(path, f"'{path}' has {len(value)} parts; at most {MAX_PARTS} are allowed.", "too_long")
    texts = (_part(part, f"{path}[{index}]", role, thoughts) for index, part in enumerate(value))
    return "\n".join(text for text in texts if text is not None)


def _part(value: Any, path: str, role: str, thoughts: list[str]) -> str | None:
    """Read a part's text; None: it is reasoning."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    kind = fields.require("type")
    known = {**_TEXTS, "refusal": "refusal"} if role == "assistant" else _TEXTS
    text = None
    if role == "assistant" and kind in _THOUGHT_PARTS:
        thoughts += _thoughts_of_part(fields, kind)
    elif isinstance(kind, str) and kind in known:
        text = check_text(fields.require(known[kind]), f"{path}.{known[kind]}", MAX_TEXT_CHARS)
    else:
        raise unsupported(f"{path}.type", f"only 'text' parts are available, not {str(kind)[:32]!r}")
    fields.ignore("annotations", "logprobs", "id", "index", *BESIDE_TEXTS, max_bytes=MAX_IGNORED_BYTES)
    fields.end()
    return text


def _thoughts_of_part(fields: Fields, kind: str) -> list[str]:
    """Read reasoning as Anthropic's, Mistral's and Vercel's clients resend it. Encrypted reasoning is not shown."""
    fields.ignore("signature", "data", "closed", "summary", max_bytes=MAX_TEXT_CHARS)
    value = fields.take("thinking" if kind == "thinking" else "text")
    if value is None:
        return []
    if isinstance(value, list):  # as Mistral's clients have it: parts within the part
        return [_content(value, fields.name("thinking"), "user", [])] if value else []
    return [check_text(value, fields.name("thinking" if kind == "thinking" else "text"), MAX_TEXT_CHARS)]


class ToolResults:
    """Matches tool results with their calls, from the first message of a chat to its last."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """The tools of all calls so far, by the call's id. A later turn may reuse an id: some models count from 0."""
        self._waiting: dict[str, str] = {}
        """The places of the last turn's calls that have no result yet, by id."""
        self._answered: set[str] = set()
        """The ids of that turn's other calls."""

    def call(self, call_id: str, name: str, path: str) -> None:
        """Record a call. `path`: the place of its id. Raises RefusedError if another call of this turn has the id."""
        if call_id in self._waiting:
            raise _refuse(path, call_id, "is the id of two calls of one turn; each needs its own")
        self._names[call_id] = name
        self._waiting[call_id] = path

    def take_result(self, call_id: str, path: str) -> str:
        """Record a result, and return the tool's name. `path`: the place of the id.

        Raises RefusedError if no call of the last turn waits for it.
        """
        if self._waiting.pop(call_id, None) is not None:
            self._answered.add(call_id)
            return self._names[call_id]
        if call_id in self._answered:
            raise _refuse(path, call_id, "has a result already; each call has one")
        if call_id in self._names:
            raise _refuse(path, call_id, "is an earlier turn's call; its result must directly follow that turn")
        raise _refuse(path, call_id, "is not the id of a call in an earlier assistant's message")

    def end_turn(self) -> None:
        """End a turn: no further result may come. Raises RefusedError for a call without a result."""
        if self._waiting:
            call_id, path = next(iter(self._waiting.items()))
            more = f" (nor have {len(self._waiting) - 1} more)" if len(self._waiting) > 1 else ""
            rule = "each call needs one, directly after the turn that called"
            raise _refuse(path, call_id, f"has no result{more}; {rule}")
        self._answered.clear()


def _refuse(path: str, call_id: str, what: str) -> RefusedError:
    return invalid(path, f"'{path}': {call_id[:_SHOWN_CHARS]!r} {what}.")
