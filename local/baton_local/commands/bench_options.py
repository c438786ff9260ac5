"""The options of `baton bench`, with their types and defaults."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from baton_local.argument_types import integer, positive, some_seconds
from baton_local.command_parser import add_renamed
from baton_local.commands.session_bench import SESSION_HEADER
from baton_local.commands.session_options import add_session_options
from baton_local.load_test.length_distribution import length_distribution
from baton_local.load_test.load_plan import ArrivalKind

PROMPT_TOKENS: Final = "512"
OUTPUT_TOKENS: Final = "128"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton bench`."""
    server = parser.add_argument_group("server")
    server.add_argument(
        "--endpoint", metavar="URL", help="URL such as http://127.0.0.1:8000 (default: the running deployment's)"
    )
    server.add_argument(
        "--name", metavar="NAME", help="NAME or NAMESPACE.NAME of a deployment (default: the one that runs)"
    )
    server.add_argument("--as", dest="label", metavar="X", help="name of the server in tables and plots")
    server.add_argument(
        "--served-name", metavar="NAME", help="model name in requests (default: the first that the server lists)"
    )
    add_renamed(server, "--model", "--served-name")
    server.add_argument(
        "--accelerators",
        type=integer(1, 1 << 16),
        metavar="N",
        help="accelerators of the server, to report tokens per second of each (default: not reported)",
    )
    add_renamed(server, "--gpus", "--accelerators", type=integer(1, 1 << 16))
    server.add_argument("--plain", action="store_true", help="send only fields of OpenAI's API: answers may end early")
    server.add_argument("--chat", action="store_true", help="use /v1/chat/completions: prompts are user messages")
    server.add_argument(
        "--ids", type=_ids, metavar="LOW-HIGH", help="make prompts of these token ids, with exact lengths"
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--rate", type=positive, nargs="+", metavar="R", help="requests per second; several rates run one after another"
    )
    load.add_argument(
        "--find", type=_rates, metavar="LOW-HIGH", help="search for the highest rate that meets each target"
    )
    load.add_argument(
        "--arrivals",
        type=ArrivalKind,
        choices=list(ArrivalKind),
        default=ArrivalKind.POISSON,
        help="distribution of arrivals (default: %(default)s)",
    )
    load.add_argument(
        "--duration",
        type=some_seconds,
        metavar="TIME",
        help="how long requests arrive (default: 60s; sessions until they end)",
    )
    load.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="take lengths from a trace, without --rate its arrival times too: Azure CSV, Mooncake JSONL",
    )
    load.add_argument(
        "--rate-scale", type=positive, default=1.0, metavar="X", help="factor for the rate of a trace (default: 1)"
    )
    load.add_argument(
        "--prompt-tokens",
        type=length_distribution,
        metavar="N|LOW-HIGH|MEDIAN~P99",
        help=f"tokens of a prompt, or of a session's first one (default: {PROMPT_TOKENS})",
    )
    load.add_argument(
        "--output-tokens",
        type=length_distribution,
        metavar="N|LOW-HIGH|MEDIAN~P99",
        help=f"tokens of an answer (default: {OUTPUT_TOKENS})",
    )
    load.add_argument(
        "--shared-tokens",
        type=integer(0, 1 << 20),
        metavar="N",
        help="tokens at the start of a prompt that prompts share (default: 0)",
    )
    load.add_argument(
        "--beginnings",
        type=integer(1, 1 << 20),
        metavar="N",
        help="number of different shared starts (default: 1)",
    )
    load.add_argument(
        "--warmup", type=integer(0, 10_000), default=4, metavar="N", help="requests before the load (default: 4)"
    )
    load.add_argument(
        "--seeds",
        type=integer(1, 100),
        default=1,
        metavar="N",
        help="runs of each rate, reported together (default: 1)",
    )
    load.add_argument("--seed", type=integer(0, 1 << 30), default=1, metavar="N", help="first seed (default: 1)")
    load.add_argument(
        "--timeout", type=some_seconds, default=600.0, metavar="TIME", help="timeout of a request (default: 600s)"
    )
    sessions = add_session_options(parser)
    sessions.add_argument(
        "--session-ids", action="store_true", help=f"name each request's session in the header {SESSION_HEADER}"
    )
    goal = parser.add_argument_group("targets")
    goal.add_argument("--ttft", type=some_seconds, metavar="TIME", help="TTFT target, such as 500ms")
    goal.add_argument(
        "--tpot", type=some_seconds, nargs="+", default=[], metavar="TIME", help="TPOT targets, such as 10ms 25ms"
    )
    goal.add_argument(
        "--percentile",
        type=_percentile,
        default=95.0,
        metavar="P",
        help="percentage of requests that must meet the targets (default: 95)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the record as JSON, for --beside too")
    output.add_argument("--plot", type=Path, metavar="FILE", help="draw a plot, .png or .svg (needs the extra `plot`)")
    output.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="earlier --json files to show in the same table and plot",
    )


def fill_defaults(options: argparse.Namespace) -> None:
    """Fill what a load of single requests has by default; sessions have their own."""
    if options.sessions is not None:
        return
    usual = {
        "duration": 60.0,
        "prompt_tokens": length_distribution(PROMPT_TOKENS),
        "output_tokens": length_distribution(OUTPUT_TOKENS),
        "shared_tokens": 0,
        "beginnings": 1,
    }
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def _rates(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    rates = positive(low), positive(high)
    if rates[0] >= rates[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: the first rate must be under the second")
    return rates


def _ids(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 8 for part in (low, high)) or int(low) > int(high):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be LOW-HIGH, two token ids")
    return int(low), int(high)


def _percentile(text: str) -> float:
    percentile = positive(text)
    if not 50.0 <= percentile < 100.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be from 50 to under 100")
    return percentile
