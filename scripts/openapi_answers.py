"""Answers and errors in the OpenAPI document."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
                "request_id": {"type": "string", "description": "As in the header X-Request-Id."},
            },
        }
    },
}
USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        name: {"type": "integer", "minimum": 0} for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    },
}
MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "max_model_len"],
    "properties": {"id": {"type": "string"}, "max_model_len": {"type": ["integer", "null"]}},
}


def _answer(kind: str) -> Schema:
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "object": {"const": kind},
            "choices": {"type": "array", "items": {"type": "object", "required": ["index", "finish_reason"]}},
            "usage": {"$ref": "#/components/schemas/Usage"},
        },
    }


ANSWERS: dict[str, Schema] = {
    "/v1/chat/completions": _answer("chat.completion"),
    "/v1/completions": _answer("text_completion"),
    "/tokenize": {"type": "object", "required": ["count", "max_model_len", "tokens", "token_strs"]},
    "/detokenize": {"type": "object", "required": ["prompt"]},
    "/v1/models": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}},
    },
    "/v1/models/{id}": {"$ref": "#/components/schemas/Model"},
    "/tokenizer_info": {"type": "object", "required": ["eos_token", "bos_token", "chat_template", "model_max_length"]},
    "/requests": {"type": "object", "required": ["records", "processes", "silent"]},
    "/ui/": {"description": "the page, in HTML"},
    "/ui/data.json": {
        "type": "object",
        "description": "The page's data: docs/page.md.",
        "required": [
            *("at", "viewer", "playground", "models", "tenants", "limited_by"),
            *("slowest", "missed", "found", "parts"),
        ],
    },
    "/version": {"type": "object", "required": ["version"]},
    "/openapi.json": {"type": "object", "required": ["openapi", "paths"]},
}
"""Schemas of JSON answers by path; the other paths answer in plain text."""
PLAIN = ("/health", "/ping", "/health/live", "/health/ready", "/health/routable", "/metrics", "/")
METHODS = {"/health": ("get", "post"), "/ping": ("get", "post")}
REFUSALS = {
    "400": "a field breaks its rule, or prompt and model do not go together",
    "401": "the API key is missing or unknown",
    "404": "the model is not served",
    "408": "the body came too slowly",
    "413": "the body is too large",
    "415": "not application/json, or compressed",
    "429": "too many wait",
    "500": "a failure",
    "502": "the workers failed the request repeatedly",
    "503": "nothing can serve it at present",
    "504": "it took too long",
}
