"""Look-aheads at the beginning of an expression as expressions of their own, which must match too. Pure.

The compiler has no look-around, but a text may have to match several expressions. `^(?=A)B` is `^A` and `^B`. `^(?!A)B`
is `^B` and the complement of `^A`, which is written here for the forms that generators of schemas use.
"""

from __future__ import annotations

import re

_ATOM = re.compile(r"\\[^\w]|\\[dDwWsStnrf]|\[\^?(?:[^\]\\]|\\.)+\]|[^\\^$.|?*+()\[\]{}]", re.DOTALL)
"""One character: itself, an escape or a class."""
_REPEATED = re.compile(rf"\^?({_ATOM.pattern})([*+])\$", re.DOTALL)
_CONTAINED = re.compile(rf"\.\*({_ATOM.pattern})({_ATOM.pattern})?", re.DOTALL)
_ANY = r"(?:.|\n)*"
MAX_LOOK_AHEADS = 3
MAX_WORD = 16
"""The most characters of a word that a text must not begin with."""


def split_look_aheads(pattern: str) -> tuple[str, ...] | None:
    """Return expressions that together match what `pattern` matches, without look-aheads; None: none are known."""
    rest = pattern.removeprefix("^")
    parts: list[str] = []
    while rest.startswith(("(?=", "(?!")):
        end = _end_of_group(rest)
        if end is None or pattern == rest:  # it must be anchored
            return None
        inner = rest[3 : end - 1]
        part = f"^(?:{inner.removeprefix('^')})" if rest[2] == "=" else _complement(inner)
        if part is None or len(parts) == MAX_LOOK_AHEADS:
            return None
        parts.append(part)
        rest = rest[end:]
    if not parts or _has_alternatives(rest):
        return None
    return (*parts, f"^{rest}")


def _end_of_group(text: str) -> int | None:
    """Return the end of the group with which the text begins."""
    depth = place = 0
    while place < len(text):
        match text[place]:
            case "\\":
                place += 1
            case "[":
                closed = re.compile(r"\[\^?(?:[^\]\\]|\\.)*\]", re.DOTALL).match(text, place)
                if closed is None:
                    return None
                place = closed.end() - 1
            case "(":
                depth += 1
            case ")":
                depth -= 1
                if depth == 0:
                    return place + 1
        place += 1
    return None


def _has_alternatives(text: str) -> bool:
    """Return True if the anchor before the text belongs to its first alternative only."""
    depth, place = 0, 0
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text[place] in "([":
            end = _end_of_group(text[place:]) if text[place] == "(" else None
            if end is not None:
                place += end - 1
        elif text[place] == "|" and depth == 0:
            return True
        place += 1
    return False


def _complement(inner: str) -> str | None:
    """Return an expression that matches the texts that do not begin with a match of `inner`; None: no known form."""
    if (repeated := _REPEATED.fullmatch(inner)) is not None:
        contains = f"{_ANY}{_negated(repeated[1])}{_ANY}"
        return f"^{contains}$" if repeated[2] == "*" else f"^(?:|{contains})$"
    if (contained := _CONTAINED.fullmatch(inner)) is not None:
        return _without(contained[1], contained[2])
    inner = inner.removeprefix("^")
    word = inner.removesuffix("$")
    atoms = [match[0] for match in _ATOM.finditer(word)]
    if not atoms or "".join(atoms) != word or len(atoms) > MAX_WORD:
        return None
    rest = rf"(?:.|\n){_ANY}" if inner != word else None
    for atom in reversed(atoms):
        rest = f"|{_negated(atom)}{_ANY}" + ("" if rest is None else f"|{atom}(?:{rest})")
    return f"^(?:{rest})$"


def _without(first: str, second: str | None) -> str | None:
    """Return an expression for the texts whose first line does not contain one or two characters in a row."""
    other = _negated(first, besides="\\n")
    if second is None:
        return rf"^{other}*(?:\n{_ANY})?$"
    if first == second:
        return rf"^(?:{first}?{other})*{first}?(?:\n{_ANY})?$"
    if _is_literal(first) and _is_literal(second):
        return rf"^(?:{other}|{first}+[^{_in_class(first)}{_in_class(second)}\n])*{first}*(?:\n{_ANY})?$"
    return None


def _is_literal(atom: str) -> bool:
    return not atom.startswith("[") and not (atom.startswith("\\") and atom[1].isalpha())


def _negated(atom: str, besides: str = "") -> str:
    """Return the class of the characters that an atom does not match, without those in `besides`."""
    if atom.startswith("[^"):
        return f"[{atom[2:-1]}]"
    if atom.startswith("["):
        return f"[^{atom[1:-1]}{besides}]"
    return f"[^{_in_class(atom)}{besides}]"


def _in_class(atom: str) -> str:
    return atom if atom.startswith("\\") or atom not in "]^-" else f"\\{atom}"
