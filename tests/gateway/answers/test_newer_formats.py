"""Calls as Seed-OSS, MiniMax-M2, Granite, Hunyuan and OLMo 3 write them, and the marks around whole answers."""

from __future__ import annotations

import random

import pytest

from baton_gateway.answers.formats import AnswerFormat, detect_format
from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, WholeAnswer, whole_answer
from baton_gateway.answers.tool_use import CallBound
from baton_testing.gateway.answer_transcripts import TOOLS, cuts_of

Expected = tuple[str, str | None, list[tuple[str, str]]]
"""Content, reasoning, and the calls' names and arguments."""
INVOKE = '<invoke name="f">\n<parameter name="city">x</parameter>\n</invoke>'
INVOKE_SEARCH = '<invoke name="search">\n</invoke>'
SEED = "<function=f>\n<parameter=city>x</parameter>\n</function>"
JSON = '{"name": "f", "arguments": {"city": "x"}}'
CALL = ("f", '{"city": "x"}')
SEARCH = ("search", "{}")


def read(form: AnswerFormat, text: str, with_tools: bool = True, **options: CallBound | bool) -> Expected:
    """Read a whole answer, and in several cuts, which must agree."""
    dice = random.Random(text)
    answers: list[WholeAnswer] = []
    tools = TOOLS if with_tools else ()
    for cuts in ([], range(1, len(text)), *(cuts_of(dice, len(text)) for _ in range(10))):
        parser = OutputParser(form, tools, call_id=lambda: "id", **options)  # type: ignore[arg-type]
        parts: list[AnswerPart] = []
        for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
            parts += parser.push(text[begin:end])
        answers.append(whole_answer([*parts, *parser.end()]))
    assert all(answer == answers[0] for answer in answers), answers
    whole = answers[0]
    return whole.content, whole.reasoning, [(call.name, call.arguments) for call in whole.calls]


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [
        ("seed_oss", f"I look.\n<seed:tool_call>\n{SEED}\n</seed:tool_call>", "I look.", [CALL]),
        ("seed_oss", f"<seed:tool_call>\n{SEED}\n{SEED}\n</seed:tool_call>", "", [CALL, CALL]),
        ("seed_oss", f"{SEED}\n</seed:tool_call>", "", [CALL]),
        (
            "seed_oss",
            "<seed:tool_call><function=f><parameter=city>\nx\n</parameter></function></seed:tool_call>",
            "",
            [("f", '{"city": "\\nx\\n"}')],
        ),
        ("minimax_m2", f"<minimax:tool_call>\n{INVOKE}\n{INVOKE_SEARCH}\n</minimax:tool_call>", "", [CALL, SEARCH]),
        (
            "minimax_m2",
            f'<minimax:tool_call>{INVOKE}<invoke name="unknown"></invoke></minimax:tool_call> and',
            "and",
            [CALL, ("unknown", "{}")],
        ),
        ("minimax_m2", f"So: {INVOKE}\n{INVOKE_SEARCH}\n</minimax:tool_call>", "So:", [CALL, SEARCH]),
        ("minimax_m2", 'Write <invoke name="NAME"> there.', 'Write <invoke name="NAME"> there.', []),
        ("granite", f"<|tool_call|>[{JSON}]", "", [CALL]),
        ("granite", f'<|tool_call|> [{JSON}, {{"name": "search"}}]', "", [CALL, SEARCH]),
        ("granite", f"<tool_call>[{JSON}]</tool_call> and", "and", [CALL]),
        ("granite", f"<|tool_call|>[{JSON}]<|/tool_call|>", "", [CALL]),
        ("granite", f"[{JSON}]", "", [CALL]),
        ("granite", "[1, 2]", "[1, 2]", []),
        ("granite", f"<|tool_call|>[{JSON}] and", "and", [CALL]),
        ("hunyuan_a13b", f"I look. <tool_calls>[{JSON}]</tool_calls>\nSo", "I look.\nSo", [CALL]),
        ("hunyuan_a13b", f'<tool_calls>[{JSON}, {{"name": "search", "arguments": {{}}}}]', "", [CALL, SEARCH]),
        ("hunyuan_a13b", f"<tool_calls>\n{JSON}\n</tool_calls>", "", [CALL]),
        ("olmo3", "<function_calls>f(city='x')\nsearch()</function_calls>", "", [CALL, SEARCH]),
        ("olmo3", 'I look.<function_calls>\nf(city="x")\n</function_calls>\nso', "I look.\nso", [CALL]),
        ("olmo3", "<function_calls>f(city='x'), search()", "", [CALL, SEARCH]),
        (
            "olmo3",
            '<function_calls>f(on=true, free=null, city="</function_calls>\\n(")</function_calls>',
            "",
            [("f", '{"on": true, "free": null, "city": "</function_calls>\\n("}')],
        ),
        ("olmo3", "<function_calls>f()\noops</function_calls> so", "oops so", [("f", "{}")]),
        ("olmo3", "<function_calls>f('x')</function_calls>", "<function_calls>f('x')</function_calls>", []),
        ("olmo3", "f(city='x')", "f(city='x')", []),
    ],
)
def test_calls_are_read_as_the_format_means_them(
    family: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(AnswerFormat(None, family), text) == (content, None, calls)


def test_several_calls_between_one_pair_of_marks_come_under_a_grammar_too() -> None:
    """There only marks begin calls: a second call was content before."""
    for family, text in (
        ("minimax_m2", f"<minimax:tool_call>\n{INVOKE}\n{INVOKE}\n</minimax:tool_call>"),
        ("seed_oss", f"<seed:tool_call>\n{SEED}\n{SEED}\n</seed:tool_call>"),
    ):
        assert read(AnswerFormat(None, family), text, bound=CallBound.MARKED) == ("", None, [CALL, CALL])
        assert read(AnswerFormat(None, family), text, single_call=True) == ("", None, [CALL])


@pytest.mark.parametrize("mark", ["answer", "response"])
@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\nhm\n</think>\n<ANSWER>\nHi\n</ANSWER>", "Hi", "hm"),
        ("<think>\n\n</think>\n<ANSWER>\nHi\n</ANSWER>\n", "Hi", None),
        ("<ANSWER>Hi</ANSWER>", "Hi", None),
        ("<think>hm</think>Hi", "Hi", "hm"),
        ("<think>hm</think><ANSWER>Hi", "Hi", "hm"),
        ("<think>hm</think><ANSWER>Write </ANSWER> at the end.\n</ANSWER>", "Write </ANSWER> at the end.", "hm"),
        ("<think>hm</think>Write <ANSWER>x</ANSWER>", "Write <ANSWER>x</ANSWER>", "hm"),
        ("<think>hm</think><ANSWER>Hi</ANS", "Hi</ANS", "hm"),
        ("<think>about <ANSWER></think><ANSWER></ANSWER>", "", "about <ANSWER>"),
    ],
)
def test_the_marks_around_an_answer_are_no_part_of_it(
    mark: str, with_tools: bool, text: str, content: str, reasoning: str | None
) -> None:
    form = AnswerFormat(f"think_{mark}", "hermes")
    texts = [part and part.replace("ANSWER", mark).replace("ANS", mark[:3]) for part in (text, content, reasoning)]
    assert read(form, texts[0] or "", with_tools) == (texts[1], texts[2], [])


