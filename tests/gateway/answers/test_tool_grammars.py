"""Calls under a grammar: whatever a model without sense draws is read as calls that keep to their schemas."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from baton_gateway.answers.formats import TOOL_CALL_FORMATS, AnswerFormat
from baton_gateway.answers.output_parts import WholeAnswer, WholeCall, whole_answer
from baton_gateway.answers.parse_plan import make_parse_plan
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_testing.gateway.answer_transcripts import RENDERERS, TAGGED, same
from baton_testing.gateway.grammar_draws import draw, encoded, tokenizer, with_tokens
from baton_wire.rules.answer_formats import HARMONY

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (Tool("get_weather", None, CITY, False), Tool("now", None, NONE, True))
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
HARMONY_FORM = AnswerFormat(HARMONY, HARMONY)
FORMS = [*(AnswerFormat("think", name) for name in TOOL_CALL_FORMATS), HARMONY_FORM, AnswerFormat()]
DRAWS = 4


def definition(form: AnswerFormat, use: ToolUse) -> str:
    shape = make_parse_plan(form, use, "", None).output_format
    assert shape is not None
    return build_grammar(shape)


def read(form: AnswerFormat, use: ToolUse, text: str) -> WholeAnswer:
    reader = make_parse_plan(form, use, "", None).make_parser()
    return whole_answer([*reader.push(text), *reader.end()])


def check(answer: WholeAnswer) -> None:
    for call in answer.calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name] or {})


@pytest.mark.parametrize("with_marks", [False, True], ids=["letters", "tokens"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.calls))
@pytest.mark.parametrize("named", [None, "get_weather"])
def test_a_call_that_must_come_comes_and_is_valid(form: AnswerFormat, named: str | None, with_marks: bool) -> None:
    form = with_tokens(form) if with_marks else form
    use = ToolUse(TOOLS, ToolMode.REQUIRED, named)
    grammar = definition(form, use)
    dice = random.Random(f"{form} {named}")
    for _ in range(DRAWS):
        text = draw(dice, grammar, with_marks=with_marks)
        assert MARK_OF[form.calls or "hermes"] in text, "it is written in the model's own way"
        answer = read(form, use, text)
        assert answer.calls, text
        assert answer.content == "", text
        assert named is None or [call.name for call in answer.calls] == [named]
        check(answer)


MARK_OF = {
    "hermes": '<tool_call>\n{"name": "',
    "qwen3_coder": "<tool_call>\n<function=",
    "glm": "<tool_call>",
    "llama3_json": '{"name": "',
    "pythonic": "[",
    "mistral": '[TOOL_CALLS] [{"name": "',
    "mistral_args": "[TOOL_CALLS]",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "seed_oss": "<seed:tool_call>\n<function=",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="',
    "granite": '<|tool_call|>[{"name": "',
    "hunyuan_a13b": '<tool_calls>[{"name": "',
    "olmo3": "<function_calls>",
    HARMONY: "<|channel|>commentary to=functions.",
}
BEGINNINGS = {
    "hermes": "I look. <tool_call>",
    "qwen3_coder": "I look. <tool_call>\n",
    "glm": "I look. <tool_call>",
    "llama3_json": "",
    "pythonic": "",
    "mistral": "I look. [TOOL_CALLS]",
    "mistral_args": "I look.[TOOL_CALLS]",
    "deepseek_v3": "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "deepseek_v31": "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "seed_oss": "I look. <seed:tool_call>\n",
    "minimax_m2": "I look.\n<minimax:tool_call>",
    "granite": "I look.<|tool_call|>",
    "hunyuan_a13b": "I look. <tool_calls>",
    "olmo3": "I look.<function_calls>",
    HARMONY: "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=",
}


@pytest.mark.parametrize(
    ("form", "with_marks"),
    [
        *((AnswerFormat(None, name), tokens) for name in TOOL_CALL_FORMATS for tokens in (False, True)),
        (HARMONY_FORM, True),
    ],
    ids=str,
)
def test_free_text_may_come_and_a_strict_call_keeps_to_its_schema(form: AnswerFormat, with_marks: bool) -> None:
    form = with_tokens(form) if with_marks else form
    assert form.calls is not None
    use = ToolUse(TOOLS, ToolMode.AUTO)
    grammar = definition(form, use)
    dice = random.Random(str(form))
    for _ in range(DRAWS):
        begin = BEGINNINGS[form.calls] or MARK_OF[form.calls]
        text = draw(dice, grammar, begin, with_marks)
        answer = read(form, use, text)
        assert answer.calls, text
        assert answer.content.startswith("I look.") or not BEGINNINGS[form.calls]
        for call in answer.calls:
            assert call.name in SCHEMAS
            assert isinstance(json.loads(call.arguments), dict), text
            if call.name == "now":
                check(WholeAnswer(calls=[call]))


def test_text_alone_is_an_answer_where_calls_may_come() -> None:
    for form in (*(AnswerFormat(None, name) for name in TOOL_CALL_FORMATS), HARMONY_FORM):
        for variant, with_marks in ((form, False), (with_tokens(form), True))[form.is_harmony :]:
            channel = "<|channel|>final<|message|>" if form.is_harmony else ""
            ids = encoded(f"{channel}Some words, <tool or {{not}} [at all].", with_marks)
            matcher = LLMatcher(tokenizer(with_marks), definition(variant, ToolUse(TOOLS, ToolMode.AUTO)), log_level=0)
            assert matcher.consume_tokens(ids)
            assert matcher.is_accepting()


WRONG = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {"a',
    "qwen3_coder": "<tool_call>\n<function=now>\n<parameter=a>",
    "glm": "<tool_call>now\n<arg_key>a",
    "llama3_json": '{"name": "now", "parameters": {"a',
    "pythonic": "[now(a",
    "mistral": '[TOOL_CALLS] [{"name": "now", "arguments": {"a',
    "mistral_args": '[TOOL_CALLS]now[ARGS]{"a',
    "deepseek_v3": '<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{"a',
    "deepseek_v31": '<｜tool▁call▁begin｜>now<｜tool▁sep｜>{"a',
    "seed_oss": "<seed:tool_call>\n<function=now>\n<parameter=a>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="now">\n<parameter name="a">',
    "granite": '<|tool_call|>[{"name": "now", "arguments": {"a',
    "hunyuan_a13b": '<tool_calls>[{"name": "now", "arguments": {"a',
    "olmo3": "<function_calls>now(a",
    HARMONY: '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a',
}


@pytest.mark.parametrize("with_marks", [False, True], ids=["letters", "tokens"])
@pytest.mark.parametrize("family", WRONG)
@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_a_strict_call_has_no_argument_beside_its_schema(family: str, with_marks: bool, mode: ToolMode) -> None:
    if (family, mode, with_marks) == (HARMONY, ToolMode.AUTO, False):
        return  # refused: see below
    form = HARMONY_FORM if family == HARMONY else AnswerFormat(None, family)
    grammar = definition(with_tokens(form) if with_marks else form, ToolUse(TOOLS, mode))
    matcher = LLMatcher(tokenizer(with_marks), grammar, log_level=0)
    begin = "<｜tool▁calls▁begin｜>" if family.startswith("deepseek") else ""
    ids = encoded(begin + WRONG[family], with_marks)
    right = encoded(begin + WRONG[family].partition("now")[0] + "now", with_marks)
    assert matcher.validate_tokens(right) == len(right), "up to here it is a call"
    assert matcher.validate_tokens(ids) < len(ids)


@pytest.mark.parametrize("family", [*TOOL_CALL_FORMATS, HARMONY])
def test_the_grammar_takes_what_the_format_writes(family: str) -> None:
    form = HARMONY_FORM if family == HARMONY else AnswerFormat(None, family)
    call = WholeCall("id", "get_weather", '{"city": "Köln", "unit": "c", "days": 3}')
    answer = WholeAnswer(calls=[call] * (2 if family == "mistral" else 1))
    text = RENDERERS[family](answer).replace("'", '"')
    for mode in (ToolMode.REQUIRED, ToolMode.AUTO):
        for variant, with_marks in ((form, False), (with_tokens(form), True)):
            if (family, mode, with_marks) == (HARMONY, ToolMode.AUTO, False):
                continue
            use = ToolUse(TOOLS, mode)
            matcher = LLMatcher(tokenizer(with_marks), definition(variant, use), log_level=0)
            ids = encoded(text, with_marks)
            assert matcher.validate_tokens(ids) == len(ids), (text, mode, with_marks)
            assert same(read(variant, use, text), answer)


UNWRITTEN: dict[str, Any] = {
    "a name that is no Python": {"properties": {"a b": {"type": "integer"}}},
    "cases": {"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {}]},
    "names by pattern": {"patternProperties": {"^x": {"type": "integer"}}},
}


@pytest.mark.parametrize("parameters", UNWRITTEN.values(), ids=UNWRITTEN)
def test_arguments_that_a_format_cannot_write_come_as_json(parameters: dict[str, Any]) -> None:
    tools = (Tool("f", None, {"type": "object", **parameters}, True),)
    form = AnswerFormat(None, "pythonic")
    required = ToolUse(tools, ToolMode.REQUIRED)
    text = draw(random.Random(1), definition(form, required))
    assert "<tool_call>" in text
    for call in read(form, required, text).calls:
        jsonschema.validate(json.loads(call.arguments), parameters)
    with pytest.raises(RefusedError) as refusal:
        make_parse_plan(form, ToolUse(tools, ToolMode.AUTO), "", None)
    assert refusal.value.problem.param == "tools[0].function.strict"


def test_a_strict_tool_is_refused_where_it_is_not_known_how_calls_are_written() -> None:
    for form in (AnswerFormat(), HARMONY_FORM):  # the latter of a vocabulary without its marks
        with pytest.raises(RefusedError):
            make_parse_plan(form, ToolUse(TOOLS, ToolMode.AUTO), "", None)


ARGUMENTS: dict[str, Any] = {
    "optional": {
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": ["null", "boolean"]}}
    },
    "one of many": {"properties": {name: {"type": "null"} for name in "abcd"}, "required": ["c"]},
    "nullable": {"properties": {"a": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}}},
    "texts": {
        "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 4}, "b": {"enum": ["", "x\ny", '"']}}
    },
    "const": {"properties": {"a": {"const": "</x>"}, "b": {"const": 5}}, "required": ["a"]},
    "deep": {
        "properties": {"a": {"$ref": "#/$defs/d"}},
        "required": ["a"],
        "$defs": {"d": {"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 1, "maxItems": 2}},
    },
    "others": {"additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required alone": {"required": ["a"], "additionalProperties": {"type": "boolean"}},
    "pattern": {"properties": {"a": {"type": "string", "pattern": "^[a-c]{2}$"}}, "required": ["a"]},
    "nothing": {"additionalProperties": False},
}


@pytest.mark.parametrize("family", [*TAGGED, "pythonic", "olmo3"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_written_one_by_one_keep_to_their_schema(family: str, name: str) -> None:
    schema = {"type": "object", "additionalProperties": False, **ARGUMENTS[name]}
    use = ToolUse((Tool("f", None, schema, True),), ToolMode.REQUIRED, "f")
    for form, with_marks in ((AnswerFormat(None, family), False), (with_tokens(AnswerFormat(None, family)), True)):
        grammar = definition(form, use)
        dice = random.Random(f"{family} {name}")
        for _ in range(DRAWS):
            text = draw(dice, grammar, with_marks=with_marks)
            [call] = read(form, use, text).calls
            jsonschema.validate(json.loads(call.arguments), schema)


@pytest.mark.parametrize("family", TAGGED)
def test_a_closing_tag_within_json_ends_nothing(family: str) -> None:
    form = AnswerFormat(None, family)
    value = {"a": "</parameter> and </arg_value>", "b": '\\" </parameter>'}
    text = RENDERERS[family](WholeAnswer(calls=[WholeCall("id", "f", json.dumps({"deep": value}))]))
    use = ToolUse((Tool("f", None, {"properties": {"deep": {"type": "object"}}}, False),), ToolMode.AUTO)
    [call] = read(form, use, text).calls
    assert json.loads(call.arguments) == {"deep": value}


def test_one_call_is_all_where_there_may_be_one() -> None:
    for use in (ToolUse(TOOLS, ToolMode.REQUIRED, parallel=False), ToolUse(TOOLS, ToolMode.REQUIRED, "now")):
        matcher = LLMatcher(tokenizer(), definition(FORMS[0], use), log_level=0)
        for token in tokenizer().tokenize_str('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'):
            matcher.consume_token(token)
        assert matcher.is_stopped()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.calls))
def test_where_calls_must_come_no_text_of_a_call_that_was_cut_is_content(form: AnswerFormat) -> None:
    """`max_tokens` may end an answer within a mark or a name. Whole or in pieces, the parts are the same."""
    dice = random.Random(f"cut {form}")
    for use in (ToolUse(TOOLS, ToolMode.REQUIRED), ToolUse(TOOLS, ToolMode.REQUIRED, "get_weather")):
        reading = make_parse_plan(form, use, "", None)
        for _ in range(DRAWS):
            text = draw(dice, definition(form, use))
            whole = read(form, use, text)
            for end in range(len(text)):
                answer = read(form, use, text[:end])
                assert answer.content == "", text[:end]
                names = [call.name for call in answer.calls]
                assert names == [call.name for call in whole.calls][: len(names)]
                if dice.random() < 0.9:
                    continue
                reader = reading.make_parser()
                parts = [part for character in text[:end] for part in reader.push(character)]
                pieces = whole_answer([*parts, *reader.end()])
                assert pieces.content == ""
                assert [(call.name, call.arguments) for call in pieces.calls] == [
                    (call.name, call.arguments) for call in answer.calls
                ], text[:end]


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"properties": {"a": {"$ref": "http://x/y"}}}, "/properties/a/$ref"),
        ({"properties": {"a": {"enum": []}}}, "/properties/a/enum"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_by_its_pointer(parameters: dict[str, Any], pointer: str) -> None:
    use = ToolUse((TOOLS[1], Tool("f", None, parameters, True)), ToolMode.REQUIRED)
    with pytest.raises(RefusedError) as refusal:
        definition(FORMS[0], use)
    assert (refusal.value.problem.param or "").startswith("tools[1].function.parameters")
    assert pointer in (refusal.value.problem.param or "") + refusal.value.problem.message
