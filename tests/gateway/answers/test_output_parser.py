"""Readers of answers: streaming is whole, reading undoes writing, and no character is lost, whatever a model writes."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from baton_gateway.answers.formats import REASONING_FORMATS, TOOL_CALL_FORMATS, AnswerFormat, FormatNames
from baton_gateway.answers.output_parser import OutputParser, new_call_id
from baton_gateway.answers.output_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    ContentPart,
    ReasoningPart,
    WholeAnswer,
    WholeCall,
    merge_parts,
    whole_answer,
)
from baton_gateway.answers.text_feed import MAX_BLANKS
from baton_gateway.answers.tool_use import CallBound
from baton_testing.gateway.answer_transcripts import (
    BY_HAND,
    FAMILIES,
    TOOLS,
    check_spans,
    cuts_of,
    draw_answer,
    form_of,
    read_cut,
    read_whole,
    reader_of,
    same,
    spans_of,
    spoilt,
)
from baton_wire.rules.answer_formats import AUTO, HARMONY, NONE, REASONING_FORMAT_NAMES, TOOL_FORMAT_NAMES

TRANSCRIPTS = 20
SPLITS = 20
FUZZED = 60


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("with_thoughts", [False, True])
def test_reading_undoes_writing_and_streaming_is_whole(family: str, with_thoughts: bool) -> None:
    dice = random.Random(f"{family} {with_thoughts}")
    for _ in range(TRANSCRIPTS):
        drawn = draw_answer(dice, family, with_thoughts)
        whole = read_whole(drawn.form, drawn.text)
        assert same(whole, drawn.answer), (drawn.text, whole)
        assert read_cut(drawn.form, drawn.text, range(1, len(drawn.text))) == whole, drawn.text
        for _ in range(SPLITS):
            assert read_cut(drawn.form, drawn.text, cuts_of(dice, len(drawn.text))) == whole, drawn.text


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_a_model_writes_is_told_or_a_mark(family: str) -> None:
    dice = random.Random(family)
    texts = list(BY_HAND[family])
    texts += [spoilt(dice, draw_answer(dice, family, True).text) for _ in range(FUZZED)]
    for text in texts:
        for with_thoughts in (False, True):
            form = form_of(family, with_thoughts)
            spans = spans_of(form, text)
            check_spans(text, spans)
            cuts = cuts_of(dice, len(text))
            check_spans(text, spans_of(form, text, cuts))
            assert read_cut(form, text, cuts) == read_whole(form, text), text


def read_answer(text: str, family: str = "hermes", **options: Any) -> WholeAnswer:
    reader = OutputParser(form_of(family, True), TOOLS, call_id=lambda: "id", **options)
    return whole_answer([*reader.push(text), *reader.end()])


def called(*calls: tuple[str, str], content: str = "", reasoning: str | None = None) -> WholeAnswer:
    return WholeAnswer(content, reasoning, [WholeCall("id", name, arguments) for name, arguments in calls])


@pytest.mark.parametrize(
    ("family", "text", "answer"),
    [
        ("hermes", "<tool_call>not json</tool_call>", called(content="<tool_call>not json</tool_call>")),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', called(("f", "{}"))),
        (
            "hermes",
            '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> and',
            called(("f", '{"a": 1}'), content="and"),
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', called(("f", '{"a": 1}'))),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', called(("f", '{"a": 1'))),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {}, "colour": 2}</tool_call>',
            called(("f", "{}"), content='"colour": 2}'),
        ),
        ("hermes", " <think>\nhm\n\n</think>\n\n hi", called(content="hi", reasoning="hm")),
        ("hermes", "say <think>", called(content="say <think>")),
        ("hermes", "<think>a <tool_call> b", called(reasoning="a <tool_call> b")),
        ("llama3_json", '{"name": "other", "parameters": {}}', called(content='{"name": "other", "parameters": {}}')),
        ("llama3_json", '{"name": "f", "parameters": {}};{"name": "search", "parameters": {"a": 1}}',
         called(("f", "{}"), ("search", '{"a": 1}'))),
        ("pythonic", "[f(a=True, b=(1, 'it\\'s'),), search()]",
         called(("f", '{"a": true, "b": [1, "it\'s"]}'), ("search", "{}"))),
        ("pythonic", "[1, 2]", called(content="[1, 2]")),
        ("pythonic", "[f(a=open)]", called(("f", '{"a": "open"}'))),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}', called(("f", '{"a": 1}'))),
        ("qwen3_coder", "<tool_call><function=f><parameter=days>7</parameter><parameter=city>7</parameter></function>",
         called(("f", '{"days": 7, "city": "7"}'))),
        ("glm", "<tool_call>f<arg_key>free</arg_key><arg_value>no json</arg_value></tool_call>",
         called(("f", '{"free": "no json"}'))),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hi",
         called(content="hi", reasoning="hm")),
        ("harmony", " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", called(("f", "{}"))),
        ("harmony", "plain", called(content="plain")),
    ],
)  # fmt: skip
def test_an_answer_is_read_as_its_format_means_it(family: str, text: str, answer: WholeAnswer) -> None:
    assert read_answer(text, family) == answer


def test_a_prompt_that_opened_a_thought_is_gone_on_with() -> None:
    assert read_answer("hm</think>hi", is_thinking=True) == called(content="hi", reasoning="hm")
    assert read_answer("hm", is_thinking=True) == called(reasoning="hm")


def test_a_single_call_ends_the_answer() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reader = OutputParser(form_of("hermes", False), TOOLS, single_call=True)
    parts = [*reader.push(call[:-1])]
    assert not reader.is_over
    parts += reader.push(call[-1] + call)
    assert reader.is_over
    assert len(whole_answer([*parts, *reader.end()]).calls) == 1


@pytest.mark.parametrize("text", ["<tool", "I look. <tool_call", '<tool_call>{"name": "ge', "a <"])
def test_the_beginning_of_a_mark_is_content_where_text_may_come(text: str) -> None:
    """Nobody can tell whether a call or a text was cut. Nothing that the model wrote is lost."""
    assert read_answer(text) == called(content=text)
    assert read_cut(form_of("hermes", True), text, range(1, len(text))) == read_whole(form_of("hermes", True), text)


def test_where_calls_come_alone_the_beginning_of_a_mark_is_a_mark() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for text in ("<tool", '<tool_call>{"name": "ge', "<thi"):
        assert read_answer(text, bound=CallBound.ONLY) == called()
    assert read_answer(f"{call}\n<tool_c", bound=CallBound.ONLY) == called(("f", "{}"))


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reader = OutputParser(AnswerFormat(None, "hermes"))
    assert whole_answer([*reader.push(text), *reader.end()]).content == text


def test_text_is_told_as_soon_as_it_is_clear() -> None:
    """No more is held back than what may begin a mark, and the blanks before it."""
    reader = reader_of(form_of("hermes", True))
    for text, known in [
        ("Hi", "Hi"),
        (" ", ""),
        ("there", " there"),
        ("<to", ""),
        ("day", "<today"),
        (" <tool_call", ""),
    ]:
        assert whole_answer(reader.push(text)).content == known
    assert reader.push('>{"name": "f"') == ()
    assert reader.push(', "arguments": {"a') == (CallPart(0, "id", "f"), ArgumentsPart(0, '{"a'))
    assert reader.push('": 1}}') == (ArgumentsPart(0, '": 1}'),)


def test_numbers_are_told_as_they_come() -> None:
    """They were held back up to the next bracket: a list of numbers came all at once."""
    reader = reader_of(form_of("mistral", False))
    reader.push('[TOOL_CALLS]f[ARGS]{"a": [')
    assert reader.push("1, 2") == (ArgumentsPart(0, "1, 2"),)
    assert reader.push("3, ") == (ArgumentsPart(0, "3, "),)


@pytest.mark.parametrize("step", [1, 7, 5_000, 20_000])
def test_blanks_without_end_are_not_held_back_without_end(step: int) -> None:
    """As many as fit are dropped before a mark; those before them are read_answer."""
    text = "x" + " " * 10_000 + '<tool_call>{"name": "f"}</tool_call>'
    reader = reader_of(form_of("hermes", False))
    parts = [part for begin in range(0, len(text), step) for part in reader.push(text[begin : begin + step])]
    whole = whole_answer([*parts, *reader.end()])
    assert whole.content == "x" + " " * (10_000 - MAX_BLANKS)
    assert [call.name for call in whole.calls] == ["f"]


def test_parts_of_one_kind_are_joined_and_no_others() -> None:
    parts: list[AnswerPart] = [
        ContentPart("a"), ContentPart("b"), ReasoningPart("c"), ContentPart("d"), CallPart(0, "x", "f"),
        ArgumentsPart(0, "1"), ArgumentsPart(0, "2"), CallPart(1, "y", "f"), CallPart(2, "z", "f"),
        ArgumentsPart(2, "3"),
    ]  # fmt: skip
    assert merge_parts(parts) == [
        ContentPart("ab"), ReasoningPart("c"), ContentPart("d"), CallPart(0, "x", "f"), ArgumentsPart(0, "12"),
        CallPart(1, "y", "f"), CallPart(2, "z", "f"), ArgumentsPart(2, "3"),
    ]  # fmt: skip
    assert merge_parts([]) == []


def test_ids_of_calls_are_what_every_template_takes() -> None:
    ids = {new_call_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in ids)


def test_every_name_of_a_format_has_its_parser() -> None:
    assert {*TOOL_CALL_FORMATS, AUTO, NONE, HARMONY} == set(TOOL_FORMAT_NAMES)
    assert {*REASONING_FORMATS, AUTO, NONE, HARMONY} == set(REASONING_FORMAT_NAMES)


def test_a_format_that_is_named_counts_instead_of_the_templates() -> None:
    hermes, harmony = "<tool_call></think>", "<|channel|> to=functions."
    assert FormatNames().resolve(hermes) == AnswerFormat("think", "hermes")
    assert FormatNames("pythonic").resolve(hermes) == AnswerFormat("think", "pythonic")
    assert FormatNames("none", "mistral").resolve(hermes) == AnswerFormat("mistral", None)
    for names, template in ((FormatNames("harmony"), hermes), (FormatNames(), harmony)):
        assert names.resolve(template) == AnswerFormat("harmony", "harmony")
    assert FormatNames("hermes").resolve(harmony) == AnswerFormat(None, "hermes")
    for wrong in (("xml", "auto"), ("auto", "hermes"), ("harmony", "think"), ("none", "harmony")):
        with pytest.raises(ValueError, match=r"is none of|is the format of"):
            FormatNames(*wrong)
