"""`kubectl baton`: get, top, explain, history, page, logs and doctor for deployments on a cluster."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from baton_local.__main__ import run_command
from baton_local.argument_types import integer, some_seconds
from baton_local.command_parser import CommandParser
from baton_local.commands.history_options import add_filter_options
from baton_local.explain.explain_options import add_query_options
from baton_local.kubectl.pod_access import PodAccess

NAME_HELP = "the LLMDeployment (default: the only one of the namespace)"
WATCH_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, as `baton` has them."""
    options = command_line().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "get": _get,
        "top": _top,
        "explain": _explain,
        "history": _history,
        "page": _page,
        "logs": _logs,
        "doctor": _doctor,
    }
    return run_command(commands[options.command], options)


def command_line() -> CommandParser:
    """The parser of all commands."""
    parser = CommandParser(
        prog="kubectl baton", description="Look at deployments on a cluster, with the rights of your kubeconfig."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=CommandParser)
    adders: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
        "get": ("list deployments with their pools, targets and reasons", _add_format),
        "top": ("watch pools, targets, queue, tenants and links live", _add_top),
        "explain": ("show where a request lost its time, over all gateways", add_query_options),
        "history": ("show what changed: sizes, limits, restarts, conditions, spec, images", add_filter_options),
        "page": ("serve the page over all gateways on this machine", _add_page),
        "logs": ("print the Pods' logs, merged by time", _add_logs),
        "doctor": ("find what keeps the cluster from serving", _add_doctor),
    }
    for name, (summary, add_options) in adders.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        add_options(command)
        if name not in ("get", "doctor"):
            command.add_argument("--name", metavar="NAME", help=NAME_HELP)
        command.add_argument("--context", metavar="NAME", help="of the kubeconfig (default: the current one)")
        command.add_argument("-n", "--namespace", metavar="NAME", help="of the LLMDeployments (default: the context's)")
        command.add_argument(
            "--timeout",
            type=some_seconds,
            default="10s",
            metavar="TIME",
            help="time after which what has not answered is named as missing (default: %(default)s)",
        )
    return parser


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text", help="form of the output")


def _add_top(parser: argparse.ArgumentParser) -> None:
    _add_format(parser)
    parser.add_argument("--once", action="store_true", help="print the page once (default: every 5 s until Ctrl-C)")


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=integer(0, 65_535), default=8001, metavar="N", help="port on 127.0.0.1 (default: %(default)s)"
    )


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "worker", nargs="?", metavar="ROLE|POD", help="prefill, decode or gateway, or a part of a Pod's name"
    )
    parser.add_argument("--since", type=some_seconds, default="10m", metavar="TIME", help="how far to look back")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until Ctrl-C")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _add_format(parser)
    parser.add_argument(
        "--operator-namespace", default="baton-system", metavar="NAME", help="of the operator (default: %(default)s)"
    )


def _access(options: argparse.Namespace) -> PodAccess:
    from baton_local.doctor.cluster_reading import connect

    return PodAccess(connect(options.context, options.namespace, options.timeout), options.timeout)


def _get(options: argparse.Namespace) -> int:
    from baton_local.kubectl.deployment_table import as_json, as_text

    access = _access(options)
    deployments = access.deployments()
    is_json = options.format == "json"
    print(json.dumps(as_json(deployments), indent=2) if is_json else as_text(deployments, access.namespace))
    return 0


def _top(options: argparse.Namespace) -> int:
    from baton_local.commands.status import watch
    from baton_local.commands.top import page
    from baton_local.kubectl.cluster_source import observe_cluster

    access = _access(options)

    def shown() -> str:
        return page(observe_cluster(access, options.name), options.format, not options.once)

    if not options.once:
        watch(shown, sys.stdout, is_live=sys.stdout.isatty() and options.format == "text", every_s=WATCH_S)
    print(shown())
    return 0


def _explain(options: argparse.Namespace) -> int:
    from baton_local.commands.explain import ExplainOptions, print_answer, query_of
    from baton_local.kubectl.cluster_source import find_records

    query = query_of(ExplainOptions(options.id, options.slowest, options.missed, options.tenant))
    return print_answer(find_records(_access(options), options.name, query), query, options.format)


def _history(options: argparse.Namespace) -> int:
    from baton_local.commands.history import HistoryOptions, print_history
    from baton_local.kubectl.cluster_source import read_cluster_history

    changes = read_cluster_history(_access(options), options.name).entries
    return print_history(changes, HistoryOptions(None, options.since, options.kind, options.format), time.time())


def _page(options: argparse.Namespace) -> int:
    from baton_local.kubectl.cluster_page import ClusterPage, run_cluster_page
    from baton_local.kubectl.cluster_source import choose_deployment

    access = _access(options)
    name = str(choose_deployment(access, options.name)["metadata"]["name"])

    def ready(port: int) -> None:
        print(f"the page of {name}: http://127.0.0.1:{port}/ui/ (Ctrl-C ends it)", flush=True)

    run_cluster_page(ClusterPage(access, name), options.port, ready)
    return 0


def _logs(options: argparse.Namespace) -> int:
    from baton_local.kubectl.pod_logs import run_cluster_logs

    return run_cluster_logs(_access(options), options.name, options.worker, options.since, options.follow)


def _doctor(options: argparse.Namespace) -> int:
    from baton_local.commands.doctor import DoctorOptions, run_doctor

    return run_doctor(
        DoctorOptions(
            is_cluster=True,
            context=options.context,
            namespace=options.namespace,
            operator_namespace=options.operator_namespace,
            limit_s=options.timeout,
            is_json=options.format == "json",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
