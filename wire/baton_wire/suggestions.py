"""Did-you-mean: the known word that a mistyped one is closest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LIKENESS = 0.6


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one; None: none is like it."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=LIKENESS)
    return matches[0] if matches else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """`: did you mean X?`, or nothing.

    >>> suggestion("quantize", ["quantise", "status"])
    ': did you mean quantise?'
    >>> suggestion("fly", ["quantise", "status"])
    ''
    """
    meant = closest(word, known)
    return f": did you mean {meant}?" if meant else ""
