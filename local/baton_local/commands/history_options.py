"""The options of `baton history`."""

from __future__ import annotations

import argparse

from baton_local.argument_types import look_back

KINDS = ("decision", "limit", "restart", "spec", "version", "condition")
"""The kinds of changes (`baton_wire.deployment_history.ChangeKind`), whose module the help need not load."""


def add_options(parser: argparse.ArgumentParser, name_help: str) -> None:
    """Add them to the parser of the command."""
    parser.add_argument("--name", metavar="NAME", help=name_help)
    add_filter_options(parser)


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose changes and their form."""
    parser.add_argument(
        "--since",
        type=look_back,
        metavar="TIME",
        help="only changes since TIME: 24h or 7d ago, a day, or yesterday",
    )
    parser.add_argument("--kind", choices=KINDS, help="only changes of this kind")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="form of the output (default: %(default)s)"
    )
