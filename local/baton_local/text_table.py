"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with aligned columns, two spaces apart. None is a dash; columns of integers are right-aligned.

    >>> print(table(("NAME", "COUNT"), [("prefill", 2), ("decode", 1_000)]))
    NAME     COUNT
    prefill      2
    decode   1,000
    """
    cells = [[_format(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *cells]) for column in range(len(header))]
    is_number = [any(isinstance(row[column], int) for row in rows) for column in range(len(header))]

    def line(texts: Sequence[str]) -> str:
        pairs = zip(texts, widths, is_number, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in pairs).rstrip()

    return "\n".join([line(list(header)), *(line(row) for row in cells)])


def milliseconds(seconds: float | None) -> str:
    """A latency in milliseconds; `-` when unknown."""
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _format(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
