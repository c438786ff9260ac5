"""Readers of calls that are JSON: an object of name and arguments, or a name with JSON behind it."""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

MAX_NAME_CHARS = 512
_ARGUMENTS = ("arguments", "parameters")
_BESIDE = ("id", "type")
"""Members that some models add, and that say nothing new."""
_INSIDE = re.compile(r"[\s,:0-9A-Za-z+.-]*")
_SCALAR = re.compile(r"[0-9A-Za-z+.-]*")


def call_object(feed: TextFeed, names: Collection[str] | None = None) -> Steps[bool]:  # noqa: C901
    """One call as an object of `name` and `arguments` or `parameters`, in any order. Whether it was one to its end.

    The feed holds; it is committed once the name is known and arguments begin. `names`: others are no calls.
    """
    if not (yield from feed.expect("{")):
        return False
    is_named = has_arguments = False
    while True:
        key = yield from _key(feed)
        if key == "name" and not is_named:
            name = yield from feed.string(MAX_NAME_CHARS)
            told = decoded(name)
            if name is None or not told or (names is not None and told not in names):
                return False
            feed.take(name, SpanKind.NAME, told)
            is_named = True
        elif key in _ARGUMENTS and not has_arguments:
            if is_named:
                feed.commit()
            has_arguments = True
            if not (yield from arguments(feed)):
                return False
        elif key in _BESIDE:
            if (beside := (yield from feed.string(MAX_NAME_CHARS))) is None:
                return False
            feed.take(beside, SpanKind.MARK)
        else:
            return False
        if (yield from feed.expect("}")):
            break
        if not (yield from feed.expect(",")):
            return False
    if not is_named:
        return False
    feed.commit()
    if not has_arguments:
        feed.tell("{}")
    return True


def _key(feed: TextFeed) -> Steps[str]:
    """Take a member's key with its colon; empty: none of those that a call has."""
    yield from feed.blanks()
    raw = yield from feed.string(MAX_NAME_CHARS)
    key = decoded(raw)
    if raw is None or key not in ("name", *_ARGUMENTS, *_BESIDE):
        return ""
    feed.take(raw, SpanKind.MARK)
    if not (yield from feed.expect(":")):
        return ""
    yield from feed.blanks()
    return key


def decoded(raw: str | None) -> str | None:
    """The text of a JSON string; None: it is none."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return None


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, with blanks around it or not."""
    try:
        msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def arguments(feed: TextFeed) -> Steps[bool]:
    """A call's arguments as they are; those that the model wrote as a JSON string are told without its quotes."""
    if not (yield from feed.starts('"')):
        return (yield from json_value(feed))
    raw = yield from feed.string()
    text = decoded(raw)
    if raw is None or text is None:
        return (yield from json_value(feed))
    feed.take(raw, SpanKind.ARGUMENTS, text or "{}")
    return True


def json_value(feed: TextFeed) -> Steps[bool]:
    """Tell one JSON value as arguments while it comes. False: it stops being JSON here, or the text ends in it."""
    depth = 0
    while True:
        character = yield from feed.character()
        if character == '"':
            if not (yield from _string(feed)):
                return False
        elif character in ("{", "["):
            depth += 1
            feed.take(character, SpanKind.ARGUMENTS)
        elif character in ("}", "]") and depth:
            depth -= 1
            feed.take(character, SpanKind.ARGUMENTS)
        else:
            if not (yield from feed.pass_matching(_INSIDE if depth else _SCALAR, SpanKind.ARGUMENTS)):
                return False
        if depth == 0:
            return True


def _string(feed: TextFeed) -> Steps[bool]:
    feed.take('"', SpanKind.ARGUMENTS)
    while True:
        mark = yield from feed.pass_until(('"', "\\"), SpanKind.ARGUMENTS)
        if mark is None:
            return False
        feed.take(mark, SpanKind.ARGUMENTS)
        if mark == '"':
            return True
        escaped = yield from feed.character()
        feed.take(escaped, SpanKind.ARGUMENTS)
