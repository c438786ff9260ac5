"""The options that make loads of sessions, for `baton bench`, `baton simulate` and `baton plan`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from baton_local.argument_types import integer, positive
from baton_local.errors import StartError
from baton_local.load_test.length_distribution import LengthDistribution, length_distribution
from baton_simulate.sessions.hash_traces import read_hash_trace
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_load import SessionLoad
from baton_simulate.sessions.session_shapes import SHAPES, LogUniform, SessionShape, drawn_shape
from baton_simulate.sessions.turn_order import LoopLimits

MOST_NUMBER: Final = 1 << 30


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


def add_session_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options that make sessions. Returns their group."""
    sessions = parser.add_argument_group("sessions")
    sessions.add_argument(
        "--sessions",
        metavar="SHAPE|NUMBER|FILE",
        help=f"run sessions in a closed loop: {', '.join(SHAPES)}, a number that draws a shape, or a Mooncake JSONL",
    )
    sessions.add_argument(
        "--session-count", type=integer(1, 100_000), metavar="N", help="number of sessions (default: the shape's own)"
    )
    sessions.add_argument(
        "--turns", type=length_distribution, metavar="N|LOW-HIGH", help="turns of a session, not counting sub-agents"
    )
    sessions.add_argument(
        "--new-tokens", type=length_distribution, metavar="N|LOW-HIGH", help="tokens that each later turn adds"
    )
    sessions.add_argument(
        "--users", type=integer(1, 100_000), metavar="N", help="maximum sessions at once (default: all)"
    )
    sessions.add_argument(
        "--in-flight",
        type=integer(1, 100_000),
        metavar="N",
        help="maximum requests at once (default: all that are due)",
    )
    sessions.add_argument(
        "--think-scale", type=_think_scale, default=1.0, metavar="X", help="factor for think times (default: 1)"
    )
    return sessions


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """Options that change a shape, for commands that do not have them for other loads."""
    shapes = parser.add_argument_group("lengths of sessions")
    for flag, what in (("--prompt-tokens", "a session's first prompt"), ("--output-tokens", "an answer")):
        shapes.add_argument(flag, type=length_distribution, metavar="N|LOW-HIGH", help=f"tokens of {what}")
    shapes.add_argument(
        "--shared-tokens", type=integer(0, 1 << 20), metavar="N", help="tokens that sessions have in common"
    )
    shapes.add_argument("--beginnings", type=integer(1, 1 << 20), metavar="N", help="number of common beginnings")


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


def _think_scale(text: str) -> float:
    return 0.0 if text == "0" else positive(text)
