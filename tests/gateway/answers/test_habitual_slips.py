"""Calls as models write them when they slip: without marks, unclosed, without arguments, in the middle of text."""

from __future__ import annotations

import json
import random

import pytest

from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, WholeAnswer, whole_answer
from baton_gateway.answers.tool_use import CallBound
from baton_testing.gateway.answer_transcripts import FAMILIES, TOOLS, cuts_of, form_of

Expected = tuple[str, list[tuple[str, str]]]
"""Content, and the calls' names and arguments."""


def read(family: str, text: str, *, is_cut: bool = False, bound: CallBound = CallBound.FREE) -> Expected:
    """Read a whole answer, and in several cuts, which must agree."""
    dice = random.Random(text)
    answers: list[WholeAnswer] = []
    for cuts in ([], range(1, len(text)), cuts_of(dice, len(text)), cuts_of(dice, len(text))):
        parser = OutputParser(form_of(family, True), TOOLS, call_id=lambda: "id", bound=bound)
        parts: list[AnswerPart] = []
        for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
            parts += parser.push(text[begin:end])
        answers.append(whole_answer([*parts, *parser.end(is_cut=is_cut)]))
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0].content, [(call.name, call.arguments) for call in answers[0].calls]


CODER = "<function=f>\n<parameter=city>\nx\n</parameter>\n</function>"
CITY = '{"city": "x"}'
JSON = '{"name": "f", "arguments": {"city": "x"}}'
INVOKE = '<invoke name="f">\n<parameter name="city">x</parameter>\n</invoke>'
OTHER = '{"name": "search", "arguments": {}}'


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        ("qwen3_coder", f"{CODER}\n</tool_call>", ("", [("f", CITY)])),
        ("qwen3_coder", f"{CODER}", ("", [("f", CITY)])),
        ("qwen3_coder", f"I look.\n\n{CODER}\n</tool_call>", ("I look.", [("f", CITY)])),
        ("qwen3_coder", f"I look. {CODER}\n</tool_call>\n</tool_call>", ("I look.", [("f", CITY)])),
        ("qwen3_coder", f"<think>\nhm\n</think>\n\n{CODER}</tool_call>", ("", [("f", CITY)])),
        ("qwen3_coder", f"<tool_call>\n{CODER}\n{CODER}\n</tool_call>", ("", [("f", CITY)] * 2)),
        ("qwen3_coder", f"<tool_call>\n{CODER}\n<tool_call>\n{CODER}\n</tool_call>", ("", [("f", CITY)] * 2)),
        ("qwen3_coder", f"{CODER}\n{CODER}\n", ("", [("f", CITY)] * 2)),
        ("qwen3_coder", "<function=f>\n</function>\nDone.", ("Done.", [("f", "{}")])),
        (
            "qwen3_coder",
            "<function=unknown>\n</function>\n</tool_call>",
            ("<function=unknown>\n</function>\n</tool_call>", []),
        ),
        ("qwen3_coder", "Write <function=NAME> there.", ("Write <function=NAME> there.", [])),
        ("qwen3_coder", "</tool_call>", ("</tool_call>", [])),
        ("hermes", JSON, ("", [("f", CITY)])),
        ("hermes", f"{JSON}\n</tool_call>", ("", [("f", CITY)])),
        ("hermes", f"<think>\nhm\n</think>\n\n{JSON}", ("", [("f", CITY)])),
        ("hermes", f"{JSON}\n{OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("hermes", '{"name": "unknown", "arguments": {}}', ('{"name": "unknown", "arguments": {}}', [])),
        ("hermes", '{"city": "x"}', ('{"city": "x"}', [])),
        ("hermes", f"<tool_call>\n{JSON}\n{OTHER}\n</tool_call>", ("", [("f", CITY), ("search", "{}")])),
        ("hermes", f"<tool_call>[{JSON}, {OTHER}]</tool_call>", ("", [("f", CITY), ("search", "{}")])),
        ("hermes", f"<tool_call>\n{JSON}\n<tool_call>\n{OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("hermes", f"<tool_call>\n{JSON}\n</tool_call>\n</tool_call>", ("", [("f", CITY)])),
        ("hermes", f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("hermes", f"<tool_call>{{oops <tool_call>{JSON}</tool_call>", ("<tool_call>{oops", [("f", CITY)])),
        ("mistral", f"[{JSON}]", ("", [("f", CITY)])),
        ("mistral", f"[{JSON}, {OTHER}]", ("", [("f", CITY), ("search", "{}")])),
        ("mistral", "[1, 2]", ("[1, 2]", [])),
        ("mistral", f"[TOOL_CALLS]{JSON}", ("", [("f", CITY)])),
        ("mistral_args", '[TOOL_CALLS]f{"city": "x"}[TOOL_CALLS]search{}', ("", [("f", CITY), ("search", "{}")])),
        ("llama3_json", f"{JSON}\n{OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("llama3_json", f"{JSON}{OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("llama3_json", f"<|python_tag|>{JSON}; {OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("llama3_json", '<function=f>{"city": "x"}</function>', ("", [("f", CITY)])),
        ("llama3_json", "I look. <function=f></function>", ("I look.", [("f", "{}")])),
        ("llama3_json", "<function=unknown>{}</function>", ("<function=unknown>{}</function>", [])),
        ("pythonic", "<|python_start|>f(city='x')<|python_end|>", ("", [("f", CITY)])),
        ("pythonic", "<|python_start|>f(city='x'), search()<|python_end|>", ("", [("f", CITY), ("search", "{}")])),
        (
            "deepseek_v31",
            f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{CITY}<｜tool▁call▁begin｜>search<｜tool▁sep｜>{{}}",
            ("", [("f", CITY), ("search", "{}")]),
        ),
        (
            "deepseek_v3",
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{CITY}<｜tool▁call▁end｜>",
            ("", [("f", CITY)]),
        ),
        (
            "glm",
            "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n<tool_call>search\n</tool_call>",
            ("", [("f", CITY), ("search", "{}")]),
        ),
        ("glm", "<tool_call>f<arg_key>city</arg_key>x</arg_value></tool_call>", ("", [("f", CITY)])),
        ("glm", "<tool_call>f<arg_key>city</arg_key><arg_value>x</tool_call>", ("", [("f", CITY)])),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=city>\nx\n</function>\n</tool_call>",
            ("", [("f", CITY)]),
        ),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\nx\n</function>", ("", [("f", CITY)])),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=\ncity>x</parameter></function></tool_call>",
            ("", [("f", CITY)]),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=>x</parameter></function></tool_call>",
            (">x</parameter></function>", [("f", "{}")]),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=city: x\n</parameter></function></tool_call>",
            ("city: x\n</parameter></function>", [("f", "{}")]),
        ),
        ("hermes", "<tool_call>{'name': 'f', 'arguments': {'city': 'x'}}</tool_call>", ("", [("f", CITY)])),
        ("hermes", "<tool_call>\n{'name': 'f', 'arguments': {}}\n", ("", [("f", "{}")])),
        (
            "mistral",
            "[TOOL_CALLS][{'name': 'f', 'arguments': {'city': 'x'}}, {'name': 'search', 'arguments': {}}]$$ I",
            ("$$ I", [("f", CITY), ("search", "{}")]),
        ),
        (
            "hermes",
            "<tool_call>{'name': 'f', 'arguments': {'city': 'x'}}\n{'name': 'search'}</tool_call>",
            ("", [("f", CITY), ("search", "{}")]),
        ),
        ("mistral_args", f"[TOOL_CALLS]f[ARGS]{CITY}\n\nLet me.", ("Let me.", [("f", CITY)])),
        ("hermes", "<tool_call>{'colour': 1}</tool_call>", ("<tool_call>{'colour': 1}</tool_call>", [])),
        (
            "hermes",
            f'<tool_call>{{"type": "function", "function": {JSON}}}</tool_call>',
            ("", [("f", CITY)]),
        ),
        ("llama3_json", f'{{"id": "a", "type": "function", "function": {JSON}}}', ("", [("f", CITY)])),
        ("llama3_json", "[f(city='x'), search()]", ("", [("f", CITY), ("search", "{}")])),
        ("pythonic", f"{JSON}; {OTHER}", ("", [("f", CITY), ("search", "{}")])),
        ("pythonic", f"<|python_start|>{JSON}<|python_end|>", ("", [("f", CITY)])),
        ("pythonic", '{"city": "x"}', ('{"city": "x"}', [])),
        ("harmony", f"<|channel|>commentary to=functions.f\n<|constrain|>json\n<|message|>{CITY}", ("", [("f", CITY)])),
    ],
)
def test_a_call_is_read_however_its_marks_were_forgotten(family: str, text: str, expected: Expected) -> None:
    assert read(family, text) == expected


CLOSES = "<b>\n</parameter>\n</arg_value> </function> x</tool_call>\ny"


@pytest.mark.parametrize(
    "value", [CLOSES, "</parameter>", "</arg_value>x", "\n</parameter>\n</parameter>", "[</parameter>]"]
)
@pytest.mark.parametrize("name", ["city", "free"])
def test_a_value_may_contain_the_marks_that_end_values(value: str, name: str) -> None:
    """Files about tools and XML do. A mark ends a value only where another argument or the end of the call follows."""
    texts = {
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function></tool_call>",
        "glm": f"<tool_call>f\n<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
    }
    for family, text in texts.items():
        content, [(_, arguments)] = read(family, text)
        assert (content, json.loads(arguments)) == ("", {name: value})


@pytest.mark.parametrize("text", [f"{CODER}\n</tool_call>", JSON])
def test_where_a_grammar_constrains_calls_only_marks_begin_them(text: str) -> None:
    """A grammar begins with the mark: a call without one would not follow its schema."""
    for family in ("qwen3_coder", "hermes"):
        assert read(family, text, bound=CallBound.MARKED) == (text, [])


EMPTY = {
    "hermes": '<tool_call>{{"name": "f", "arguments": {}}}</tool_call>',
    "llama3_json": '{{"name": "f", "parameters": {}}}',
    "mistral": '[TOOL_CALLS] [{{"name": "f", "arguments": {}}}]',
    "mistral_args": "[TOOL_CALLS]f[ARGS]{}",
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
    "deepseek_v31": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
}


IN_OBJECTS = ("hermes", "llama3_json", "mistral")
"""Formats whose arguments are a member of a JSON object: it cannot be left out after its name."""
NOTHING = [
    (family, arguments)
    for family in EMPTY
    for arguments in ("null", "{}", '""', '"null"', '"{}"', " ", "", " null ")
    if (arguments.strip() or family not in IN_OBJECTS) and (family != "harmony" or not arguments.startswith('"'))
]


@pytest.mark.parametrize(("family", "arguments"), NOTHING)
def test_no_arguments_are_an_empty_object_however_they_are_written(family: str, arguments: str) -> None:
    assert read(family, EMPTY[family].format(arguments)) == ("", [("f", "{}")])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("qwen3_coder", "<tool_call><function=f></function></tool_call>"),
        ("glm", "<tool_call>f</tool_call>"),
        ("pythonic", "[f()]"),
        ("mistral_args", "[TOOL_CALLS]f[ARGS]"),
        ("mistral_args", "[TOOL_CALLS]f[ARGS][TOOL_CALLS]f[ARGS]"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁calls▁end｜>"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n```<｜tool▁call▁end｜>"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>"),
    ],
)
def test_arguments_that_were_left_out_are_an_empty_object(family: str, text: str) -> None:
    content, calls = read(family, text)
    assert content == ""
    assert {call for call in calls} == {("f", "{}")}


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral_args", "[TOOL_CALLS]f[ARGS]"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>"),
    ],
)
def test_arguments_that_were_cut_are_not_an_empty_object(family: str, text: str) -> None:
    assert read(family, text, is_cut=True) == ("", [("f", "")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[f("x")]', ('[f("x")]', [])),
        ("[f(1)]", ("[f(1)]", [])),
        ("[f(x)]", ("[f(x)]", [])),
        ("[f(*x)]", ("[f(*x)]", [])),
        ("[f(**{'city': 'x'})]", ("[f(**{'city': 'x'})]", [])),
        ("[f(city == 'x')]", ("[f(city == 'x')]", [])),
        ("[f(('x'), city='x')]", ("[f(('x'), city='x')]", [])),
        ('[f(), f("x")]', (', f("x")]', [("f", "{}")])),
        ('[f(city="""x""")]', ("", [("f", CITY)])),
        ("[f(city='''x''')]", ("", [("f", CITY)])),
        ('[f(city="""it is "x", (y]""")]', ("", [("f", '{"city": "it is \\"x\\", (y]"}')])),
        ('[f(city="")]', ("", [("f", '{"city": ""}')])),
        ("[f(city='x' 'y')]", ("", [("f", '{"city": "xy"}')])),
        ("[f(days=0x10)]", ("", [("f", '{"days": 16}')])),
        ("[f(days=1_000)]", ("", [("f", '{"days": 1000}')])),
        ("[f(days=(7))]", ("", [("f", '{"days": 7}')])),
        ("[f(free={'a', 'b'})]", ("", [("f", '{"free": ["a", "b"]}')])),
        ("[f(free=r'\\d')]", ("", [("f", '{"free": "\\\\d"}')])),
    ],
)
def test_python_calls_are_read_as_python_means_them(text: str, expected: Expected) -> None:
    assert read("pythonic", text) == expected


