"""The blank that stays where calls stood between two pieces of text: without it, words on both sides would join."""

from __future__ import annotations

from baton_gateway.answers.text_feed import TextSpan


class TextGaps:
    """Remembers the blanks around calls, by their places: spans of a call may come in another order."""

    def __init__(self, usual: str = "") -> None:
        """`usual`: the gap between pieces without blanks around them."""
        self._usual = usual
        self._last = ""
        """The last piece of text; empty: there was none."""
        self._text_end = -1
        """The place after it."""
        self._after, self._after_length = "", 0
        """The blanks directly after it, shortened, and how many there were."""
        self._before, self._before_end = "", -1
        """The last blanks that were no text, shortened, and the place after them."""

    def before(self, span: TextSpan) -> str:
        """Return the text to put before a span of text: a blank or a line end, where blanks were dropped before it."""
        last, is_next = self._last, span.at == self._text_end
        self._last, self._text_end = span.text or last, span.at + len(span.raw)
        if is_next or not last:
            self._after, self._after_length = "", 0
            return ""
        blanks = self._after + (self._before if self._before_end == span.at else "")
        self._after, self._after_length = "", 0
        return "" if last[-1].isspace() or span.text[:1].isspace() else _shorten(blanks) or self._usual

    def pass_mark(self, span: TextSpan) -> None:
        """Take note of a span that is no text."""
        if not span.raw.isspace():
            return
        if span.at == self._text_end + self._after_length:
            self._after = _shorten(self._after + span.raw)
            self._after_length += len(span.raw)
        self._before = _shorten((self._before if self._before_end == span.at else "") + span.raw)
        self._before_end = span.at + len(span.raw)


def _shorten(blanks: str) -> str:
    return "\n" if "\n" in blanks else blanks and " "
