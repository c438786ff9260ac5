"""The options of `baton usage`."""

from __future__ import annotations

import argparse
from pathlib import Path

from baton_local.argument_types import MOMENTS, moment

COLUMNS = ("day", "month", "tenant", "model", "task", "priority", "status")
"""The properties of requests by which usage may be grouped."""


def columns(text: str) -> tuple[str, ...]:
    """An argument's type: a list of columns."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(f"{name!r} is not allowed: must be among {', '.join(COLUMNS)}")
    if not names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be one or more of {', '.join(COLUMNS)}, once")
    return names


def day(text: str) -> str:
    """An argument's type: a day in UTC, also as the first one of a month, or as the one on which a time ago was."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment(text), UTC).date().isoformat()


def add_options(parser: argparse.ArgumentParser, name_help: str) -> None:
    """Add them to the parser of the command."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="folders of the ledger, or files of its lines (.gz too); - reads standard input (default: this machine's)",
    )
    parser.add_argument(
        "--by",
        type=columns,
        default=("day", "tenant", "model"),
        metavar="LIST",
        help=f"group by these, of {', '.join(COLUMNS)} (default: day,tenant,model)",
    )
    parser.add_argument(
        "--since",
        type=day,
        metavar="DAY",
        help=f"from this day (UTC) on: {MOMENTS}",
    )
    parser.add_argument("--until", type=day, metavar="DAY", help="before this day: as --since")
    parser.add_argument("--tenant", metavar="NAME", help="only requests of this tenant")
    parser.add_argument("--model", dest="served_model", metavar="NAME", help="only requests of this served model")
    parser.add_argument("--format", choices=("text", "csv", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument("--name", metavar="NAME", help=name_help)
