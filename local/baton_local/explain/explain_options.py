"""The options of `baton explain`."""

from __future__ import annotations

import argparse
from pathlib import Path

from baton_local.argument_types import integer


def add_options(parser: argparse.ArgumentParser, name_help: str) -> None:
    """Add them to the parser of the command."""
    add_query_options(parser)
    parser.add_argument("--name", metavar="NAME", help=name_help)
    parser.add_argument(
        "--url", metavar="URL", help="gateway to ask, at each of its addresses (default: this machine's)"
    )
    parser.add_argument(
        "--link-keys",
        type=Path,
        metavar="DIR",
        help="directory of the installation's link keys, to see all tenants (default: the API key's own requests)",
    )


def add_query_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose records and their form."""
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="id of the request (X-Request-Id, access log) or of its answer (chatcmpl-…)"
    )
    parser.add_argument("--slowest", type=integer(1, 100), metavar="N", help="the N slowest requests (default: 10)")
    parser.add_argument("--missed", action="store_true", help="only requests that missed a target or failed")
    parser.add_argument("--tenant", metavar="NAME", help="only requests of this tenant")
    parser.add_argument(
        "--format", choices=("text", "json", "perfetto"), default="text", help="perfetto: a file for ui.perfetto.dev"
    )
