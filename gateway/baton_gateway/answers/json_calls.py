"""Readers of tool calls in JSON: objects of name and arguments, JSON values, JSON strings."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

MAX_NAME_CHARS = 512
NO_ARGUMENTS = "{}"
NULL = "null"
_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type")
"""Members that some models add and that mean nothing here."""
_INSIDE = re.compile(r"[\s,:0-9A-Za-z+.-]*")
_SCALAR = re.compile(r"[0-9A-Za-z+.-]*")


def read_call_object(feed: TextFeed, names: Collection[str] | None = None, is_inner: bool = False) -> Steps[bool]:
    """Read one call: an object of `name` and `arguments` or `parameters`, in any order. True: it was one to its end.

    The feed holds; it is committed once the name is known and arguments begin. `names`: no other name is a call.
    `is_inner`: it is the member `function` of a call, where OpenAI's API has name and arguments.
    """
    if not (yield from feed.expect("{")):
        return False
    is_named = has_arguments = False
    while True:
        key = yield from _read_key(feed)
        if key == "name" and not is_named:
            is_named = is_valid = yield from _read_name(feed, names)
        elif key == "function" and not (is_named or is_inner):
            is_named = has_arguments = is_valid = yield from read_call_object(feed, names, is_inner=True)
        elif key in _ARGUMENTS and not has_arguments:
            if is_named:
                feed.commit()
            has_arguments = True
            is_valid = yield from read_arguments(feed)
        else:
            is_valid = key in _IGNORED and (yield from _skip_string(feed))
        if not is_valid:
            return False
        if (yield from feed.expect("}")):
            break
        if not (yield from feed.expect(",")):
            return False
    if not is_named:
        return False
    feed.commit()
    if not has_arguments:
        feed.emit(NO_ARGUMENTS)
    return True


def read_json_calls(
    feed: TextFeed, names: Collection[str], single_call: bool, separators: Sequence[str]
) -> Steps[None]:
    """Read JSON objects of offered tools' calls, which separators or blanks stand between."""
    while (yield from read_call_object(feed, names)) and not single_call:
        yield from feed.skip_blanks()
        separator = yield from feed.next_mark(separators)
        if separator is None and not (yield from feed.starts_with("{")):
            break
        feed.hold()
        yield from feed.expect(separator or "")
    if feed.is_holding:
        feed.roll_back()


def _read_name(feed: TextFeed, names: Collection[str] | None) -> Steps[bool]:
    """Take the value of `name`. False: it is no name, or not one of `names`."""
    raw = yield from feed.read_string(MAX_NAME_CHARS)
    name = decode_string(raw)
    if raw is None or not name or (names is not None and name not in names):
        return False
    feed.take(raw, SpanKind.NAME, name)
    return True


def _skip_string(feed: TextFeed) -> Steps[bool]:
    """Take a string that means nothing. False: there is none."""
    raw = yield from feed.read_string(MAX_NAME_CHARS)
    if raw is None:
        return False
    feed.take(raw, SpanKind.MARK)
    return True


def _read_key(feed: TextFeed) -> Steps[str]:
    """Take a member's key with its colon; empty: no key that a call has."""
    yield from feed.skip_blanks()
    raw = yield from feed.read_string(MAX_NAME_CHARS)
    key = decode_string(raw)
    if raw is None or key not in ("name", "function", *_ARGUMENTS, *_IGNORED):
        return ""
    feed.take(raw, SpanKind.MARK)
    if not (yield from feed.expect(":")):
        return ""
    yield from feed.skip_blanks()
    return key


def decode_string(raw: str | None) -> str | None:
    """Return the text of a JSON string; None: it is not one."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return None


def is_json(text: str) -> bool:
    """Return True if a text is one JSON value, perhaps with blanks around it."""
    try:
        msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def read_arguments(feed: TextFeed, ends: Sequence[str] = ()) -> Steps[bool]:
    """Stream a call's arguments; null, nothing and an empty text are an empty object.

    A model may write the arguments as a JSON string: then its content is emitted. `ends`: marks that end a call
    without arguments. If the answer was cut here, nothing is known of its arguments.
    """
    if (yield from feed.next_mark(ends)) is not None:
        feed.emit(NO_ARGUMENTS)
        return True
    if ends and (yield from feed.is_at_end()):
        feed.emit("" if feed.is_cut else NO_ARGUMENTS)
        return not feed.is_cut
    if (yield from feed.starts_with(NULL)):
        feed.take(NULL, SpanKind.ARGUMENTS, NO_ARGUMENTS)
        return True
    if not (yield from feed.starts_with('"')):
        return (yield from stream_json_value(feed))
    raw = yield from feed.read_string()
    text = decode_string(raw)
    if raw is None or text is None:
        return (yield from stream_json_value(feed))
    feed.take(raw, SpanKind.ARGUMENTS, NO_ARGUMENTS if text.strip() in ("", NULL) else text)
    return True


def stream_json_value(feed: TextFeed) -> Steps[bool]:
    """Stream one JSON value as arguments while it comes. False: it is not JSON from here on, or the text ends in it."""
    depth = 0
    while True:
        character = yield from feed.peek()
        if character == '"':
            if not (yield from _stream_string(feed)):
                return False
        elif character in ("{", "["):
            depth += 1
            feed.take(character, SpanKind.ARGUMENTS)
        elif character in ("}", "]") and depth:
            depth -= 1
            feed.take(character, SpanKind.ARGUMENTS)
        else:
            if not (yield from feed.stream_matching(_INSIDE if depth else _SCALAR, SpanKind.ARGUMENTS)):
                return False
        if depth == 0:
            return True


def _stream_string(feed: TextFeed) -> Steps[bool]:
    feed.take('"', SpanKind.ARGUMENTS)
    while True:
        mark = yield from feed.stream_until(('"', "\\"), SpanKind.ARGUMENTS)
        if mark is None:
            return False
        feed.take(mark, SpanKind.ARGUMENTS)
        if mark == '"':
            return True
        escaped = yield from feed.peek()
        feed.take(escaped, SpanKind.ARGUMENTS)
