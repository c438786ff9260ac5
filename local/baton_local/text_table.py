"""Plain text tables, aligned by `rich`, which knows how wide a character is on a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 4096
"""Wider than any row: a table that is cut or wrapped cannot be searched."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with aligned columns, two spaces apart. None is a dash; columns of integers are right-aligned.

    >>> print(table(("NAME", "COUNT"), [("prefill", 2), ("decode", 1_000)]))
    NAME     COUNT
    prefill      2
    decode   1,000
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column, name in enumerate(header):
        is_number = any(isinstance(row[column], int) for row in rows)
        grid.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*(_format(cell) for cell in row))
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def milliseconds(seconds: float | None) -> str:
    """A latency in milliseconds; `-` when unknown.

    >>> milliseconds(0.0123), milliseconds(0.00004), milliseconds(0.0)
    ('12.3 ms', '<0.1 ms', '<0.1 ms')
    """
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 5e-5 else "<0.1 ms"


def gigabytes(size: int) -> str:
    """A size in gigabytes, a small one in megabytes."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _format(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
