"""Raw fields and answers of the translated APIs (Responses, Messages) in the OpenAPI document.

The names are those of the APIs, and may have another meaning than in a chat. Contents of a chat's own fields, such
as the schema of a tool, are described with the chat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from openapi_answers import Schema

from baton_gateway.apis import message_tools, messages_request, response_tools, responses_request, text_blocks
from baton_gateway.openai_api import (
    chat_messages,
    encoding_types,
    openai_fields,
    openai_types,
    priority_fields,
    tool_fields,
)

Body = tuple[str, Callable[[dict[str, Any]], Any], tuple[dict[str, Any], ...]]


@dataclass(frozen=True)
class OwnFields:
    """Raw fields of one body: the modules that read it, their schemas, and the names of its inner objects."""

    modules: tuple[ModuleType, ...]
    raw: Mapping[str, Schema]
    names: Mapping[str, str]


TEXT: Schema = {"type": "string", "maxLength": openai_fields.MAX_TEXT_CHARS}
OBJECT: Schema = {"type": "object"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(item: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "minItems": least, "maxItems": most, "items": item}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


MODEL: Schema = {"type": "string", "maxLength": 253, "description": "A served name, or an alias."}
MAX_TOKENS: Schema = {"type": "integer", "minimum": 1, "maximum": openai_types.MAX_TOKENS}
NAME: Schema = {"type": "string", "pattern": f"^{tool_fields.TOOL_NAME.pattern}$"}
BLOCKS = _list(_ref("MessageBlock"), chat_messages.MAX_PARTS, 1)
TEXTS: Schema = {"anyOf": [TEXT, _list(_ref("MessageText"), chat_messages.MAX_PARTS)]}
PRIORITY: dict[str, Schema] = {
    "service_tier": {"enum": [*priority_fields.TIERS, None], "description": "`priority` wins over it."},
    "priority": {
        "anyOf": [
            {
                "type": ["integer", "null"],
                "minimum": -priority_fields.MAX_PRIORITY - 1,
                "maximum": priority_fields.MAX_PRIORITY,
            },
            {"enum": ["interactive", "standard", "batch"]},
        ],
        "description": "Smaller numbers go first: below 0 `interactive`, 0 `standard`, above 0 `batch`.",
    },
}
RESULTS: Schema = {"anyOf": [TEXT, _list(_ref("MessageResultBlock"), chat_messages.MAX_PARTS)]}
SHOWN_AS_TEXT: dict[str, Schema] = {
    "text": TEXT,
    "tool_name": NAME | {"description": "Of a tool_reference."},
    "source": _or_null({"anyOf": [_ref("MessageSource"), TEXT]})
    | {"description": "A document's text, or where a search result is from."},
    "source.type": {"enum": ["text", "content"]},
    "source.data": TEXT | {"description": "With type text."},
    "source.content": TEXTS | {"description": "With type content."},
}
"""Fields of blocks that a template can only show as text, in a user's turn and in a tool's result."""
MESSAGE_RAW: dict[str, Schema] = {
    **PRIORITY,
    "service_tier": {"enum": [*priority_fields.TIERS, "standard_only", None]},
    "model": MODEL,
    "max_tokens": MAX_TOKENS,
    "system": _or_null(TEXTS),
    "messages": _list(_ref("MessageTurn"), chat_messages.MAX_MESSAGES, 1),
    "messages[].role": {"enum": ["user", "assistant", "system"]},
    "messages[].content": {"anyOf": [TEXT, BLOCKS]},
    "messages[].content[].type": {
        "anyOf": [
            {"enum": ["text", "document", "search_result", "thinking", "tool_use", "tool_result"]},
            {"type": "string"},
        ],
        "description": "Blocks of a provider's own tools have no effect.",
    },
    "messages[].content[].thinking": TEXT,
    "messages[].content[].input": OBJECT,
    "messages[].content[].id": {"type": "string", "maxLength": tool_fields.MAX_CALL_ID_CHARS},
    "messages[].content[].name": NAME,
    "messages[].content[].content": _or_null(RESULTS) | {"description": "Of a tool or a search result."},
    "messages[].content[].content[].type": {"enum": list(text_blocks.TEXT_BLOCKS)},
    "messages[].content[].content[].content": TEXTS | {"description": "Of a search result."},
    **{f"messages[].content[].{name}": schema for name, schema in SHOWN_AS_TEXT.items()},
    **{f"messages[].content[].content[].{name}": schema for name, schema in SHOWN_AS_TEXT.items()},
    "messages[].content[].tool_use_id": {"type": "string", "maxLength": tool_fields.MAX_CALL_ID_CHARS},
    "system[].type": {"const": "text"},
    "system[].text": TEXT,
    "stop_sequences": _or_null(
        _list({"type": "string", "minLength": 1, "maxLength": openai_types.MAX_STOP_BYTES}, openai_types.MAX_STOPS)
    ),
    "tools": _or_null(_list(_ref("MessageTool"), tool_fields.MAX_TOOLS)),
    "tools[].type": {
        "anyOf": [{"enum": ["custom", None]}, {"type": "string"}],
        "description": "Others are clients' tools (bash_…, text_editor_…, memory_…) or skipped server tools.",
    },
    "tools[].name": NAME,
    "tools[].input_schema": OBJECT,
    "thread": {"type": "null", "description": "Not supported: conversations are not stored."},
    "tool_choice": _or_null(_ref("MessageToolChoice")),
    "tool_choice.type": {"enum": ["auto", "any", "tool", "none"]},
    "tool_choice.name": {"type": "string", "description": "With type tool: which."},
    "thinking": _or_null(_ref("MessageThinking")),
    "thinking.type": {"enum": ["enabled", "adaptive", "disabled"]},
    "thinking.budget_tokens": MAX_TOKENS | {"description": "With type enabled; less than max_tokens."},
    "output_config": _or_null(_ref("MessageOutput")),
    "output_format": _or_null(_ref("MessageFormat")),
    "output_config.format": _or_null(_ref("MessageFormat")),
    "output_config.format.type": {"const": "json_schema"},
    "output_config.format.schema": OBJECT,
}
MESSAGE_NAMES = {
    "messages[].": "MessageTurn",
    "messages[].content[].": "MessageBlock",
    "messages[].content[].source.": "MessageSource",
    "messages[].content[].content[].": "MessageResultBlock",
    "messages[].content[].content[].source.": "MessageSource",
    "system[].": "MessageText",
    "tools[].": "MessageTool",
    "tool_choice.": "MessageToolChoice",
    "thinking.": "MessageThinking",
    "output_config.": "MessageOutput",
    "output_config.format.": "MessageFormat",
}
_CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
_THOUGHT = {"type": "thinking", "thinking": "x"}
_BLOCKS = [
    {"type": "text", "text": "x"},
    {"type": "document", "source": {"type": "text", "data": "x"}},
    {"type": "document", "source": {"type": "content", "content": "x"}},
    {"type": "search_result", "source": "x", "title": "x", "content": "x"},
]
_RESULT = [*_BLOCKS, {"type": "tool_reference", "tool_name": "f"}]
_ASKED: dict[str, Any] = {
    "model": "x",
    "system": [{"type": "text", "text": "x"}],
    "messages": [
        {"role": "assistant", "content": [_THOUGHT, {"type": "text", "text": "x"}, _CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": _RESULT}, *_BLOCKS]},
    ],
    "tools": [{"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 1},
    "output_config": {"effort": "low"},
}
_ASKED_OTHERWISE: dict[str, Any] = _ASKED | {
    "tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
}
PARTS: Schema = {"anyOf": [TEXT, _list(_ref("ResponseText"), chat_messages.MAX_PARTS)]}
RESPONSE_RAW: dict[str, Schema] = {
    "model": MODEL,
    "input": {"anyOf": [TEXT, _list(_ref("ResponseItem"), chat_messages.MAX_MESSAGES, 1)]},
    "input[].type": {
        "anyOf": [
            {"enum": ["message", "function_call", "function_call_output", "reasoning", None]},
            {"type": "string"},
        ],
        "description": "Others are calls and outputs of other tools; those of hosted tools have no effect.",
    },
    "input[].namespace": {"type": ["string", "null"]},
    "input[].input": TEXT,
    "input[].action": OBJECT,
    "input[].operation": OBJECT,
    "input[].role": {"enum": ["user", "assistant", "system", "developer"]},
    "input[].content": _or_null(PARTS),
    "input[].call_id": {"type": "string", "maxLength": tool_fields.MAX_CALL_ID_CHARS},
    "input[].name": NAME,
    "input[].arguments": {"anyOf": [TEXT, {"type": ["object", "null"]}], "description": "JSON text, or an object."},
    "input[].output": _or_null(PARTS),
    "input[].content[].type": {
        "enum": ["input_text", "output_text", "reasoning_text", "summary_text", "text", "refusal"]
    },
    "input[].content[].text": TEXT,
    "input[].content[].refusal": TEXT,
    "stream_options": _or_null(_ref("ResponseStreamOptions")),
    "tools": _or_null(_list(_ref("ResponseTool"), tool_fields.MAX_TOOLS)),
    "tools[].type": {
        "anyOf": [{"enum": ["function", "custom", "namespace", *response_tools.BUILT_IN]}, {"type": "string"}],
        "description": "Others are skipped hosted tools.",
    },
    "tools[].name": NAME,
    "tools[].tools": {"type": "array", "items": OBJECT, "description": "Of a namespace."},
    "tools[].format": _or_null(_ref("ResponseToolFormat")),
    "tools[].format.type": {"enum": ["text", "grammar"]},
    "tools[].format.syntax": {"type": "string", "maxLength": 64},
    "tools[].format.definition": TEXT,
    "tools[].description": _or_null(TEXT),
    "tools[].parameters": _or_null(OBJECT),
    "tools[].strict": {"type": ["boolean", "null"]},
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", None]}, _ref("ResponseToolChoice")]},
    "tool_choice.type": {"enum": ["function", "custom", *response_tools.BUILT_IN]},
    "tool_choice.name": NAME,
    "tool_choice.namespace": {"type": ["string", "null"]},
    "text": _or_null(_ref("ResponseTextOptions")),
    "text.format": _or_null(_ref("ResponseFormat")),
    "text.format.type": {"enum": ["text", "json_object", "json_schema"]},
    "text.format.name": {"type": ["string", "null"]},
    "text.format.description": {"type": ["string", "null"]},
    "text.format.schema": _or_null(OBJECT),
    "text.format.strict": {"type": ["boolean", "null"]},
    "reasoning": _or_null(_ref("ResponseReasoning")),
    "include": _or_null(_list({"enum": list(responses_request.INCLUDABLE)}, len(responses_request.INCLUDABLE))),
    **PRIORITY,
}
RESPONSE_NAMES = {
    "input[].": "ResponseItem",
    "input[].content[].": "ResponseText",
    "stream_options.": "ResponseStreamOptions",
    "tools[].": "ResponseTool",
    "tools[].format.": "ResponseToolFormat",
    "tool_choice.": "ResponseToolChoice",
    "text.": "ResponseTextOptions",
    "text.format.": "ResponseFormat",
    "reasoning.": "ResponseReasoning",
}
_RESPONSE: dict[str, Any] = {
    "model": "x",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ],
    "stream": True,
    "stream_options": {},
    "tools": [
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "custom", "name": "h", "format": {"type": "text"}},
        {"type": "namespace", "name": "n", "tools": []},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "text"}},
    "reasoning": {},
}
_RESPONSES: tuple[dict[str, Any], ...] = (
    _RESPONSE,
    {
        "model": "x",
        "input": "x",
        "tools": [{"type": "local_shell"}],
        "tool_choice": {"type": "local_shell"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
    },
)
IDS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": openai_types.MAX_TOKEN_ID},
}
INPUT_TEXT: Schema = TEXT | {"minLength": 1}
INPUT_TEXTS: Schema = {"anyOf": [INPUT_TEXT, _list(INPUT_TEXT, encoding_types.MAX_INPUTS, 1)]}
INPUTS: Schema = {
    "anyOf": [INPUT_TEXT, IDS, _list({"anyOf": [INPUT_TEXT, IDS]}, encoding_types.MAX_INPUTS, 1)],
    "description": "Texts or token ids.",
}
DOCUMENT: Schema = {
    "anyOf": [
        INPUT_TEXT,
        {"type": "object", "required": ["text"], "properties": {"text": INPUT_TEXT}, "additionalProperties": False},
    ]
}
ENCODING_RAW: dict[str, Schema] = {
    **PRIORITY,
    "model": MODEL,
    "input": INPUTS,
    "encoding_format": {"enum": ["float", "base64", None]},
    "text_1": INPUT_TEXTS | {"description": "One text, or as many as in text_2."},
    "text_2": INPUT_TEXTS,
    "query": DOCUMENT,
    "documents": _list(DOCUMENT, encoding_types.MAX_INPUTS, 1),
}
_EMBEDDED: dict[str, Any] = {"model": "x", "input": "x", "normalize": True}
_SCORED: dict[str, Any] = {"model": "x", "text_1": "x", "text_2": ["x"]}
_RANKED: dict[str, Any] = {"model": "x", "query": "x", "documents": ["x"]}
BODIES: dict[str, Body] = {
    "/v1/embeddings": ("EmbeddingRequest", encoding_types.parse_embedding, (_EMBEDDED,)),
    "/classify": ("ClassificationRequest", encoding_types.parse_classification, ({"model": "x", "input": "x"},)),
    **dict.fromkeys(("/score", "/v1/score"), ("ScoreRequest", encoding_types.parse_score, (_SCORED,))),
    **dict.fromkeys(
        ("/rerank", "/v1/rerank", "/v2/rerank"), ("RerankRequest", encoding_types.parse_rerank, (_RANKED,))
    ),
    "/v1/responses": ("ResponseRequest", responses_request.parse_response, _RESPONSES),
    "/v1/responses/input_tokens": ("InputTokensRequest", responses_request.parse_response, _RESPONSES),
    "/v1/messages": (
        "MessageRequest",
        messages_request.parse_message,
        (_ASKED | {"max_tokens": 2}, _ASKED_OTHERWISE | {"max_tokens": 2}),
    ),
    "/v1/messages/count_tokens": ("CountTokensRequest", messages_request.parse_token_count, (_ASKED, _ASKED_OTHERWISE)),
}
OWN: dict[str, OwnFields] = {
    "MessageRequest": OwnFields((messages_request, message_tools, text_blocks), MESSAGE_RAW, MESSAGE_NAMES),
    "CountTokensRequest": OwnFields((messages_request, message_tools, text_blocks), MESSAGE_RAW, MESSAGE_NAMES),
    "InputTokensRequest": OwnFields((responses_request, response_tools), RESPONSE_RAW, RESPONSE_NAMES),
    **{
        name: OwnFields((encoding_types, openai_types), ENCODING_RAW, {})
        for name in ("EmbeddingRequest", "ClassificationRequest", "ScoreRequest", "RerankRequest")
    },
    "ResponseRequest": OwnFields((responses_request, response_tools), RESPONSE_RAW, RESPONSE_NAMES),
}
"""By the name of the body."""
MESSAGE_ERROR: Schema = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message", "param", "code"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
        "request_id": {"type": "string", "description": "As in the header X-Request-Id."},
    },
}
ERRORS = {"/v1/messages": "MessageError", "/v1/messages/count_tokens": "MessageError"}
"""Paths whose errors have another form than OpenAI's."""
MESSAGE_FIELDS = ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"]
RESPONSE_ANSWER = ["id", "object", "created_at", "status", "error", "model", "output", "store", "usage"]
_USAGE: Schema = {"type": "object", "required": ["prompt_tokens", "total_tokens"]}


