"""Chat templates: messages to prompt text, as transformers' `apply_chat_template` renders them, in jinja2's immutable
sandbox.

A template comes with the model and is not trusted with time, memory or the interpreter. `template_main` runs this
module in a process that can be killed. Clients cannot bring templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec

from baton_gateway.text.message_arrangements import Messages, droppable_texts, other_arrangements
from baton_gateway.text.special_token_escape import SpecialTokenEscape, remove_separators

MAX_RENDERED_CHARS = 8 << 20
OWN_VARIABLES = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
"""Variables that `chat_template_kwargs` may not set; nor may it set special tokens."""
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates without `reasoning_effort` that switch thinking on or off."""


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of a template, apart from the model's special tokens."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    variables: dict[str, Any] = {}
    effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class RenderedChat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a prompt as the template rendered it."""

    text: str
    cuts: tuple[int, ...] = ()
    """Places within special tokens that the client spelled: no token crosses them."""


class TemplateRefusalError(Exception):
    """The request does not suit the template. The message is for the client, and `field` names the field."""

    def __init__(self, text: str, field: str = "messages") -> None:
        super().__init__(text)
        self.field = field


class TemplateFailureError(Exception):
    """The template is broken or exceeded its limits: a fault of the model, not of the client."""


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, which marks the assistant's text for training. Here it has no effect."""

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


class CompiledTemplate:
    """One model's template, compiled. Raises TemplateFailureError if its source is broken."""

    def __init__(self, source: str, control_tokens: Iterable[str] = ()) -> None:
        """`control_tokens`: special tokens that only the template may write."""
        self._escape = SpecialTokenEscape(control_tokens)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
            variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except Exception as error:
            raise TemplateFailureError(f"the chat template does not compile: {error}") from error
        self._variables = frozenset(variables - environment.globals.keys())
        self._writes_objects: bool | None = None
        """True if the template takes arguments of calls as objects; None: not tried yet."""

    def render(self, conversation: Conversation, special_tokens: dict[str, str]) -> RenderedChat:
        """Render the prompt. Raises TemplateRefusalError or TemplateFailureError."""
        values = conversation.messages, conversation.tools, conversation.variables
        separator = self._escape.choose_separator(values)
        if separator is None:
            return RenderedChat(self._render_text(conversation, special_tokens))
        if not separator:
            raise TemplateRefusalError("they spell special tokens and use every character for private use")
        messages, tools, variables = self._escape.insert_separators(values, separator)
        conversation = msgspec.structs.replace(conversation, messages=messages, tools=tools, variables=variables)
        return RenderedChat(*remove_separators(self._render_text(conversation, special_tokens), separator))

    def _render_text(self, conversation: Conversation, special_tokens: dict[str, str]) -> str:
        variables = self._check_variables(conversation, special_tokens)
        if conversation.tools and "tools" not in self._variables:
            raise TemplateRefusalError("it has no place for tools", "tools")
        variables = {
            **special_tokens,
            **variables,
            "tools": conversation.tools or None,
            "documents": None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        messages, rendered = self._arrange(conversation.messages, variables, special_tokens)
        return _cut_after(rendered, messages[-1]) if conversation.continue_final_message else rendered

    def _arrange(
        self, messages: Messages, variables: dict[str, Any], special_tokens: dict[str, str]
    ) -> tuple[Messages, str]:
        """Render the messages as they stand, or as the template takes them. Returns them as they were rendered.

        Raises the first TemplateRefusalError if the template takes them in no arrangement.
        """
        texts = droppable_texts(messages)
        refusal: TemplateRefusalError | None = None
        try:
            rendered = self._render_messages(messages, variables, special_tokens)
            if all(text in rendered for text in texts):
                return messages, rendered
        except TemplateRefusalError as error:
            if error.field != "messages":
                raise
            refusal = error
        for arranged in other_arrangements(messages):
            try:
                text = self._render_messages(arranged, variables, special_tokens)
            except (TemplateRefusalError, TemplateFailureError):
                continue
            if all(part in text for part in texts):
                return arranged, text
        if refusal is not None:
            raise refusal
        return messages, rendered

    def _render_messages(self, messages: Messages, variables: dict[str, Any], special_tokens: dict[str, str]) -> str:
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        if calls and not self._takes_objects(special_tokens):
            messages = tuple(map(_with_argument_texts, messages))
        try:
            return self._render({**variables, "messages": messages})
        except TemplateFailureError as error:
            if all(isinstance(call["function"]["arguments"], dict) for call in calls):
                raise
            raise TemplateRefusalError("it fails with arguments of a call that are not a JSON object") from error

    def _check_variables(self, conversation: Conversation, special_tokens: dict[str, str]) -> dict[str, Any]:
        """Return the client's variables. Raises TemplateRefusalError for one that the template does not read."""
        allowed = self._variables - OWN_VARIABLES - special_tokens.keys()
        for name in conversation.variables:
            if name not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                raise TemplateRefusalError(f"it has no variable {name[:64]!r}; it has: {known}", "chat_template_kwargs")
        if conversation.effort is None:
            return conversation.variables
        if "reasoning_effort" in self._variables:
            return {"reasoning_effort": conversation.effort} | conversation.variables
        switches = {name: conversation.effort != "none" for name in THINKING_SWITCHES if name in allowed}
        if not switches:
            raise TemplateRefusalError("it has no variable for how much to think", "reasoning_effort")
        return switches | conversation.variables

    def _takes_objects(self, special_tokens: dict[str, str]) -> bool:
        """Return True if the template takes arguments as objects. A few want the JSON text of OpenAI's API instead."""
        if self._writes_objects is None:
            try:
                rendered = self._render({**special_tokens, "messages": _PROBE, "add_generation_prompt": False})
                self._writes_objects = "'probed'" not in rendered  # Python's repr of a dict
            except TemplateFailureError:
                self._writes_objects = False
            except TemplateRefusalError:
                self._writes_objects = True
        return self._writes_objects

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            return _join_bounded(self._template.generate(**variables))
        except MemoryError as error:
            raise TemplateFailureError("the chat template needs too much memory") from error
        except (TemplateFailureError, TemplateRefusalError):
            raise
        except Exception as error:
            raise TemplateFailureError(f"the chat template failed: {type(error).__name__}") from error


_PROBE = (
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"probed": "probed"}}}
        ],
    },
)


def _with_argument_texts(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else _tojson(arguments)
        calls.append(call | {"function": call["function"] | {"arguments": text}})
    return message | {"tool_calls": calls}


def _cut_after(rendered: str, message: dict[str, Any]) -> str:
    """Return the prompt up to the end of its last message, without what the template writes after it."""
    content = message["content"].rstrip()
    begin = rendered.rfind(content.lstrip()) if content else -1
    if begin < 0:
        raise TemplateRefusalError("it does not write the last message unchanged", "continue_final_message")
    return rendered[: begin + len(content.lstrip())]


def _join_bounded(parts: Any) -> str:
    texts = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_RENDERED_CHARS:
            raise TemplateFailureError(f"the chat template rendered more than {MAX_RENDERED_CHARS} characters")
        texts.append(part)
    return "".join(texts)
