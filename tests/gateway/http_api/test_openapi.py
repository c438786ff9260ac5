"""The published OpenAPI document says what the gateway parses, serves and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openapi
import openapi_batches
import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.http_api.batch_api import parse_batch
from baton_gateway.openai_api.openai_fields import UnknownFields
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, ids_of, running_gateway
from baton_testing.gateway.http_client import USER, HttpClient

DOCUMENT: dict[str, Any] = json.loads(openapi.DOCUMENT.read_text(encoding="utf-8"))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "x", "messages": USER},
    "/v1/completions": {"model": "x", "prompt": "x", "echo": True},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/v1/embeddings": {"model": "x", "input": "x"},
    "/classify": {"model": "x", "input": "x"},
    **{path: {"model": "x", "text_1": "x", "text_2": "x"} for path in ("/score", "/v1/score")},
    **{path: {"model": "x", "query": "x", "documents": ["x"]} for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    "/v1/responses": {"model": "x", "input": "x"},
    "/v1/messages": {"model": "x", "max_tokens": 1, "messages": USER},
    "/v1/messages/count_tokens": {"model": "x", "messages": USER},
}
A_CHAT: dict[str, Any] = {"messages": USER, "prompt": None}
TOGETHER: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "min_tokens": {"max_tokens": 1 << 20},
    "messages": {"prompt": None},
    "continue_final_message": {"messages": [*USER, {"role": "assistant", "content": "x"}], "prompt": None},
    **dict.fromkeys(("add_generation_prompt", "chat_template_kwargs", "reasoning_effort", "tools"), A_CHAT),
    "tool_choice": A_CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]},
}
"""Fields that mean nothing alone, with what they need."""
SHAPE = ("invalid_type", "out_of_range", "too_long", "unknown_parameter", "unsupported_parameter", "invalid_value")


def test_the_document_is_what_the_parsers_read() -> None:
    assert openapi.document() == DOCUMENT, "run `make format`"


def test_a_raw_field_without_a_description_stops_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(openapi.RAW, "stop")
    with pytest.raises(openapi.UnknownRawFieldError, match="stop"):
        openapi.document()


def test_paths_and_methods_are_those_that_are_served(gateway: RunningGateway) -> None:
    written = {
        path: {name for name in operations if name != "parameters"} for path, operations in DOCUMENT["paths"].items()
    }
    served = served_by(gateway)
    assert {path: methods for path, methods in written.items() if path not in openapi_batches.paths()} == served


async def test_paths_of_files_and_batches_are_those_of_a_gateway_with_a_folder(pool: FakePool, tmp_path: Path) -> None:
    async with running_gateway(pool, f"--batch-folder={tmp_path}") as gateway:
        served = served_by(gateway)
    for path, operations in openapi_batches.paths().items():
        assert served[path] == operations.keys() - {"parameters"}
    assert served.keys() == DOCUMENT["paths"].keys()


def served_by(gateway: RunningGateway) -> dict[str, set[str]]:
    return {path: {method.lower() for method in methods} for path, methods in gateway.server.api.methods().items()}


A_BATCH: dict[str, Any] = {"endpoint": "/v1/embeddings", "input_file_id": "x", "completion_window": "24h"}
AFTER = {"anchor": "created_at", "seconds": 3_600}


@pytest.mark.parametrize(
    ("fields", "is_allowed"),
    [
        ({}, True),
        ({"endpoint": "/v1/responses"}, False),
        ({"input_file_id": 1}, False),
        ({"completion_window": "1h"}, False),
        ({"metadata": None}, True),
        ({"metadata": {str(number): "x" for number in range(16)}}, True),
        ({"metadata": {str(number): "x" for number in range(17)}}, False),
        ({"metadata": {"x" * 64: "x" * 512}}, True),
        ({"metadata": {"x" * 65: "x"}}, False),
        ({"metadata": {"x": "x" * 513}}, False),
        ({"metadata": {"x": 1}}, False),
        ({"output_expires_after": None}, True),
        ({"output_expires_after": AFTER}, True),
        ({"output_expires_after": AFTER | {"seconds": 2_592_000}}, True),
        ({"output_expires_after": AFTER | {"seconds": 2_592_001}}, False),
        ({"output_expires_after": AFTER | {"seconds": 3_599}}, False),
        ({"output_expires_after": AFTER | {"anchor": "now"}}, False),
        ({"output_expires_after": AFTER | {"colour": 1}}, False),
        ({"colour": 1}, False),
    ],
)
def test_the_document_bounds_a_new_batch_as_the_parser_does(fields: dict[str, Any], is_allowed: bool) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS["BatchRequest"] | {"components": DOCUMENT["components"]})
    try:
        parse_batch(A_BATCH | fields, UnknownFields.REFUSE)
    except RefusedError:
        is_taken = False
    else:
        is_taken = True
    assert (is_taken, validator.is_valid(A_BATCH | fields)) == (is_allowed, is_allowed)


def cases() -> Iterator[Any]:
    """(path, field, value, whether it is allowed) at both sides of every bound of every field."""
    for path in LEAST:
        name = openapi.BODIES[path][0]
        for field, schema in SCHEMAS[name]["properties"].items():
            for value, is_allowed in edges(schema):
                yield pytest.param(path, field, value, is_allowed, id=f"{path}-{field}-{str(value)[:12]}")
        yield pytest.param(path, "colour", 1, False, id=f"{path}-unknown")


def edges(schema: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    kinds = schema.get("type", [])
    if "enum" in schema and "type" not in schema:
        yield from ((value, True) for value in schema["enum"])
        yield {"no": "such value"}, False
    elif kinds == ["integer", "null"] or kinds == ["number", "null"]:
        low, high = schema["minimum" if "minimum" in schema else "exclusiveMinimum"], schema["maximum"]
        yield low, "minimum" in schema
        yield high, True
        yield low - 1, False
        yield high + 1, False
        yield "1", False
        yield None, True
    elif kinds == ["boolean", "null"]:
        yield from ((True, True), (False, True), (1, False), (None, True))
    elif "maxLength" in schema and schema["maxLength"] < 1_000:
        yield "x" * schema["maxLength"], True
        yield "x" * (schema["maxLength"] + 1), False
        yield 1, False


@pytest.mark.parametrize(("path", "field", "value", "is_allowed"), list(cases()))
def test_each_bound_of_the_document_is_the_parsers(path: str, field: str, value: Any, is_allowed: bool) -> None:
    known = SCHEMAS[openapi.BODIES[path][0]]["properties"]
    needed = {name: value for name, value in TOGETHER.get(field, {}).items() if name in known}
    body = LEAST[path] | (needed if value is not None else {}) | {field: value}
    if field in ("best_of", "n"):
        body |= {"n": value, "best_of": value} if field == "best_of" else {}
    if field == "prompt_logprobs":
        body["stream"] = False
    if field == "truncate_prompt_tokens":
        body["echo"] = None
    body = {name: value for name, value in body.items() if value is not None or name == field}
    name, parse, _ = openapi.BODIES[path]
    validator = jsonschema.Draft202012Validator(SCHEMAS[name] | {"components": DOCUMENT["components"]})
    refused: str | None = None
    try:
        parse(body)
    except RefusedError as error:
        refused = error.problem.code
    if is_allowed:
        assert refused is None or refused not in SHAPE, refused
        assert validator.is_valid(body)
    else:
        assert refused in SHAPE
        assert not validator.is_valid(body)


def message(*blocks: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"model": "x", "max_tokens": 9, "messages": [{"role": role, "content": list(blocks)}], **fields}


def responses(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "x", "input": list(items), **fields}


RESULT = {"type": "tool_result", "tool_use_id": "c"}
CALLING = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
TEXT = {"type": "text", "text": "x"}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
ADD = {"name": "f", "input_schema": {"type": "object"}}
TAKEN: list[tuple[str, dict[str, Any]]] = [
    *(
        ("/v1/messages", body)
        for body in (
            message(TEXT),
            message({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}),
            message({"type": "document", "title": None, "source": {"type": "content", "content": [TEXT]}}),
            message({"type": "search_result", "source": "x", "title": "x", "content": [TEXT]}),
            message({"type": "search_result", "content": "x", "citations": {"enabled": True}}),
            message({"type": "thinking", "thinking": "x", "signature": ""}, TEXT, role="assistant"),
            message({"type": "server_tool_use", "id": "c", "name": "web_search", "input": {}}, TEXT, role="assistant"),
            *(
                message() | {"messages": [*USER, CALLING, {"role": "user", "content": [RESULT | {"content": content}]}]}
                for content in (
                    None, "x", [], [TEXT], [{"type": "tool_reference", "tool_name": "f"}],
                    [{"type": "document", "source": {"type": "text", "data": "x"}}],
                    [{"type": "search_result", "source": "x", "title": "x", "content": [TEXT]}],
                )
            ),
            message({"type": "web_search_tool_result", "tool_use_id": "c", "content": [{"type": "web_search_result"}]},
                    TEXT, role="assistant"),
            message({"type": "mcp_tool_use", "id": "c", "name": "f", "server_name": "x", "input": {}}, TEXT,
                    role="assistant"),
            message(TEXT, thinking={"type": "adaptive"}),
            message(TEXT, thinking={"type": "disabled"}),
            message(TEXT, tools=[ADD], tool_choice={"type": "auto"}),
            message(TEXT, tools=[{"type": "bash_20250124", "name": "bash"}]),
            message(TEXT, tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]),
            message(TEXT, system=[TEXT]),
        )
    ),
    *(
        ("/v1/responses", body)
        for body in (
            responses({"role": "user", "content": "x"}),
            responses({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}),
            responses(*USER, CALLED, {"type": "function_call_output", "call_id": "c", "output": "x"}),
            responses(*USER, {"type": "web_search_call", "id": "w", "action": {"query": "x"}, "status": "completed"}),
            responses({"role": "user", "content": "x"}, {"type": "reasoning", "summary": []}, USER[0]),
            responses(*USER, tools=[{"type": "local_shell"}]),
            responses(*USER, tools=[{"type": "web_search", "external_web_access": False}]),
            responses(*USER, tools=[{"type": "function", "name": "f"}], tool_choice="auto"),
            responses(*USER, tools=[{"type": "local_shell"}], tool_choice={"type": "local_shell"}),
            responses(*USER, text={"format": {"type": "json_schema", "name": "x", "schema": {}}}),
        )
    ),
    *(
        ("/v1/chat/completions", {"model": "x", "messages": USER, **fields})
        for fields in (
            {"messages": [*USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
                          {"role": "tool", "tool_call_id": "c", "content": "x"}]},
            {"messages": [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}, *USER]},
            {"response_format": {"type": "text"}},
            {"tools": [{"type": "function", "function": {"name": "f"}}],
             "tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), TAKEN, ids=lambda value: str(value)[-60:])
def test_the_document_allows_what_the_parsers_take(path: str, body: dict[str, Any]) -> None:
    name, parse, _ = openapi.BODIES[path]
    parse(body)
    check(body, SCHEMAS[name])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "tiny", "messages": USER}),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "logprobs": 1}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": ids_of("x")}),
        ("/v1/responses", {"model": "tiny", "input": "x"}),
        ("/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": USER}),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": USER}),
        ("/v1/models", None),
        ("/v1/models/{id}", None),
        ("/version", None),
        ("/openapi.json", None),
    ],
)
async def test_answers_and_errors_have_the_documents_shape(client: HttpClient, path: str, body: Any) -> None:
    method = "get" if body is None else "post"
    responses = DOCUMENT["paths"][path][method]["responses"]
    url = client.gateway.url(path.replace("{id}", "tiny"))
    async with client.http.request(method, url, json=body) as got:
        assert got.status == 200
        check(await got.json(), responses["200"]["content"]["application/json"]["schema"])
    if body is not None:
        async with client.http.post(url, json=body | {"colour": 1}) as got:
            check(await got.json(), responses[str(got.status)]["content"]["application/json"]["schema"])


def check(content: Any, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema | {"components": DOCUMENT["components"]}).validate(content)


async def test_the_document_is_served(client: HttpClient) -> None:
    async with client.http.get(client.gateway.url("/openapi.json")) as got:
        assert await got.json() == DOCUMENT