def _listed(*required: str) -> Schema:
    """A list of results, one for each input or pair."""
    items: Schema = {"type": "object", "required": ["index", *required]}
    properties = {"object": {"const": "list"}, "data": {"type": "array", "items": items}, "usage": _USAGE}
    return {"type": "object", "required": ["object", "data", "model", "usage"], "properties": properties}


_RANKING: Schema = {
    "type": "object",
    "required": ["id", "model", "results", "usage"],
    "properties": {
        "results": {"type": "array", "items": {"type": "object", "required": ["index", "relevance_score"]}},
        "usage": _USAGE,
    },
}
ANSWERS: dict[str, Schema] = {
    "/v1/embeddings": _listed("object", "embedding"),
    "/classify": _listed("label", "probs", "num_classes"),
    **dict.fromkeys(("/score", "/v1/score"), _listed("score")),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _RANKING),
    "/v1/responses": {
        "type": "object",
        "required": RESPONSE_ANSWER,
        "properties": {"object": {"const": "response"}, "output": {"type": "array", "items": OBJECT}},
    },
    "/v1/messages": {
        "type": "object",
        "required": MESSAGE_FIELDS,
        "properties": {"type": {"const": "message"}, "content": {"type": "array", "items": OBJECT}},
    },
    "/v1/responses/input_tokens": {
        "type": "object",
        "required": ["object", "input_tokens"],
        "properties": {"input_tokens": {"type": "integer", "minimum": 0}},
    },
    "/v1/messages/count_tokens": {
        "type": "object",
        "required": ["input_tokens"],
        "properties": {"input_tokens": {"type": "integer", "minimum": 0}},
    },
}
STREAMED = ("/v1/messages", "/v1/responses")
