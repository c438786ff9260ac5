"""The syntaxes in which models write tool calls: one class for each, which reads the text between its marks.

A call begins at one of the marks in `openers`. Models forget these marks, so a call also begins at a text in
`unmarked`, or begins an answer with one of `bare_prefixes`. There only names of the request's tools are calls. Text
that turns out not to be a call is content, unchanged. So is what follows a broken call, up to its closing mark or the
next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from baton_gateway.answers.call_readers import NAME, Tools, finish_call, read_call_name
from baton_gateway.answers.json_calls import read_arguments, read_call_object, read_json_calls
from baton_gateway.answers.python_calls import read_python_calls, read_python_lines, read_python_object
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

FUNCTION_END = "</function>"


class CallFormat(Protocol):
    """One syntax of tool calls."""

    @property
    def openers(self) -> Sequence[str]:
        """Marks at which calls begin, anywhere in the text."""
        ...

    @property
    def unmarked(self) -> Sequence[str]:
        """Texts at which calls begin whose mark was forgotten."""
        ...

    @property
    def ignored(self) -> Sequence[str]:
        """Marks around calls that have no meaning of their own."""
        ...

    @property
    def bare_prefixes(self) -> Sequence[str]:
        """Beginnings of an answer that may be a call without a mark."""
        ...

    @property
    def is_bare(self) -> bool:
        """True if calls usually have no mark, but the first of `bare_prefixes`."""
        ...

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        """Read calls from `mark` at the feed's place, perhaps after blanks; only one call if `single_call`."""
        ...


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """JSON objects of name and arguments, each between two marks: Hermes, Qwen. Several are read too, and a list, as
    Hunyuan writes it, or Granite without a closing mark.
    """

    openers: tuple[str, ...]
    close: str
    unmarked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ("{",)
    is_bare: bool = False

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        is_marked = mark not in self.bare_prefixes
        names = None if is_marked else tools
        if is_marked:
            yield from feed.expect(mark)
        if mark != "{":
            yield from feed.expect("[")
        is_whole = yield from _read_object(feed, names)
        while is_whole and not single_call and (yield from _is_next_object(feed)):
            feed.hold()
            yield from feed.expect(",")
            if not (yield from _read_object(feed, names)):
                is_whole = False
                if feed.is_holding:
                    feed.roll_back()
        if is_whole and mark != "{":
            yield from feed.expect("]")
        yield from finish_call(feed, is_whole, self.close, (*self.openers, *self.ignored), is_marked)


@dataclass(frozen=True, slots=True)
class BareJsonCalls:
    """JSON objects without marks, with separators between: Llama 3. Only names of the request's tools are calls.

    Llama also writes `<function=NAME>`, the arguments and `</function>`.
    """

    openers: tuple[str, ...]
    separators: tuple[str, ...]
    unmarked: tuple[str, ...] = ("<function=",)
    ignored: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ("{", "[")
    is_bare: bool = True

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        if mark in self.unmarked:
            yield from self._read_function(feed, mark, tools)
            return
        if mark not in self.bare_prefixes:
            yield from feed.expect(mark)
        if (yield from feed.starts_with("[", after_blanks=True)):
            yield from read_python_calls(feed, tools, single_call)
        else:
            yield from read_json_calls(feed, tools, single_call, self.separators)

    def _read_function(self, feed: TextFeed, mark: str, tools: Tools) -> Steps[None]:
        yield from feed.expect(mark)
        is_named = (yield from read_call_name(feed, (">",))) and feed.held_name in tools
        if not is_named or not (yield from feed.expect(">")):
            feed.roll_back()
            return
        feed.commit()
        yield from feed.skip_blanks()
        if (yield from read_arguments(feed, (FUNCTION_END,))):
            yield from feed.expect(FUNCTION_END)


