"""Terms of Lark, llguidance's language for grammars, and the check of a client's own grammar. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton_gateway.structured_outputs.pattern import MAX_STATES, PatternError, translate_pattern

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_BLANKS = 32
"""The longest indentation. Without a bound a model could write blanks until its tokens are used up."""


def json_options(indentation: str) -> JsonCompileOptions:
    """Return llguidance's options for JSON. `indentation`: the quantifier of blanks at the beginning of a line.

    Between parts there is at most one space, or a new line with its indentation. No `\\uXXXX` is written: with it a
    name has several spellings, and the compiler takes another spelling for another name, whose value it does not check.
    """
    return {"whitespace_pattern": rf"[ ]|\r?\n[ \t]{indentation}", "json_allowed_escapes": 'nrbtf\\"'}


PART_OPTIONS = json_options(indentation=f"{{0,{MAX_BLANKS}}}")
"""Options for JSON that is a part of a larger grammar, which bounds the blanks itself."""

_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<expression>/(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<counted>\{\s*\d{0,9}\s*(?:,\s*\d{0,9}\s*)?\}|~\s*\d{1,9}(?:\s*\.\.\s*\d{1,9})?)
    |(?P<name>[!?]?[A-Za-z_][\w-]*)
    |(?P<mark>[():|*+?\[\],.&~]|->)
    |(?P<refused>[%@<].{0,32})""",
    re.VERBOSE,
)
_SIGNS = re.compile(r"[\\.+*?()|\[\]{}^$/\n]")
_BARE_SLASH = re.compile(r"\\.|[/\n]", re.DOTALL)
_NUMBERS = re.compile(r"\d+")


def literal(text: str) -> str:
    """Return the term that matches `text` itself."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


SpecialTokens = Mapping[str, int]
"""Texts that are one special token each, with the token's id."""


def split_at_token(text: str, tokens: SpecialTokens) -> tuple[str, str]:
    """Split a text before its first special token."""
    begin = min((place for token in tokens if (place := text.find(token)) >= 0), default=len(text))
    return text[:begin], text[begin:]


def to_terms(text: str, tokens: SpecialTokens) -> str:
    """Return the terms that match `text`, whose special tokens must come as tokens. Empty for an empty text."""
    terms = []
    while text:
        plain, text = split_at_token(text, tokens)
        if plain:
            terms.append(literal(plain))
        if text:
            token = max((token for token in tokens if text.startswith(token)), key=len)
            terms.append(f"<[{tokens[token]}]>")
            text = text[len(token) :]
    return " ".join(terms)


def pattern_containing(text: str) -> str:
    """Return an expression that matches every text that contains `text`."""
    return f"/(.|\\n)*{_SIGNS.sub(_escape, text)}(.|\\n)*/"


def pattern_beginning(text: str) -> str:
    """Return an expression that matches every text that begins with `text`."""
    return f"/{_SIGNS.sub(_escape, text)}(.|\\n)*/"


def pattern_term(pattern: str) -> str:
    """Return the term that matches an expression in the compiler's dialect."""
    return f"/{_BARE_SLASH.sub(_escape_in_pattern, pattern)}/"


def _escape_in_pattern(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(match[0], match[0])


def _escape(match: re.Match[str]) -> str:
    return "\\n" if match[0] == "\n" else f"\\{match[0]}"


def json_term(schema: dict[str, Any]) -> str:
    """Return the term that matches JSON of a schema from `check_schema`."""
    return f"%json {json.dumps(schema | {'x-guidance': PART_OPTIONS}, ensure_ascii=False)}"


def check_lark(source: str) -> None:
    """Check a client's grammar. Raises PatternError if it does more than match text, or becomes too large.

    Special tokens, inline schemas and compiler options are reserved for the gateway.
    """
    place = states = 0
    factor = 1
    while place < len(source):
        match = _TOKEN.match(source, place)
        if match is None:
            raise PatternError(f"the character {source[place]!r} in line {_line(source, place)} is not Lark")
        token = match.group()
        match match.lastgroup:
            case "refused":
                reason = "special tokens and directives ('<…>', '%…', '@…') are not available"
                raise PatternError(f"{reason} (line {_line(source, place)})")
            case "expression":
                translate_pattern(token[1 : token.rindex("/")].replace("\\/", "/"))
            case "counted":
                factor *= max(1, *map(int, _NUMBERS.findall(token) or ["1"]))
        states += match.lastgroup in ("text", "expression", "name")
        if factor * states > MAX_STATES * 10:
            raise PatternError(f"its counted repeats together make more than {MAX_STATES * 10} states")
        place = match.end()


def _line(source: str, place: int) -> int:
    return source.count("\n", 0, place) + 1
