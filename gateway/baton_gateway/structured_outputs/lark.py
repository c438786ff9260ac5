"""Terms of Lark, llguidance's language for grammars, and the check of a client's own grammar. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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

_ATTRIBUTE = (
    r"""(?:capture(?:="\w*")?|lazy|max_tokens=\d{1,6}|(?:stop|suffix)=(?:"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)*/))"""
)
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<expression>/(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<attributes>\[\s*(?:{attribute}\s*,\s*)*{attribute}\s*\])
    |(?P<schema>%json\b)
    |(?P<counted>\{\s*\d{0,9}\s*(?:,\s*\d{0,9}\s*)?\}|~\s*\d{1,9}(?:\s*\.\.\s*\d{1,9})?)
    |(?P<name>[!?]?[A-Za-z_][\w-]*)
    |(?P<mark>[():|*+?\[\],.&~]|->)
    |(?P<refused>[%@<].{0,32})""".replace("{attribute}", _ATTRIBUTE),
    re.VERBOSE,
)
_OPTIONS = re.compile(r"(\s*%llguidance\s*\{\s*\})?")
"""The line with which guidance's grammars begin, without any option."""
_FLAGS = re.compile(r"\(\?[imsux-]{1,8}:")
_DECODER = json.JSONDecoder()
_EBNF = re.compile(r"(?:^|\n)\s*(<?[\w-]{1,64}>?)\s*::=")
"""A rule in the form of other servers' grammars (GBNF)."""
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


def json_term(schema: dict[str, Any], options: JsonCompileOptions = PART_OPTIONS) -> str:
    """Return the term that matches JSON of a schema from `check_schema`."""
    return f"%json {json.dumps(schema | {'x-guidance': options}, ensure_ascii=False)}"


def read_lark(source: str, read_schema: Callable[[Any], dict[str, Any]]) -> str:
    """Read a client's grammar, and return it as the compiler takes it. `read_schema`: checks an inline schema.

    Special tokens and compiler options are reserved for the gateway. Raises PatternError for a grammar that does more
    than match text, or becomes too large.
    """
    if (rule := _EBNF.search(source)) is not None:
        form = "a rule is 'name: …', the first one is 'start', an expression is '/[a-z]+/'"
        raise PatternError(
            f"EBNF ('{rule[1]} ::= …') is not taken, only Lark: {form} (line {_line(source, rule.start(1))})"
        )
    place = _OPTIONS.match(source).end()  # type: ignore[union-attr]
    states, factor, parts = 0, 1, list[str]()
    while place < len(source):
        match = _TOKEN.match(source, place)
        if match is None:
            raise PatternError(f"the character {source[place]!r} in line {_line(source, place)} is not Lark")
        token, end = match.group(), match.end()
        match match.lastgroup:
            case "schema":
                schema, end = _inline_schema(source, end)
                token = json_term(read_schema(schema), _client_options(schema))
            case "refused":
                reason = "special tokens and directives ('<…>', '@…', '%…' other than '%json') are not available"
                raise PatternError(f"{reason} (line {_line(source, place)})")
            case "expression":
                body = token[1 : token.rindex("/")].replace("\\/", "/")
                translate_pattern(_FLAGS.sub("(?:", body))
            case "counted":
                factor *= max(1, *map(int, _NUMBERS.findall(token) or ["1"]))
        states += match.lastgroup in ("text", "expression", "name", "schema")
        if factor * states > MAX_STATES * 10:
            raise PatternError(f"its counted repeats together make more than {MAX_STATES * 10} states")
        parts.append(token)
        place = end
    return "".join(parts)


def _inline_schema(source: str, begin: int) -> tuple[Any, int]:
    """Return the schema after `%json`, and its end."""
    begin = len(source) - len(source[begin:].lstrip())
    try:
        return _DECODER.raw_decode(source, begin)
    except (ValueError, RecursionError) as error:
        raise PatternError(f"'%json' needs a schema as JSON (line {_line(source, begin)})") from error


def _client_options(schema: Any) -> JsonCompileOptions:
    """Return the options of an inline schema: the client may ask for exact separators, with which it reads the answer.

    Others of its options are the gateway's to choose.
    """
    asked = schema.get("x-guidance") if isinstance(schema, dict) else None
    if not isinstance(asked, dict) or asked.get("whitespace_flexible") is not False:
        return PART_OPTIONS
    items, keys = asked.get("item_separator", ", "), asked.get("key_separator", ": ")
    if items not in (",", ", ") or keys not in (":", ": "):
        raise PatternError("separators of '%json' may be ',' or ', ', and ':' or ': '")
    return {
        "whitespace_flexible": False, "item_separator": items, "key_separator": keys,
        "json_allowed_escapes": PART_OPTIONS["json_allowed_escapes"],
    }  # fmt: skip


def _line(source: str, place: int) -> int:
    return source.count("\n", 0, place) + 1
