"""The blank that stays where calls stood between two pieces of text: without it, words on both sides would join."""

from __future__ import annotations

from baton_gateway.answers.text_feed import SpanKind, TextSpan


class TextGaps:
    """Remembers the blanks around calls, by their places: spans of a call may come in another order."""

    def __init__(self, kind: SpanKind, usual: str = "") -> None:
        """`kind`: spans of text. `usual`: the gap between pieces without blanks around them."""
        self._kind = kind
        self._usual = usual
        self._text_end = -1
        """The place after the last text; -1: there was none."""
        self._ends_blank = False
        self._after, self._after_end = "", -1
        """The blanks directly after it, shortened, and the place after them."""
        self._before, self._before_end = "", -1
        """The last blanks that were no text, shortened, and the place after them."""

    def before(self, span: TextSpan) -> str:
        """Return the text to put before a span: a blank or a line end, where blanks were dropped and text resumes."""
        end = span.at + len(span.raw)
        if span.kind is self._kind:
            blanks = self._after + (self._before if self._before_end == span.at else "")
            has_gap = self._text_end not in (-1, span.at) and not self._ends_blank and not span.text[:1].isspace()
            self._text_end = self._after_end = end
            self._after, self._ends_blank = "", span.text[-1:].isspace()
            return (_shorten(blanks) or self._usual) if has_gap else ""
        if span.kind is SpanKind.MARK and span.raw.isspace():
            if span.at == self._after_end:
                self._after, self._after_end = _shorten(self._after + span.raw), end
            self._before = _shorten((self._before if self._before_end == span.at else "") + span.raw)
            self._before_end = end
        return ""


def _shorten(blanks: str) -> str:
    return "\n" if "\n" in blanks else blanks and " "
