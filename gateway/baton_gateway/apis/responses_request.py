"""Translates bodies of OpenAI's `/v1/responses` to chat requests and the form of their answers.

Nothing is stored between requests: fields that would need it are refused, and answers have `store: false`. Consecutive
items of the assistant are merged into one turn. docs/api-http.md lists the fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton_gateway.apis.chat_body import ChatBody, text_part
from baton_gateway.apis.response_tools import (
    CALL_OUTPUTS,
    is_hosted_item,
    read_call_item,
    read_output,
    read_tool_choice,
    read_tools,
)
from baton_gateway.apis.responses_answer import ResponsesForm
from baton_gateway.errors import invalid, unsupported
from baton_gateway.openai_api.chat_messages import MAX_MESSAGES, MAX_PARTS
from baton_gateway.openai_api.json_pieces import EncodedJson
from baton_gateway.openai_api.openai_fields import (
    BESIDE_TEXTS,
    MAX_IGNORED_BYTES,
    MAX_TEXT_CHARS,
    Fields,
    UnknownFields,
    check_text,
    wrong_type,
)
from baton_gateway.openai_api.openai_types import MAX_LOGPROBS, MAX_TOKENS, ChatRequest, check_held

_encode = msgspec.json.Encoder().encode
_NOT_STORED = "answers are not stored: send the whole conversation as 'input'"
_IGNORED = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    "max_tool_calls", "client_metadata", "cache_control",
)  # fmt: skip
"""Fields that are accepted without effect: they concern the provider's side or its tools, not the answer."""
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    _LOGPROBS, "reasoning.encrypted_content", "web_search_call.results", "web_search_call.action.sources",
    "file_search_call.results", "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "message.input_image.image_url",
)  # fmt: skip
"""Reasoning is plain text: there is nothing to encrypt. Hosted tools are never called."""
_OF_ITEMS = ("id", "status", "phase", "parsed_arguments", "caller", "created_by", "max_output_length", "end_turn")
"""Fields of items that were part of an answer, or that clients add to them."""
_MAX_WORD = 64


def parse_response(
    raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE
) -> tuple[ChatRequest, ResponsesForm]:
    """Parse the body of a response. Raises RefusedError that names the offending field."""
    fields, body = Fields(raw), ChatBody()
    echo = _echo(raw)
    body.set_fields(model=fields.require("model"))
    instructions = fields.text("instructions", MAX_TEXT_CHARS)
    if instructions:
        body.add_text("instructions", "system", [text_part(instructions)])
    _read_input(fields.require("input"), body)
    body.set_fields(
        prompt_cache_key=fields.peek_text("prompt_cache_key") or None,
        service_tier=fields.take("service_tier"),
        priority=fields.take("priority"),
        max_completion_tokens=fields.integer("max_output_tokens", 1, MAX_TOKENS),
        stream=fields.flag("stream", False),
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1, above_low=True),
    )
    _read_stream_options(fields.take("stream_options"))
    choice = read_tool_choice(fields.take("tool_choice"))
    tools = read_tools(fields.take("tools"), is_free=choice in (None, "auto", "none"))
    body.set_functions(tools.functions, tools.origins)
    body.set_fields(tool_choice=choice)
    body.set_fields(parallel_tool_calls=fields.flag("parallel_tool_calls", True))
    _read_text(fields.take("text"), body)
    _read_reasoning(fields.take("reasoning"), body)
    _read_logprobs(fields, body)
    fields.flag("store", False)  # the answer has `store: false`
    fields.refuse("background", "answers are not stored: wait for the answer, or stream it", harmless=(False,))
    fields.refuse("previous_response_id", _NOT_STORED)
    fields.refuse("conversation", _NOT_STORED)
    fields.refuse("prompt", "there are no stored prompts")
    fields.refuse("truncation", "a prompt that is too long is refused", harmless=("disabled",))
    fields.refuse("context_management", "a conversation is used as it was sent", harmless=([],))
    fields.refuse("moderation", "nothing is moderated here")
    fields.ignore("metadata", *_IGNORED, max_bytes=MAX_IGNORED_BYTES)
    request = body.parse((*fields.end(unknown), *tools.skipped))
    options = msgspec.structs.replace(request.options, is_held=True)  # a stream's too: its last events repeat it
    check_held("max_output_tokens", options)
    return msgspec.structs.replace(request, options=options), ResponsesForm(echo, tools.others)


_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None,
    "reasoning": {"effort": None, "summary": None}, "user": None,
}  # fmt: skip
"""The request's fields that an answer repeats, with their defaults."""


def _echo(raw: dict[str, Any]) -> dict[str, EncodedJson]:
    values = {name: default if raw.get(name) is None else raw[name] for name, default in _ECHOED.items()}
    return {name: EncodedJson(_encode(value)) for name, value in values.items()}


# Input ----------------------------------------------------------------------------------------------------------------