CALLS = {
    "hermes": f"<tool_call>{JSON}</tool_call>",
    "llama3_json": f"<|python_tag|>{JSON}",
    "pythonic": "<|python_start|>[f(city='x')]<|python_end|>",
    "mistral": f"[TOOL_CALLS] [{JSON}]",
    "mistral_args": f"[TOOL_CALLS]f[ARGS]{CITY}",
    "qwen3_coder": f"<tool_call>\n{CODER}\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    f"{CITY}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    f"{CITY}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=city>x</parameter>\n</function>\n</seed:tool_call>",
    "minimax_m2": f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>",
    "granite": f"<|tool_call|>[{JSON}]",
    "hunyuan_a13b": f"<tool_calls>[{JSON}]</tool_calls>",
    "olmo3": "<function_calls>f(city='x')</function_calls>",
}


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(
    ("before", "after", "content"),
    [
        ("One ", " two", "One two"),
        ("One", " two", "One two"),
        ("One ", "two", "One two"),
        ("Sure.\n", " done", "Sure.\ndone"),
        ("Sure. ", "\n\ndone", "Sure.\ndone"),
        ("One", "two", "Onetwo"),
        ("One  ", "", "One"),
        ("One ", " \n ", "One"),
        ("", " two", "two"),
    ],
)
def test_words_around_a_call_keep_one_blank_or_line_end(family: str, before: str, after: str, content: str) -> None:
    assert read(family, before + CALLS[family] + after) == (content, [("f", CITY)])


def test_words_around_several_calls_keep_one_blank_too() -> None:
    call = CALLS["hermes"]
    assert read("hermes", f"One {call} {call}\n{call} two {call} three") == ("One two three", [("f", CITY)] * 4)
    assert read("deepseek_v31", "a <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> b") == ("a b", [])


def test_messages_of_harmony_do_not_run_into_each_other() -> None:
    start, end = "<|start|>assistant<|channel|>", "<|end|>"
    text = f"<|channel|>commentary<|message|>I look.{end}{start}final<|message|>Done."
    assert read("harmony", text) == ("I look.\nDone.", [])
    thoughts = f"<|channel|>analysis<|message|>one{end}{start}analysis<|message|>two{end}{start}final<|message|>Done."
    parser = OutputParser(form_of("harmony", True), TOOLS)
    assert whole_answer([*parser.push(thoughts), *parser.end()]).reasoning == "one\ntwo"


def test_each_format_with_text_around_its_calls_is_tried() -> None:
    assert set(FAMILIES) == {*CALLS, "harmony"}
