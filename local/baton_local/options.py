"""The command line of `baton`: its commands, their options, and what argparse refuses."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from baton_local.argument_types import (
    DTYPES,
    device,
    dtype,
    integer,
    manifest_file,
    size,
    some_seconds,
    time_or,
    utc_time,
    volume,
    workers,
)
from baton_local.command_parser import CommandParser, add_renamed, apply_renamed
from baton_local.command_texts import ALIASES, TEXTS
from baton_local.shared_options import DEFAULT_PORT, KEY_VARIABLE, add_degrees, add_fetch_options

HELP_WIDTH = 78
NAME_HELP = "NAME or NAMESPACE.NAME of a deployment (default: the one that runs)"
DISTRIBUTION = "baton-serving"
AddOptions = Callable[[argparse.ArgumentParser], None]


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line. Exits with status 2 and a usage line when it is wrong."""
    named = frozenset(ALIASES.get(word, word) for word in arguments[:1])
    parser = command_line(named)
    options, unknown = parser.parse_known_args(arguments)
    apply_renamed(options)
    options.command = ALIASES.get(options.command, options.command)
    if unknown:
        command = parser.commands.get(options.command or "", parser)
        command.refuse_unknown(unknown)
    return options


class CommandLine(CommandParser):
    """The parser of all commands."""

    commands: dict[str, CommandParser]
    """The parser of each command."""


