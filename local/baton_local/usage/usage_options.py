"""The options of `baton usage`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

COLUMNS = ("day", "month", "tenant", "model", "task", "priority", "status")
"""The properties of requests by which usage may be grouped."""
_DAY = re.compile(r"\d{4}-\d{2}(-\d{2})?")


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
    """An argument's type: a day in UTC, or a month, which means its first day."""
    from datetime import date

    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text if len(text) == 10 else f"{text}-01").isoformat()
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be a day or a month such as 2026-11-30 or 2026-11")


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
    parser.add_argument("--since", type=day, metavar="DAY", help="from this day (UTC) or month on")
    parser.add_argument("--until", type=day, metavar="DAY", help="before this day (UTC) or month")
    parser.add_argument("--tenant", metavar="NAME", help="only requests of this tenant")
    parser.add_argument("--model", dest="served_model", metavar="NAME", help="only requests of this served model")
    parser.add_argument("--format", choices=("text", "csv", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument("--name", metavar="NAME", help=name_help)
