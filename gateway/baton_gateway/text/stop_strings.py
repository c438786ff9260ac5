"""Where a text ends because one of the client's stop strings has appeared in it, however its tokens were cut."""

from __future__ import annotations

from baton_gateway.answers.text_feed import possible_beginning


class StopMatcher:
    """Passes text through, holding back what may be the beginning of a stop string.

    The match whose last character comes first wins (the longest of those), so that the result does not depend on token
    borders. `includes`: the text ends behind the match, not before it.
    """

    __slots__ = ("_held", "_includes", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], includes: bool = False) -> None:
        self._stops = stops
        self._includes = includes
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be delivered. After a match (`matched` is set) it is cut before or behind the stop string;
        push no more.
        """
        if not self._stops or not text:
            return text
        text = self._held + text
        self._held = ""
        if (cut := self._find(text)) is not None:
            return text[:cut]
        keep = possible_beginning(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, at the end without a match."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        end, start, self.matched = min(found)
        return end if self._includes else start
