"""Answers as models of each format write them: rendered from parts by rules of our own, and spoilt.

The renderers know the formats from their public descriptions and share nothing with the readers but their names.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from baton_gateway.answers.formats import TOOL_CALL_FORMATS, AnswerFormat
from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, WholeAnswer, WholeCall, whole_answer
from baton_gateway.answers.text_feed import SpanKind, TextSpan
from baton_gateway.answers.tool_use import Tool
from baton_wire.rules.answer_formats import HARMONY

FAMILIES = (*TOOL_CALL_FORMATS, HARMONY)
TAGGED = ("qwen3_coder", "glm", "seed_oss", "minimax_m2")
"""Formats whose values are text between tags."""
FIELDS: dict[str, dict[str, Any]] = {
    "city": {"type": "string"},
    "unit": {"enum": ["c", "f"]},
    "days": {"type": "integer"},
    "deep": {"type": "object"},
    "list": {"type": "array"},
    "on": {"type": "boolean"},
    "free": {},
}
TOOLS = tuple(
    Tool(name, None, {"type": "object", "properties": FIELDS}, False) for name in ("get_weather", "search", "f")
)
CLEAN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "<>[]{}|") + "é東🏃\n"


@dataclass(frozen=True)
class Rendered:
    """An answer and how its family writes it."""

    family: str
    form: AnswerFormat
    answer: WholeAnswer
    text: str


def form_of(family: str, with_thoughts: bool) -> AnswerFormat:
    if family == HARMONY:
        return AnswerFormat(HARMONY, HARMONY)
    return AnswerFormat("think" if with_thoughts else None, family)


def reader_of(form: AnswerFormat, tools: Sequence[Tool] = TOOLS) -> OutputParser:
    return OutputParser(form, tools, call_id=lambda: "id")


def read_whole(form: AnswerFormat, text: str) -> WholeAnswer:
    reader = reader_of(form)
    return whole_answer([*reader.push(text), *reader.end()])


def read_cut(form: AnswerFormat, text: str, cuts: Sequence[int]) -> WholeAnswer:
    """Read in pieces that end at these places."""
    reader = reader_of(form)
    parts: list[AnswerPart] = []
    for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        parts += reader.push(text[begin:end])
    return whole_answer([*parts, *reader.end()])


def spans_of(form: AnswerFormat, text: str, cuts: Sequence[int] = ()) -> list[TextSpan]:
    reader = reader_of(form)
    spans: list[TextSpan] = []
    for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        spans += reader.spans(text[begin:end])
    return [*spans, *reader.last_spans()]


def cuts_of(dice: random.Random, length: int) -> list[int]:
    """Mostly a few cuts, sometimes as many as there are characters."""
    most = dice.choices((3, 12, max(1, length)), (70, 25, 5))[0]
    return sorted(dice.randrange(length + 1) for _ in range(dice.randrange(1, most + 1)))


# Drawing answers ------------------------------------------------------------------------------------------------------


def draw_answer(dice: random.Random, family: str, with_thoughts: bool) -> Rendered:
    """An answer that the family can write."""
    reasoning = _text(dice) if with_thoughts and dice.random() < 0.7 else None
    takes_both = family not in ("llama3_json", "pythonic")
    calls = [_call(dice, family) for _ in range(dice.randrange(4))]
    content = "" if calls and (not takes_both or dice.random() < 0.4) else _text(dice)
    answer = WholeAnswer(content, reasoning, calls)
    thought = "" if reasoning is None or family == HARMONY else f"<think>\n{reasoning}\n</think>\n\n"
    return Rendered(family, form_of(family, with_thoughts), answer, thought + RENDERERS[family](answer))


def _text(dice: random.Random, most: int = 60) -> str:
    text = "".join(dice.choice(CLEAN) for _ in range(dice.randrange(1, most))).strip()
    return text or "x"


def _call(dice: random.Random, family: str) -> WholeCall:
    arguments = {
        name: _value(dice, name, family) for name in dice.sample(list(FIELDS), dice.randrange(len(FIELDS) + 1))
    }
    return WholeCall("id", dice.choice(TOOLS).name, json.dumps(arguments, ensure_ascii=False))


def _value(dice: random.Random, name: str, family: str) -> Any:
    hard = "" if family in TAGGED else dice.choice(['"', "\\", "<", "</tool_call>", "]", "}", "'", ";"])
    match name:
        case "city":
            return _text(dice) + hard
        case "unit":
            return dice.choice(["c", "f"])
        case "days":
            return dice.choice([0, -1, 7, 10**12])
        case "on":
            return dice.random() < 0.5
        case "deep":
            return {"a": {"b": [None, {"c": hard or "x"}]}, "d": 1.5}
        case "list":
            return dice.choice([[], [1, [2, [3]]], [{"x": hard or "y"}]])
    return dice.choice([None, True, 3, [hard], {"k": hard}, "a text"])


# Rendering ------------------------------------------------------------------------------------------------------------


def _hermes(answer: WholeAnswer) -> str:
    calls = [
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>' for call in answer.calls
    ]
    return "\n".join([*([answer.content] if answer.content else []), *calls])


def _llama(answer: WholeAnswer) -> str:
    if not answer.calls:
        return answer.content
    return "; ".join(f'{{"name": "{call.name}", "parameters": {call.arguments}}}' for call in answer.calls)


def _pythonic(answer: WholeAnswer) -> str:
    if not answer.calls:
        return answer.content
    calls = (
        f"{call.name}({', '.join(f'{name}={value!r}' for name, value in json.loads(call.arguments).items())})"
        for call in answer.calls
    )
    return f"[{', '.join(calls)}]"


def _mistral(answer: WholeAnswer) -> str:
    if len(answer.calls) % 2:
        return answer.content + "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in answer.calls)
    calls = ", ".join(f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in answer.calls)
    return answer.content + (f"[TOOL_CALLS] [{calls}]" if calls else "")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _qwen3_coder(answer: WholeAnswer) -> str:
    def call(whole: WholeCall) -> str:
        parameters = "".join(
            f"<parameter={name}>\n{_plain(value)}\n</parameter>\n"
            for name, value in json.loads(whole.arguments).items()
        )
        return f"<tool_call>\n<function={whole.name}>\n{parameters}</function>\n</tool_call>"

    return "\n".join([*([answer.content] if answer.content else []), *map(call, answer.calls)])


def _glm(answer: WholeAnswer) -> str:
    def call(whole: WholeCall) -> str:
        values = "".join(
            f"<arg_key>{name}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
            for name, value in json.loads(whole.arguments).items()
        )
        return f"<tool_call>{whole.name}\n{values}</tool_call>"

    return "\n".join([*([answer.content] if answer.content else []), *map(call, answer.calls)])


def _seed_oss(answer: WholeAnswer) -> str:
    def call(whole: WholeCall) -> str:
        parameters = "".join(
            f"<parameter={name}>{_plain(value)}</parameter>\n" for name, value in json.loads(whole.arguments).items()
        )
        return f"<seed:tool_call>\n<function={whole.name}>\n{parameters}</function>\n</seed:tool_call>"

    return "\n".join([*([answer.content] if answer.content else []), *map(call, answer.calls)])


def _minimax_m2(answer: WholeAnswer) -> str:
    def call(whole: WholeCall) -> str:
        parameters = "".join(
            f'<parameter name="{name}">{_plain(value)}</parameter>\n'
            for name, value in json.loads(whole.arguments).items()
        )
        return f'<invoke name="{whole.name}">\n{parameters}</invoke>\n'

    if not answer.calls:
        return answer.content
    calls = "".join(map(call, answer.calls))
    return f"{answer.content and answer.content + chr(10)}<minimax:tool_call>\n{calls}</minimax:tool_call>"


def _json_list(begin: str, end: str) -> Callable[[WholeAnswer], str]:
    def render(answer: WholeAnswer) -> str:
        calls = ", ".join(f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in answer.calls)
        return answer.content + (f"{begin}[{calls}]{end}" if calls else "")

    return render


def _olmo3(answer: WholeAnswer) -> str:
    def call(number: int, whole: WholeCall) -> str:
        arguments = json.loads(whole.arguments).items()
        write = repr if number % 2 else lambda value: json.dumps(value, ensure_ascii=False)
        return f"{whole.name}({', '.join(f'{name}={write(value)}' for name, value in arguments)})"

    calls = "\n".join(call(number, whole) for number, whole in enumerate(answer.calls))
    return answer.content + (f"<function_calls>{calls}</function_calls>" if calls else "")


def _deepseek(call: Callable[[WholeCall], str]) -> Callable[[WholeAnswer], str]:
    def render(answer: WholeAnswer) -> str:
        if not answer.calls:
            return answer.content
        calls = "\n".join(f"<｜tool▁call▁begin｜>{call(whole)}<｜tool▁call▁end｜>" for whole in answer.calls)
        return f"{answer.content}<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"

    return render


def _harmony(answer: WholeAnswer) -> str:
    start = "<|start|>assistant"
    messages = []
    if answer.reasoning is not None:
        messages.append(f"<|channel|>analysis<|message|>{answer.reasoning}<|end|>")
    if answer.content:
        channel = "commentary" if answer.calls else "final"
        messages.append(f"<|channel|>{channel}<|message|>{answer.content}<|end|>")
    messages += [
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{call.arguments}<|call|>"
        for call in answer.calls
    ]
    return start.join(messages)


RENDERERS: dict[str, Callable[[WholeAnswer], str]] = {
    "hermes": _hermes,
    "llama3_json": _llama,
    "pythonic": _pythonic,
    "mistral": _mistral,
    "mistral_args": _mistral,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
    "deepseek_v3": _deepseek(lambda call: f"function<｜tool▁sep｜>{call.name}\n```json\n{call.arguments}\n```"),
    "deepseek_v31": _deepseek(lambda call: f"{call.name}<｜tool▁sep｜>{call.arguments}"),
    "seed_oss": _seed_oss,
    "minimax_m2": _minimax_m2,
    "granite": _json_list("<|tool_call|>", ""),
    "hunyuan_a13b": _json_list("<tool_calls>", "</tool_calls>"),
    "olmo3": _olmo3,
    HARMONY: _harmony,
}


def same(one: WholeAnswer, other: WholeAnswer) -> bool:
    """Equal, arguments as values."""
    return (one.content, one.reasoning) == (other.content, other.reasoning) and [
        (call.name, json.loads(call.arguments)) for call in one.calls
    ] == [(call.name, json.loads(call.arguments)) for call in other.calls]


# Spoilt --------------------------------------------------------------------------------------------------

MARKS = re.compile(
    r"""(?:\s|[{}\[\](),:;=>]|```json|```|"(?:name|arguments|parameters|function)"|"(?:id|type)"\s*:\s*"(?:[^"\\]|\\.)*"|"(?:id|type)"
    |</?(?:seed:|minimax:)?tool_call>|</?tool_calls>|<\|/?tool_call\|>|</?function_calls>|<invoke\ name="|</invoke>
    |<parameter\ name="|">|</?answer>|</?response>
    |</?think>|<function=|</function>|<parameter=|</parameter>|</?arg_key>|</?arg_value>|<\|python_tag\|>
    |<\|python_start\|>|<\|python_end\|>|\[TOOL_CALLS\]|\[ARGS\]|\[CALL_ID\][^\s<>"'{}\[\]()|｜]*|function|<｜tool▁sep｜>
    |<｜tool▁calls?▁(?:begin|end)｜>|<\|start\|>assistant|<\|channel\|>|<\|message\|>|<\|(?:end|call|return)\|>|analysis
    |commentary|final|to=|functions\.|<\|constrain\|>\s*\w+|json|code|text)*""",
    re.VERBOSE,
)
"""Text that no client sees: the formats' own syntax, and ids of calls."""


