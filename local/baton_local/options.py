"""The command line of `baton`: what can be asked, and what is wrong with what was asked."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from baton_local.argument_types import device, integer, size, volume

DEFAULT_PORT = 8000
KEY_VARIABLE = "BATON_API_KEY"
"""Environment variable with the key that clients need, for `up`, or have, for `ask`."""


DISTRIBUTION = "baton-serving"


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line. Exits with status 2 and a usage line when it is wrong."""
    return command_line(frozenset(arguments[:1])).parse_args(arguments)


def command_line(filled: frozenset[str]) -> argparse.ArgumentParser:
    """All commands. Some need numpy or torch for their options: only of those in `filled` they are all there."""
    parser = argparse.ArgumentParser(
        prog="baton", description="Serve a model through separate prefill and decode workers on this machine."
    )
    parser.add_argument("--version", action="store_true", help="what is installed")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_up(commands.add_parser("up", help="run an LLMDeployment until Ctrl-C", allow_abbrev=False))
    _add_demo(commands.add_parser("demo", help="run one, ask it a question, show what moved, stop", allow_abbrev=False))
    _add_status(commands.add_parser("status", help="what runs, with its latencies", allow_abbrev=False))
    _add_ask(commands.add_parser("ask", help="ask the running deployment", allow_abbrev=False))
    _add_logs(commands.add_parser("logs", help="what its processes wrote", allow_abbrev=False))
    batch = commands.add_parser("batch", help="answer a file of requests, without serving", allow_abbrev=False)
    simulate = commands.add_parser(
        "simulate", help="replay a load under a scaling policy, on paper", allow_abbrev=False
    )
    plan = commands.add_parser("plan", help="what a model can do on an accelerator, on paper", allow_abbrev=False)
    quantise = commands.add_parser("quantise", help="a copy of a model with weights of 8 or 4 bits", allow_abbrev=False)
    compiling = commands.add_parser(
        "compile", help="a model's kernels for a GPU, ahead of any start; needs no GPU", allow_abbrev=False
    )
    bench = commands.add_parser(
        "bench", help="a load on a server, and the latencies that clients saw", allow_abbrev=False
    )
    quality = commands.add_parser("quality", help="what a model loses against another, on a text", allow_abbrev=False)
    commands.add_parser("version", help="what is installed", allow_abbrev=False)
    completion = commands.add_parser("completion", help="for a shell: tab completes commands", allow_abbrev=False)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    late = {
        "batch": batch,
        "simulate": simulate,
        "plan": plan,
        "quantise": quantise,
        "compile": compiling,
        "bench": bench,
        "quality": quality,
    }
    _add_late({name: late[name] for name in filled & late.keys()})
    return parser


def _add_late(filled: Mapping[str, argparse.ArgumentParser]) -> None:
    """Options of the commands that need numpy or torch, imported only when one of them was asked for."""
    if "batch" in filled:
        from baton_local.batch.command import add_options as add_batch

        add_batch(filled["batch"])
    if "simulate" in filled:
        from baton_local.commands.simulate import add_options as add_simulate

        add_simulate(filled["simulate"])
    if "plan" in filled:
        from baton_local.commands.plan import add_options as add_plan

        add_plan(filled["plan"])
    if "quantise" in filled:
        from baton_local.commands.quantise import add_options as add_quantise

        add_quantise(filled["quantise"])
    if "compile" in filled:
        from baton_local.commands.compile_kernels import add_options as add_compile

        add_compile(filled["compile"])
    if "bench" in filled:
        from baton_local.commands.bench import add_options as add_bench

        add_bench(filled["bench"])
    if "quality" in filled:
        from baton_local.quality.measuring import add_options as add_quality

        add_quality(filled["quality"])


def _add_up(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "source", nargs="?", metavar="MODEL", help="a model's folder, hf://ORG/NAME[@REVISION], s3://… or oci://…"
    )
    what.add_argument("-f", "--file", type=Path, metavar="FILE", help="an LLMDeployment (YAML) instead of MODEL")
    parser.add_argument("--served-name", metavar="NAME", help="with MODEL: what clients write (default: its own name)")
    parser.add_argument(
        "--max-context-tokens", type=integer(16, 1 << 20), metavar="N", help="with MODEL (default: what fits)"
    )
    _add_serving(parser)


def add_fetching(parser: argparse.ArgumentParser) -> None:
    """Where models go that have to be fetched."""
    parser.add_argument("--latest", action="store_true", help="with hf://: ask the hub again what a name means")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="of fetched models (default: ~/.cache/baton/models)")
    parser.add_argument("--cache-size", type=size, metavar="SIZE", help="most that it may hold (default: 100Gi)")


def _add_serving(parser: argparse.ArgumentParser) -> None:
    """How to serve what was chosen."""
    add_fetching(parser)
    parser.add_argument(
        "--port", type=integer(0, 65_535), default=DEFAULT_PORT, metavar="N", help="of the gateway; 0: any free one"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="IP", help="address of the gateway (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that clients need, one a line, or a folder of such files",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"the one key that clients need; {KEY_VARIABLE} keeps it out of process lists"
    )
    parser.add_argument("--open", action="store_true", help="serve without keys on an address that others can reach")
    parser.add_argument(
        "--volume", type=volume, action="append", default=[], metavar="NAME=PATH", help="directory for pvc://NAME/…"
    )
    parser.add_argument(
        "--device", type=device, metavar="cpu|cuda", help="what both pools compute on, whatever the file asks for"
    )
    parser.add_argument(
        "--no-generation-defaults",
        action="store_true",
        help="sample as the API's defaults say, not as the model's generation_config.json does",
    )
    parser.add_argument(
        "--ignore-unknown-fields",
        action="store_true",
        help="ignore fields of requests that Baton does not know, and name them in X-Baton-Ignored",
    )
    parser.add_argument("--processes", type=integer(1, 64), metavar="N", help="gateway processes on the one port")
    parser.add_argument(
        "--emulate",
        metavar="ACCELERATOR[xN]:MODEL[/SLOWER][@SECONDS]",
        help="compute nothing: steps take SLOWER times as long as MODEL on N accelerators, a start SECONDS (30)",
    )
    parser.add_argument(
        "--ready-timeout",
        type=integer(1, 86_400),
        default=600,
        metavar="SECONDS",
        help="give up when not ready by then",
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=Path, required=True, metavar="FILE", help="the LLMDeployment (YAML)")
    _add_serving(parser)
    parser.set_defaults(port=0)
    parser.add_argument(
        "--question", default="Tell me the fable of the fox and the lantern.", metavar="TEXT", help="what is asked"
    )
    parser.add_argument("--max-tokens", type=integer(2, 1 << 20), default=160, metavar="N", help="length of the answer")


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--name", metavar="X", help="NAME or NAMESPACE.NAME when several run")
    parser.add_argument("--watch", action="store_true", help="again every two seconds, until Ctrl-C")


def _add_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", metavar="TEXT")
    parser.add_argument("--name", metavar="X", help="NAME or NAMESPACE.NAME when several run")
    parser.add_argument("--model", metavar="NAME", help="default: the one that is served")
    parser.add_argument("--max-tokens", type=integer(1, 1 << 20), metavar="N")
    parser.add_argument("--temperature", type=float, metavar="T")
    parser.add_argument("--no-stream", action="store_true", help="print the whole answer at the end")


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", nargs="?", metavar="PROCESS", help="one process, as `baton status` names it")
    parser.add_argument("--name", metavar="X", help="NAME or NAMESPACE.NAME when several run or ran")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
