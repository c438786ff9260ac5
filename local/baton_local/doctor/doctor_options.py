"""The options of `baton doctor`, with their types and defaults."""

from __future__ import annotations

import argparse

from baton_local.argument_types import integer, some_seconds
from baton_local.shared_options import DEFAULT_PORT


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", action="store_true", help="check the cluster of the kubeconfig instead of this machine"
    )
    parser.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig; implies --cluster (default: the current one)"
    )
    parser.add_argument("--namespace", metavar="NAME", help="of the LLMDeployments (default: the context's)")
    parser.add_argument(
        "--operator-namespace", default="baton-system", metavar="NAME", help="of the operator (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=integer(1, 65_535),
        default=DEFAULT_PORT,
        metavar="N",
        help="port that a gateway is to take (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=some_seconds,
        default="10s",
        metavar="TIME",
        help="time after which what has not answered is reported as unknown (default: %(default)s)",
    )
