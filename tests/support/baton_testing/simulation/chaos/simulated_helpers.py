"""Helper processes without an operating system: the gateway's questions to templates, tokenizers and grammars are
answered here, by production code or a toy, after a while, through a pipe with the capacity of a real one.

The time of a computation is reported as processor time, so that a wedged process is either busy or stopped.
"""

from __future__ import annotations

import asyncio
import errno
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import msgspec
import pytest

from baton_gateway.helper_processes import fair_lock, helper_process, piped_process, process_lane
from baton_gateway.helper_processes.piped_process import BUFFER_BYTES
from baton_gateway.http_api import lookups
from baton_gateway.structured_outputs import format_compiler
from baton_gateway.structured_outputs.output_format import CompileResult, FormatKind, OutputFormat
from baton_gateway.text import template_renderer, tokenizer_process
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.template_main import Question as TemplateQuestion
from baton_gateway.text.template_main import Templates
from baton_gateway.text.tokenizer_process import (
    Decoded,
    DecodeIds,
    Encoded,
    EncodeText,
    LoadedTokenizer,
    LoadTokenizer,
)
from baton_testing.engine import toy_grammars
from baton_testing.simulation.chaos.plan import ChaosFault
from baton_wire.messages.values import pack_ids

PIPE_BYTES = 64 << 10
READ_S = 0.0005
"""A turn of the gateway's loop, which reads one pipe full."""
LONG_ANSWER_BYTES = 2 * BUFFER_BYTES + 4 * PIPE_BYTES
"""Bytes of a long chat: more than a reader takes before it pauses."""
BOOT_S, USUAL_S, LATE_S = 0.15, 0.02, 3.0
REAP_S = 0.001
RENDER_S, COMPILE_S = 0.4, 0.4
"""Limits are shorter than those of production, as worlds are."""
SHORTER: tuple[tuple[ModuleType, str, float], ...] = (
    (helper_process, "START_S", 1.0),
    (tokenizer_process, "LOAD_S", 1.0),
    (tokenizer_process, "ENCODE_S", 0.8),
    (process_lane, "TURN_S", 6.0),
    (lookups, "NOT_READY_S", 8.0),
    (lookups, "WEDGED_S", 14.0),
)
TIMED = (process_lane, fair_lock, format_compiler, template_renderer, tokenizer_process)
"""Modules that look at the clock of the machine."""
BUNDLE = Bundle("0" * 64, "", "{% for message in messages %}{{ message['content'] }}{% endfor %}", {}, ())
PADDING = "~"
"""The text that makes a chat long and is not in its prompt."""
_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode

Answers = Callable[[bytes], list[bytes]]


def text_of(ids: tuple[int, ...]) -> str:
    return "".join(map(toy_grammars.letter, ids))


def _templates() -> Answers:
    templates, questions = Templates(), msgspec.json.Decoder(TemplateQuestion)

    def answer(body: bytes) -> list[bytes]:
        rendered = templates.answer(questions.decode(body))
        if rendered.text is None or not rendered.text.endswith(PADDING):
            return [_json(rendered)]
        return [_json(msgspec.structs.replace(rendered, text=rendered.text.rstrip(PADDING))) + b" " * LONG_ANSWER_BYTES]

    return answer


def _shapes() -> Answers:
    """Answer a regular expression with its grammar; sometimes an early answer comes before the final one."""
    shapes = msgspec.json.Decoder(OutputFormat)

    def answer(body: bytes) -> list[bytes]:
        shape = shapes.decode(body)
        if shape.kind is not FormatKind.REGEX:
            return [_json(CompileResult("start: /./"))]
        final = CompileResult(toy_grammars.grammar(shape.source).definition)
        return [_json(msgspec.structs.replace(final, is_provisional=True)), _json(final)]

    return answer


def _tokenizer() -> Answers:
    questions: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(LoadTokenizer | EncodeText | DecodeIds)

    def answer(body: bytes) -> list[bytes]:
        match questions.decode(body):
            case LoadTokenizer():
                return [_pack(LoadedTokenizer(BUNDLE, (), {}, {}, b"", None, {}))]
            case EncodeText(text, _, max_tokens):
                ids = [ord(char) - ord("0") for char in text]
                return [_pack(Encoded(None if len(ids) > 2 * max_tokens else pack_ids(ids)))]
        return [_pack(Decoded(""))]

    return answer


ANSWERING: dict[str, Callable[[], Answers]] = {
    "baton_gateway.text.template_main": _templates,
    "baton_gateway.structured_outputs.format_compiler_main": _shapes,
    "baton_gateway.text.tokenizer_main": _tokenizer,
}


