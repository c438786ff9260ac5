"""How models of each format write calls: what stands around names and arguments, for the grammars that force it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_gateway.answers.formats import HARMONY
from baton_gateway.answers.harmony import ASSISTANT, CHANNEL, MESSAGE, NAMESPACE, START, TO
from baton_gateway.structured_outputs.object_rules import MemberSyntax

HERMES = "hermes"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The calls of one answer: `begin`, each between `open` and `close` with `separator` between them, `end`."""

    before: str
    """Between `open` and the name."""
    between: str
    """Between name and arguments."""
    open: str = ""
    close: str = ""
    separator: str = ""
    begin: str = ""
    end: str = ""
    first: str = ""
    """What may stand before all of it."""
    members: MemberSyntax | None = None
    """How arguments are written; None: as JSON."""
    mark: str = ""
    """Where calls begin within text: the beginning of `open` or of `begin`, or something before them."""
    bare: str = ""
    """With what an answer begins that is calls without a mark."""
    silent: tuple[str, ...] = ()
    """Marks that may stand in the text before and behind calls."""


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
        '{"name": "', '", "parameters": ', close="}", separator="; ", mark="<|python_tag|>", bare="{"
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
        bare="[",
        silent=("<|python_end|>",),
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
        silent=_DEEPSEEK,
    ),
    "deepseek_v31": CallSyntax(
        "",
        "<｜tool▁sep｜>",
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        begin=_DEEPSEEK[0],
        end=_DEEPSEEK[1],
        mark="<｜tool▁call▁begin｜>",
        silent=_DEEPSEEK,
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