def command_line(complete: frozenset[str]) -> CommandLine:
    """The parser of all commands. `complete`: the names of commands whose options are added even if that imports numpy
    or torch; the other such commands have none."""
    parser = CommandLine(
        prog="baton",
        description="Serve a model with separate prefill and decode workers on this machine.",
        epilog="`baton COMMAND --help` shows a command's options and an example.",
    )
    parser.add_argument("--version", action="store_true", help="print the installed version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    parser.commands = {}
    for name, (summary, add_options) in COMMANDS.items():
        description, example = TEXTS[name]
        aliases = [alias for alias, command in ALIASES.items() if command == name]
        command = commands.add_parser(
            name,
            help=summary,
            aliases=aliases,
            allow_abbrev=False,
            description=textwrap.fill(description, HELP_WIDTH),
            epilog=f"example:\n  {example}",
        )
        parser.commands[name] = command
        if name in complete or name not in HEAVY_COMMANDS:
            add_options(command)
    return parser


def _add_up(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "source", nargs="?", metavar="MODEL", help="model folder, hf://ORG/NAME[@REVISION], s3://… or oci://…"
    )
    what.add_argument(
        "-f", "--file", type=manifest_file, metavar="FILE", help="manifest of an LLMDeployment (YAML) instead of MODEL"
    )
    parser.add_argument(
        "--served-name", metavar="NAME", help="with MODEL: model name in requests (default: the model's own name)"
    )
    parser.add_argument(
        "--max-context-tokens",
        type=integer(16, 1 << 20),
        metavar="N",
        help="with MODEL: maximum tokens of prompt and answer together (default: what fits into memory)",
    )
    for pool in ("prefill", "decode"):
        parser.add_argument(
            f"--{pool}",
            type=workers,
            metavar="N|MIN-MAX",
            help=f"with MODEL: number of {pool} workers, or the range in which they are sized (default: 1)",
        )
    add_degrees(parser)
    parser.add_argument(
        "--dtype",
        type=dtype,
        metavar="TYPE",
        help=f"with MODEL: type of weights and arithmetic, {', '.join(DTYPES)} (default: auto)",
    )
    parser.add_argument(
        "--kv-memory", type=size, metavar="SIZE", help="with MODEL: memory of each worker's KV cache (default: a share)"
    )
    _add_log_format(parser)
    _add_serving(parser)


def _add_serving(parser: argparse.ArgumentParser) -> None:
    """Add the options that `up` and `demo` share."""
    add_fetch_options(parser)
    parser.add_argument(
        "--port",
        type=integer(0, 65_535),
        default=DEFAULT_PORT,
        metavar="N",
        help="port of the gateway; 0: any free port (default: %(default)s)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="IP", help="IP address of the gateway (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="API keys that clients must send, one per line, or a folder of such files",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"API key that clients must send; the variable {KEY_VARIABLE} keeps it out of process lists",
    )
    parser.add_argument(
        "--open", action="store_true", help="serve without API keys on an address that other machines can reach"
    )
    parser.add_argument(
        "--volume",
        type=volume,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="folder for pvc://NAME",
    )
    parser.add_argument(
        "--device", type=device, metavar="cpu|cuda", help="device of both pools, whatever the manifest asks for"
    )
    parser.add_argument(
        "--no-generation-defaults",
        action="store_true",
        help="use the API's sampling defaults instead of the model's generation_config.json",
    )
    parser.add_argument(
        "--ignore-unknown-fields",
        action="store_true",
        help="ignore request fields that Baton does not know, and list them in the X-Baton-Ignored header",
    )
    parser.add_argument(
        "--clamp-max-tokens",
        action="store_true",
        help="answer a request for more tokens than fit the context with those that fit, instead of refusing it",
    )
    parser.add_argument("--processes", type=integer(1, 64), metavar="N", help="gateway processes that share the port")
    parser.add_argument(
        "--emulate",
        metavar="ACCELERATOR[xN]:MODEL[/SLOWER][@TIME]",
        help="compute nothing: a step takes SLOWER times as long as for MODEL on N accelerators, and "
        "the start of a worker takes TIME (default: 30s)",
    )
    parser.add_argument(
        "--ready-timeout",
        type=time_or("s"),
        default="10m",
        metavar="TIME",
        help="give up when the deployment is not ready by then (default: %(default)s)",
    )


def _add_log_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="form of the processes' log lines"
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--file",
        type=manifest_file,
        default=Path("examples/tiny.yaml"),
        metavar="FILE",
        help="manifest of an LLMDeployment (YAML); the default needs a checkout of Baton (default: %(default)s)",
    )
    _add_serving(parser)
    parser.set_defaults(port=0)
    parser.add_argument(
        "--question",
        default="Tell me the fable of the fox and the lantern.",
        metavar="TEXT",
        help="the question (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=integer(2, 1 << 20),
        default=160,
        metavar="N",
        help="maximum tokens of the answer (default: %(default)s)",
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    parser.add_argument("--watch", action="store_true", help="refresh every two seconds until Ctrl-C")


def _add_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    parser.add_argument(
        "--once", action="store_true", help="print the page once, for scripts (default: every two seconds until Ctrl-C)"
    )
    _add_format(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    from baton_local.explain.explain_options import add_options

    add_options(parser, NAME_HELP)


def _add_usage(parser: argparse.ArgumentParser) -> None:
    from baton_local.usage.usage_options import add_options

    add_options(parser, NAME_HELP)


def _add_history(parser: argparse.ArgumentParser) -> None:
    from baton_local.commands.history_options import add_options

    add_options(parser, NAME_HELP)


def _add_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", metavar="TEXT", help="the question")
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    _add_sampling(parser)
    add_renamed(parser, "--model", "--served-name")
    parser.add_argument("--no-stream", action="store_true", help="print the answer once it is complete")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options that `ask` and `chat` share."""
    parser.add_argument("--served-name", metavar="NAME", help="model name in the request (default: the served model's)")
    parser.add_argument(
        "--max-tokens",
        type=integer(1, 1 << 20),
        metavar="N",
        help="maximum tokens of the answer (default: what the context has room for)",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="sampling temperature (default: the model's own, or 1)"
    )


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    parser.add_argument("--system", metavar="TEXT", help="system message of the conversation (default: none)")
    _add_sampling(parser)


def _add_down(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("deployment", nargs="?", metavar="NAME", help="the same as --name NAME")
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    parser.add_argument(
        "--timeout",
        type=some_seconds,
        default="30s",
        metavar="TIME",
        help="time after which processes that still run are killed",
    )


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    from baton_local.doctor.doctor_options import add_options

    add_options(parser)
    _add_format(parser)


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="form of the output (default: %(default)s)"
    )


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="manifest (YAML, one or more documents); -: stdin")
    parser.add_argument(
        "--pod-policy",
        type=Path,
        metavar="FILE",
        help="what the installation allows in Pods: the chart's values, or their podPolicy (default: not checked)",
    )


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expires", type=utc_time, metavar="TIME", help="when gateways refuse the key, such as 2027-01-31T00:00:00Z"
    )


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "process",
        nargs="?",
        metavar="PROCESS",
        help="process by its name in `baton status`, or a part of that, such as prefill (default: all)",
    )
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until Ctrl-C")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    pass


# Each of these imports its command only when its options are needed: numpy and torch make `baton --help` slow.


def _add_batch(parser: argparse.ArgumentParser) -> None:
    from baton_local.batch.command import add_options

    add_options(parser)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    from baton_local.commands.simulate import add_options

    add_options(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    from baton_local.commands.plan import add_options

    add_options(parser)


def _add_quantise(parser: argparse.ArgumentParser) -> None:
    from baton_local.commands.quantise import add_options

    add_options(parser)


def _add_compile(parser: argparse.ArgumentParser) -> None:
    from baton_local.commands.compile_kernels import add_options

    add_options(parser)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from baton_local.commands.bench_options import add_options

    add_options(parser)


def _add_quality(parser: argparse.ArgumentParser) -> None:
    from baton_local.quality.measuring import add_options

    add_options(parser)


HEAVY_COMMANDS = frozenset(("batch", "simulate", "plan", "quantise", "compile", "bench", "quality"))
"""Commands whose options need numpy or torch."""
COMMANDS: Mapping[str, tuple[str, AddOptions]] = {
    "up": ("run an LLMDeployment until Ctrl-C", _add_up),
    "demo": ("start a deployment, ask it one question, show the KV transfers, stop it", _add_demo),
    "status": ("show the running processes and their latencies", _add_status),
    "top": ("watch pools, targets, queue, tenants and links live", _add_top),
    "explain": ("show where a request lost its time", _add_explain),
    "usage": ("add up what requests used, by day, tenant and model", _add_usage),
    "history": ("show what changed: sizes, restarts, spec, versions", _add_history),
    "ask": ("send one question to the running deployment", _add_ask),
    "chat": ("have a conversation with the running deployment", _add_chat),
    "logs": ("print the logs of the deployment's processes", _add_logs),
    "down": ("stop a running deployment", _add_down),
    "doctor": ("find what keeps this machine or a cluster from serving", _add_doctor),
    "validate": ("check manifests before you apply them to a cluster", _add_validate),
    "key": ("make an API key of a tenant, and its digest", _add_key),
    "batch": ("answer a file of requests with one engine, without serving", _add_batch),
    "simulate": ("replay a load under a scaling policy in the simulator", _add_simulate),
    "plan": ("estimate what a model can do on an accelerator", _add_plan),
    "quantise": ("copy a model with 8-bit or 4-bit weights", _add_quantise),
    "compile": ("compile a model's kernels ahead of time; needs no GPU", _add_compile),
    "bench": ("send a load to a server and report its latencies", _add_bench),
    "quality": ("compare a model's answers with a reference model's", _add_quality),
    "version": ("print the installed version", _add_nothing),
    "completion": ("print a shell's completion script", _add_completion),
}
"""Each command with its one-line help and the function that adds its options."""