class HelperOwner(Protocol):
    """A simulated gateway, as its helper processes see it."""

    is_alive: bool

    @property
    def now(self) -> float: ...

    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class HelperRoom:
    """The helper processes of one gateway, and what is to go wrong with them."""

    owner: HelperOwner
    loop: asyncio.AbstractEventLoop
    dice: random.Random
    count: Callable[[ChaosFault], None]
    on_full: Callable[[], None]
    """Called when as much of an answer came as its reader takes before it pauses: in the same turn a client may go."""
    running: list[PlayedProcess] = field(default_factory=list)
    wedge_next: bool = False
    delay_next_s: float = 0.0
    refuses_until_s: float = 0.0
    """Until then nothing can be started."""
    refusal: ChaosFault = ChaosFault.REFUSE_HELPER
    mute_next: bool = False
    failed_s: float = -1e9
    """When something last went wrong here."""

    def blame(self, fault: ChaosFault) -> None:
        self.failed_s = self.owner.now
        self.count(fault)
        self.owner.note(f"{fault}")

    def kill(self, pick: float) -> None:
        if self.running:
            victim = self.running[int(pick * len(self.running))]
            self.blame(ChaosFault.KILL_HELPER)
            victim.end()

    def start(self, module: str) -> PlayedProcess:
        """Raises OSError."""
        if self.owner.now < self.refuses_until_s:
            self.blame(self.refusal)
            raise OSError(errno.EMFILE if self.refusal is ChaosFault.NO_DESCRIPTORS else errno.ENOMEM, "cannot start")
        process = PlayedProcess(self, ANSWERING[module]())
        self.running.append(process)
        return process


class PlayedProcess:
    """The used part of `piped_process.PipedProcess`."""

    def __init__(self, room: HelperRoom, answers: Answers) -> None:
        self._room, self._answers, self._loop = room, answers, room.loop
        self.pid = room.dice.randrange(1 << 30)
        self.is_alive = True
        self.is_mute = room.mute_next
        if self.is_mute:
            room.mute_next = False
            room.blame(ChaosFault.MUTE_HELPER)
        self._computes_since: float | None = None
        self._is_killed = False
        self.stdout = asyncio.StreamReader(limit=BUFFER_BYTES, loop=self._loop)
        self.stdout.set_transport(self)  # type: ignore[arg-type]
        self._ready_s = self._loop.time() + room.dice.random() * BOOT_S
        self._unread = bytearray()
        self._is_paused = self._is_pumping = False
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_running(self) -> bool:
        return self.is_alive and not self._is_killed

    @property
    def processor_s(self) -> float | None:
        """None: it is gone."""
        if not self.is_alive:
            return None
        return 0.0 if self._computes_since is None else self._loop.time() - self._computes_since

    @property
    def returncode(self) -> int | None:
        return -signal.SIGKILL if self._ended.done() else None

    async def connect(self) -> None:
        """Its pipes exist."""

    async def write(self, frame: bytes) -> None:
        """Raises OSError."""
        if not self.is_alive:
            raise BrokenPipeError("the process is gone")
        self.asked(frame)

    async def wait(self, within_s: float) -> None:
        await asyncio.wait([self._ended], timeout=within_s)

    # Of the process ---------------------------------------------------------------------------------------------------

    def asked(self, frame: bytes) -> None:
        if not self.is_alive or self.is_mute:
            return
        room = self._room
        self._computes_since = self._loop.time()
        delay_s = max(0.0, self._ready_s - self._loop.time()) + room.dice.random() ** 2 * USUAL_S
        if room.wedge_next:
            room.wedge_next, self.is_mute = False, True
            if room.dice.random() < 0.5:  # it is stopped, rather than busy
                self._computes_since = None
            room.blame(ChaosFault.WEDGE_HELPER)
            return
        if room.delay_next_s:
            delay_s, room.delay_next_s = delay_s + room.delay_next_s, 0.0
            room.blame(ChaosFault.DELAY_HELPER)
        for body in self._answers(bytes(frame[4:])):
            self._loop.call_later(delay_s, self._write, len(body).to_bytes(4) + body)
            delay_s += room.dice.random() * USUAL_S

    def _write(self, frame: bytes) -> None:
        if self.is_alive:
            self._unread += frame
            self._pump_soon()

    def kill(self) -> None:
        """Its pipes are closed at once: nothing of it is read any more."""
        if not self._is_killed:
            self._loop.call_soon(self.stdout.feed_eof)
        self._is_killed = True
        self._unread.clear()
        self.end()

    def end(self) -> None:
        """End the process; bytes in the pipe can still be read."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._room.running.remove(self)
        del self._unread[PIPE_BYTES:]
        self._loop.call_later(REAP_S, self._reap)
        self._pump_soon()

    def _reap(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # Of its pipe ------------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_paused = True
        self._room.on_full()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_later(READ_S, self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        if self._is_paused or self._is_killed:
            return
        if self._unread:
            data = bytes(self._unread[:PIPE_BYTES])
            del self._unread[:PIPE_BYTES]
            self.stdout.feed_data(data)
            self._pump_soon()
        elif not self.is_alive:
            self.stdout.feed_eof()


@contextmanager
def helpers_are_simulated(
    room_of: Callable[[asyncio.AbstractEventLoop], HelperRoom], now: Callable[[], float]
) -> Iterator[None]:
    """Within, helper processes are those of the running loop's gateway, and clocks tell `now`."""
    by_pid: dict[int, PlayedProcess] = {}

    def start(module: str, complaints: object) -> PlayedProcess:
        process = room_of(asyncio.get_running_loop()).start(module)
        by_pid[process.pid] = process
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piped_process, "start", start)
        patch.setattr(helper_process, "processor_s", lambda pid: by_pid[pid].processor_s)
        for module, name, value in SHORTER:
            patch.setattr(module, name, value)
        for module in TIMED:
            patch.setattr(module, "time", SimpleNamespace(monotonic=now))
        yield
