"""What one choice's token ids mean as text: increments for the client, where a stop string ends it, logprobs beside
their tokens.

Pure: ids in, increments out. A token's logprob entry goes out with the increment that completes the token's text;
tokens that lie wholly behind a stop string's beginning have none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, ContentPart
from baton_gateway.answers.text_feed import possible_beginning
from baton_gateway.text.detokenizer import Detokenizer
from baton_wire.messages.values import Finish, TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """One delivered token with its logprob; `text_offset` in characters from the beginning of the choice's text."""

    token: int
    logprob: TokenLogprob | None
    """None: the first token of a prompt that is given back."""
    text_offset: int


@dataclass(frozen=True, slots=True)
class Increment:
    """The next piece of a choice's text. `finish` is set on the last one."""

    text: str
    tokens: tuple[TokenInfo, ...] = ()
    finish: Finish | None = None
    stopped_after: int | None = None
    """A stop string matched at this many tokens of the choice: the engine need not go on."""
    counted: int = 0
    """Tokens of the choice that count up to here: those of text held back too, none behind a stop string."""
    stop: str | None = None
    """With `finish`: the stop string that ended the text."""
    parts: tuple[AnswerPart, ...] | None = None
    """What of the answer became clear; None: the text is content as it is."""
    has_calls: bool = False
    """Whether the choice has called a tool so far. With a stop string: whether the last call was complete."""

    @property
    def told(self) -> tuple[AnswerPart, ...]:
        """The parts to be written."""
        if self.parts is not None:
            return self.parts
        return (ContentPart(self.text),) if self.text else ()

    @property
    def finish_reason(self) -> str | None:
        """As OpenAI's API has it."""
        if self.finish is None:
            return None
        return "tool_calls" if self.has_calls and self.finish is Finish.STOP else self.finish.value


class ChoiceText:
    """The text of one choice while it grows."""

    __slots__ = ("_begin", "_counted", "_detokenizer", "_includes_end", "_parts", "_pending", "_reader",
        "_released", "_stop", "_text_end", "_tokens", "finish", "reasoning_tokens")  # fmt: skip

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: tuple[str, ...],
        text_offset: int = 0,
        reader: OutputParser | None = None,
        includes_stop: bool = False,
    ) -> None:
        """`includes_stop`: what ended the text is a part of it. A stop id that a reader would take for text is not."""
        self._reader = reader
        self._includes_end = includes_stop and reader is None
        self._parts: list[AnswerPart] = []
        self.reasoning_tokens = 0
        """Tokens of thoughts so far, without their marks."""
        self._detokenizer = detokenizer
        self._stop = StopMatcher(stops, includes_stop)
        self._tokens = 0
        self._counted = 0
        self._begin = self._text_end = text_offset
        self._released = text_offset
        self._pending: deque[tuple[TokenInfo, int]] = deque()
        self.finish: Finish | None = None

    def push(self, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...] | None, finish: Finish | None) -> Increment:
        """Take the next ids. With finish STOP the last of them is a stop id, not rendered unless stops are included."""
        self._counted += len(ids)
        rendered = len(ids) - 1 if finish is Finish.STOP and not self._includes_end else len(ids)
        text = ""
        for place in range(rendered):
            text += self._take(ids[place], logprobs[place] if logprobs else None)
            if self._stop.matched is not None or (self._reader is not None and self._reader.is_over):
                return self._end(text, Finish.STOP, stopped_after=self._tokens)
        if finish is None:
            return self._increment(Increment(text, self._release(len(text)), counted=self._counted))
        last = self._stop.push(self._grown(self._detokenizer.flush()))
        if self._stop.matched is None:
            last += self._stop.flush()
        else:
            finish = Finish.STOP
        self._read(last)
        return self._end(text + last, finish)

    def _increment(self, increment: Increment) -> Increment:
        """With what the reader found."""
        reader = self._reader
        if reader is None:
            return increment
        if increment.finish is not None:
            self._parts += reader.end()
        parts, self._parts = tuple(self._parts), []
        has_calls = reader.has_calls if increment.stop is None else reader.has_whole_call
        return replace(increment, parts=parts, has_calls=has_calls)

    def _read(self, text: str) -> None:
        if self._reader is not None and text:
            self._parts += self._reader.push(text)

    def _take(self, token: int, logprob: TokenLogprob | None) -> str:
        self._tokens += 1
        start = self._text_end
        grown = self._grown(self._detokenizer.push(token))
        if self._reader is not None:
            self._reader.token_at(token, grown, start - self._begin)
        if logprob is not None:
            self._pending.append((TokenInfo(token, logprob, start), self._text_end))
        free = self._stop.push(grown) if grown else ""
        was_thinking = self._reader is not None and self._reader.is_thinking
        self._read(free)
        self.reasoning_tokens += was_thinking and self._reader is not None and self._reader.is_thinking
        return free

    def _grown(self, text: str) -> str:
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
        partly = (info for info, _ in self._pending if info.text_offset < self._released)
        rest = tuple(info for info, _ in self._pending) if self._stop.matched is None else tuple(partly)
        self._pending.clear()
        counted = self._counted if stopped_after is None else stopped_after
        return self._increment(Increment(text, released + rest, finish, stopped_after, counted, self._stop.matched))


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
