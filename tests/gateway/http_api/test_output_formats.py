"""Output formats over HTTP: the grammar that reaches the workers, and refusals by field and JSON pointer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from baton_gateway.structured_outputs.format_compiler import FormatCompiler
from baton_gateway.structured_outputs.output_format import MAX_DEFINITION_BYTES, OutputFormat
from baton_gateway.text.chat_template import RenderedChat
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, HttpClient
from baton_wire.messages.values import Grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
IN_FORMAT = "response_format.json_schema.schema"


def form(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema} | fields}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"not": {"const": 1}}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"response_format": "json"}, "response_format", "invalid_type", ""),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter", ""),
    (form({}, name="a b"), "response_format.json_schema.name", "invalid_value", "letters"),
    (form({}, strict=1), "response_format.json_schema.strict", "invalid_type", ""),
    (form({}) | {"guided_regex": "a"}, "guided_regex", "invalid_value", "exclude each other"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "invalid_value", "exclude"),
    ({"structured_outputs": {"x": {}}}, "structured_outputs.x", "unknown_parameter", ""),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "unsupported_parameter", "guided_regex"),
    ({"guided_regex": "a", "min_tokens": 1}, "min_tokens", "unsupported_parameter", "guided_regex"),
    ({"guided_regex": ""}, "guided_regex", "invalid_schema", "0 bytes"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "invalid_schema", "1000000 states"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "invalid_schema", "look-around"),
    ({"guided_regex": "a" * 70_000}, "guided_regex", "invalid_schema", "70000 bytes"),
    ({"guided_choice": []}, "guided_choice", "invalid_schema", "0 choices"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]", "invalid_schema", "empty"),
    ({"guided_choice": ["a", 1]}, "guided_choice", "invalid_type", "strings"),
    ({"guided_grammar": "start: missing"}, "guided_grammar", "invalid_schema", "missing"),
    ({"guided_grammar": 'start: %json {"not": {"type": "null"}}'}, "guided_grammar", "invalid_schema", "'/not'"),
    ({"guided_grammar": "start: %json {"}, "guided_grammar", "invalid_schema", "needs a schema as JSON"),
    ({"guided_grammar": 'start: %regex {"substring_chars": "x"}'}, "guided_grammar", "invalid_schema", "not available"),
    ({"guided_grammar": '%llguidance {"no_forcing": true}\nstart: "a"'}, "guided_grammar", "invalid_schema",
     "not available"),
    ({"guided_grammar": 'start: x\nx[temperature=2]: "a"'}, "guided_grammar", "invalid_schema", "not Lark"),
    ({"guided_grammar": 'root ::= "a" | "b"'}, "guided_grammar", "invalid_schema", "EBNF ('root ::= …')"),
    ({"guided_grammar": '# x\n<root> ::= [a-z]+'}, "guided_grammar", "invalid_schema", "only Lark"),
    ({"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "b"'}}, "guided_grammar",
     "invalid_value", "exclude each other"),
    ({"guided_json": "{"}, "guided_json", "invalid_value", "not JSON"),
    ({"guided_json": {"not": {}}}, "guided_json", "invalid_schema", "'/not'"),
    (form({"description": "x" * 66_000}), IN_FORMAT, "invalid_schema", str(MAX_DEFINITION_BYTES)),
    (form(nested(28)), IN_FORMAT, "invalid_schema", "/items/items/not'"),
    (form({"$ref": "#"}), IN_FORMAT, "invalid_schema", "finite"),
    (form({"$ref": "http://localhost:1/schema"}), IN_FORMAT, "invalid_schema", "'/$ref'"),
    (form({"properties": {"a": {"enum": []}}}), IN_FORMAT, "invalid_schema", "'/properties/a/enum'"),
    (form(SCHEMA | {"required": ["a", "b"], "additionalProperties": False}), IN_FORMAT, "invalid_schema",
     "'/required/1'"),
    (form({"properties": {'a"\n': {"uniqueItems": True}}}, strict=True), IN_FORMAT, "invalid_schema", "uniqueItems"),
    (form({"type": "string", "format": "colour"}, strict=True), IN_FORMAT, "invalid_schema", "'/format'"),
]  # fmt: skip


async def test_bad_shapes_are_refused_by_field_and_pointer_and_no_worker_hears_of_them(client: HttpClient) -> None:
    for fields, param, code, word in REFUSED:
        status, error = await client.refused(CHAT, **fields)
        assert (status, error["param"], error["code"]) == (400, param, code), error
        assert word in error["message"]
    assert not any(worker.received for worker in client.pool.workers)


GUIDANCE = '%llguidance {}\n\nstart: "Hi " x\nx[capture, max_tokens=5, stop="\\n"]: X\nX: /(?s:.*)/\n'
EXACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": True}
GOOD: list[tuple[dict[str, Any], str | None]] = [
    (
        {
            "guided_grammar": GUIDANCE,
            "structured_outputs": {"grammar": GUIDANCE},
            "guided_decoding_backend": "guidance",
        },
        "lark_grammar",
    ),
    ({"guided_grammar": f"start: j\nj[capture]: %json {json.dumps(SCHEMA | {'x-guidance': EXACT})}"}, "lark_grammar"),
    ({"guided_json": SCHEMA, "structured_outputs": {"json": SCHEMA}}, "json_schema"),
    ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "a"),
    (form(SCHEMA) | {"guided_json": SCHEMA}, "json_schema"),
    ({"guided_grammar": 'start: a\na[suffix="x", lazy]: /[ab]+/'}, "lark_grammar"),
    (form(SCHEMA), "json_schema"),
    (form(SCHEMA, strict=True, description="d"), "json_schema"),
    ({"response_format": {"type": "json_object"}}, "json_schema"),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema"),
    ({"structured_outputs": {"json_object": True}}, "json_schema"),
    ({"structured_outputs": {"grammar": 'start: "x"'}}, "lark_grammar"),
    ({"guided_json": '{"type": "object"}'}, "json_schema"),
    ({"guided_regex": "[a-z]+"}, "[a-z]+"),
    ({"guided_choice": ["yes", 'a "quoted" one']}, "quoted"),
    ({"guided_grammar": 'start: "x"'}, "lark_grammar"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_workers_get_a_grammar_and_nothing_of_the_field(client: HttpClient, path: str) -> None:
    """The fake workers answer what they like: only what they are asked is looked at."""
    for fields, word in GOOD:
        await client.ask(path, **fields)
        grammar = client.prefill().sampling.grammar
        assert (grammar is None) is (word is None)
        if grammar is not None:
            assert word is not None
            assert word in grammar.definition


@pytest.mark.parametrize("streams", [False, True])
async def test_a_keyword_that_no_grammar_enforces_is_named_in_the_answer(client: HttpClient, streams: bool) -> None:
    schema = {"type": "object", "properties": {"tägs": {"type": "array", "uniqueItems": True}}}
    place = "response_format.json_schema.schema/properties/t%C3%A4gs/uniqueItems"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": streams} | form(schema)
    extras: tuple[dict[str, object], ...] = ({}, {"tools": []})
    for extra in extras:
        async with client.http.post(client.gateway.url(CHAT), json=body | extra) as got:
            assert (got.status, got.headers["X-Baton-Ignored"]) == (200, place)


async def test_a_schema_is_compiled_while_the_prompt_is_rendered(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ends before both have begun."""
    rendering, compiling = asyncio.Event(), asyncio.Event()
    render, compile_ = TemplateRenderer.render, FormatCompiler.compile

    async def late_render(self: TemplateRenderer, *asked: Any) -> RenderedChat:
        rendering.set()
        async with asyncio.timeout(30):
            await compiling.wait()
        return await render(self, *asked)

    async def late_compile(self: FormatCompiler, shape: OutputFormat, who: str, ignored: list[str]) -> Grammar:
        compiling.set()
        async with asyncio.timeout(30):
            await rendering.wait()
        return await compile_(self, shape, who, ignored)

    monkeypatch.setattr(TemplateRenderer, "render", late_render)
    monkeypatch.setattr(FormatCompiler, "compile", late_compile)
    await client.ask(CHAT, **form(SCHEMA))
    assert client.prefill().sampling.grammar is not None
    status, error = await client.refused(CHAT, **form({"not": {}}))
    assert (status, error["code"]) == (400, "invalid_schema")
