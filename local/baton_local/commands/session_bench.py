"""`baton bench --sessions`: which sessions are sent, and how one run of them is carried out."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from baton_local.argument_types import integer, positive
from baton_local.client import Answer, send
from baton_local.errors import StartError
from baton_local.load_test.closed_loop import LoopLimits, TurnAnswer, closed_loop
from baton_local.load_test.length_distribution import LengthDistribution, length_distribution
from baton_local.load_test.loaded_server import LoadedServer
from baton_local.load_test.prompts import IdPrompts, WordPrompts
from baton_local.load_test.session_prompts import IdSegments, SegmentWriter, SessionPrompts, WordSegments
from baton_local.load_test.session_report import SessionRun
from baton_local.progress_bar import PROGRAM, ProgressBar
from baton_simulate.sessions.hash_traces import read_hash_trace
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_load import SessionLoad, SessionTurn
from baton_simulate.sessions.session_shapes import SHAPES, LogUniform, SessionShape, drawn_shape

MOST_NUMBER: Final = 1 << 30
SESSION_HEADER: Final = "X-Session-Id"


@dataclass(frozen=True, slots=True)
class SessionSource:
    """Where sessions come from: a shape, or the load of a trace."""

    name: str
    shape: SessionShape | None
    trace: SessionLoad | None = None

    def load(self, seed: int) -> SessionLoad:
        if self.trace is not None:
            return self.trace
        assert self.shape is not None
        return generated_load(self.shape, seed, self.name)


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """The options that make sessions; `baton bench` and `baton simulate` have the same."""
    sessions = parser.add_argument_group("sessions")
    sessions.add_argument(
        "--sessions",
        metavar="SHAPE|NUMBER|FILE",
        help=f"send sessions in a closed loop: {', '.join(SHAPES)}, a number that draws a shape, or a Mooncake JSONL",
    )
    sessions.add_argument(
        "--session-count", type=integer(1, 100_000), metavar="N", help="sessions (default: as the shape says)"
    )
    sessions.add_argument(
        "--turns", type=length_distribution, metavar="N|LOW-HIGH", help="turns of a session, without sub-agents"
    )
    sessions.add_argument(
        "--new-tokens", type=length_distribution, metavar="N|LOW-HIGH", help="tokens that each later turn adds"
    )
    sessions.add_argument("--users", type=integer(1, 100_000), metavar="N", help="sessions at once (default: all)")
    sessions.add_argument(
        "--in-flight", type=integer(1, 100_000), metavar="N", help="requests at once (default: all that are due)"
    )
    sessions.add_argument(
        "--session-ids", action="store_true", help=f"name each request's session in the header {SESSION_HEADER}"
    )
    sessions.add_argument(
        "--think-scale", type=_think_scale, default=1.0, metavar="X", help="factor for think times (default: 1)"
    )


def session_source(options: argparse.Namespace) -> SessionSource:
    """The source that the options name. Raises StartError, ManifestError."""
    text = options.sessions
    if text in SHAPES:
        return SessionSource(text, _changed(SHAPES[text], options))
    if text.isascii() and text.isdigit():
        if int(text[:12]) > MOST_NUMBER:
            raise StartError(f"--sessions: {text} is not allowed: a number must be at most {MOST_NUMBER}")
        return SessionSource(f"drawn shape {int(text)}", _changed(drawn_shape(int(text)), options))
    if not Path(text).is_file():
        allowed = f"{', '.join(SHAPES)}, a number, or a file of Mooncake's JSON lines"
        raise StartError(f"--sessions: {text!r} is not allowed: must be one of {allowed}")
    for flag in ("session_count", "turns", "new_tokens", "prompt_tokens", "output_tokens"):
        if getattr(options, flag, None) is not None:
            raise StartError(f"--{flag.replace('_', '-')}: not allowed with a trace, which says it")
    try:
        return SessionSource(Path(text).stem, None, read_hash_trace(Path(text)))
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--sessions: {text} cannot be read: {error}") from error


def _changed(shape: SessionShape, options: argparse.Namespace) -> SessionShape:
    """The shape, with what other options say."""
    if options.session_count is not None:
        shape = replace(shape, sessions=options.session_count)
    if options.turns is not None:
        shape = replace(shape, turns=_span(options.turns, "--turns"))
    if options.new_tokens is not None:
        shape = replace(shape, new_tokens=_span(options.new_tokens, "--new-tokens"))
    if options.output_tokens is not None:
        shape = replace(shape, output_tokens=_span(options.output_tokens, "--output-tokens"))
    if options.shared_tokens is not None:
        shape = replace(shape, head_tokens=options.shared_tokens)
    if options.beginnings is not None:
        shape = replace(shape, heads=options.beginnings)
    if options.prompt_tokens is not None:
        first = _span(options.prompt_tokens, "--prompt-tokens")
        if first.low <= shape.head_tokens:
            raise StartError(
                f"--prompt-tokens: {options.prompt_tokens} is not allowed: must be over the {shape.head_tokens} tokens "
                "that sessions have in common"
            )
        shape = replace(shape, first_tokens=LogUniform(first.low - shape.head_tokens, first.high - shape.head_tokens))
    return shape


def _span(lengths: LengthDistribution, flag: str) -> LogUniform:
    if lengths.is_lognormal:
        raise StartError(f"{flag}: {lengths} is not allowed with --sessions: must be N or LOW-HIGH")
    return LogUniform(lengths.low, lengths.high)


def loop_limits(options: argparse.Namespace) -> LoopLimits:
    return LoopLimits(options.users, options.in_flight, options.think_scale, 1.0 / options.rate_scale, options.duration)


@dataclass(slots=True)
class SessionMeasurement:
    """The runs of a load of sessions so far, one after the other on one server."""

    server: LoadedServer
    limits: LoopLimits
    sends_ids: bool
    """Each request says in a header to which session it belongs."""
    runs: list[SessionRun] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def answers(self) -> list[Answer]:
        return [turn.answer for run in self.runs for turn in run.answers]

    async def run(self, load: SessionLoad, number: int) -> None:
        """Carry out a load and add it to the runs; one that is cancelled as far as it went. `number`: of the loads on
        one server, no two of which have a prompt in common."""
        prompts = SessionPrompts(_writer(self.server, number))
        answers: list[TurnAnswer] = []

        async def send_turn(turn: SessionTurn) -> Answer:
            headers = {SESSION_HEADER: f"{number}-{turn.session}"} if self.sends_ids else {}
            request = self.server.request_of_json(prompts.as_json(turn.prompt), turn.output_tokens, headers)
            return await send(self.server.session, self.server.endpoint, request)

        with ProgressBar(PROGRAM, len(load.turns), " turns") as bar:

            def on_answer(turn: TurnAnswer) -> None:
                answers.append(turn)
                bar.at(len(answers))

            began_s = time.monotonic()
            try:
                await closed_loop(load, send_turn, self.limits, on_answer)
            finally:
                self.duration_s += time.monotonic() - began_s
                self.runs.append(SessionRun(load, tuple(sorted(answers, key=lambda turn: turn.answer.sent_s))))


def _writer(server: LoadedServer, number: int) -> SegmentWriter:
    """Segments of the kind that the server's prompts are, with a salt of their own for each load."""
    match server.prompts:
        case IdPrompts(first, last, salt):
            return IdSegments(first, last, salt + number)
        case WordPrompts(_, per_word, salt):
            return WordSegments(per_word, salt + number)
    raise AssertionError("prompts are ids or words")


def _think_scale(text: str) -> float:
    return 0.0 if text == "0" else positive(text)
