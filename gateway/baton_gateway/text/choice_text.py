"""The text of one choice's token ids: increments for the client, the stop strings that end it, the tokens' logprobs.

Pure: ids in, increments out. A token's logprob entry goes out with the increment that completes the token's text.
Tokens that lie wholly after the beginning of a stop string have none.
"""

from __future__ import annotations

from collections import deque

import msgspec

from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, ContentPart
from baton_gateway.answers.text_feed import partial_match_length
from baton_gateway.text.detokenizer import Detokenizer
from baton_wire.messages.values import Finish, TokenLogprob


class TokenInfo(msgspec.Struct, frozen=True):
    """One delivered token with its logprob. `text_offset`: characters from the beginning of the choice's text."""

    token: int
    logprob: TokenLogprob | None
    """None for the first token of an echoed prompt."""
    text_offset: int


class Increment(msgspec.Struct, frozen=True):
    """The next piece of a choice's text. Only the last one has `finish`."""

    text: str
    tokens: tuple[TokenInfo, ...] = ()
    finish: Finish | None = None
    stopped_after: int | None = None
    """The number of tokens at which a stop string matched: the engine can stop there."""
    counted: int = 0
    """Tokens of the choice up to here: those of held-back text count, those after a stop string do not."""
    stop: str | None = None
    """The stop string that ended the text; set with `finish`."""
    parts: tuple[AnswerPart, ...] | None = None
    """The parts of the answer that became clear; None: all of the text is content."""
    ids: tuple[int, ...] = ()
    """The tokens that the increment counts, if the client wants their ids."""
    has_calls: bool = False
    """True if the choice has called a tool so far. After a stop string: whether the last call was complete."""

    @property
    def output_parts(self) -> tuple[AnswerPart, ...]:
        """The parts to be written to the client."""
        if self.parts is not None:
            return self.parts
        return (ContentPart(self.text),) if self.text else ()

    @property
    def finish_reason(self) -> str | None:
        """The reason in the terms of OpenAI's API."""
        if self.finish is None:
            return None
        return "tool_calls" if self.has_calls and self.finish is Finish.STOP else self.finish.value


class ChoiceText:
    """The growing text of one choice."""

    __slots__ = (
        "_begin",
        "_counted",
        "_detokenizer",
        "_includes_end",
        "_parser",
        "_parts",
        "_pending",
        "_released",
        "_stop",
        "_text_end",
        "_tokens",
        "finish",
        "reasoning_tokens",
    )  # fmt: skip

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: tuple[str, ...],
        text_offset: int = 0,
        parser: OutputParser | None = None,
        includes_stop: bool = False,
    ) -> None:
        """`includes_stop`: the stop that ended the text belongs to it, but for a stop id that the parser would read."""
        self._parser = parser
        self._includes_end = includes_stop and parser is None
        self._parts: list[AnswerPart] = []
        self.reasoning_tokens = 0
        """Tokens of reasoning so far, without its marks."""
        self._detokenizer = detokenizer
        self._stop = StopMatcher(stops, includes_stop)
        self._tokens = 0
        self._counted = 0
        self._begin = self._text_end = text_offset
        self._released = text_offset
        self._pending: deque[tuple[TokenInfo, int]] = deque()
        self.finish: Finish | None = None

    @property
    def counted(self) -> int:
        """Tokens that were pushed so far."""
        return self._counted

    def push(self, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...] | None, finish: Finish | None) -> Increment:
        """Take the next ids. With `finish` STOP the last one is a stop id, not rendered unless stops are included."""
        self._counted += len(ids)
        rendered = len(ids) - 1 if finish is Finish.STOP and not self._includes_end else len(ids)
        text = ""
        for index in range(rendered):
            text += self._take(ids[index], logprobs[index] if logprobs else None)
            if self._stop.matched is not None or (self._parser is not None and self._parser.is_over):
                return self._end(text, Finish.STOP, stopped_after=self._tokens)
        if finish is None:
            return self._increment(Increment(text, self._release(len(text)), counted=self._counted))
        last = self._stop.push(self._extend(self._detokenizer.flush()))
        if self._stop.matched is None:
            last += self._stop.flush()
        else:
            finish = Finish.STOP
        self._read(last)
        return self._end(text + last, finish)

    def _increment(self, increment: Increment) -> Increment:
        """Add what the parser read to an increment."""
        parser = self._parser
        if parser is None:
            return increment
        if increment.finish is not None:
            self._parts += parser.end(is_cut=increment.finish is not Finish.STOP or increment.stop is not None)
        parts, self._parts = tuple(self._parts), []
        has_calls = parser.has_calls if increment.stop is None else parser.has_whole_call
        return msgspec.structs.replace(increment, parts=parts, has_calls=has_calls)

    def _read(self, text: str) -> None:
        if self._parser is not None and text:
            self._parts += self._parser.push(text)

    def _take(self, token: int, logprob: TokenLogprob | None) -> str:
        self._tokens += 1
        start = self._text_end
        added = self._extend(self._detokenizer.push(token))
        if self._parser is not None:
            self._parser.token_at(token, added, start - self._begin)
        if logprob is not None:
            self._pending.append((TokenInfo(token, logprob, start), self._text_end))
        free = self._stop.push(added) if added else ""
        was_thinking = self._parser is not None and self._parser.is_thinking
        self._read(free)
        self.reasoning_tokens += was_thinking and self._parser is not None and self._parser.is_thinking
        return free

    def _extend(self, text: str) -> str:
        self._text_end += len(text)
        return text

    def _release(self, length: int) -> tuple[TokenInfo, ...]:
        self._released += length
        if not self._pending:
            return ()
        ready = []
        while self._pending and self._pending[0][1] <= self._released:
            ready.append(self._pending.popleft()[0])
        return tuple(ready)

    def _end(self, text: str, finish: Finish, stopped_after: int | None = None) -> Increment:
        self.finish = finish
        released = self._release(len(text))
        is_cut = self._stop.matched is not None
        rest = tuple(info for info, _ in self._pending if not is_cut or info.text_offset < self._released)
        self._pending.clear()
        counted = self._counted if stopped_after is None else stopped_after
        return self._increment(Increment(text, released + rest, finish, stopped_after, counted, self._stop.matched))


class StopMatcher:
    """Passes text through until a stop string appears in it, and holds back what may be the beginning of one.

    The match that ends first wins, the longest if several end there, so the result does not depend on how tokens cut
    the text. `includes`: the text ends after the match, not before it.
    """

    __slots__ = ("_held", "_includes", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], includes: bool = False) -> None:
        self._stops = stops
        self._includes = includes
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return text that may be delivered. At a match (`matched` is set) it ends before or after the stop string.

        Nothing may be pushed after a match.
        """
        if not self._stops or not text:
            return text
        text = self._held + text
        self._held = ""
        if (cut := self._find(text)) is not None:
            return text[:cut]
        keep = partial_match_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the held-back text, at an end without a match."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not matches:
            return None
        end, start, self.matched = min(matches)
        return end if self._includes else start
