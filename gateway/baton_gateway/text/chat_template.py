"""Chat templates: messages to prompt text, as transformers' `apply_chat_template` renders them, in jinja2's immutable
sandbox.

A template comes with the model and is not trusted with time, memory or the interpreter; `template_process` runs this in
a process that can be killed. There is no template from a client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MAX_RENDERED_CHARS = 8 << 20


class TemplateRefusalError(Exception):
    """The template itself refused the messages (`raise_exception`); the text is for the client."""


class TemplateFailureError(Exception):
    """The template is broken or grew beyond its limits: the model's fault, not the client's."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says, for training; here it only contains its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's interface)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateRefusalError(str(message)[:500])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(source: str) -> Callable[[Sequence[dict[str, str]], dict[str, str]], str]:
    """A function of (messages, special tokens) → prompt text. Raises TemplateFailureError when the source is broken."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateFailureError(f"the chat template does not compile: {error}") from error

    def render(messages: Sequence[dict[str, str]], special_tokens: dict[str, str]) -> str:
        variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return _bounded(template.generate(**special_tokens, **variables))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
            raise TemplateFailureError(f"the chat template failed: {type(error).__name__}") from error
        except MemoryError as error:
            raise TemplateFailureError("the chat template needs too much memory") from error

    return render


def _bounded(parts: Any) -> str:
    texts = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_RENDERED_CHARS:
            raise TemplateFailureError(f"the chat template rendered more than {MAX_RENDERED_CHARS} characters")
        texts.append(part)
    return "".join(texts)
