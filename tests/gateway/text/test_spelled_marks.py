"""A model that spells a mark in letters, because a text told it to, calls nothing: where marks are special tokens, only
those are marks.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from functools import cache

import pytest
from tokenizers import AddedToken

from baton_gateway.answers.formats import REASONING_FORMATS
from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, WholeAnswer, WholeCall, whole_answer
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_testing.gateway.answer_transcripts import TOOLS, cuts_of
from baton_testing.gateway.made_tokenizers import bundle_hash, byte_level, sentencepiece, word_pieces
from baton_wire.messages.values import Finish

MARKS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|channel|>", "<|message|>", "<|start|>", "<|call|>",
)  # fmt: skip
TEMPLATES = {
    "hermes": "<tool_call>{{ tools }}</think>",
    "mistral_args": "[TOOL_CALLS][ARGS]{{ tools }}</think>",
    "glm": "<arg_key>{{ tools }}</think>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>{{ tools }}</think>",
    "harmony": "<|channel|> to=functions.",
}
CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    "mistral_args": '[TOOL_CALLS]f[ARGS]{"a": 1}',
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "deepseek_v31": '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',
    "harmony": '<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
}
MAKERS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "word_pieces": word_pieces}


@cache
def model(family: str, kind: str = "byte_level") -> TextModel:
    made = MAKERS[kind]()
    made.tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    data = dataclasses.replace(made, template=TEMPLATES[family]).bundle()
    loaded = load_text_model(data, bundle_hash(data))
    assert loaded.answer_format.calls == family
    return loaded


def written(text: TextModel, answer: str) -> list[int]:
    """Ids with marks as tokens."""
    return text.encode_rendered(answer)


def spelled(text: TextModel, answer: str) -> list[int]:
    """Ids of the same text, letter by letter."""
    return [token for letter in answer for token in text.encode_rendered(letter)]


def read(text: TextModel, ids: Sequence[int], cuts: Sequence[int] = (), stops: tuple[str, ...] = ()) -> WholeAnswer:
    """The answer that comes in messages which end at these places."""
    reader = OutputParser(text.answer_format, TOOLS, call_id=lambda: "id")
    choice = text.choice_text(stops, skip_special=True, continues=True, parser=reader)
    parts: list[AnswerPart] = []
    for begin, end in zip((0, *cuts), (*cuts, len(ids)), strict=True):
        finish = Finish.LENGTH if end == len(ids) else None
        increment = choice.push(tuple(ids[begin:end]), None, finish)
        parts += increment.output_parts
        if increment.finish is not None:
            break
    return whole_answer(parts)


CALL = WholeCall("id", "f", '{"a": 1}')


@pytest.mark.parametrize("family", list(TEMPLATES))
def test_letters_that_spell_a_call_are_content(family: str) -> None:
    text, call = model(family), CALLS[family]
    assert read(text, written(text, call)) == WholeAnswer("", None, [CALL])
    assert read(text, spelled(text, call)) == WholeAnswer(call)
    assert read(text, spelled(text, call), range(1, len(spelled(text, call)))) == WholeAnswer(call)


@pytest.mark.parametrize("family", list(TEMPLATES))
def test_a_call_behind_one_that_was_spelled_is_read_however_the_ids_come(family: str) -> None:
    text, call = model(family), CALLS[family]
    opened = [] if family != "harmony" else written(text, "<|channel|>final<|message|>")
    again = [] if family != "harmony" else written(text, "<|start|>assistant")
    ids = opened + spelled(text, f"Quote: {call} é") + again + written(text, call)
    expected = WholeAnswer(f"Quote: {call} é", None, [CALL])
    dice = random.Random(family)
    for cuts in ([], range(1, len(ids)), *(cuts_of(dice, len(ids) - 1) for _ in range(60))):
        assert read(text, ids, [cut for cut in cuts if cut < len(ids)], ("never",)) == expected


def test_a_spelled_end_ends_no_thought_and_no_argument() -> None:
    text = model("glm")
    marks = REASONING_FORMATS["think"]
    ids = [*written(text, marks.start), *spelled(text, f"a {marks.end} b"), *written(text, marks.end + "c")]
    assert read(text, ids) == WholeAnswer("c", f"a {marks.end} b")
    begin, end = "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"
    ids = [*written(text, begin), *spelled(text, "x</arg_value>y"), *written(text, end)]
    assert read(text, ids) == WholeAnswer("", None, [WholeCall("id", "f", '{"city": "x</arg_value>y"}')])


def test_a_tokenizer_of_another_kind_reads_the_same_call() -> None:
    text, call = model("mistral_args", "sentencepiece"), CALLS["mistral_args"]
    assert read(text, written(text, call)) == WholeAnswer("", None, [CALL])
    assert read(text, written(text, "[TOOL_CALLS]") + spelled(text, "f[ARGS]{}")).calls == []


def test_marks_of_a_decoder_without_pieces_are_found_in_the_text() -> None:
    """It cannot be said where in the text a token stands."""
    text = model("mistral_args", "word_pieces")
    told = read(text, written(text, "[TOOL_CALLS]f[ARGS]{}"))
    assert [call.name for call in told.calls] == ["f"]


def test_marks_that_are_no_tokens_are_found_in_letters() -> None:
    made = dataclasses.replace(byte_level(), template=TEMPLATES["hermes"])
    data = made.bundle()
    text = load_text_model(data, bundle_hash(data))
    assert read(text, spelled(text, CALLS["hermes"])) == WholeAnswer("", None, [CALL])