@dataclass(frozen=True, slots=True)
class NamedJsonCalls:
    """A name, a mark, and the arguments as JSON: DeepSeek."""

    openers: tuple[str, ...]
    before: str
    """The text between the opening mark and the name."""
    between: str
    """The text between name and arguments."""
    after: str
    close: str
    unmarked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ()
    is_bare: bool = False

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = False
        if (not self.before or (yield from feed.expect(self.before))) and (
            yield from read_call_name(feed, (self.between,))
        ):
            feed.take(self.between, SpanKind.MARK)
            feed.commit()
            yield from feed.skip_blanks()
            ends = (self.after, self.close) if self.after else (self.close,)
            is_whole = yield from read_arguments(feed, (*ends, *self.ignored, *self.openers))
            if is_whole and self.after:
                yield from feed.expect(self.after)
        yield from finish_call(feed, is_whole, self.close, (*self.openers, *self.ignored))


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """After the mark a list of JSON objects, or a name and, after another mark, its arguments: Mistral."""

    openers: tuple[str, ...] = ("[TOOL_CALLS]",)
    call_id: str = "[CALL_ID]"
    arguments: str = "[ARGS]"
    unmarked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ("[",)
    is_bare: bool = False

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        is_marked = mark not in self.bare_prefixes
        if is_marked:
            yield from feed.expect(mark)
        if (yield from feed.expect("[")):
            yield from self._read_list(feed, None if is_marked else tools, single_call)
        elif (yield from feed.starts_with("{")):
            yield from read_call_object(feed)
        elif (yield from read_call_name(feed, (self.call_id, self.arguments, "{"))):
            if (yield from feed.starts_with(self.call_id)):
                feed.take(self.call_id, SpanKind.MARK)
                call_id = yield from feed.read_matching(NAME)
                feed.take(call_id, SpanKind.MARK)
            if (yield from feed.expect(self.arguments)) or (yield from feed.starts_with("{")):
                feed.commit()
                yield from feed.skip_blanks()
                yield from read_arguments(feed, self.openers)
        if feed.is_holding:
            feed.roll_back()

    def _read_list(self, feed: TextFeed, names: Tools | None, single_call: bool) -> Steps[None]:
        while (yield from _read_object(feed, names)) and not single_call:
            yield from feed.skip_blanks()
            if (yield from feed.starts_with("]")):
                feed.take("]", SpanKind.MARK)
                return
            if not (yield from feed.starts_with(",")):
                return
            feed.hold()
            yield from feed.expect(",")


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """A list of calls with named arguments. Only names of the request's tools are calls, and a call whose first
    argument has no name is none: nobody could say what it means. After an opening mark the brackets may be missing.
    Llama 4 also writes JSON objects.
    """

    openers: tuple[str, ...]
    ignored: tuple[str, ...]
    unmarked: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ("[", "{")
    is_bare: bool = True

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        if mark not in self.bare_prefixes:
            yield from feed.expect(mark)
        if (yield from feed.starts_with("{", after_blanks=True)):
            yield from read_json_calls(feed, tools, single_call, (";", ","))
        else:
            yield from read_python_calls(feed, tools, single_call)


@dataclass(frozen=True, slots=True)
class PythonLines:
    """Calls with named arguments between two marks, each on a line of its own: OLMo 3."""

    openers: tuple[str, ...]
    close: str
    unmarked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ()
    is_bare: bool = False

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = yield from read_python_lines(feed, self.close, single_call)
        yield from finish_call(feed, is_whole, self.close, self.openers)


def _read_object(feed: TextFeed, names: Tools | None) -> Steps[bool]:
    """Read a call as an object of JSON, or after a mark as a dict of Python."""
    is_python = names is None and (yield from read_python_object(feed))
    return is_python or (yield from read_call_object(feed, names))


def _is_next_object(feed: TextFeed) -> Steps[bool]:
    """Take blanks, and return True if another object follows, perhaps after a comma."""
    yield from feed.skip_blanks()
    return (yield from feed.next_mark(("{", ","))) is not None
