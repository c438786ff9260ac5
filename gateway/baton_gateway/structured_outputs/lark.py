"""Pieces of Lark, the compiler's language for grammars, and the check of a client's own. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton_gateway.structured_outputs.pattern import MAX_STATES, PatternError, common_pattern

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_BLANKS = 32
"""Of an indentation. Without a bound a model could go on with blanks until its tokens are spent."""


def json_options(indentation: str) -> JsonCompileOptions:
    """How JSON is written where a grammar leaves it open. One space, or a new line with its indentation, which may be
    so long. No `\\uXXXX`: with it a name has several spellings, and the compiler takes another spelling of a name for
    another name, whose value it does not check.
    """
    return {"whitespace_pattern": rf"[ ]|\r?\n[ \t]{indentation}", "json_allowed_escapes": 'nrbtf\\"'}


PART_OPTIONS = json_options(indentation=f"{{0,{MAX_BLANKS}}}")
"""Of JSON that is a part of a grammar. The grammar itself bounds its blanks."""

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
_NUMBERS = re.compile(r"\d+")


def literal(text: str) -> str:
    """`text` itself, as a term of a rule."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


Marks = Mapping[str, int]
"""Texts that are one special token each, with its id."""


def split_mark(text: str, marks: Marks) -> tuple[str, str]:
    """The text before the first mark, and the rest."""
    place = min((found for mark in marks if (found := text.find(mark)) >= 0), default=len(text))
    return text[:place], text[place:]


def marked(text: str, marks: Marks) -> str:
    """`text` as terms of a rule, in which marks are their tokens. Empty for no text."""
    terms = []
    while text:
        plain, text = split_mark(text, marks)
        if plain:
            terms.append(literal(plain))
        if text:
            mark = max((mark for mark in marks if text.startswith(mark)), key=len)
            terms.append(f"<[{marks[mark]}]>")
            text = text[len(mark) :]
    return " ".join(terms)


def containing(text: str) -> str:
    """An expression that matches whatever has `text` in it."""
    return f"/(.|\\n)*{_SIGNS.sub(_escaped, text)}(.|\\n)*/"


def _escaped(found: re.Match[str]) -> str:
    return "\\n" if found[0] == "\n" else f"\\{found[0]}"


def json_term(schema: dict[str, Any]) -> str:
    """JSON of a schema from `check_schema`, as a term of a rule."""
    return f"%json {json.dumps(schema | {'x-guidance': PART_OPTIONS}, ensure_ascii=False)}"


def check_lark(source: str) -> None:
    """Raises PatternError for a client's grammar that has more than text in it, or becomes too large.

    Special tokens, inline schemas and options of the compiler are the gateway's own.
    """
    place = states = 0
    factor = 1
    while place < len(source):
        found = _TOKEN.match(source, place)
        if found is None:
            raise PatternError(f"the character {source[place]!r} in line {_line(source, place)} is not Lark")
        token = found.group()
        match found.lastgroup:
            case "refused":
                reason = "special tokens and directives ('<…>', '%…', '@…') are not available"
                raise PatternError(f"{reason} (line {_line(source, place)})")
            case "expression":
                common_pattern(token[1 : token.rindex("/")].replace("\\/", "/"))
            case "counted":
                factor *= max(1, *map(int, _NUMBERS.findall(token) or ["1"]))
        states += found.lastgroup in ("text", "expression", "name")
        if factor * states > MAX_STATES * 10:
            raise PatternError(f"its counted repeats together make more than {MAX_STATES * 10} states")
        place = found.end()


def _line(source: str, place: int) -> int:
    return source.count("\n", 0, place) + 1