def _read_input(value: Any, body: ChatBody) -> None:
    if isinstance(value, str):
        body.add_text("input", "user", [text_part(check_text(value, "input", MAX_TEXT_CHARS))])
        return
    if not isinstance(value, list):
        raise wrong_type("input", "a string or a list of items")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid("input", f"'input' must have 1 to {MAX_MESSAGES} entries.", "out_of_range")
    for index, item in enumerate(value):
        _read_item(item, f"input[{index}]", body)
    if body.last is None:
        raise invalid("input", "'input' has nothing to answer.")


def _read_item(value: Any, path: str, body: ChatBody) -> None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    kind = fields.take("type")
    if kind is None or kind == "message":
        _read_message(fields, path, body)
    elif (call := read_call_item(kind, fields)) is not None:
        body.add_call(path, *call)
    elif isinstance(kind, str) and kind in CALL_OUTPUTS:
        call_id, output = fields.require("call_id"), fields.take("output")
        body.add_late_result(path, call_id, read_output(output, f"{path}.output", _texts))
    elif kind == "reasoning":
        _read_reasoning_item(fields, path, body)
    elif is_hosted_item(kind):
        return
    else:
        raise unsupported(f"{path}.type", f"items of type {str(kind)[:32]!r} are not available")
    fields.ignore(*_OF_ITEMS, *BESIDE_TEXTS, max_bytes=MAX_TEXT_CHARS)
    fields.end()


def _read_message(fields: Fields, path: str, body: ChatBody) -> None:
    role = fields.require("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{path}.role", f"'{path}.role' must be one of {', '.join(_ROLES)}.")
    body.add_text(path, _ROLES[role], _texts(fields.require("content"), f"{path}.content"))


def _read_reasoning_item(fields: Fields, path: str, body: ChatBody) -> None:
    """Read reasoning from an answer of ours. A summary of hidden reasoning is of no use to another model."""
    content = fields.take("content")
    parts = [] if content is None else _texts(content, f"{path}.content")
    if parts:
        body.add_reasoning(path, "\n".join(part["text"] for part in parts))
    fields.ignore("summary", "encrypted_content", max_bytes=MAX_TEXT_CHARS)


def _texts(value: Any, path: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [text_part(check_text(value, path, MAX_TEXT_CHARS))]
    if not isinstance(value, list):
        raise wrong_type(path, "a string or a list of text parts")
    if len(value) > MAX_PARTS:
        raise invalid(path, f"'{path}' has {len(value)} parts; at most {MAX_PARTS} are allowed.", "too_long")
    return [_text(part, f"{path}[{index}]") for index, part in enumerate(value)]


def _text(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    kind = fields.require("type")
    if kind not in ("input_text", "output_text", "reasoning_text", "summary_text", "text", "refusal"):
        raise unsupported(f"{path}.type", f"only text is available, not {str(kind)[:32]!r}")
    name = "refusal" if kind == "refusal" else "text"
    part = text_part(check_text(fields.require(name), f"{path}.{name}", MAX_TEXT_CHARS))
    fields.ignore("annotations", "logprobs", "parsed", "id", *BESIDE_TEXTS, max_bytes=MAX_TEXT_CHARS)
    fields.end()
    return part


# Options --------------------------------------------------------------------------------------------------------------


def _read_stream_options(value: Any) -> None:
    if value is None:
        return
    fields = _object(value, "stream_options")
    for name in ("include_obfuscation", "include_usage"):  # the last event always has the usage
        fields.flag(name, False)
    fields.end()


def _read_text(value: Any, body: ChatBody) -> None:
    if value is None:
        return
    fields = _object(value, "text")
    form = fields.take("format")
    fields.refuse("verbosity", "models do not know it; ask for it in the prompt", harmless=("medium",))
    fields.end()
    if form is not None:
        body.set_fields(response_format=_format(form))


def _format(value: Any) -> dict[str, Any]:
    """Read a format. A chat's is the same, except that the schema is in an object of its own."""
    fields = _object(value, "text.format")
    if (kind := fields.require("type")) != "json_schema":
        fields.end()
        return {"type": kind}
    schema = {name: fields.take(name) for name in ("name", "description", "schema", "strict")}
    fields.end()
    return {"type": kind, "json_schema": {name: value for name, value in schema.items() if value is not None}}


def _read_reasoning(value: Any, body: ChatBody) -> None:
    """Read the options of reasoning. It is returned in full: a requested summary has no effect."""
    if value is None:
        return
    fields = _object(value, "reasoning")
    body.set_fields(reasoning_effort=fields.text("effort", _MAX_WORD))
    for name in ("summary", "generate_summary"):
        fields.text(name, _MAX_WORD)
    fields.end()


def _read_logprobs(fields: Fields, body: ChatBody) -> None:
    include, top = fields.take("include"), fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if include is None:
        include = []
    if not isinstance(include, list):
        raise wrong_type("include", "a list of strings")
    for index, name in enumerate(include):
        if name not in INCLUDABLE:
            raise unsupported(f"include[{index}]", f"must be one of {', '.join(INCLUDABLE)}")
    if _LOGPROBS in include or top:
        body.set_fields(logprobs=True, top_logprobs=top)


def _object(value: Any, path: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    return Fields(value, f"{path}.")