def test_calls_may_stand_within_an_answers_marks_and_after_them() -> None:
    hunyuan = AnswerFormat("think_answer", "hunyuan_a13b")
    call = f"<tool_calls>[{JSON}]</tool_calls>"
    assert read(hunyuan, f"<think>\nhm\n</think>\n<answer>\n{call}\n</answer>") == ("", "hm", [CALL])
    assert read(hunyuan, f"<think>\nhm\n</think>\n<answer>\nI look.\n</answer>\n{call}") == ("I look.", "hm", [CALL])
    ernie = AnswerFormat("think_response", "hermes")
    text = f"<response>\nI look.\n</response>\n\n<tool_call>\n{JSON}\n</tool_call>\n"
    assert read(ernie, f"hm\n</think>\n\n\n{text}", is_thinking=True) == ("I look.", "hm", [CALL])


def test_other_reasoning_formats_keep_tags_that_prompts_ask_for() -> None:
    text = "<think>hm</think>\n<answer>4</answer>"
    assert read(AnswerFormat("think", None), text) == ("<answer>4</answer>", "hm", [])


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("<seed:think></seed:think><seed:tool_call>\n<function=x>\n<parameter=a>", AnswerFormat("seed", "seed_oss")),
        (
            '<minimax:tool_call><invoke name="x"><parameter name="a"></think><response></response>',
            AnswerFormat("think", "minimax_m2"),
        ),
        ("respond only with <|tool_call|> followed by a JSON list of tools used.", AnswerFormat(None, "granite")),
        (
            "<|tool_call|> between <think></think> and write your response between <response></response>",
            AnswerFormat("think_response", "granite"),
        ),
        (
            '<tool_calls>[{"name": "x"}]</tool_calls> <think>\n\n</think>\n',
            AnswerFormat("think_answer", "hunyuan_a13b"),
        ),
        ("<functions></functions> '<function_calls>' '</function_calls>'", AnswerFormat(None, "olmo3")),
        (
            "think_mode=True <tool_call> <response> </response> <think> </think>",
            AnswerFormat("think_response", "hermes"),
        ),
        ("<tool_call> <tool_response> </tool_response> </think>", AnswerFormat("think", "hermes")),
    ],
)
def test_a_template_reveals_its_format(template: str, form: AnswerFormat) -> None:
    assert detect_format(template) == form
