"""The exact syntax of each format's tool calls, for the grammars that force it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_gateway.answers.harmony import ASSISTANT, CHANNEL, MESSAGE, NAMESPACE, START, TO
from baton_gateway.structured_outputs.object_rules import MemberSyntax
from baton_wire.rules.answer_formats import HARMONY

HERMES = "hermes"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The syntax of the calls of one answer: `begin`, calls from `open` to `close` with `separator` between, `end`."""

    before: str
    """The text between `open` and the name."""
    between: str
    """The text between name and arguments."""
    open: str = ""
    close: str = ""
    separator: str = ""
    begin: str = ""
    end: str = ""
    first: str = ""
    """Optional text before everything."""
    members: MemberSyntax | None = None
    """The syntax of arguments; None: JSON."""
    mark: str = ""
    """The mark at which calls begin within text: the beginning of `open` or `begin`, or a text before them."""
    bare_prefix: str = ""
    """The beginning of an answer that consists of calls without a mark."""
    ignored: tuple[str, ...] = ()
    """Marks that the text before and after calls may contain."""


_MARK = "<tool_call>"
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL_SYNTAX: Mapping[str, CallSyntax] = {
    HERMES: CallSyntax(
        '\n{"name": "', '", "arguments": ', open=_MARK, close="}\n</tool_call>", separator="\n", mark=_MARK
    ),
    "qwen3_coder": CallSyntax(
        "\n<function=",
        ">\n",
        open=_MARK,
        close="</function>\n</tool_call>",
        members=MemberSyntax("<parameter=", ">\n", "\n</parameter>\n", closes="</parameter>"),
        separator="\n",
        mark=_MARK,
    ),
    "glm": CallSyntax(
        "",
        "\n",
        open=_MARK,
        close="</tool_call>",
        members=MemberSyntax("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", closes="</arg_value>"),
        separator="\n",
        mark=_MARK,
    ),
    "llama3_json": CallSyntax(
        '{"name": "', '", "parameters": ', close="}", separator="; ", mark="<|python_tag|>", bare_prefix="{"
    ),
    "pythonic": CallSyntax(
        "",
        "(",
        close=")",
        begin="[",
        separator=", ",
        end="]",
        members=MemberSyntax("", "=", "", ", "),
        mark="<|python_start|>",
        bare_prefix="[",
        ignored=("<|python_end|>",),
    ),
    "mistral": CallSyntax(
        '{"name": "',
        '", "arguments": ',
        close="}",
        begin="[TOOL_CALLS] [",
        separator=", ",
        end="]",
        mark="[TOOL_CALLS]",
    ),
    "mistral_args": CallSyntax("", "[ARGS]", open="[TOOL_CALLS]", mark="[TOOL_CALLS]"),
    "deepseek_v3": CallSyntax(
        "function<｜tool▁sep｜>",
        "\n```json\n",
        open="<｜tool▁call▁begin｜>",
        close="\n```<｜tool▁call▁end｜>",
        begin=_DEEPSEEK[0],
        separator="\n",
        end=_DEEPSEEK[1],
        mark="<｜tool▁call▁begin｜>",
        ignored=_DEEPSEEK,
    ),
    "deepseek_v31": CallSyntax(
        "",
        "<｜tool▁sep｜>",
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        begin=_DEEPSEEK[0],
        end=_DEEPSEEK[1],
        mark="<｜tool▁call▁begin｜>",
        ignored=_DEEPSEEK,
    ),
    "seed_oss": CallSyntax(
        "\n<function=",
        ">\n",
        open="<seed:tool_call>",
        close="</function>\n</seed:tool_call>",
        members=MemberSyntax("<parameter=", ">", "</parameter>\n", closes="</parameter>"),
        separator="\n",
        mark="<seed:tool_call>",
    ),
    "minimax_m2": CallSyntax(
        '<invoke name="',
        '">\n',
        close="</invoke>\n",
        begin="<minimax:tool_call>\n",
        end="</minimax:tool_call>",
        members=MemberSyntax('<parameter name="', '">', "</parameter>\n", closes="</parameter>"),
        mark="<minimax:tool_call>",
    ),
    "granite": CallSyntax(
        '{"name": "',
        '", "arguments": ',
        close="}",
        begin="<|tool_call|>[",
        separator=", ",
        end="]",
        mark="<|tool_call|>",
    ),
    "hunyuan_a13b": CallSyntax(
        '{"name": "',
        '", "arguments": ',
        close="}",
        begin="<tool_calls>[",
        separator=", ",
        end="]</tool_calls>",
        mark="<tool_calls>",
    ),
    "olmo3": CallSyntax(
        "",
        "(",
        close=")",
        begin="<function_calls>",
        separator="\n",
        end="</function_calls>",
        members=MemberSyntax("", "=", "", ", "),
        mark="<function_calls>",
    ),
    HARMONY: CallSyntax(
        "",
        f" <|constrain|>json{MESSAGE}",
        open=f"{CHANNEL}commentary{TO}{NAMESPACE}",
        close="<|call|>",
        separator=START + ASSISTANT,
        first=START + ASSISTANT,
        mark=CHANNEL,
    ),
}
