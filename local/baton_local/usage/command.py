"""`baton usage`: requests and tokens by day, tenant and model, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import os
import sys
from pathlib import Path

from baton_local.errors import StartError
from baton_local.fleet.run_dir import RunDir, base_directory, find_run
from baton_local.text_table import table
from baton_local.usage.line_reader import find_files, read_all
from baton_local.usage.usage_sums import UsageFilter, UsageSum, UsageSums

FIELDS = tuple(field.name for field in dataclasses.fields(UsageSum))


def run_usage(options: argparse.Namespace) -> int:
    """Print the usage; returns the exit status. Raises LocalError."""
    sums = UsageSums(options.by, UsageFilter(options.since, options.until, options.tenant, options.served_model))
    files = find_files(options.paths or local_folders(options.name))
    read_all(files, sums)
    print({"text": as_text, "csv": as_csv, "json": as_json}[options.format](sums))
    if options.format == "csv":
        for note in notes(sums):
            print(f"baton: {note}", file=sys.stderr)
    return 0


def local_folders(name: str | None) -> list[Path]:
    """The ledgers of this machine's deployments, also of those that have ended. Raises StartError."""
    base = base_directory(os.environ)
    runs = [RunDir(path) for path in sorted(base.iterdir())] if name is None else [find_run(base, name, must_run=False)]
    existing = [run.ledger for run in runs if run.ledger.is_dir()]
    if not existing:
        raise StartError("no deployment of this machine has a ledger: name its folder, as in `baton usage FOLDER`")
    return existing


def notes(sums: UsageSums) -> list[str]:
    """Remarks on requests and lines that are not in the sums."""
    lines = []
    if sums.unclosed:
        tokens = sum(sums.unclosed.values())
        lines.append(
            f"{len(sums.unclosed):,} requests with {tokens:,} input tokens have no end and are not counted: "
            "they are open, or their gateway is gone"
        )
    if sums.duplicates:
        lines.append(f"{sums.duplicates:,} closing lines came twice and count once")
    if sums.unread:
        lines.append(f"{sums.unread:,} lines are torn or of another release and do not count")
    return lines


def as_text(sums: UsageSums) -> str:
    """The usage as a table with a total."""
    rows = [(*group, *dataclasses.astuple(usage)) for group, usage in sorted(sums.groups.items())]
    total = ("total", *[""] * (len(sums.by) - 1), *dataclasses.astuple(sums.total()))
    header = [name.replace("accelerator_seconds", "acc-s").upper().replace("_", " ") for name in (*sums.by, *FIELDS)]
    return "\n".join((table(header, [*rows, total]), *notes(sums)))


def as_csv(sums: UsageSums) -> str:
    """The usage as CSV. A count that is not known is empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow((*sums.by, *FIELDS))
    for group, usage in sorted(sums.groups.items()):
        writer.writerow((*map(_plain, group), *dataclasses.astuple(usage)))
    return page.getvalue().rstrip("\n")


def as_json(sums: UsageSums) -> str:
    """The usage as JSON."""
    rows = [
        dict(zip(sums.by, group, strict=True)) | dataclasses.asdict(usage)
        for group, usage in sorted(sums.groups.items())
    ]
    return json.dumps(
        {
            "usage": rows,
            "total": dataclasses.asdict(sums.total()),
            "unclosed_requests": len(sums.unclosed),
            "unclosed_input_tokens": sum(sums.unclosed.values()),
            "duplicates": sums.duplicates,
            "unread_lines": sums.unread,
        },
        indent=2,
    )


def _plain(text: str) -> str:
    """A text that spreadsheets do not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