def check_spans(text: str, spans: Sequence[TextSpan]) -> None:
    """Every character is in one span, and what is in a mark is the format's own."""
    place = 0
    marks: list[str] = []
    for span in sorted((span for span in spans if span.raw), key=lambda span: span.at):
        assert span.at == place, "a character is told twice or never"
        assert text.startswith(span.raw, place)
        place += len(span.raw)
        if span.kind is SpanKind.MARK:
            marks.append(span.raw)
            continue
        check_marks(marks)
        assert span.kind is SpanKind.ARGUMENTS or span.kind is SpanKind.NAME or span.text == span.raw
    check_marks(marks)
    assert place == len(text), "the end is missing"


def check_marks(marks: list[str]) -> None:
    assert MARKS.fullmatch("".join(marks)), marks
    marks.clear()


def spoilt(dice: random.Random, text: str) -> str:
    """The text with pieces of it and of the formats' marks moved, doubled, dropped or put in."""
    for _ in range(dice.randrange(1, 5)):
        text = text or " "
        place = dice.randrange(len(text) + 1)
        end = min(len(text), place + dice.randrange(1, 20))
        match dice.randrange(5):
            case 0:
                text = text[:place] + text[end:]
            case 1:
                text = text[:place] + text[place:end] * 2 + text[end:]
            case 2:
                text = text[:place] + dice.choice(SHARDS) + text[place:]
            case 3:
                text = text[:place]
            case _:
                text = text[:place] + chr(dice.choice([0, 9, 0x22, 0x5C, 0x7B, 0x7D, 0xFFFD, 0x1F3C3])) + text[end:]
    return text


SHARDS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": ', "}", "{", "]", "[", '"', "\\",
    "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<function=f>", "<parameter=city>", "</parameter>", "</function>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "\n```json\n",
    "<｜tool▁call▁end｜>", "<|channel|>", "<|message|>", "<|start|>assistant", "<|call|>", "<|end|>", " to=functions.f",
    "<seed:tool_call>", "</seed:tool_call>", "<minimax:tool_call>", '<invoke name="f">', '<parameter name="city">',
    "</invoke>", "</minimax:tool_call>", "<|tool_call|>", "<tool_calls>", "</tool_calls>", "<function_calls>",
    "</function_calls>", "f(city=", "[f(", ")]", "a='",
    "{'name': 'f'", '"""', "null", "</arg_value>x", ";", ",", " ", "\n",
)  # fmt: skip
